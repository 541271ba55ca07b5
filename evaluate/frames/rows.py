"""The rows of both tables: a row for each run, and a row for each step of each run. Standard library and numpy only."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.frames.columns import BOOLEAN, FLOAT, INTEGER, JUDGED, TEXT, cells
from evaluate.metrics import metrics
from evaluate.metrics.steady import of_result, step_times
from evaluate.metrics.throughput import tokens_per_second_per_gpu

Row = dict[str, Any]
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
COPY_OF = "a copy of"


def runs(entries: Sequence[Entry], copies: Sequence[tuple[Entry, Entry]]) -> list[Row]:
    """Return a row for each entry and for each copy, which a comparison does not count, sorted by file."""
    rows = [_run(entry, entry.is_counted, entry.why_not_counted) for entry in entries]
    rows += [_run(copy, False, f"{COPY_OF} {first.path}") for copy, first in copies]
    return sorted(rows, key=lambda row: str(row["file"]))


def steps(
    entries: Sequence[Entry], copies: Sequence[tuple[Entry, Entry]]
) -> Iterator[tuple[Row, dict[str, list[Any]]]]:
    """Yield the columns of each run that are the same in all of its steps, and the lists of those that are not."""
    counted = {id(entry): entry.is_counted for entry in entries}
    for entry in sorted([*entries, *(copy for copy, _ in copies)], key=lambda one: str(one.path)):
        result = entry.result
        is_counted = counted.get(id(entry), False)
        lists = {column: list(result[key]) for column, key in SAMPLES.items()}
        part = of_result(result) if is_counted else None
        first = part.first if part else None
        lists["is_steady"] = [None if first is None else place >= first for place in range(len(result["steps"]))]
        yield {"file": str(entry.path), "is_counted": is_counted} | {key: result[key] for key in JOIN}, lists


def _run(entry: Entry, is_counted: bool, why: str) -> Row:
    warnings = "; ".join(entry.findings.warnings) or None
    judged = dict(zip(JUDGED, (str(entry.path), is_counted, why or None, warnings), strict=True))
    return cells(entry.result) | judged | (_measured(entry) if is_counted else {})


def _measured(entry: Entry) -> Row:
    result, times = entry.result, step_times(entry.result)
    utilisation = metrics.metrics(result).get("mfu_causal")
    losses = result["loss_values"]
    return {
        "steady_tokens_per_second_per_gpu": tokens_per_second_per_gpu(result),
        "steady_step_time_seconds": statistics.fmean(times) if times else None,
        "steady_steps": len(times) or None,
        "model_flops_utilization_percent": utilisation.value if utilisation else None,
        "last_loss_nats_per_token": metrics.last_loss(result) if losses and None not in losses else None,
    }
