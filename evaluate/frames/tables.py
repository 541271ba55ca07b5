"""The tables of runs and of steps as pandas DataFrames, with a dtype for each column that has a missing value."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.frames.columns import BOOLEAN, FLOAT, INTEGER, JUDGED, REASONS, TEXT, TIME, cells, dtype_of, dtypes
from evaluate.metrics import metrics
from evaluate.metrics.steady import of_result, step_times
from evaluate.metrics.throughput import tokens_per_second_per_gpu

Copies = Sequence[tuple[Entry, Entry]]
"""Copies of results, which a comparison does not count, each with the entry that it repeats."""
JOIN = {"platform": TEXT, "framework": TEXT, "model": TEXT, "run": INTEGER}
"""Columns of a step that both tables have, beside `file`, which alone identifies the run."""
SAMPLES = {
    "step": "steps",
    "step_time_seconds": "step_times",
    "data_wait_seconds": "data_wait_seconds",
    "loss_nats_per_token": "loss_values",
    "grad_norm": "grad_norms",
    "learning_rate": "learning_rates",
}
"""Columns of a step, and the lists of a result that they come from."""
STEPS = {
    **{"file": TEXT, "is_counted": BOOLEAN},
    **JOIN,
    **dict.fromkeys(SAMPLES, FLOAT),
    **{"step": INTEGER, "is_steady": BOOLEAN},
}
"""Dtype of each column of the table of steps."""


def runs(entries: Sequence[Entry], copies: Copies = ()) -> Any:
    """Return the DataFrame of runs: the columns of the schema in their order, then those of these results alone."""
    found = [_run(entry, entry.is_counted, entry.why_not_counted) for entry in entries]
    found += [_run(copy, False, f"a copy of {first.path}") for copy, first in copies]
    found.sort(key=lambda row: str(row["file"]))
    others = sorted({name for row in found for name in row} - set(dtypes()))
    kinds = dict(dtypes()) | {name: dtype_of(row.get(name) for row in found) for name in others}
    kinds[REASONS] = kinds.pop(REASONS)
    return _frame({name: [row.get(name) for row in found] for name in kinds}, kinds)


def steps(entries: Sequence[Entry], copies: Copies = ()) -> Any:
    """Return the DataFrame of steps, in the order of the table of runs and of the steps of each."""
    counted = {id(entry) for entry in entries if entry.is_counted}
    columns: dict[str, list[Any]] = {name: [] for name in STEPS}
    for entry in sorted([*entries, *(copy for copy, _ in copies)], key=lambda one: str(one.path)):
        result, is_counted, count = entry.result, id(entry) in counted, len(entry.result["steps"])
        part = of_result(result) if is_counted else None
        same = {"file": str(entry.path), "is_counted": is_counted} | {key: result[key] for key in JOIN}
        lists: dict[str, Iterable[Any]] = {column: repeat(value, count) for column, value in same.items()}
        lists |= {column: result[key] for column, key in SAMPLES.items()}
        lists["is_steady"] = [place >= part.first if part else None for place in range(count)]
        for column, values in lists.items():
            columns[column] += values
    return _frame(columns, STEPS)


def _run(entry: Entry, is_counted: bool, why: str) -> dict[str, Any]:
    warnings = "; ".join(entry.findings.warnings) or None
    judged = dict(zip(JUDGED, (str(entry.path), is_counted, why or None, warnings), strict=True))
    return cells(entry.result) | judged | (_measured(entry) if is_counted else {})


def _measured(entry: Entry) -> dict[str, Any]:
    result, times = entry.result, step_times(entry.result)
    utilisation = metrics.utilisation(result).get("mfu_causal")
    losses = result["loss_values"]
    return {
        "steady_tokens_per_second_per_gpu": tokens_per_second_per_gpu(result),
        "steady_step_time_seconds": statistics.fmean(times) if times else None,
        "steady_steps": len(times) or None,
        "model_flops_utilization_percent": utilisation.value if utilisation else None,
        "last_loss_nats_per_token": metrics.last_loss(result) if losses and None not in losses else None,
    }


def _frame(columns: Mapping[str, list[Any]], kinds: Mapping[str, str]) -> Any:
    import pandas

    return pandas.DataFrame({name: _series(values, kinds[name]) for name, values in columns.items()})


def _series(values: list[Any], kind: str) -> Any:
    import pandas

    if kind == TIME:
        return pandas.to_datetime(pandas.Series(values, dtype="object"), utc=True).astype(kind)
    if kind == TEXT:
        values = [value if value is None or isinstance(value, str) else str(value) for value in values]
    return pandas.Series(values, dtype=kind)
