"""The table of metrics of a group in compare.html, and figures with the range of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from evaluate.metrics.figures import Figure, Metrics, combined, sections
from evaluate.report.groups import Group, Row
from evaluate.report.tables import number
from evaluate.report.text import min_to_max, unknown_metrics

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
    parts = []
    for name, keys in sections(runs).items():
        if metrics := [_metric(key, text, shown, runs) for key, text in keys.items() if _is_known(key, runs)]:
            parts.append({"name": name, "metrics": metrics})
    unknown = unknown_metrics(runs)
    count = sum(len(names) for names in unknown.values())
    return {
        "hint": hint,
        "columns": shown,
        "sections": parts,
        "unknown": [f"{', '.join(names)}: {why}" for why, names in unknown.items()],
        "unknown_count": f"{count} metric{' is' if count == 1 else 's are'} unknown for every system",
    }


def _is_known(key: str, runs: Sequence[Sequence[Metrics]]) -> bool:
    return any(key in one and one[key].value is not None for side in runs for one in side)


def with_range(middle: float, values: Sequence[float]) -> Markup | str:
    """Return `middle` followed by a small `min to max` of the runs, which is left out if all values print alike."""
    words, _, ends = min_to_max(values).rpartition("max ")
    if not ends:
        return number(middle)
    return Markup("{}<small> {}max {}</small>").format(number(middle), words, ends.replace(" ", NO_BREAK))


def _metric(key: str, name: str, rows: Sequence[Row], runs: Sequence[Sequence[Metrics]]) -> dict[str, Any]:
    figures = [[one.get(key) for one in side] for side in runs]
    unit = next((f.unit for side in figures for f in side if f is not None and f.unit), "")
    cells = [_cell(f"{name}, {row.name}", side) for row, side in zip(rows, figures, strict=True)]
    return {"name": name, "unit": unit, "cells": cells}


def _cell(label: str, figures: Sequence[Figure | None]) -> dict[str, Any]:
    found = combined(figures)
    if found.value is None:
        return {
            "value": "unknown",
            "kind": "figure unknown",
            "how": found.how,
            "label": f"{label}: unknown {found.unit}",
        }
    known = [figure.value for figure in figures if figure is not None and figure.value is not None]
    text = " ".join(filter(None, (number(found.value), min_to_max(known))))
    return {
        "value": with_range(found.value, known),
        "kind": "figure",
        "how": found.how,
        "label": f"{label}: {text} {found.unit}",
    }
