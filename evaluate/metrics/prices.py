"""Cost and time of a training: money and days for a number of tokens, time to a loss and to MLPerf's quality target.

Prices of GPU hours come from evaluate/prices.json, or from a file of the same form that the user names.
Prices are third-party prices of one day, and change by more than most differences between GPUs. Every figure that uses
a price names its date and source, and is shown with the price SENSITIVITY higher and lower.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.metrics.figures import Figure, quotient, unknown
from utils.errors import counted, quoted, shortened
from utils.hardware.devices import Device
from utils.input_files import InputFileError, json_of
from utils.results.schema import Result

PRICES_PATH = Path(__file__).parents[1] / "prices.json"
LOWEST, HIGHEST = 1e-4, 1e9
"""Prices of a GPU hour, in any currency."""
SENSITIVITY = 0.25
TOKEN_BUDGETS = {"1T": 1e12, "15T": 15e12}
MLPERF_SAMPLES = {16: 161_109, 32: 178_859, 64: 226_645, 96: 278_640, 128: 344_747}
"""Mean number of samples of 8,192 tokens to a log perplexity of 3.3, by global batch size: reference convergence points
of llama31_8b, MLPerf Training v5.1, BF16, 20 runs each (mlcommons/logging, rcps_llama31_8b.json)."""
MLPERF_SEQUENCE_LENGTH = 8192
LOSS_WINDOW = 10
"""Steps whose mean is the loss at a step; the loss of a single step is mostly noise of its batch."""
HOUR_SECONDS, DAY_SECONDS = 3600.0, 86_400.0


class PriceError(ValueError):
    """A price table is unusable; the message names the file and the defect."""


@dataclass(frozen=True)
class Price:
    """One GPU for one hour."""

    amount: float
    currency: str
    date: str
    source: str

    def __str__(self) -> str:
        return f"{self.amount:.2f} {self.currency} a GPU hour ({self.source}, {self.date})"


def load(path: Path = PRICES_PATH) -> dict[str, Price]:
    """Return the prices by device name of utils/hardware/devices.py; raise PriceError for an unusable table."""
    try:
        return table_of(json_of(path))
    except InputFileError as error:
        raise PriceError(f"{path}: cannot be read ({error}); wanted a JSON file of prices") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PriceError(
            f'{path}: {error}; wanted {{"currency": "USD", "prices": {{DEVICE: {{"price": 1.5, "date": "2026-05-18", '
            '"source": "..."}}}}'
        ) from error


def table_of(content: Any) -> dict[str, Price]:
    """Return the prices in a table; raise ValueError, KeyError, TypeError or AttributeError for another form."""
    currency = str(content["currency"])
    return {name: _price(name, entry, currency) for name, entry in content["prices"].items()}


def as_json(table: Mapping[str, Price]) -> dict[str, Any] | None:
    """Return the content of a table with these prices, all of one currency; None if there are no prices."""
    if not table:
        return None
    prices = {}
    for name, price in table.items():
        prices[name] = {"price": price.amount, "date": price.date, "source": price.source}
    return {"currency": next(iter(table.values())).currency, "prices": prices}


def _price(name: str, entry: dict[str, Any], currency: str) -> Price:
    amount = entry["price"]
    # true is a number to Python, and no price
    is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
    if not is_number or not LOWEST <= amount <= HIGHEST:
        raise ValueError(
            f"price of {shortened(name)}: got {quoted(amount)}, wanted a number from {LOWEST:g} to {HIGHEST:g}"
        )
    return Price(float(amount), currency, str(entry["date"]), str(entry["source"]))


def cost(tokens_per_second: float, gpus: int, device: Device | None, prices: Mapping[str, Price]) -> dict[str, Figure]:
    """Return days and money for TOKEN_BUDGETS on `gpus` GPUs; money is unknown if the table has no price."""
    price = prices.get(device.name) if device else None
    currency = price.currency if price else "USD"
    if price:
        how = f"{price}; {SENSITIVITY:.0%} more or less of the price is as much of the cost"
        hour = Figure(price.amount * gpus, f"{currency}/h", how)
    else:
        how = f"no price of {device.name if device else 'this device'} in the table; pass one with --prices"
        hour = unknown(f"{currency}/h", how)
    second = hour.map(lambda cost: cost / HOUR_SECONDS, f"{currency}/s", how)
    rate = Figure(tokens_per_second, "tokens/s", "")
    found = {
        "tokens_per_dollar": quotient(rate, second, f"tokens/{currency}", how),
        "tokens_per_second_per_dollar_hour": quotient(rate, hour, f"tokens/s for {currency}/h", how),
    }
    for name, tokens in TOKEN_BUDGETS.items():
        seconds = tokens / tokens_per_second
        on_gpus = f"{name} tokens / tokens/s, on {counted(gpus, 'device')}"
        found[f"time_to_{name}_tokens"] = Figure(seconds / DAY_SECONDS, "days", on_gpus)
        found[f"cost_of_{name}_tokens"] = Figure(second.value and second.value * seconds, currency, how)
    return found


def time_to_loss(result: Result, target: float | None) -> Figure:
    """Return the seconds until the loss of this run came down to `target`; unknown if it never did."""
    if target is None:
        return unknown("s", "no target was named: pass one with --target-loss")
    losses, times = result["loss_values"], result["step_times"]
    if None in losses:
        return unknown("s", "the result does not hold its losses")
    # all steps count, also the slow first ones: a user waits for them too
    for end in range(LOSS_WINDOW, len(losses) + 1):
        window = losses[end - LOSS_WINDOW : end]
        if statistics.fmean(window) <= target:
            how = f"until the mean loss of {LOSS_WINDOW} steps is {target:g}, at step {end}"
            return Figure(math.fsum(times[:end]), "s", how)
    return unknown("s", f"the mean loss of {LOSS_WINDOW} steps never came to {target:g}")


def time_to_mlperf_target(result: Result, tokens_per_second: float) -> Figure:
    """Return the minutes to MLPerf's quality target at this rate; unknown if no convergence point fits the run."""
    config = result["training_config"]
    samples = MLPERF_SAMPLES.get(config["global_batch_size"])
    work = (result["model"], result["model_size"], config["sequence_length"], config["precision"])
    # another batch, length or precision needs another number of samples
    if work != ("llama", "full", MLPERF_SEQUENCE_LENGTH, "bf16") or not samples:
        sizes = ", ".join(map(str, MLPERF_SAMPLES))
        return unknown("min", f"its convergence points are of Llama 3.1 8B in bf16, SL 8192, GBS {sizes}")
    how = f"{samples:,} samples to a log perplexity of 3.3 at this GBS (MLPerf Training v5.1, C4) / samples a second"
    return Figure(samples * MLPERF_SEQUENCE_LENGTH / tokens_per_second / 60, "min", how)
