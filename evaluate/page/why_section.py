"""The section "why" of compare.html: bars, table of kinds and largest differences by operator of each pair."""

from __future__ import annotations

from typing import Any

from evaluate.page import trace_parts
from evaluate.report import trace_text, why_text
from evaluate.report.comparison import Comparison
from evaluate.report.tables import number
from evaluate.report.why_text import Explained
from evaluate.timing.pairing import align
from evaluate.verdict.gap import MOST_OPERATORS


def section(comparison: Comparison) -> dict[str, Any] | None:
    """Return the content of the section; None if no pair has two profiles."""
    found = why_text.explained(comparison)
    if not found:
        return None
    return {
        "title": why_text.TITLE,
        "explanation": why_text.EXPLANATION,
        "legend": trace_parts.legend(),
        "pairs": list(map(_pair, found)),
    }


def _pair(one: Explained) -> dict[str, Any]:
    a, b = one.gap.a, one.gap.b
    content: dict[str, Any] = {"title": one.title, "remarks": one.gap.remarks, "bars": None}
    if a is None or b is None:
        return content
    bars = [
        trace_parts.Bar(f"{name}: {number(side.step_seconds * 1e3)} ms", side.kinds)
        for name, side in zip(one.names, (a, b), strict=True)
    ]
    operators = trace_parts.differences(one.names, align(a, b), MOST_OPERATORS, "")
    return content | {
        "sentence": trace_text.pair_sentence(a, b, one.names),
        "bars": trace_parts.picture(bars),
        "header": trace_text.pair_headers(one.names)[0],
        "rows": trace_text.pair_kind_rows(a, b),
        "operators": operators | {"title": f"{operators['title']}: {one.title}"},
    }
