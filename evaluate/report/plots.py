"""compare.png: the verdicts as a forest plot, then two strips of panels for each group of a comparison.

Bars start at 0 and carry a dot for each run and a line from the smallest run to the largest. Colour shows only the
platform. Shade and hatch show the framework; letter, line style and marker show the row. So the figure is readable
without colour. Lengths are in inches and panels have fixed sizes: the proportions are the same for one result as for
forty.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from evaluate.metrics.figures import Metrics
from evaluate.report import forest_plot
from evaluate.report.comparison import Comparison
from evaluate.report.groups import ENOUGH_RUNS, Group, Row, Spread, known_spread, run_label
from evaluate.report.tables import plain
from evaluate.report.text import spread_text
from utils.own_files import PNG_MARK

# The palette of Okabe and Ito (2008), distinguishable with any common colour blindness.
PLATFORM_COLOURS = {"nvd": "#009E73", "amd": "#D55E00", "cpu": "#0072B2"}
OTHER_COLOUR = "#7F7F7F"
FRAMEWORK_LOOKS = {"mega": (0.1, ""), "hf": (0.6, "///"), "nemo": (0.35, "xxx"), "prim": (0.45, "...")}
"""Share of white mixed into the colour, and hatch."""
OTHER_LOOK = (0.75, "++")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#222222"

WIDTH, MARGIN = 16.5, 0.3
FOREST_NAMES, FOREST_WIDTH, FOREST_GAP = 4.3, 6.4, 0.25
NAMES, PANEL, GAP = 2.6, 2.95, 0.35
BOX_WIDTH, LOSS_GAP, LOSS_WIDTH, LOSS_HEIGHT = 5.3, 0.95, 4.7, 3.4
TITLE, LINE, FOOTING, STRIP_GAP = 0.85, 0.17, 0.75, 0.4
ROW_HEIGHT, FEWEST_ROWS = 0.56, 3
DIGIT, NUMBER_GAP, MOST_ROOM = 0.07, 0.25, 0.75
"""Inches of a digit of the numbers after a bar and of the gap around them; largest share of a panel for them."""
HEADLINE_LINES, HEADLINE_CHARACTERS = 3, 165
CAPTION_CHARACTERS, NAME_CHARACTERS, LEGEND_CHARACTERS = 190, 34, 18
TICK_CHARACTER, TICK_GAP, MOST_TICKS = 0.085, 0.12, 4
"""Inches of one character of a tick label and between two labels; largest number of intervals between ticks."""
LAST_TICK = 0.95
"""Share of an axis beyond which no tick stands, because its label would reach into the next panel."""
DPI, LARGEST_PIXELS = 110, 60_000
"""Agg draws fewer than 2**16 pixels per side; a taller figure gets a lower resolution."""
LEGEND = (
    "Bars and numbers: mean over runs, below it min to max; dots: the runs; line: min to max. Boxes: quartiles of the "
    "steady steps of all runs, whiskers from 5 to 95 %. Colour: platform; shade and hatch: framework."
)
Bars = tuple[str, str, Callable[[Row], Spread | None]]


def png(comparison: Comparison) -> bytes:
    """Return the figure of all verdicts and groups as a PNG."""
    # Names are untrusted text: a dollar sign in one must not start a formula, also if the user's matplotlib has TeX.
    settings = {"text.parse_math": False, "text.usetex": False, "font.size": 9, "hatch.linewidth": 0.6}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box is drawn in its place
        figure = draw(comparison)
        stream = io.BytesIO()
        dpi = min(DPI, LARGEST_PIXELS / figure.get_size_inches()[1])
        figure.savefig(stream, format="png", dpi=dpi, metadata=PNG_MARK)
    return stream.getvalue()


def draw(comparison: Comparison) -> Figure:
    """Return the figure. `png` renders it with the matplotlib settings that it assumes."""
    groups, judged = comparison.groups, comparison.judged
    captions = [caption(group) for group in groups]
    heights = [LINE * (len(lines) + 3) + _panels(group) for group, lines in zip(groups, captions, strict=True)]
    lines = _wrapped(comparison.headline, HEADLINE_LINES, HEADLINE_CHARACTERS)
    lines += [f"{comparison.tally}."] if len(judged) > 1 else []
    forest = forest_plot.height(judged) + FOREST_GAP * bool(judged)
    title = TITLE + LINE * (len(lines) - 1)
    figure = Figure(figsize=(WIDTH, title + forest + sum(heights)))
    weight = "bold" if judged and forest_plot.is_filled(judged[0]) else "normal"
    _text(figure, 0.12, "\n".join(lines), size=10, weight=weight)
    legend = "\n".join(_wrapped(LEGEND, 2))
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
    lines = _wrapped(f"{group.key.setting}; {group.conditions}", 4) + _wrapped(" ".join(remarks), 2)
    if not counted:  # without a panel, the reasons are all that there is to show
        for row, entry in refused:
            lines += _wrapped(plain(f"Not counted: {row.name} {run_label(entry.result)}: {entry.why_not_counted}"), 1)
    return lines


def look(row: Row) -> dict[str, Any]:
    """Return face colour, edge and hatch of a row's bar or box."""
    white, hatch = FRAMEWORK_LOOKS.get(row.key.framework, OTHER_LOOK)
    colour = to_rgb(PLATFORM_COLOURS.get(row.key.platform, OTHER_COLOUR))
    return {"facecolor": tuple(c + (1 - c) * white for c in colour), "edgecolor": INK, "hatch": hatch, "linewidth": 0.8}


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
        _bar_panel(axes, rows, spread_of)
        _name_rows(axes, rows, is_first=index == 0)
        left += PANEL + GAP
    top, left = top + height + FOOTING + STRIP_GAP, MARGIN + NAMES
    if _has_steady(group):
        axes = _axes(figure, left, top, BOX_WIDTH, height, "Steady step times", "seconds, axis not from 0")
        _box_panel(axes, rows)
        _name_rows(axes, rows, is_first=True)
        left += BOX_WIDTH + LOSS_GAP
    if _has_losses(group):
        axes = _axes(figure, left, top, LOSS_WIDTH, min(height, LOSS_HEIGHT), "Loss, each run", "step")
        _loss_panel(axes, rows)
    for axes in figure.axes:
        _space_ticks(axes)


