"""why.png: a panel for each attributed pair: floor and measured step of both sides as stacked bars, in milliseconds.

A kind has its colour, hatch and letter, so that the picture is readable without colour. Floors are thinner than
measured steps. The stroke on a measured bar is the mean of the counted runs; a line with ends shows a 95 % interval.
Lengths are in inches.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from evaluate.report import why_text
from evaluate.report.comparison import Comparison
from evaluate.report.kind_bars import COLOURS, DARK, HATCHES, LETTERS, Bar
from evaluate.report.panels import INK, cut, space_ticks, tick_text
from evaluate.report.plots import LINE, MARGIN, WIDTH, caption, rendered, wrapped
from evaluate.report.tables import plain
from evaluate.report.why_text import MS, Explained
from utils.kinds import KINDS, WORDS

NAMES, RIGHT = 3.6, 0.45
HEAD, LEGEND, FOOTING, GAP = 0.55, 0.5, 0.65, 0.15
TITLE, ROW = 0.3, 0.5
THICK, THIN = 0.62, 0.38
"""Heights of a measured bar and of a floor, as a share of a row."""
EXPLANATION = (
    "Thin bars: floors. Thick bars: measured steps; the stroke is the mean of the counted runs. Line with ends: 95 % "
    "interval. Dashed bars: no profile."
)
LETTER_ROOM = 0.14
"""Inches of the narrowest part that has room for its letter."""
MOST_PANELS = 8
"""Largest number of panels that one picture shows; compare.html has all pairs."""
SENTENCE_LINES, TITLE_CHARACTERS, NAME_CHARACTERS = 3, 140, 40


def png(comparison: Comparison) -> bytes:
    """Return the picture of a comparison with an attributed pair as a PNG."""
    return rendered(lambda: draw(comparison))


def shown(comparison: Comparison) -> list[Explained]:
    """Return the pairs that have a panel, or would have one if there were room."""
    return [one for one in why_text.explained(comparison) if why_text.sides(one.why)]


def draw(comparison: Comparison) -> Figure:
    """Return the figure. `png` renders it with the matplotlib settings that it assumes."""
    found = shown(comparison)
    panels = [(one, why_text.bars(one.why), [*_said(one), *_caption(one)]) for one in found[:MOST_PANELS]]
    heights = [TITLE + LINE * len(said) + GAP + ROW * len(bars) + FOOTING for _, bars, said in panels]
    figure = Figure(figsize=(WIDTH, HEAD + LEGEND + sum(heights)))
    _write(figure, 0.1, _heading(len(found)), size=12, weight="bold")
    _write(figure, 0.33, EXPLANATION, size=9)
    _draw_legend(figure)
    top = HEAD + LEGEND
    for (one, bars, said), height in zip(panels, heights, strict=True):
        _write(figure, top, cut(plain(f"{one.name}; {one.title}"), TITLE_CHARACTERS), size=10, weight="bold")
        _write(figure, top + TITLE - 0.06, "\n".join(said), size=9)
        _draw_bars(_axes(figure, top + TITLE + LINE * len(said) + GAP, ROW * len(bars)), bars)
        top += height
    return figure


def _said(one: Explained) -> list[str]:
    return [line for said in why_text.sentences(one.why) for line in wrapped(said, SENTENCE_LINES)]


def _caption(one: Explained) -> list[str]:
    """Return the settings, versions, dates and missing runs of a pair below an empty line."""
    return [] if one.group is None else ["", *caption(one.group)]


def _heading(count: int) -> str:
    text = "Why: floor and measured step of each side"
    return text if count <= MOST_PANELS else f"{text} (the first {MOST_PANELS} of {count} pairs; compare.html has all)"


def _draw_legend(figure: Figure) -> None:
    handles = [Patch(**look(kind), label=f"{LETTERS[kind]}: {WORDS[kind]}") for kind in KINDS]
    width, height = figure.get_size_inches()
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(MARGIN / width, 1 - HEAD / height),
        borderaxespad=0,
        borderpad=0,
        ncols=8,
        frameon=False,
        fontsize=8,
        handlelength=2.4,
        handleheight=1.1,
        columnspacing=1.4,
    )


def look(kind: str) -> dict[str, Any]:
    """Return face colour, edge and hatch of a kind."""
    return {"facecolor": COLOURS[kind], "edgecolor": INK, "hatch": HATCHES[kind], "linewidth": 0.6}


def _draw_bars(axes: Any, bars: Sequence[Bar]) -> None:
    """Draw the bars from top to bottom with their names on the left."""
    longest = max(bar.reach for bar in bars) * MS or 1.0
    axes.set_xlim(0, longest * 1.02)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    room = LETTER_ROOM / (WIDTH - NAMES - RIGHT) * axes.get_xlim()[1]
    for y, bar in enumerate(bars):
        height = THIN if bar.is_thin else THICK
        for kind, start, seconds in bar.parts:
            axes.barh(y, seconds * MS, left=start * MS, height=height, **look(kind))
            if seconds * MS >= room:
                _letter(axes, (start + seconds / 2) * MS, y, kind)
        if bar.kinds is None:
            axes.barh(y, bar.seconds * MS, height=height, facecolor="none", edgecolor=INK, linestyle="--")
        _whisker(axes, y + height / 2, bar)
        if bar.has_mark:
            ends = [y - height / 2 - 0.04, y + height / 2 + 0.14]
            axes.plot([bar.seconds * MS] * 2, ends, color=INK, linewidth=2, solid_capstyle="butt")
    names = ["\n".join(textwrap.wrap(plain(bar.name), NAME_CHARACTERS)[:3]) for bar in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    space_ticks(axes)


def _letter(axes: Any, x: float, y: int, kind: str) -> None:
    colour = "white" if kind in DARK else "black"
    box = {"facecolor": COLOURS[kind], "edgecolor": "none", "pad": 0.6} if HATCHES[kind] else None
    axes.text(x, y, LETTERS[kind], ha="center", va="center", fontsize=8, weight="bold", color=colour, bbox=box)


def _whisker(axes: Any, bottom: float, bar: Bar) -> None:
    if bar.low is None or bar.high is None:
        return
    y = bottom + 0.1
    axes.plot([max(0.0, bar.low) * MS, bar.high * MS], [y, y], color=INK, linewidth=1.3, marker="|", markersize=6)


def _axes(figure: Figure, top: float, height: float) -> Any:
    width, whole = figure.get_size_inches()
    box = (NAMES / width, 1 - (top + height) / whole, (width - NAMES - RIGHT) / width, height / whole)
    axes = figure.add_axes(box)
    axes.set_xlabel("milliseconds of one step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    return axes


def _write(figure: Figure, top: float, text: str, **style: Any) -> None:
    width, height = figure.get_size_inches()
    figure.text(MARGIN / width, 1 - top / height, text, va="top", color=INK, **style)
