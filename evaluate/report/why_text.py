"""The section "why" of a comparison: the gap of each pair by kind of time, in words and as markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evaluate.report import trace_text
from evaluate.report.comparison import Comparison
from evaluate.report.tables import bullets, markdown_table, markdown_text
from evaluate.report.verdict_text import pair_title
from evaluate.timing.pairing import align
from evaluate.verdict.gap import MOST_OPERATORS, Gap

TITLE = "Why"
EXPLANATION = (
    "The profiled step of each side by kind of time. The kinds sum to the step, their differences to the difference of "
    "both steps. The cost of the profiler is in all times."
)


@dataclass(frozen=True)
class Explained:
    """A pair of the section with its gap."""

    title: str
    """Both sides, `b against a`, then model, framework and method."""
    names: tuple[str, str]
    gap: Gap


def explained(comparison: Comparison) -> list[Explained]:
    """Return the pairs with a profile on each side, in the order of the verdicts."""
    return [
        Explained(
            f"{judged.pair.b_name} against {judged.pair.a_name}, {pair_title(judged.pair)}",
            (judged.pair.a_name, judged.pair.b_name),
            gap,
        )
        for judged, gap in zip(comparison.judged, comparison.gaps, strict=False)
        if gap is not None
    ]


def markdown_why(comparison: Comparison) -> Iterator[str]:
    """Yield the section as markdown; nothing without two profiles of a pair."""
    found = explained(comparison)
    if found:
        yield f"## {TITLE}"
        yield EXPLANATION
    for one in found:
        a, b = one.gap.a, one.gap.b
        yield f"### {markdown_text(one.title)}"
        if a is not None and b is not None:
            yield markdown_text(trace_text.pair_sentence(a, b, one.names))
            kinds, operators = trace_text.pair_headers(one.names)
            yield markdown_table(kinds, trace_text.pair_kind_rows(a, b))
            yield markdown_table(operators, trace_text.aligned_rows(align(a, b), MOST_OPERATORS))
        yield bullets(one.gap.remarks)
