"""Tables of operators for the pages of traces and of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluate.report import trace_text
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.pairing import Aligned
from utils.results.probe_file import Probe

IN_WORDS = ("operator", "kind", "sizes", "kernel")
"""Columns whose cells are words, not numbers."""


def differences(names: tuple[str, str], aligned: Sequence[Aligned], most: int, file: str) -> dict[str, Any]:
    """Return the table of the `most` largest differences between two sides; `file` has all of them, "" for none."""
    _, header = trace_text.pair_headers(names)
    rows = trace_text.aligned_rows(aligned, most)
    lines = ["Operators with the same computation and sizes on both sides; a dash: it does not run there."]
    return _table("Differences by operator", lines, header, rows, len(aligned), file)


def operators(side: Breakdown, probe: Probe | None, most: int, file: str) -> dict[str, Any]:
    """Return the table of the `most` longest operators of one trace."""
    lines = trace_text.sentences(side)
    rows = trace_text.operator_rows(side, probe, most)
    title = f"Operators of {side.path.name}"
    return _table(title, lines, trace_text.OPERATORS_HEADER, rows, len(side.operators), file)


def _table(
    title: str, lines: Sequence[str], header: Sequence[str], rows: Sequence[Sequence[str]], count: int, file: str
) -> dict[str, Any]:
    words = [place for place, name in enumerate(header) if name in IN_WORDS]
    more = ""
    if count > len(rows):
        more = f"The first {len(rows)} of {count} rows{f'; {file} has all' if file else ''}."
    return {"title": title, "lines": lines, "header": header, "rows": rows, "words": words, "more": more}
