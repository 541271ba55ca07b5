"""The panels of a comparison: verdicts on one axis of ratios, systems of a group as bars, their curves, kinds of time.

Bars start at 0, with a dot for each run and a line from the smallest run to the largest. Colour shows the platform;
letters, line styles and marks show the same without colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from evaluate.checks.entries import Entry
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
KIND_COLOURS = dict(
    zip(KINDS, ("#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#f0e442", BAND, OTHER_COLOUR), strict=True)
)
LETTERS = dict(zip(KINDS, "MABOCHIU", strict=True))
"""Letter of each kind, so that no bar needs its colour."""
MS = 1e3


def verdicts(judged: Sequence[Judged], band: float, quantity: str) -> Picture:
    """Return the ratio of each verdict with its interval on one logarithmic axis, the band shaded."""
    shown = judged[:MOST_VERDICTS]
    said = "; ".join(f"{one.pair.b_name} over {one.pair.a_name}: {_verdict_text(one)}" for one in shown)
    return Picture(
        f"Ratios of {quantity} with 95 % intervals: {said}",
        VERDICT_HEIGHT * len(shown) + FOOTING,
        lambda axes: _verdicts(axes, shown, band, quantity),
    )


def bars(rows: Sequence[Row], figures: Mapping[int, Metrics]) -> list[Picture]:
    """Return a panel of bars for each quantity that at least one system has."""

    def mfu(entry: Entry) -> float | None:
        return figures[id(entry)]["mfu_causal"].value if "mfu_causal" in figures[id(entry)] else None

    quantities: tuple[tuple[str, str, Callable[[Row], Sequence[float]]], ...] = (
        ("Throughput", "tokens/s per GPU or rank", lambda row: row.figures[SPEED]),
        ("Step time", "seconds", lambda row: row.figures[STEP]),
        ("Peak memory", "GB", lambda row: row.figures[MEMORY]),
        ("MFU, causal attention", "% of the dense peak", lambda row: known_values(map(mfu, row.counted))),
    )
    shown = rows[:MOST_ROWS]
    return [
        _bars(title, unit, shown, found)
        for title, unit, runs_of in quantities
        if any(found := [runs_of(row) for row in shown])
    ]


def curves(rows: Sequence[Row]) -> list[Picture]:
    """Return the step times and the losses of all counted runs over the steps, where at least one is known."""
    shown = [row for row in rows[:MOST_ROWS] if row.counted]
    found = []
    for title, unit, key in (("Step time", "seconds", "step_times"), ("Loss", "nats per token", "loss_values")):
        lines = [_line(row, key, MOST_SAMPLES // len(shown)) for row in shown]
        if any(lines):
            label = f"{title} in {unit} over steps of {', '.join(row.name for row in shown)}"
            height = max(CURVES_HEIGHT, 0.19 * len(shown) + 0.6)
            draw = partial(_curves, shown, lines, f"{title.lower()} ({unit})", key == "step_times")
            found.append(Picture(label, height, draw))
    return found


def kinds(sides: Sequence[tuple[str, Mapping[str, float]]]) -> Picture:
    """Return a stacked bar of the kinds of time of a step for each side, from its name and the seconds by kind."""
    known = [kind for kind in KINDS if any(side.get(kind, 0) > 0 for _, side in sides)]
    said = "; ".join(
        f"{name}: " + ", ".join(f"{WORDS[kind]} {number(side.get(kind, 0) * MS)} ms" for kind in known)
        for name, side in sides
    )

    def draw(axes: Any) -> None:
        starts = [0.0] * len(sides)
        longest = max((sum(side.values()) for _, side in sides), default=0.0) * MS or 1.0
        for kind in known:
            widths = [max(0.0, side.get(kind, 0.0)) * MS for _, side in sides]
            axes.barh(range(len(sides)), widths, left=starts, height=0.6, color=KIND_COLOURS[kind], edgecolor=PAPER,
                linewidth=0.6, label=f"{LETTERS[kind]}: {WORDS[kind]}")  # fmt: skip
            for place, (start, width) in enumerate(zip(starts, widths, strict=True)):
                if width > 0.03 * longest:
                    axes.text(start + width / 2, place, LETTERS[kind], ha="center", va="center", weight="bold", size=8)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        names = ["\n".join(wrapped(name, 2, NAME_CHARACTERS)) for name, _ in sides]
        _axis(axes, "ms of one step", longest, names)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.35 if len(sides) > 1 else -0.6), ncols=2, fontsize=8)

    height = ROW_HEIGHT * len(sides) + FOOTING + 0.2 * math.ceil(len(known) / 2)
    return Picture(f"Kinds of time of a step, in milliseconds. {said}", height, draw)


def _verdict_text(one: Judged) -> str:
    found = one.estimate
    if one.word == NOT_COMPARABLE or found is None:
        return "not comparable"
    interval = "" if _ends(found) else ", no valid interval"
    return f"{one.spoken_word}, {with_interval(found.ratio, found.low, found.high)}{interval}"


def _verdicts(axes: Any, shown: Sequence[Judged], band: float, quantity: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    places = [end for one in shown if one.estimate for end in (one.estimate.ratio, *_ends(one.estimate))]
    reach = max([LEAST_REACH, 1 + band, *(max(place, 1 / max(place, 1e-9)) for place in places)])
    end = min(reach, LARGEST_REACH) ** 1.08
    axes.set(xscale="log", xlim=(1 / end, end), ylim=(len(shown) - 0.6, -0.8))
    axes.axvspan(1 / (1 + band), 1 + band, color=BAND, zorder=0)
    axes.axvline(1, color=INK, linestyle=":", linewidth=1)
    for y, one in enumerate(shown):
        _interval(axes, y, one, end)
        names = f"{one.pair.b_name} / {one.pair.a_name}"
        if one.estimate is None:  # in the order of the reason's values
            names = f"{one.pair.a_name} and {one.pair.b_name}: {one.reasons[0]}"
        text = "".join(wrapped(f"{_verdict_text(one)}: {without_vendors(names)}", 1, VERDICT_CHARACTERS))
        behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
        axes.text(0, y - 0.42, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5, bbox=behind)
    ticks = next(ticks for ticks in TICKS if end <= ticks[-1] or ticks is TICKS[-1])
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if 1 / end <= tick <= end]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"ratio of {quantity}, side named first over the other (logarithmic)")


def _ends(found: Estimate) -> tuple[float, ...]:
    """Return the two ends of the 95 % interval; nothing if no interval is valid."""
    return () if found.low is None or found.high is None else (found.low, found.high)


def _interval(axes: Any, y: int, one: Judged, end: float) -> None:
    """Draw a ratio and its interval; an end beyond the axis is an arrow."""
    found = one.estimate
    if found is None:
        return
    ends = _ends(found)
    places = [min(max(place, 1 / end), end) for place in ends]
    axes.plot(places, [y] * len(places), color=INK, linewidth=1.4)
    for place, true, arrow in zip(places, ends, "<>", strict=False):
        axes.plot(place, y, "|" if place == true else arrow, color=INK, markersize=8, clip_on=False)
    colour = PLATFORM_COLOURS.get(one.pair.b[0].result["platform"], OTHER_COLOUR)
    inside = colour if one.is_proven and one.word != UNDECIDED else PAPER  # hollow: undecided, or not proven
    axes.plot(found.ratio, y, "s", markersize=5, color=inside, markeredgecolor=INK)


def _bars(title: str, unit: str, rows: Sequence[Row], figures: Sequence[Sequence[float]]) -> Picture:
    texts = [Value(mean_of(runs)).text if runs else "" for runs in figures]
    said = ", ".join(f"{row.name} {text or 'unknown'}" for row, text in zip(rows, texts, strict=True))

    def draw(axes: Any) -> None:
        largest = max((value for runs in figures for value in runs), default=0) or 1.0
        for y, (row, runs, text) in enumerate(zip(rows, figures, texts, strict=True)):
            if not runs:
                reason = "unknown" if row.counted else "no counted run"
                axes.text(0.02 * largest, y, reason, va="center", style="italic")
                continue
            axes.barh(y, mean_of(runs), height=0.6, facecolor=_colour(row), edgecolor=INK, linewidth=0.8)
            axes.plot([min(runs), max(runs)], [y, y], color=INK, linewidth=1.6)
            heights = [y + 0.3 * ((place + 1) / (len(runs) + 1) - 0.5) for place in range(len(runs))]
            axes.plot(runs, heights, "o", markersize=3.5, color=PAPER, markeredgecolor=INK)
            axes.text(max(runs) + 0.03 * largest, y, text, va="center", fontsize=8)
        names = ["\n".join([cut(row.name, NAME_CHARACTERS), *wrapped(row.device, 2, NAME_CHARACTERS)]) for row in rows]
        _axis(axes, unit, 1.25 * largest, names)
        axes.set_title(title)

    return Picture(f"{title} in {unit}: {said}", ROW_HEIGHT * max(2, len(rows)) + FOOTING, draw)


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
        known = [(s, v) for s, v in zip(entry.result["steps"], entry.result[key], strict=True) if v is not None]
        kept = _thinned(known, max(8, most // len(row.counted)))
        line += [*kept, (math.nan, math.nan)] if kept else []
    return line


def _thinned(samples: Sequence[tuple[int, float]], most: int) -> Sequence[tuple[int, float]]:
    """Return the smallest and the largest of each stretch of steps: a single slow step stays visible."""
    if len(samples) <= most:
        return samples
    ends = [len(samples) * place // (most // 2) for place in range(most // 2 + 1)]
    parts = [samples[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    return [kept for part in parts for kept in sorted({min(part, key=itemgetter(1)), max(part, key=itemgetter(1))})]


def _curves(
    rows: Sequence[Row], lines: Sequence[list[tuple[float, float]]], unit: str, is_fitted: bool, axes: Any
) -> None:
    """Draw lines; a fitted axis shows the steps that count, not slow first ones."""
    for place, (row, line) in enumerate(zip(rows, lines, strict=True)):
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
    steady = [time for row in rows for run in row.steady_times for time in run]
    if is_fitted and steady:
        room = 0.06 * (max(steady) - min(steady)) or 0.02 * max(steady)
        axes.set_ylim(min(steady) - room, max(steady) + room)
    axes.set(xlabel="step", ylabel=unit)
    axes.grid(axis="y", color=GRID)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, handlelength=3.5)


def _colour(row: Row) -> str:
    return PLATFORM_COLOURS.get(row.key.platform, OTHER_COLOUR)