def _has_steady(group: Group) -> bool:
    return any(times for row in group.rows for times in row.steady_times)


def _has_losses(group: Group) -> bool:
    return any(loss is not None for entry in group.counted for loss in entry.result["loss_values"])


def utilisation(row: Row, figures: Mapping[int, Metrics]) -> Spread | None:
    """Return the MFU of the counted runs in percent; None if the peak of the device is unknown."""
    known = (figures[id(entry)].get("mfu_causal") for entry in row.counted)
    return known_spread(figure.value for figure in known if figure is not None)


def _bar_panel(axes: Any, rows: Sequence[Row], spread_of: Callable[[Row], Spread | None]) -> None:
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


def _box_panel(axes: Any, rows: Sequence[Row]) -> None:
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


def _loss_panel(axes: Any, rows: Sequence[Row]) -> None:
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
            label=_cut(row.name, LEGEND_CHARACTERS),
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


def _axes(figure: Figure, left: float, top: float, width: float, height: float, title: str, unit: str) -> Any:
    total_width, total_height = figure.get_size_inches()
    bottom = total_height - top - height
    axes = figure.add_axes((left / total_width, bottom / total_height, width / total_width, height / total_height))
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_text(value)))
    return axes


def _space_ticks(axes: Any) -> None:
    """Mark as many values on the x axis as have room for their labels."""
    if isinstance(axes.xaxis.get_major_locator(), FixedLocator):
        return  # the forest plot spaces its own
    inches = axes.get_position().width * axes.figure.get_size_inches()[0]
    low, high = axes.get_xlim()
    for count in range(MOST_TICKS, 0, -1):
        ticks = [tick for tick in MaxNLocator(count).tick_values(low, high) if low <= tick <= high]
        longest = max((len(_tick_text(tick)) for tick in ticks), default=0)
        if len(ticks) < 2 or (ticks[1] - ticks[0]) / (high - low) * inches > longest * TICK_CHARACTER + TICK_GAP:
            break
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if tick <= low + LAST_TICK * (high - low)]))


def _tick_text(value: float) -> str:
    return f"{value:,.6g}"


def _name_rows(axes: Any, rows: Sequence[Row], *, is_first: bool) -> None:
    margin = max(0.5, (FEWEST_ROWS + 1 - len(rows)) / 2)
    axes.set_ylim(len(rows) - 1 + margin, -margin)
    names = ["\n".join([_cut(row.name, NAME_CHARACTERS), *_wrapped(row.device, 2, NAME_CHARACTERS)]) for row in rows]
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


def _scattered(y: int, count: int) -> list[float]:
    """Return heights around `y` that separate runs of nearly equal value."""
    return [y + 0.3 * ((index + 1) / (count + 1) - 0.5) for index in range(count)]


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."


def _wrapped(text: str, lines: int, characters: int = CAPTION_CHARACTERS) -> list[str]:
    return textwrap.wrap(plain(text), characters, max_lines=lines, placeholder=" ...")
