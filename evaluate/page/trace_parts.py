"""Parts that trace.html and the section "why" of compare.html share: stacked bars of kinds of time, operator tables.

The bars have one axis, and are coordinates for the macros of templates/bars.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.report import trace_text
from evaluate.report.tables import number, round_step
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.pairing import Aligned
from utils.kinds import KINDS, WORDS
from utils.results.probe_file import Probe

LETTERS = dict(zip(KINDS, "MABOCHIU", strict=True))
"""Letter of each kind, so that no bar needs its colour."""
WIDTH, BAR, ROW, TOP = 1000, 34, 68, 8
"""Sizes of the picture in its own units: its width, height of a bar, the same with its name, space above the first."""
NAME_HEIGHT, LETTER_ROOM = 20, 18
MS = 1e3
MOST_TICKS = 6
IN_WORDS = ("operator", "kind", "phase", "sizes", "kernel")
"""Columns whose cells are words, not numbers."""


@dataclass(frozen=True)
class Bar:
    """One stacked bar of a picture."""

    name: str
    kinds: Mapping[str, float]
    """Seconds of a step by kind, drawn one after the other."""

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """The parts with any time, from left to right: kind, start and seconds."""
        found, start = [], 0.0
        for kind in KINDS:
            seconds = max(0.0, self.kinds.get(kind, 0.0))
            if seconds > 0:
                found.append((kind, start, seconds))
            start += seconds
        return found

    @property
    def length(self) -> float:
        """End of the parts."""
        return sum(seconds for _, _, seconds in self.parts)


def picture(bars: Sequence[Bar]) -> dict[str, Any]:
    """Return the picture: the bars below one another on one axis from 0, in milliseconds."""
    longest = max(bar.length for bar in bars) or 1.0
    scale = WIDTH / longest
    rows = [_row(bar, TOP + place * ROW, scale) for place, bar in enumerate(bars)]
    axis = TOP + len(bars) * ROW - 4
    return {
        "width": WIDTH,
        "height": axis + 26,
        "rows": rows,
        "ticks": _ticks(longest * MS, scale / MS),
        "axis_y": axis,
        "label": "; ".join(": ".join(filter(None, (row["name"], row["said"]))) for row in rows),
    }


def legend() -> list[dict[str, str]]:
    """Return kind, letter and words of each kind."""
    return [{"kind": kind, "letter": LETTERS[kind], "words": WORDS[kind]} for kind in KINDS]


def _row(bar: Bar, y: int, scale: float) -> dict[str, Any]:
    top = y + NAME_HEIGHT
    parts = [_part(*part, bar.length, scale) for part in bar.parts]
    return {
        "name": bar.name,
        "said": ", ".join(part["title"] for part in parts),
        "text_y": y + 13,
        "y": top,
        "height": BAR,
        "letter_y": top + BAR / 2 + 5,
        "parts": parts,
    }


def _part(kind: str, start: float, seconds: float, whole: float, scale: float) -> dict[str, Any]:
    width = seconds * scale
    return {
        "kind": kind,
        "letter": LETTERS[kind],
        "title": f"{WORDS[kind]} {number(seconds * MS)} ms, {seconds / whole:.1%}",
        "x": f"{start * scale:.2f}",
        "width": f"{width:.2f}",
        "middle": f"{start * scale + width / 2:.1f}",
        "has_room": width >= LETTER_ROOM,
    }


def _ticks(longest: float, scale: float) -> list[dict[str, str]]:
    """Return the ticks of an axis of `longest` milliseconds, `scale` units each."""
    step = round_step(longest / MOST_TICKS)
    values = (step * index for index in range(int(longest / step * (1 + 1e-9)) + 1))
    return [
        {
            "x": f"{value * scale:.1f}",
            "text": f"{number(value)} ms",
            "anchor": "start" if not value else "end" if value * scale > WIDTH - 40 else "middle",
        }
        for value in values
    ]


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
