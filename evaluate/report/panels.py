"""The panels of compare.png: bars, boxes and curves, their looks, and ticks whose labels have room.

The sizes are in inches. `plots.py` places the panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.colors import to_rgb
from matplotlib.ticker import FixedLocator, MaxNLocator

from evaluate.report.groups import Row, Spread
from evaluate.report.tables import cut
from evaluate.report.text import spread_text

# The palette of Okabe and Ito (2008), distinguishable with any common colour blindness.
PLATFORM_COLOURS = {"nvd": "#009E73", "amd": "#D55E00", "cpu": "#0072B2"}
OTHER_COLOUR = "#7F7F7F"
FRAMEWORK_LOOKS = {
    "mega": (0.1, ""),
    "hf": (0.6, "///"),
    "nemo": (0.35, "xxx"),
    "bridge": (0.2, "++"),
    "prim": (0.45, "..."),
    "titan": (0.25, "ooo"),
}
"""Share of white mixed into the colour, and hatch."""
OTHER_LOOK = (0.75, "++")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#222222"
LEGEND_CHARACTERS = 18
PANEL = 2.95
"""Inches of the width of a bar panel."""
DIGIT, NUMBER_GAP, MOST_ROOM = 0.07, 0.25, 0.75
"""Inches of a digit of the numbers after a bar and of the gap around them; largest share of a panel for them."""
TICK_CHARACTER, TICK_GAP, MOST_TICKS = 0.085, 0.12, 4
"""Inches of one character of a tick label and between two labels; largest number of intervals between ticks."""
LAST_TICK = 0.95
"""Share of an axis beyond which no tick stands, because its label would reach into the next panel."""


def look(row: Row) -> dict[str, Any]:
    """Return face colour, edge and hatch of a row's bar or box."""
    white, hatch = FRAMEWORK_LOOKS.get(row.key.framework, OTHER_LOOK)
    colour = to_rgb(PLATFORM_COLOURS.get(row.key.platform, OTHER_COLOUR))
    return {"facecolor": tuple(c + (1 - c) * white for c in colour), "edgecolor": INK, "hatch": hatch, "linewidth": 0.8}


def bar_panel(axes: Any, rows: Sequence[Row], spread_of: Callable[[Row], Spread | None]) -> None:
    """Draw a bar for each row with a dot for each run, its mean and its smallest and largest run."""
    spreads = [spread_of(row) for row in rows]
    texts = [spread_text(spread).replace(", min to max ", "\n") for spread in spreads]
    largest = max((spread.high for spread in spreads if spread), default=0) or 1.0
    longest = max(len(line) for text in texts for line in text.split("\n"))
    axes.set_xlim(0, largest / (1 - min(MOST_ROOM, (DIGIT * longest + NUMBER_GAP) / PANEL)))
    gap = 0.04 * axes.get_xlim()[1]
    for y, (row, spread, text) in enumerate(zip(rows, spreads, texts, strict=True)):
        if spread is None:
            reason = "unknown" if row.counted else "no counted run"
            axes.text(0.02 * largest, y, reason, va="center", color=INK, style="italic")
            continue
        axes.barh(y, spread.mean, height=0.62, **look(row))
        axes.plot([spread.low, spread.high], [y, y], color=INK, linewidth=1.6)
        heights = _scattered(y, len(spread.values))
        axes.plot(spread.values, heights, "o", markersize=4, color="white", markeredgecolor=INK)
        axes.text(spread.high + gap, y, text, va="center", color=INK, fontsize=8)


def box_panel(axes: Any, rows: Sequence[Row]) -> None:
    """Draw a box for the steady step times of each row."""
    for y, row in enumerate(rows):
        times = [time for run in row.steady_times for time in run]
        if times:
            axes.boxplot(
                [times],
                positions=[y],
                widths=0.55,
                whis=(5, 95),
                orientation="horizontal",
                manage_ticks=False,
                patch_artist=True,
                boxprops=look(row),
                medianprops={"color": INK, "linewidth": 1.6},
                flierprops={"marker": ".", "markersize": 3, "markeredgecolor": INK},
            )


def loss_panel(axes: Any, rows: Sequence[Row]) -> None:
    """Draw the losses of each row, told apart by line style and marker too."""
    for index, row in enumerate(rows):
        if not row.counted:
            continue
        steps, losses = _end_to_end(row)
        spacing = max(1, len(row.counted[0].result["steps"]) // 6)
        axes.plot(
            steps,
            losses,
            color=PLATFORM_COLOURS.get(row.key.platform, OTHER_COLOUR),
            linestyle=LINE_STYLES[index % len(LINE_STYLES)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=4,
            markevery=(index * spacing // max(1, len(rows)), spacing),
            linewidth=1.2,
            label=cut(row.name, LEGEND_CHARACTERS),
        )
    axes.set_ylabel("loss (nats per token)")
    axes.grid(axis="y", color="#DDDDDD")
    if axes.lines:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8, handlelength=3.5)


def _end_to_end(row: Row) -> tuple[list[float], list[float]]:
    """Return steps and losses of all runs of a row as one line with gaps, which draws much faster than many lines."""
    steps: list[float] = []
    losses: list[float] = []
    for entry in row.counted:
        steps += [*entry.result["steps"], math.nan]
        losses += [math.nan if loss is None else loss for loss in entry.result["loss_values"]] + [math.nan]
    return steps, losses


def space_ticks(axes: Any) -> None:
    """Mark as many values on the x axis as have room for their labels."""
    if isinstance(axes.xaxis.get_major_locator(), FixedLocator):
        return  # the forest plot spaces its own
    inches = axes.get_position().width * axes.figure.get_size_inches()[0]
    low, high = axes.get_xlim()
    for count in range(MOST_TICKS, 0, -1):
        ticks = [tick for tick in MaxNLocator(count).tick_values(low, high) if low <= tick <= high]
        longest = max((len(tick_text(tick)) for tick in ticks), default=0)
        if len(ticks) < 2 or (ticks[1] - ticks[0]) / (high - low) * inches > longest * TICK_CHARACTER + TICK_GAP:
            break
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if tick <= low + LAST_TICK * (high - low)]))


def tick_text(value: float) -> str:
    """Return the label of a tick."""
    return f"{value:,.6g}"


def _scattered(y: int, count: int) -> list[float]:
    """Return heights around `y` that separate runs of nearly equal value."""
    return [y + 0.3 * ((index + 1) / (count + 1) - 0.5) for index in range(count)]
