"""history.html: one file that opens from disk, makes no request and needs no script; for screens of any width.

Its charts are inline SVG: runs over time, levels as lines, changes marked. Colours are classes of the page's style, so
that one chart serves light and dark. A point says its run on hover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from evaluate.page import page as comparison_page
from evaluate.report.tables import number, plain, round_step
from evaluate.timeline import words
from evaluate.timeline.content import DEFINITIONS, TITLE
from evaluate.timeline.history import LOSS, MEMORY, SLOWER, SPEED, UNITS, History, Story, Track
from evaluate.timeline.series import Run
from evaluate.timeline.states import Differing

CHANGES = ("Change", "Since (UTC)", "Size", "On record")
VERSIONS = ("Versions", "Days", "Runs", "tokens/s/GPU", "MFU (%)", "Peak memory (GB)", "Last loss (nats/token)")
HERE = Path(__file__).parent
WIDTH, HEIGHT = 380, 210
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 12, 30
TITLES = {SPEED: "Throughput", MEMORY: "Peak memory", LOSS: "Last loss"}
LEAST_SPAN = 0.04
"""Relative height of an axis at the least, so that noise of a thousandth does not fill the chart."""
MARGIN = 0.08
TICKS = 4
MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def page(history: History) -> str:
    """Return the whole page."""
    style = comparison_page.asset("page.css") + (HERE / "templates" / "history.css").read_text(encoding="utf8")
    template = comparison_page.environment(HERE / "templates").get_template("history.html")
    return template.render(
        title=TITLE,
        policy=comparison_page.policy(style, None),
        style=Markup(style),
        headline=words.headline(history),
        band=f"{history.band:.1%}",
        stories=[_story(story) for story in history.stories],
        left_out=words.not_in_a_series(history),
        files=words.file_lines(history),
        hint=words.hint(history),
        definitions=DEFINITIONS,
    )


def _story(story: Story) -> dict[str, Any]:
    return {
        "name": story.series.name,
        "word": "loss changed" if story.loss_changes else story.speed.word,
        "kind": "bad" if story.loss_changes or story.speed.word == SLOWER else "plain",
        "platform": story.series.key["platform"],
        "sentence": words.sentence(story),
        "details": words.details(story),
        "charts": list(charts(story)),
        "changes_header": CHANGES,
        "changes": [row for track in story.tracks for row in _changes(track)],
        "versions_header": VERSIONS,
        "versions": words.version_rows(story),
        "steps": [
            (f"{run.started:%Y-%m-%d %H:%M} UTC", ", ".join(one.text for one in what))
            for run, what in reversed(story.version_changes)
        ],
    }


def _changes(track: Track) -> list[tuple[str, ...]]:
    title = TITLES[track.quantity] + (f", seed {track.seed}" if track.quantity == LOSS else "")
    return [
        (
            f"{mark(place)}: {title}",
            f"{change.first_after.started:%Y-%m-%d %H:%M}",
            words.size_text(track, change),
            words.cause(change),
        )
        for place, change in enumerate(track.changes)
    ]


@dataclass(frozen=True)
class Chart:
    """One chart with its caption."""

    caption: str
    svg: Markup


def charts(story: Story) -> Iterator[Chart]:
    """Yield the charts of a series: throughput, peak memory, and the loss of each seed."""
    readers: dict[str, Callable[[Run], float | None]] = {
        SPEED: lambda run: run.rate,
        MEMORY: lambda run: run.memory,
        LOSS: lambda run: run.loss,
    }
    runs = story.series.runs
    time = _Axis(runs[0].started.timestamp(), runs[-1].started.timestamp(), LEFT, WIDTH - RIGHT)
    marks = [_version(_x(time, run), what) for run, what in story.version_changes]
    for track in story.tracks:
        seed = f", seed {track.seed}" if track.seed is not None else ""
        caption = f"{TITLES[track.quantity]} ({UNITS[track.quantity]}){seed}"
        yield Chart(caption, _svg(track, readers[track.quantity], caption, time, marks))


def mark(number_of_change: int) -> str:
    """Return the letter of a change in a chart and in the table beside it."""
    return MARKS[number_of_change % len(MARKS)]


@dataclass(frozen=True)
class _Axis:
    """An axis from `low` at the coordinate `start` to `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return the coordinate of a value: the middle on an axis of a single value."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.end - self.start)


def _values_axis(values: Sequence[float]) -> _Axis:
    low, high = min(values), max(values)
    least = LEAST_SPAN * max(abs(low), abs(high))
    room = max(0.0, least - (high - low)) / 2 + MARGIN * max(high - low, least)
    return _Axis(low - room, high + room, HEIGHT - BOTTOM, TOP)


def _x(time: _Axis, run: Run) -> float:
    return time.place(run.started.timestamp())


def _version(x: float, what: Sequence[Differing]) -> str:
    y, text = HEIGHT - BOTTOM, escape(plain(", ".join(one.text for one in what)))
    return f'<path class="version" d="M{x - 4:.1f} {y}h8l-4 -7z"><title>{text}</title></path>'


def _svg(track: Track, value: Callable[[Run], float | None], caption: str, time: _Axis, marks: Sequence[str]) -> Markup:
    runs = [(run, found) for run in track.runs if (found := value(run)) is not None]
    axis = _values_axis([found for _, found in runs])
    odd = {id(run) for place in track.levels.odd for run in track.blocks[place]}
    parts = [*_grid(axis), *_days(time), *marks]
    for place, change in enumerate(track.changes):
        x = (_x(time, change.last_before) + _x(time, change.first_after)) / 2
        parts.append(f'<path class="change" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="letter" x="{x + 3:.1f}" y="{TOP + 9}">{mark(place)}</text>')
    for run, found in runs:
        shape = "odd" if id(run) in odd else "run"
        parts.append(
            f'<circle class="{shape}" cx="{_x(time, run):.1f}" cy="{axis.place(found):.1f}" r="3">'
            f"<title>{escape(_told(run, found, track))}</title></circle>"
        )
    for level in track.levels.found:
        left, right = (_x(time, run) for run in (track.blocks[level.first][0], track.blocks[level.last][-1]))
        least = 4 if right - left < 1 else 0  # a level of one run is a dash
        parts.append(
            f'<path class="level" d="M{left - least:.1f} {axis.place(math.exp(level.value)):.1f}H{right + least:.1f}"/>'
        )
    label = escape(f"{caption} over time: {len(runs)} runs, {len(track.changes)} changes of level")
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _told(run: Run, value: float, track: Track) -> str:
    mfu = f", MFU {run.mfu.value:.1f} %" if track.quantity == SPEED and run.mfu.value is not None else ""
    return plain(
        f"{run.started:%Y-%m-%d %H:%M} UTC, run {run.result['run']}: {value:.6g} {UNITS[track.quantity]}{mfu}; "
        f"{run.entry.path}"
    )


def _grid(axis: _Axis) -> Iterator[str]:
    step = round_step((axis.high - axis.low) / TICKS)
    value = math.ceil(axis.low / step) * step
    while value <= axis.high:
        y = axis.place(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(value, step)}</text>'
        value += step


def _tick(value: float, step: float) -> str:
    decimals = max(0, -math.floor(math.log10(step)))
    return number(round(value)) if decimals == 0 and abs(value) >= 1000 else f"{value:.{decimals}f}"


def _days(time: _Axis) -> Iterator[str]:
    seconds = dict.fromkeys((time.low, (time.low + time.high) / 2, time.high))
    days = [datetime.fromtimestamp(one, timezone.utc) for one in seconds]
    is_one_day = days[0].date() == days[-1].date()
    anchors = ("start", "middle", "end") if len(days) == 3 else ("middle",) * len(days)
    for day, anchor in zip(days, anchors, strict=True):
        text, x = f"{day:%H:%M}" if is_one_day else f"{day:%Y-%m-%d}", time.place(day.timestamp())
        yield f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{text}</text>'
    yield f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'
