"""A history in words: one sentence for each series, the lines behind it, and the terminal's text, verdict first."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from evaluate.report.groups import run_label
from evaluate.report.tables import plain, text_table
from evaluate.report.text import number
from evaluate.timeline.history import (
    FASTER,
    LESS,
    LOSS,
    MEMORY,
    MORE,
    SLOWER,
    STEADY,
    SUSPECTED,
    TOO_FEW,
    UNITS,
    Change,
    History,
    Story,
    Track,
)
from evaluate.timeline.series import Run, Series, dates
from evaluate.verdict.inference import LEAST_RUNS, is_beyond

MOST_LINES = 10
"""Results that are in no series, on the terminal; history.json has all."""
NAMES = {MEMORY: "peak memory", LOSS: "loss"}
NO_GAIN = "the loss changed too, so a difference in speed shows no gain and no loss of speed"
LABEL_HINT = "--join host,label puts runs of several hosts or labels into one series"


def headline(history: History) -> str:
    """Return the verdict on the whole history in one sentence."""
    slower, other = history.having(SLOWER), [story for story in history.stories if story.loss_changes]
    parts = []
    if other:
        parts.append(f"the loss changed in {_series(len(other))}")
    if slower:
        parts.append(f"{_series(len(slower))} got slower by more than {history.band:.1%}")
    if not parts:
        count = len(history.stories)
        steady = len(history.having(STEADY)) + len(history.having(FASTER))
        if not steady and not history.having(SUSPECTED):
            return f"Nothing can be compared yet: {_series(count)}, none with runs of two days or versions."
        parts.append(f"nothing got slower by more than {history.band:.1%} in {_series(count)}")
    if suspected := history.having(SUSPECTED):
        parts.append(f"{_series(len(suspected))} may have changed, and more runs are needed to tell")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def sentence(story: Story) -> str:
    """Return the verdict on one series: the loss first if it changed, then the speed."""
    parts = [f"loss changed: {change_text(track, track.latest)}" for track in story.loss_changes if track.latest]
    speed, word = story.speed, story.speed.word
    if speed.latest is not None:
        parts.append(f"{word}: {change_text(speed, speed.latest)}")
        if story.loss_changes:
            parts.append(NO_GAIN)
    else:
        level = number(math.exp(speed.levels.found[-1].value))
        runs, since = speed.levels.found[-1].runs, " to ".join(dates(speed.runs))
        text = f"{word}: {level} {UNITS[speed.quantity]}, {_runs(runs)}, {since}"
        parts.append(text if word == STEADY else f"{text}; {_why_too_few(story.series)}")
    return "; ".join(parts)


def details(story: Story) -> list[str]:
    """Return the lines behind the sentence: causes, memory, what weakens it, odd days, earlier changes."""
    lines = []
    for track in (*story.loss_changes, story.speed):
        if track.latest is not None:
            name = f"{NAMES[LOSS]}: " if track.quantity == LOSS else ""
            lines.append(f"{name}{cause(track.latest)}")
    if story.speed.word == SUSPECTED and story.speed.latest:
        lines.append(_why_suspected(story.speed.latest))
    if story.memory and story.memory.latest and story.memory.word in (MORE, LESS):
        text = change_text(story.memory, story.memory.latest)
        lines.append(f"{story.memory.word} {NAMES[MEMORY]}: {text}; {cause(story.memory.latest)}")
    lines += filter(None, (_below_best(story.speed), _last_day(story.speed)))
    lines += odd_days(story.speed)
    return lines


def change_text(track: Track, change: Change) -> str:
    """Return both levels of a change, its size with the interval, and since when the later one holds."""
    values = [number(math.exp(level.value)) for level in (change.before, change.after)]
    ends = ""
    if change.interval:
        ends = f", 95 % interval {change.interval[0] - 1:+.1%} to {change.interval[1] - 1:+.1%}"
    seed = f" with seed {track.seed}" if track.seed is not None else ""
    counts = f"{change.before.runs} and {_runs(change.after.runs)}"
    since = f"{change.first_after.started:%Y-%m-%d %H:%M} UTC"
    return (
        f"{values[0]} -> {values[1]} {UNITS[track.quantity]}{seed} ({change.ratio - 1:+.1%}{ends}; {counts}) "
        f"since {since}"
    )


def cause(change: Change) -> str:
    """Return what changed with a level."""
    if change.differing:
        return f"changed with it: {', '.join(one.text for one in change.differing)}"
    if change.near:
        return f"nothing on record changed with it; one step earlier or later: {', '.join(o.text for o in change.near)}"
    return "nothing on record changed with it: look at the machine (heat, other work, network, storage)"


def odd_days(track: Track) -> list[str]:
    """Return a line for each block that is far from the level around it, and belongs to none."""
    lines = []
    for place in track.levels.odd:
        block = track.blocks[place]
        level = next(one for one in track.levels.found if one.first <= place <= one.last)
        ratio = math.exp(sum(track.levels.blocks[place]) / len(block) - level.value)
        if is_beyond(ratio, track.band):
            lines.append(
                f"odd day {block[0].started:%Y-%m-%d}: {ratio - 1:+.1%} against its level, {_runs(len(block))}; "
                "the days after it are back"
            )
    return lines


def latest_figures(story: Story) -> tuple[str, ...]:
    """Return throughput, MFU, memory and loss of the latest level (means over its runs), its runs and its days."""
    level = story.speed.levels.found[-1]
    runs = [run for block in story.speed.blocks[level.first : level.last + 1] for run in block]
    values = ([run.mfu.value for run in runs], [run.memory for run in runs], [run.loss for run in runs])
    mfu, memory, loss = (_mean_of_known(side) for side in values)
    days = " to ".join(dates(runs))
    return (
        number(math.exp(level.value)),
        mfu if mfu == "unknown" else f"{mfu} %",
        memory,
        loss,
        str(len(runs)),
        days,
    )


def _mean_of_known(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known)) if known else "unknown"


def not_in_a_series(history: History) -> list[tuple[str, str, str]]:
    """Return run, file and reason of each result that is in no series."""
    return [
        (f"{e.result['platform']}/{e.result['framework']} {run_label(e.result)}", str(e.path), reason)
        for e, reason in history.left_out
    ]


def file_lines(history: History) -> list[str]:
    """Return one line for each file that is a copy or no result."""
    copies = [f"{copy}: the same run as {first}, counted once" for copy, first in history.copies]
    return [plain(line) for line in copies + [f"not readable: {error}" for _, error in history.unreadable]]


def hint(history: History) -> str:
    """Return advice if runs that could share a series are spread over hosts or labels."""
    names = [name for name in ("host", "label") if name not in history.join]
    keys = [
        str([(k, v) for k, v in story.series.key.items() if k not in names])
        for story in history.stories
        if story.speed.word == TOO_FEW
    ]
    return f"Some series differ in host or label only; {LABEL_HINT}." if len(keys) > len(set(keys)) else ""


def terminal(history: History, width: int) -> str:
    """Return the history as plain text: the verdict, what changed, one line for each series, what does not count."""
    parts = [textwrap.fill(headline(history), width)]
    told = [story for story in history.stories if story.speed.word not in (STEADY, TOO_FEW) or details(story)]
    told += [story for story in history.stories if story.loss_changes and story not in told]
    for story in told:
        lines = [textwrap.fill(f"{plain(story.series.name)}: {plain(sentence(story))}", width, subsequent_indent="  ")]
        lines += [_bullet(line, width) for line in details(story)]
        parts.append("\n".join(lines))
    if rest := [story for story in history.stories if story not in told]:
        rows = [(s.series.name, s.speed.word, _latest_rate(s.speed), str(len(s.series.runs)), _span(s)) for s in rest]
        parts.append(text_table(("series", "speed", "tokens/s/GPU", "runs", "days"), rows, width))
    if refused := not_in_a_series(history):
        parts.append(text_table(("in no series", "file", "reason"), refused[:MOST_LINES], width))
        if len(refused) > MOST_LINES:
            parts.append(f"and {len(refused) - MOST_LINES} more; history.json lists all.")
    if copies := len(history.copies):
        parts.append(f"{copies} {'copy' if copies == 1 else 'copies'} of runs in several folders: counted once.")
    parts += [_bullet(f"not readable: {error}", width) for _, error in history.unreadable[:MOST_LINES]]
    parts += [textwrap.fill(text, width) for text in filter(None, [hint(history)])]
    return "\n\n".join(parts)


def _bullet(line: str, width: int) -> str:
    return textwrap.fill(plain(line), width, initial_indent="  - ", subsequent_indent="    ")


def _latest_rate(track: Track) -> str:
    return number(math.exp(track.levels.found[-1].value))


def _span(story: Story) -> str:
    return " to ".join(dates(story.series.runs))


def _series(count: int) -> str:
    return f"{count} series"


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _why_too_few(series: Series) -> str:
    return f"{_runs(len(series.runs))} of one day and version; a change needs another day"


def _why_suspected(change: Change) -> str:
    if not change.has_enough_runs:
        return f"not certain: slower and faster need at least {LEAST_RUNS} runs before and after the change"
    return "not certain: chance explains it too often; repeat the runs"


def _below_best(track: Track) -> str:
    """Return a line if the latest level is below the best earlier one by more than the band, unless that is said."""
    last = track.levels.found[-1]
    best = max(track.levels.found, key=lambda level: level.value)
    ratio = math.exp(last.value - best.value)
    if not is_beyond(ratio, track.band) or (track.latest and track.latest.before == best):
        return ""
    when = track.blocks[best.last][-1].started
    return f"{ratio - 1:+.1%} against the best level, {number(math.exp(best.value))} until {when:%Y-%m-%d}"


def _last_day(track: Track) -> str:
    """Return a line if the last block is slower than its level by more than the band, without being another level."""
    level, last = track.levels.found[-1], track.levels.blocks[-1]
    if level.first == len(track.blocks) - 1:
        return ""
    others = [value for block in track.levels.blocks[level.first : -1] for value in block]
    ratio = math.exp(sum(last) / len(last) - sum(others) / len(others))
    if ratio > 1 or not is_beyond(ratio, track.band):
        return ""
    run: Run = track.blocks[-1][0]
    return f"last: {_runs(len(last))} of {run.started:%Y-%m-%d} {ratio - 1:+.1%} against the level; not certain yet"
