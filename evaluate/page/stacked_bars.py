"""Stacked bars of the kinds of time on one axis, as coordinates for the macros of templates/bars.html."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluate.report.kind_bars import LETTERS, Bar
from evaluate.report.tables import number
from utils.kinds import KINDS, WORDS

WIDTH, BAR, ROW, TOP = 1000, 34, 68, 8
"""Sizes of the picture in its own units: its width, height of a bar, the same with its name, space above the first."""
NAME_HEIGHT, LETTER_ROOM = 20, 18
MS = 1e3


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
    step = tick(longest)
    values = (step * index for index in range(int(longest / step * (1 + 1e-9)) + 1))
    return [
        {
            "x": f"{value * scale:.1f}",
            "text": f"{number(value)} ms",
            "anchor": "start" if not value else "end" if value * scale > WIDTH - 40 else "middle",
        }
        for value in values
    ]


def tick(longest: float) -> float:
    """Return a round distance, 1, 2 or 5 times a power of ten, that gives 4 to 10 ticks."""
    power = 10.0
    while power > longest:
        power /= 10
    while power * 10 <= longest:
        power *= 10
    return next((power * factor for factor in (0.2, 0.5, 1.0, 2.0) if longest / (power * factor) <= 6), power)
