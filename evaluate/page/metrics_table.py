"""The table of metrics of a group in compare.html, and figures with the range of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from evaluate.metrics.figures import Figure, Metrics
from evaluate.report.groups import Group, Row
from evaluate.report.tables import number
from evaluate.report.text import KnownMetric, metrics_of, min_to_max

NO_BREAK = "\u00a0"
MOST_SYSTEMS = 24
"""Largest number of systems in the table; compare.json has all."""


def metrics_table(group: Group, found: Mapping[int, Metrics]) -> dict[str, Any] | None:
    """Return hint, columns and sections of the table; `found` has the metrics of each counted entry by its `id()`.

    Returns None if no result of the group counts.
    """
    rows = [row for row in group.rows if row.counted]
    if not rows:
        return None
    shown = rows[:MOST_SYSTEMS]
    runs = [[found[id(entry)] for entry in row.counted] for row in shown]
    hint = "Median over the runs; min to max: smallest and largest run. Point at a figure or go to it with Tab and "
    hint += "the arrow keys: it says by which formula and from which source it comes, or why it is unknown."
    if len(rows) > len(shown):
        hint += f" The first {MOST_SYSTEMS} of {len(rows)} systems are shown."
    known, unknown = metrics_of(runs)
    parts: dict[str, list[dict[str, Any]]] = {}
    for one in known:
        parts.setdefault(one.section, []).append(_metric(one, shown, runs))
    count = sum(len(names) for names in unknown.values())
    return {
        "hint": hint,
        "columns": shown,
        "sections": [{"name": name, "metrics": metrics} for name, metrics in parts.items()],
        "unknown": [f"{', '.join(names)}: {why}" for why, names in unknown.items()],
        "unknown_count": f"{count} metric{' is' if count == 1 else 's are'} unknown for every system",
    }


def with_range(middle: float, values: Sequence[float]) -> Markup | str:
    """Return `middle` followed by a small `min to max` of the runs, which is left out if all values print alike."""
    words, _, ends = min_to_max(values).rpartition("max ")
    if not ends:
        return number(middle)
    return Markup("{}<small> {}max {}</small>").format(number(middle), words, ends.replace(" ", NO_BREAK))


def _metric(metric: KnownMetric, rows: Sequence[Row], runs: Sequence[Sequence[Metrics]]) -> dict[str, Any]:
    unit = next((found.unit for found in metric.found if found.unit), "")
    cells = []
    for row, side, found in zip(rows, runs, metric.found, strict=True):
        figures = (one.get(metric.key) for one in side)
        known = [figure.value for figure in figures if figure is not None and figure.value is not None]
        cells.append(_cell(f"{metric.name}, {row.name}", found, known))
    return {"name": metric.name, "unit": unit, "cells": cells}


def _cell(label: str, found: Figure, known: Sequence[float]) -> dict[str, Any]:
    if found.value is None:
        value: Markup | str = "unknown"
        kind, text = "figure unknown", "unknown"
    else:
        value, kind = with_range(found.value, known), "figure"
        text = " ".join(filter(None, (number(found.value), min_to_max(known))))
    return {"value": value, "kind": kind, "how": found.how, "label": f"{label}: {text} {found.unit}"}
