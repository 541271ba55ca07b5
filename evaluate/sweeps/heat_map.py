"""The picture of a sweep: a heat map of speed and one of memory for every combination beyond two axes.

A cell without a figure carries its reason in words. Colour is not needed to read it: every cell has its number. Lengths
are in inches.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from evaluate.report.plots import rendered
from evaluate.report.tables import plain
from evaluate.sweeps.figures import Best, Measured
from utils.results.sweep_file import Sweep

CELL_WIDTH, CELL_HEIGHT = 1.35, 0.62
LEFT, RIGHT, TOP, BOTTOM, GAP = 1.0, 0.3, 0.85, 0.65, 1.0
PANEL_TITLE, LEAST_WIDTH = 0.35, 3.2
COLOURS = "viridis"
NO_FIGURE = "#D9D9D9"
CHARACTERS_OF_CELL = 17
NAMING = ("FRAMEWORK", "MODEL")
"""Axes that become panels rather than rows and columns where there are two others."""
Value = Callable[[Measured], float | None]


def png(sweep: Sweep, measured: Sequence[Measured], bests: Sequence[Best]) -> bytes:
    """Return the picture as a PNG."""
    return rendered(lambda: draw(sweep, measured, bests))


def draw(sweep: Sweep, measured: Sequence[Measured], bests: Sequence[Best]) -> Figure:
    """Return the figure: one row of two heat maps for each panel."""
    rows_key, columns_key = axes_of(sweep)
    panels = list(_panels(sweep, measured, rows_key, columns_key))
    columns = len(sweep.axes[columns_key]) if columns_key else 1
    width, height = max(LEAST_WIDTH, columns * CELL_WIDTH), len(sweep.axes[rows_key]) * CELL_HEIGHT
    whole_height = TOP + len(panels) * (PANEL_TITLE + height + BOTTOM)
    figure = Figure(figsize=(LEFT + width + GAP + width + RIGHT, whole_height))
    _titles(figure, sweep, measured, whole_height)
    chosen = {id(best.chosen) for best in bests if best.chosen}
    kinds: tuple[tuple[str, Value], ...] = (
        ("tokens/s per GPU or rank", lambda one: one.rate),
        ("peak memory, GB", lambda one: one.memory_gb),
    )
    for (number, (title, cells)), (column, (name, value)) in itertools.product(enumerate(panels), enumerate(kinds)):
        left = LEFT + column * (width + GAP)
        bottom = whole_height - TOP - PANEL_TITLE - height - number * (PANEL_TITLE + height + BOTTOM)
        whole_width = figure.get_figwidth()
        box = (left / whole_width, bottom / whole_height, width / whole_width, height / whole_height)
        axes = figure.add_axes(box)
        _draw_map(axes, cells, value, _scale(measured, value), chosen)
        axes.set_title(f"{title + ': ' if title else ''}{name}", fontsize=10)
        _ticks(axes, sweep, rows_key, columns_key)
    return figure


def axes_of(sweep: Sweep) -> tuple[str, str | None]:
    """Return the setting of the rows and that of the columns, None for a single axis."""
    keys = [key for key in sweep.axes if key not in NAMING]
    keys += [key for key in sweep.axes if key in NAMING]
    return keys[0], keys[1] if len(keys) > 1 else None


def _panels(sweep: Sweep, measured: Sequence[Measured], rows_key: str, columns_key: str | None) -> Any:
    others = [key for key in sweep.axes if key not in (rows_key, columns_key)]
    for values in itertools.product(*(sweep.axes[key] for key in others)):
        wanted = dict(zip(others, values, strict=True))
        inside = [one for one in measured if wanted.items() <= one.point.settings.items()]
        cells = [[one for one in inside if one.point.settings[rows_key] == value] for value in sweep.axes[rows_key]]
        yield " ".join(f"{key}={value}" for key, value in wanted.items()), cells


def _titles(figure: Figure, sweep: Sweep, measured: Sequence[Measured], height: float) -> None:
    fixed = " ".join(f"{key}={value}" for key, value in sweep.fixed.items() if "DIR" not in key)
    results = [result for one in measured for result in one.results]
    devices = sorted({str(result["gpu_info"]["device_name"]) for result in results})
    dates = sorted(str(result["provenance"]["started_utc"])[:10] for result in results)
    runs = sorted({len(one.rates) for one in measured if one.rates})
    known = f"{', '.join(devices)}; {dates[0]}; runs a point: {', '.join(map(str, runs))}" if results else "no result"
    characters = int(figure.get_figwidth() * 14)
    lines = textwrap.wrap(plain(f"{sweep.platform}: {fixed}"), characters)[:2]
    lines += textwrap.wrap(plain(known), characters)[:1]
    figure.text(0.02, 1 - 0.1 / height, plain(f"Sweep {sweep.name}"), fontsize=12, weight="bold", va="top")
    figure.text(0.02, 1 - 0.36 / height, "\n".join(lines), fontsize=9, va="top")


def _scale(measured: Sequence[Measured], value: Value) -> Normalize:
    known = [number for one in measured if (number := value(one)) is not None]
    return Normalize(0, max(known, default=1.0) or 1.0)


def _draw_map(
    axes: Any,
    cells: list[list[Measured]],
    value: Value,
    scale: Normalize,
    chosen: set[int],
) -> None:
    colours = mpl.colormaps[COLOURS]
    for y, x in itertools.product(range(len(cells)), range(len(cells[0]))):
        one = cells[y][x]
        number = value(one)
        colour = NO_FIGURE if number is None else colours(scale(number))
        axes.add_patch(mpl.patches.Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
        dark = number is not None and scale(number) < 0.6
        words = _words(one) if number is None else _number(number)
        is_best = id(one) in chosen
        axes.text(
            *(x, y, f"{words}\nbest" if is_best and number is not None else words),
            **{"ha": "center", "va": "center", "color": "white" if dark else "black"},
            **{"fontsize": 7.5 if number is None else 9, "weight": "bold" if is_best else "normal"},
        )
    axes.set_xlim(-0.5, len(cells[0]) - 0.5)
    axes.set_ylim(len(cells) - 0.5, -0.5)


def _number(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _words(one: Measured) -> str:
    text = "not measured" if one.rate is not None else one.why.split(":")[0]
    return "\n".join(textwrap.wrap(plain(text), CHARACTERS_OF_CELL)[:3])


def _ticks(axes: Any, sweep: Sweep, rows_key: str, columns_key: str | None) -> None:
    columns = sweep.axes[columns_key] if columns_key else [""]
    axes.set_xticks(range(len(columns)), [plain(text) for text in columns])
    axes.set_yticks(range(len(sweep.axes[rows_key])), [plain(text) for text in sweep.axes[rows_key]])
    axes.set_ylabel(rows_key)
    axes.set_xlabel(columns_key or "")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
