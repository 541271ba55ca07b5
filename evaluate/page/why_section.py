"""The section "why" of compare.html: bars, sentences and table of each pair, and the operators of both profiles."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from evaluate.page import operator_tables, stacked_bars
from evaluate.report import why_text
from evaluate.report.comparison import Comparison
from evaluate.report.tables import plain
from evaluate.report.why_text import Explained
from evaluate.timing.pairing import align

MOST_OPERATORS = 20
CAPTION = (
    "Milliseconds of one step. Thin bars: floors; thick bars: measured steps. The stroke on a measured bar is the "
    "mean of the counted runs; the line below a bar is the 95 % interval."
)


def section(comparison: Comparison) -> dict[str, Any] | None:
    """Return the content of the section; None if no pair has an attribution."""
    found = why_text.explained(comparison)
    if not found:
        return None
    is_any_attributed = any(why_text.sides(one.why) for one in found)
    return {
        "title": why_text.TITLE,
        "explanation": why_text.EXPLANATION if is_any_attributed else "",
        "caption": CAPTION,
        "legend": stacked_bars.legend() if is_any_attributed else [],
        "pairs": list(map(_pair, found)),
    }


def _pair(one: Explained) -> dict[str, Any]:
    bars = why_text.bars(one.why)
    header, rows = why_text.kind_table(one.why) if bars else ((), [])
    return {
        "name": one.name,
        "title": one.title,
        "sentences": why_text.sentences(one.why),
        "bars": stacked_bars.picture(bars) if bars else None,
        "header": [_two_lines(cell) for cell in header],
        "rows": rows,
        "remarks": why_text.remarks(one.why),
        "operators": _operators(one),
    }


def _two_lines(cell: str) -> Markup | str:
    """Return the head of a column with the name of its side in small letters below it."""
    name, _, what = cell.rpartition(", ")
    return Markup("{}<small>{}</small>").format(what.capitalize(), plain(name)) if name else cell


def _operators(one: Explained) -> dict[str, Any] | None:
    both = why_text.sides(one.why)
    if both is None or both[0].trace is None or both[1].trace is None:
        return None
    aligned = align(both[0].trace, both[1].trace)
    table = operator_tables.differences((both[0].name, both[1].name), aligned, MOST_OPERATORS, "")
    lines = [*table["lines"], "Times are those of the profiled steps, with the cost of the profiler."]
    count = f"{len(aligned)} operator{'' if len(aligned) == 1 else 's'}"
    title = f"{table['title']}: {one.name}, {one.title}"
    return table | {"lines": lines, "title": title, "summary": f"{count} of both profiles, largest difference first"}
