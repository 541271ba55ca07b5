"""A number with its unit and formula, or an unknown with its reason; the order and names of all metrics in reports."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

NAMES = {
    "Speed": {
        "tokens_per_second_per_gpu": "Throughput per GPU",
        "tokens_per_second": "Throughput",
        "steps_per_second": "Steps",
    },
    "Step time": {
        "step_time": "Mean",
        "step_time_mean": "Mean",
        "step_time_median": "Median",
        "step_time_min": "Shortest",
        "step_time_max": "Longest",
        "step_time_std": "Standard deviation",
        "step_time_p5": "5th percentile",
        "step_time_p95": "95th percentile",
        "step_time_cv": "Variation between steps",
    },
    "Utilisation": {
        "model_tflops_causal": "Model rate, causal attention",
        "model_tflops_full": "Model rate, full attention",
        "mfu_causal": "MFU, causal attention",
        "mfu_full": "MFU, full attention",
        "share_of_measured_matmul": "Share of the measured matrix-multiply rate",
    },
    "Experts": {"fullest_expert": "Share of the fullest expert in the tokens"},
    "Memory": {
        "memory_used": "Peak memory used",
        "micro_batch_that_would_fit": "Micro batch that would fit",
        "capacity_bf16_training": "Largest model, BF16 training",
        "capacity_fp8_training": "Largest model, FP8 training",
        "capacity_bf16_weights": "Largest model, BF16 weights",
        "capacity_fp8_weights": "Largest model, FP8 weights",
    },
    "Energy": {
        "tokens_per_joule": "Tokens for a joule",
        "tokens_per_watt_hour": "Tokens for a watt-hour",
        "energy_of_1T_tokens": "Energy of 1 T tokens",
        "tokens_per_joule_at_board_power": "Tokens for a joule at the board's power limit",
    },
    "Cost and time": {
        "tokens_per_dollar": "Tokens for the money",
        "tokens_per_second_per_dollar_hour": "Rate for the money an hour",
        "cost_of_1T_tokens": "Cost of 1 T tokens",
        "cost_of_15T_tokens": "Cost of 15 T tokens",
        "time_to_1T_tokens": "Time to 1 T tokens",
        "time_to_15T_tokens": "Time to 15 T tokens",
        "time_to_target_loss": "Time to the target loss",
        "time_to_mlperf_target": "Time to MLPerf's 8B target",
    },
}
_NUMBER = re.compile(r"(?<![\w.,-])[1-9]\d{0,8}(?![\w]|[.,-]\d)")
WHERE_IT_APPLIES = ("time_to_mlperf_target",)
"""Metrics of one specific training, left out of tables if no run has a value."""
NOT_WORKED_OUT = "not worked out: the device is not known here, or cannot do it"


@dataclass(frozen=True)
class Figure:
    """One metric. `how` is its formula with sources; `value` is None if it is unknown, and `how` is then the reason."""

    value: float | None
    unit: str
    how: str

    def map(self, function: Callable[[float], float], unit: str, how: str) -> Figure:
        """Return the figure of `function(value)`; an unknown figure stays unknown for its own reason."""
        return unknown(unit, self.how) if self.value is None else Figure(function(self.value), unit, how)

    def finite(self) -> Figure:
        """Return this figure, or an unknown one if its value is no finite number."""
        if self.value is None or math.isfinite(self.value):
            return self
        return unknown(self.unit, f"its inputs give no finite number: {self.how}")


Metrics = Mapping[str, Figure]


def unknown(unit: str, reason: str) -> Figure:
    """Return an unknown figure with its reason."""
    return Figure(None, unit, reason)


def quotient(above: Figure, below: Figure, unit: str, how: str, factor: float = 1.0) -> Figure:
    """Return `factor` * `above` / `below`; unknown if one of them is unknown or `below` is 0."""
    if above.value is None or below.value is None:
        return unknown(unit, above.how if above.value is None else below.how)
    if not below.value:
        return unknown(unit, f"{below.how}: 0 {below.unit}")
    return Figure(factor * above.value / below.value, unit, how)


def sections(runs: Sequence[Sequence[Metrics]]) -> dict[str, dict[str, str]]:
    """Return the metrics that any run of any system has: section title -> key -> name in words."""
    present: dict[str, None] = {}
    for side in runs:
        for metrics in side:
            for key, figure in metrics.items():
                if key not in WHERE_IT_APPLIES or figure.value is not None:
                    # a dictionary keeps the order of the metrics, which a set would lose
                    present[key] = None
    if "step_time_mean" in present:
        present.pop("step_time", None)  # the same figure
    named = {}
    for section, names in NAMES.items():
        named[section] = {key: text for key, text in names.items() if key in present}
        for key in names:
            present.pop(key, None)
    named["Other"] = {key: key.replace("_", " ") for key in present}
    return {section: names for section, names in named.items() if names}


def combined(figures: Sequence[Figure | None]) -> Figure:
    """Return the median over runs with all its formulas; unknown if no run has a value."""
    unit, values, formulas, reasons = "", [], [], []
    for figure in figures:
        if figure is None:
            reasons.append(NOT_WORKED_OUT)
            continue
        if figure.value is None:
            reasons.append(figure.how)
        else:
            values.append(figure.value)
            formulas.append(figure.how)
        unit = unit or figure.unit
    missing = "; ".join(_alike(reasons))
    if not values:
        return unknown(unit, missing)
    how = "; or ".join(_alike(formulas))
    if reasons:
        how += f"; unknown in {len(reasons)} of {len(figures)} runs: {missing}"
    return Figure(statistics.median(values), unit, how)


def _alike(texts: Iterable[str]) -> Iterator[str]:
    """Yield the distinct texts; texts that differ in whole numbers only become one with `smallest to largest`."""
    numbers_of: dict[tuple[str, ...], list[list[int]]] = {}
    for text in dict.fromkeys(texts):
        between = tuple(_NUMBER.split(text))
        numbers_of.setdefault(between, []).append([int(number) for number in _NUMBER.findall(text)])
    for (text, *words), numbers in numbers_of.items():
        for column, following in zip(zip(*numbers, strict=True), words, strict=True):
            low, high = min(column), max(column)
            text += str(low) if low == high else f"{low} to {high}"
            text += following
        yield text
