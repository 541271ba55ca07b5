"""The panels of a comparison: verdicts on one axis of ratios, systems of a group as bars, their curves, kinds of time.

Bars start at 0, with a dot for each run and a line from the smallest run to the largest. Colour shows the platform;
letters, line styles and marks show the same without colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from evaluate.metrics.figures import Metrics
from evaluate.report.blocks import Picture, Value
from evaluate.report.groups import MEMORY, SPEED, STEP, Row, known_values, mean_of
from evaluate.report.pictures import BAND, GRID, INK, OTHER_COLOUR, PAPER, PLATFORM_COLOURS
from evaluate.report.tables import cut, number, wrapped
from evaluate.timing.kinds import KINDS, WORDS
from evaluate.verdict.inference import UNDECIDED, Estimate
from evaluate.verdict.ratios import with_interval
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged
from evaluate.verdict.side_names import without_vendors

LEAST_REACH, LARGEST_REACH = 1.12, 32.0
"""Least and largest ratio at the end of the axis, whose other end is its inverse: noise must not look like a
difference, and an interval that goes further ends in an arrow."""
TICKS = (
    (0.9, 0.95, 1.0, 1.05, 1.1, 1.15),
    (0.75, 0.8, 0.9, 1.0, 1.1, 1.25, 1.35),
    (0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0),
    (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
)
"""Ratios to mark; the first row that reaches the end of the axis counts."""
MOST_VERDICTS, MOST_ROWS, MOST_SAMPLES = 40, 60, 6_000
"""Largest numbers of verdicts, of systems and of samples of one panel; compare.json and the results have all."""
VERDICT_HEIGHT, ROW_HEIGHT, FOOTING, CURVES_HEIGHT = 0.43, 0.5, 0.75, 2.9
NAME_CHARACTERS, LEGEND_CHARACTERS, VERDICT_CHARACTERS = 30, 24, 88
MARKS_A_ROW = 24
LINE_STYLES, MARKERS = ("-", "--", "-.", ":"), ("o", "s", "^", "D", "v", "P", "X")
KIND_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#f0e442", BAND, OTHER_COLOUR)
LETTERS = "MABOCHIU"
"""Colour and letter of each of KINDS; the letter, so that no bar needs its colour."""
MS = 1e3


def verdicts(judged: Sequence[Judged], band: float, quantity: str) -> Picture:
    """Return the ratio of each verdict with its interval on one logarithmic axis, the band shaded."""
    shown = judged[:MOST_VERDICTS]
    ratios = [f"{verdict.pair.b_name} over {verdict.pair.a_name}: {_verdict_text(verdict)}" for verdict in shown]
    return Picture(
        f"Ratios of {quantity} with 95 % intervals: {'; '.join(ratios)}",
        VERDICT_HEIGHT * len(shown) + FOOTING,
        partial(_verdicts, shown=shown, band=band, quantity=quantity),
    )


def bars(rows: Sequence[Row], figures: Mapping[int, Metrics]) -> list[Picture]:
    """Return a panel of bars for each quantity that at least one system has."""
    shown = rows[:MOST_ROWS]
    utilisations = []
    for row in shown:
        known = [figures[id(entry)].get("mfu_causal") for entry in row.counted]
        utilisations.append(known_values(figure.value for figure in known if figure is not None))
    panels = []
    for title, unit, runs in (
        ("Throughput", "tokens/s per GPU or rank", [row.figures[SPEED] for row in shown]),
        ("Step time", "seconds", [row.figures[STEP] for row in shown]),
        ("Peak memory", "GB", [row.figures[MEMORY] for row in shown]),
        ("MFU, causal attention", "% of the dense peak", utilisations),
    ):
        if any(runs):
            panels.append(_bars(title, unit, shown, runs))
    return panels


def curves(rows: Sequence[Row]) -> list[Picture]:
    """Return the step times and the losses of all counted runs over the steps, where at least one is known."""
    shown = [row for row in rows[:MOST_ROWS] if row.counted]
    panels = []
    for title, unit, key in (("Step time", "seconds", "step_times"), ("Loss", "nats per token", "loss_values")):
        lines = [_line(row, key, MOST_SAMPLES // len(shown)) for row in shown]
        if any(lines):
            label = f"{title} in {unit} over steps of {', '.join(row.name for row in shown)}"
            height = max(CURVES_HEIGHT, 0.19 * len(shown) + 0.6)
            draw = partial(_curves, shown, lines, f"{title.lower()} ({unit})", key == "step_times")
            panels.append(Picture(label, height, draw))
    return panels


def kinds(sides: Sequence[tuple[str, Mapping[str, float]]]) -> Picture:
    """Return a stacked bar of the kinds of time of a step for each side, from its name and the seconds by kind."""
    styles = []
    for kind, letter, colour in zip(KINDS, LETTERS, KIND_COLOURS, strict=True):
        if any(seconds.get(kind, 0) > 0 for _, seconds in sides):
            styles.append((kind, letter, colour))
    texts = []
    for name, seconds in sides:
        parts = [f"{WORDS[kind]} {number(seconds.get(kind, 0) * MS)} ms" for kind, _, _ in styles]
        texts.append(f"{name}: {', '.join(parts)}")
    height = ROW_HEIGHT * max(2, len(sides)) + FOOTING + 0.2 * math.ceil(len(styles) / 2)
    label = f"Kinds of time of a step, in milliseconds. {'; '.join(texts)}"
    return Picture(label, height, partial(_kinds, sides=sides, styles=styles))


def _kinds(axes: Any, sides: Sequence[tuple[str, Mapping[str, float]]], styles: Sequence[tuple[str, str, str]]) -> None:
    starts = [0.0] * len(sides)
    longest = max((sum(seconds.values()) for _, seconds in sides), default=0.0) * MS or 1.0
    for kind, letter, colour in styles:
        widths = [max(0.0, seconds.get(kind, 0.0)) * MS for _, seconds in sides]
        label = f"{letter}: {WORDS[kind]}"
        places = range(len(sides))
        axes.barh(places, widths, 0.6, starts, color=colour, edgecolor=PAPER, linewidth=0.6, label=label)
        for place, width in enumerate(widths):
            # a letter needs room
            if width > 0.03 * longest:
                middle = starts[place] + width / 2
                axes.text(middle, place, letter, ha="center", va="center", weight="bold", size=8)
            starts[place] += width
    names = ["\n".join(wrapped(name, 2, NAME_CHARACTERS)) for name, _ in sides]
    _axis(axes, "ms of one step", longest, names)
    # a legend of the figure gets room of its own; one of the axes is cut off at the edge of the picture
    axes.figure.legend(loc="outside lower left", ncols=2, fontsize=8)


def _verdict_text(judged: Judged) -> str:
    estimate = judged.estimate
    if judged.word == NOT_COMPARABLE or estimate is None:
        return "not comparable"
    text = f"{judged.spoken_word}, {with_interval(estimate.ratio, estimate.low, estimate.high)}"
    if not _ends(estimate):
        text += ", no valid interval"
    return text


def _verdicts(axes: Any, shown: Sequence[Judged], band: float, quantity: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    reach = max(LEAST_REACH, 1 + band)
    for judged in shown:
        if judged.estimate is not None:
            for ratio in (judged.estimate.ratio, *_ends(judged.estimate)):
                reach = max(reach, ratio, 1 / max(ratio, 1e-9))
    # room for the marks at the ends
    end = min(reach, LARGEST_REACH) ** 1.08
    axes.set(xscale="log", xlim=(1 / end, end), ylim=(len(shown) - 0.6, -0.8))
    axes.axvspan(1 / (1 + band), 1 + band, color=BAND, zorder=0)
    axes.axvline(1, color=INK, linestyle=":", linewidth=1)
    for y, judged in enumerate(shown):
        if judged.estimate is None:
            # both names in the order in which the reason gives their values
            names = f"{judged.pair.a_name} and {judged.pair.b_name}: {judged.reasons[0]}"
        else:
            names = f"{judged.pair.b_name} / {judged.pair.a_name}"
            _interval(axes, y, judged, judged.estimate, end)
        text = "".join(wrapped(f"{_verdict_text(judged)}: {without_vendors(names)}", 1, VERDICT_CHARACTERS))
        # the text crosses the line of 1 and the band
        behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
        axes.text(0, y - 0.42, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5, bbox=behind)
    reaching = [ticks for ticks in TICKS if end <= ticks[-1]]
    ticks = reaching[0] if reaching else TICKS[-1]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if 1 / end <= tick <= end]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"ratio of {quantity}, side named first over the other (logarithmic)")


def _ends(estimate: Estimate) -> tuple[float, ...]:
    """Return the two ends of the 95 % interval; nothing if no interval is valid."""
    if estimate.low is None or estimate.high is None:
        return ()
    return estimate.low, estimate.high


def _interval(axes: Any, y: int, judged: Judged, estimate: Estimate, end: float) -> None:
    """Draw a ratio and its interval; an end beyond the axis is an arrow."""
    ends = _ends(estimate)
    places = [min(max(place, 1 / end), end) for place in ends]
    axes.plot(places, [y] * len(places), color=INK, linewidth=1.4)
    for place, true, arrow in zip(places, ends, "<>", strict=False):
        axes.plot(place, y, "|" if place == true else arrow, color=INK, markersize=8, clip_on=False)
    # hollow: undecided, or not proven
    inside = PAPER
    if judged.is_proven and judged.word != UNDECIDED:
        inside = PLATFORM_COLOURS.get(judged.pair.b[0].result["platform"], OTHER_COLOUR)
    axes.plot(estimate.ratio, y, "s", markersize=5, color=inside, markeredgecolor=INK)


def _bars(title: str, unit: str, rows: Sequence[Row], figures: Sequence[Sequence[float]]) -> Picture:
    means = [Value(mean_of(runs) if runs else None, how="no run") for runs in figures]
    texts = [f"{row.name} {mean.text}" for row, mean in zip(rows, means, strict=True)]

    def draw(axes: Any) -> None:
        largest = max((value for runs in figures for value in runs), default=0) or 1.0
        for y, (row, runs, mean) in enumerate(zip(rows, figures, means, strict=True)):
            if not runs:
                reason = "unknown" if row.counted else "no counted run"
                axes.text(0.02 * largest, y, reason, va="center", style="italic")
                continue
            axes.barh(y, mean.value, height=0.6, facecolor=_colour(row), edgecolor=INK, linewidth=0.8)
            axes.plot([min(runs), max(runs)], [y, y], color=INK, linewidth=1.6)
            # runs of equal speed must not hide one another
            heights = [y + 0.3 * ((place + 1) / (len(runs) + 1) - 0.5) for place in range(len(runs))]
            axes.plot(runs, heights, "o", markersize=3.5, color=PAPER, markeredgecolor=INK)
            axes.text(max(runs) + 0.03 * largest, y, mean.text, va="center", fontsize=8)
        names = ["\n".join([cut(row.name, NAME_CHARACTERS), *wrapped(row.device, 2, NAME_CHARACTERS)]) for row in rows]
        _axis(axes, unit, 1.25 * largest, names)
        axes.set_title(title)

    return Picture(f"{title} in {unit}: {', '.join(texts)}", ROW_HEIGHT * max(2, len(rows)) + FOOTING, draw)


def _axis(axes: Any, unit: str, end: float, names: Sequence[str]) -> None:
    """Set the axes of bars from 0 to `end`, the first one on top."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set(xlim=(0, end), ylim=(max(1.6, len(names) - 0.4), -0.6), xlabel=unit)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def _line(row: Row, key: str, most: int) -> list[tuple[float, float]]:
    """Return steps and values of all runs of a row as one line with gaps, at most about `most` samples."""
    line: list[tuple[float, float]] = []
    for entry in row.counted:
        samples = zip(entry.result["steps"], entry.result[key], strict=True)
        known = [(step, value) for step, value in samples if value is not None]
        if known:
            # the gap keeps two runs from being joined
            line += [*_thinned(known, max(8, most // len(row.counted))), (math.nan, math.nan)]
    return line


def _thinned(samples: Sequence[tuple[int, float]], most: int) -> Sequence[tuple[int, float]]:
    """Return the smallest and the largest of each stretch of steps: a single slow step stays visible."""
    if len(samples) <= most:
        return samples
    ends = [len(samples) * place // (most // 2) for place in range(most // 2 + 1)]
    kept = []
    for start, end in pairwise(ends):
        stretch = samples[start:end]
        kept += sorted({min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))})
    return kept


def _curves(
    rows: Sequence[Row], lines: Sequence[list[tuple[float, float]]], unit: str, is_fitted: bool, axes: Any
) -> None:
    """Draw lines; a fitted axis shows the steps that count, not slow first ones."""
    for place, (row, line) in enumerate(zip(rows, lines, strict=True)):
        # marks at other steps on each line, so that lines that coincide can be told apart
        spacing = max(1, len(line) // MARKS_A_ROW)
        axes.plot(
            *np.reshape(line, (-1, 2)).T,
            color=_colour(row),
            linestyle=LINE_STYLES[place % len(LINE_STYLES)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=3.5,
            markevery=(place * spacing // len(rows), spacing),
            linewidth=1.2,
            label=cut(row.name, LEGEND_CHARACTERS),
        )
    # slow first steps would flatten all others
    steady = [time for row in rows for run in row.steady_times for time in run]
    if is_fitted and steady:
        room = 0.06 * (max(steady) - min(steady)) or 0.02 * max(steady)
        axes.set_ylim(min(steady) - room, max(steady) + room)
    axes.set(xlabel="step", ylabel=unit)
    axes.grid(axis="y", color=GRID)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, handlelength=3.5)


def _colour(row: Row) -> str:
    return PLATFORM_COLOURS.get(row.key.platform, OTHER_COLOUR)
