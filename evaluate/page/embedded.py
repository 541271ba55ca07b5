"""The data embedded in compare.html: verdicts, metrics and curves, which are thinned if there are too many samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.metrics.metric_table import Metrics
from evaluate.report.comparison import Comparison
from evaluate.report.groups import Group, Row, run_label
from evaluate.report.tables import plain

MOST_SAMPLES = 200_000
"""Largest number of samples of all curves: about 3 MB of text, which a browser opens and draws without a pause."""
FEWEST_SAMPLES = 40
"""Least number of samples that are kept of a longer curve, even if the total is then above MOST_SAMPLES."""
CURVES = {"step_time_seconds": "step_times", "loss_nats_per_token": "loss_values"}


def embedded(comparison: Comparison) -> dict[str, Any]:
    """Return the data for the page, and for the file that its download button saves."""
    most = samples_a_curve(comparison)
    return {
        "by": comparison.by,
        "band": comparison.band,
        "target_loss": comparison.target_loss,
        "verdicts": [judged.as_json() for judged in comparison.judged],
        "samples_kept_per_curve": most,
        "groups": [_group(group, comparison.figures, most) for group in comparison.groups],
    }


def samples_a_curve(comparison: Comparison) -> int | None:
    """Return the number of samples to keep of each curve; None to keep all."""
    runs = [entry for group in comparison.groups for entry in group.counted]
    most = max(FEWEST_SAMPLES, MOST_SAMPLES // max(1, len(CURVES) * len(runs)))
    return most if any(len(entry.result["steps"]) > most for entry in runs) else None


def thinned(steps: Sequence[int], values: Sequence[float | None], most: int | None) -> dict[str, list[Any]]:
    """Return at most `most` samples (None: all): the smallest and the largest of each stretch of steps, in order.

    Extremes survive, so a single slow step stays visible. Unknown values are left out.
    """
    known = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    if most is not None and len(known) > most:
        stretches = max(1, most // 2)
        ends = [len(known) * number // stretches for number in range(stretches + 1)]
        parts = [known[start:end] for start, end in zip(ends, ends[1:], strict=False)]
        kept = [sorted({min(part, key=lambda s: s[1]), max(part, key=lambda s: s[1])}) for part in parts]
        known = [sample for part in kept for sample in part]
    return {"step": [step for step, _ in known], "value": [float(f"{value:.6g}") for _, value in known]}


def _group(group: Group, metrics: Mapping[int, Metrics], most: int | None) -> dict[str, Any]:
    return {
        "title": group.key.title,
        "setting": group.key.setting,
        "rows": [_row(row, metrics, most) for row in group.rows if row.counted],
    }


def _row(row: Row, metrics: Mapping[int, Metrics], most: int | None) -> dict[str, Any]:
    return {
        "letter": row.letter,
        "name": row.name,
        "device": row.device,
        "platform": row.key.platform,
        "framework": row.key.framework,
        "runs": [_run(entry, metrics[id(entry)], most) for entry in row.counted],
    }


def _run(entry: Entry, found: Metrics, most: int | None) -> dict[str, Any]:
    result = entry.result
    return {
        "label": run_label(result),
        "file": plain(entry.path),
        "first_steps_left_out": result["performance_metrics"]["warmup_steps_excluded"],
        "metrics": {name: {"value": figure.value, "unit": figure.unit} for name, figure in found.items()},
        **{name: thinned(result["steps"], result[key], most) for name, key in CURVES.items()},
    }
