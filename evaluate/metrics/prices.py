"""Prices of GPU hours from evaluate/prices.json, or from a file of the same form that the user names.

Prices are third-party prices of one day, and change by more than most differences between GPUs. Every figure that uses
a price names its date and source, and is shown with the price SENSITIVITY higher and lower.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRICES_PATH = Path(__file__).parents[1] / "prices.json"
SENSITIVITY = 0.25


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
        return table_of(json.loads(path.read_text(encoding="utf8")))
    except OSError as error:
        raise PriceError(f"{path}: cannot be read ({error.strerror}); name a JSON file of prices") from error
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
    entries = {name: {"price": one.amount, "date": one.date, "source": one.source} for name, one in table.items()}
    return {"currency": next(iter(table.values())).currency, "prices": entries}


def _price(name: str, entry: dict[str, Any], currency: str) -> Price:
    amount = entry["price"]
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < math.inf:
        raise ValueError(f"price of {name}: got {amount!r}, wanted a number above 0")
    return Price(float(amount), currency, str(entry["date"]), str(entry["source"]))
