"""compare.png: the verdicts as a forest plot, then two strips of panels for each group of a comparison.

Bars start at 0 and carry a dot for each run and a line from the smallest run to the largest. Colour shows only the
platform. Shade and hatch show the framework; letter, line style and marker show the row. So the figure is readable
without colour. Lengths are in inches and panels have fixed sizes: the proportions are the same for one result as for
forty.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from evaluate.metrics.figures import Metrics
from evaluate.report import forest_plot
from evaluate.report.comparison import Comparison
from evaluate.report.groups import ENOUGH_RUNS, Group, Row, Spread, known_spread, run_label
from evaluate.report.panels import (
    INK,
    OTHER_COLOUR,
    PANEL,
    PLATFORM_COLOURS,
    bar_panel,
    box_panel,
    loss_panel,
    space_ticks,
    tick_text,
)
from evaluate.report.tables import cut, plain, wrapped
from utils.own_files import PNG_MARK

WIDTH, MARGIN = 16.5, 0.3
FOREST_NAMES, FOREST_WIDTH, FOREST_GAP = 4.3, 6.4, 0.25
NAMES, GAP = 2.6, 0.35
BOX_WIDTH, LOSS_GAP, LOSS_WIDTH, LOSS_HEIGHT = 5.3, 0.95, 4.7, 3.4
TITLE, LINE, FOOTING, STRIP_GAP = 0.85, 0.17, 0.75, 0.4
ROW_HEIGHT, FEWEST_ROWS = 0.56, 3
HEADLINE_LINES, HEADLINE_CHARACTERS = 3, 165
CAPTION_CHARACTERS, NAME_CHARACTERS = 190, 34
DPI, LARGEST_PIXELS = 110, 60_000
"""Agg draws fewer than 2**16 pixels per side; a taller figure gets a lower resolution."""
LEGEND = (
    "Bars and numbers: mean over runs, below it min to max; dots: the runs; line: min to max. Boxes: quartiles of the "
    "steady steps of all runs, whiskers from 5 to 95 %. Colour: platform; shade and hatch: framework."
)
Bars = tuple[str, str, Callable[[Row], Spread | None]]


def png(comparison: Comparison) -> bytes:
    """Return the figure of all verdicts and groups as a PNG."""
    return rendered(lambda: draw(comparison))


def rendered(draw_figure: Callable[[], Figure]) -> bytes:
    """Return a figure as a PNG of ours; `draw_figure` is called with the matplotlib settings of all our pictures."""
    # Names are untrusted text: a dollar sign in one must not start a formula, also if the user's matplotlib has TeX.
    settings = {"text.parse_math": False, "text.usetex": False, "font.size": 9, "hatch.linewidth": 0.6}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box is drawn in its place
        figure = draw_figure()
        stream = io.BytesIO()
        dpi = min(DPI, LARGEST_PIXELS / max(figure.get_size_inches()))
        figure.savefig(stream, format="png", dpi=dpi, metadata=PNG_MARK)
    return stream.getvalue()


def draw(comparison: Comparison) -> Figure:
    """Return the figure. `png` renders it with the matplotlib settings that it assumes."""
    groups, judged = comparison.groups, comparison.judged
    captions = [caption(group) for group in groups]
    heights = [LINE * (len(lines) + 3) + _panels(group) for group, lines in zip(groups, captions, strict=True)]
    lines = wrapped(comparison.headline, HEADLINE_LINES, HEADLINE_CHARACTERS)
    lines += [f"{comparison.tally}."] if len(judged) > 1 else []
    forest = forest_plot.height(judged) + FOREST_GAP * bool(judged)
    title = TITLE + LINE * (len(lines) - 1)
    figure = Figure(figsize=(WIDTH, title + forest + sum(heights)))
    weight = "bold" if judged and forest_plot.is_filled(judged[0]) else "normal"
    _text(figure, 0.12, "\n".join(lines), size=10, weight=weight)
    legend = "\n".join(wrapped(LEGEND, 2, CAPTION_CHARACTERS))
    _text(figure, 0.42 + LINE * (len(lines) - 1), legend if groups else "No result could be read.", size=9)
    if judged:
        size = forest_plot.height(judged) - forest_plot.FOOTING
        axes = _axes(figure, MARGIN + FOREST_NAMES, title, FOREST_WIDTH, size, "", "")
        colours = [PLATFORM_COLOURS.get(one.pair.b[0].result["platform"], OTHER_COLOUR) for one in judged]
        forest_plot.draw(axes, judged, comparison.band, colours, INK)
    top = title + forest
    for group, captioned, height in zip(groups, captions, heights, strict=True):
        _text(figure, top, group.key.title, size=12, weight="bold")
        _text(figure, top + 1.4 * LINE, "\n".join(captioned), size=9)
        if group.counted:
            _draw_group(figure, group, comparison.figures, top + LINE * (len(captioned) + 3))
        top += height
    return figure


def caption(group: Group) -> list[str]:
    """Return the lines above the panels of `group`: settings, layouts, versions, dates, and missing runs."""
    counted, refused = len(group.counted), group.not_counted
    few = [f"{row.letter} has {len(row.counted)}" for row in group.rows if 0 < len(row.counted) < ENOUGH_RUNS]
    remarks = [f"Fewer than five runs: {', '.join(few)}."] if few else []
    if refused and counted:
        remarks.append(f"Not counted: {len(refused)} of {len(refused) + counted}, see compare.md.")
    lines = wrapped(f"{group.key.setting}; {group.conditions}", 4, CAPTION_CHARACTERS) + wrapped(
        " ".join(remarks), 2, CAPTION_CHARACTERS
    )
    if not counted:  # without a panel, the reasons are all that there is to show
        for row, entry in refused:
            lines += wrapped(
                plain(f"Not counted: {row.name} {run_label(entry.result)}: {entry.why_not_counted}"),
                1,
                CAPTION_CHARACTERS,
            )
    return lines


def _draw_group(figure: Figure, group: Group, figures: Mapping[int, Metrics], top: float) -> None:
    """Draw a strip of bars above a strip of step times and losses; a panel without any value is left out."""
    height, left, rows = _panel_height(group), MARGIN + NAMES, group.rows
    bars: tuple[Bars, ...] = (
        ("Throughput", "tokens/s per GPU or rank", lambda row: row.throughput),
        ("Step time", "seconds", lambda row: row.step_time),
        ("Peak memory", "GB", lambda row: row.memory),
        ("MFU, causal attention", "% of the dense peak", lambda row: utilisation(row, figures)),
    )
    shown = [one for one in bars if any(one[2](row) for row in rows)]
    for index, (title, unit, spread_of) in enumerate(shown):
        axes = _axes(figure, left, top, PANEL, height, title, unit)
        bar_panel(axes, rows, spread_of)
        _name_rows(axes, rows, is_first=index == 0)
        left += PANEL + GAP
    top, left = top + height + FOOTING + STRIP_GAP, MARGIN + NAMES
    if _has_steady(group):
        axes = _axes(figure, left, top, BOX_WIDTH, height, "Steady step times", "seconds, axis not from 0")
        box_panel(axes, rows)
        _name_rows(axes, rows, is_first=True)
        left += BOX_WIDTH + LOSS_GAP
    if _has_losses(group):
        axes = _axes(figure, left, top, LOSS_WIDTH, min(height, LOSS_HEIGHT), "Loss, each run", "step")
        loss_panel(axes, rows)
    for axes in figure.axes:
        space_ticks(axes)


def _has_steady(group: Group) -> bool:
    return any(times for row in group.rows for times in row.steady_times)


def _has_losses(group: Group) -> bool:
    return any(loss is not None for entry in group.counted for loss in entry.result["loss_values"])


def utilisation(row: Row, figures: Mapping[int, Metrics]) -> Spread | None:
    """Return the MFU of the counted runs in percent; None if the peak of the device is unknown."""
    known = (figures[id(entry)].get("mfu_causal") for entry in row.counted)
    return known_spread(figure.value for figure in known if figure is not None)


def _axes(figure: Figure, left: float, top: float, width: float, height: float, title: str, unit: str) -> Any:
    total_width, total_height = figure.get_size_inches()
    bottom = total_height - top - height
    axes = figure.add_axes((left / total_width, bottom / total_height, width / total_width, height / total_height))
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    return axes


def _name_rows(axes: Any, rows: Sequence[Row], *, is_first: bool) -> None:
    margin = max(0.5, (FEWEST_ROWS + 1 - len(rows)) / 2)
    axes.set_ylim(len(rows) - 1 + margin, -margin)
    names = ["\n".join([cut(row.name, NAME_CHARACTERS), *wrapped(row.device, 2, NAME_CHARACTERS)]) for row in rows]
    axes.set_yticks(range(len(rows)), names if is_first else [row.letter for row in rows], fontsize=8)


def _text(figure: Figure, top: float, text: str, **style: Any) -> None:
    width, height = figure.get_size_inches()
    figure.text(MARGIN / width, 1 - top / height, text, va="top", color=INK, **style)


def _panel_height(group: Group) -> float:
    return ROW_HEIGHT * max(FEWEST_ROWS, len(group.rows))


def _panels(group: Group) -> float:
    if not group.counted:
        return 0.0
    strips = 1 + (_has_steady(group) or _has_losses(group))
    return strips * (_panel_height(group) + FOOTING) + STRIP_GAP * (strips - 1)
