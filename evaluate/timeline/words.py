"""A history in words: the text for the terminal, a sentence for each series, the lines behind it, and its causes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from evaluate.report.groups import run_label
from evaluate.report.tables import number, plain, text_table
from evaluate.timeline.history import (
    LESS,
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
from evaluate.timeline.series import Run, by_version, dates
from evaluate.verdict.inference import LEAST_RUNS, is_beyond

NO_GAIN = "the loss changed too, so a difference in speed shows no gain and no loss of speed"
LABEL_HINT = "--join host,label puts runs of several hosts or labels into one series"
LEAST_REMARK = 0.01
"""Share below which a last day that is slower than its level is not worth a remark."""
MOST_ROWS = 12
"""Series without anything to tell; history.html has all."""
MOST_LINES = 5
"""Results that are in no series; history.json has all."""


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
        parts.append(text_table(("series", "speed", "tokens/s/GPU", "runs", "days"), rows[:MOST_ROWS], width))
        if len(rows) > MOST_ROWS:
            parts.append(f"and {len(rows) - MOST_ROWS} more series, all in history.html.")
    if refused := not_in_a_series(history):
        lines = [_bullet(f"{name}, {_short(path)}: {reason}", width) for name, path, reason in refused[:MOST_LINES]]
        if len(refused) > MOST_LINES:
            lines.append(_bullet(f"and {len(refused) - MOST_LINES} more, all in history.json", width))
        parts.append("\n".join(["In no series:", *lines]))
    if copies := len(history.copies):
        parts.append(f"{copies} {'copy' if copies == 1 else 'copies'} of runs in several folders: counted once.")
    if history.unreadable:
        lines = [_bullet(error, width) for _, error in history.unreadable[:MOST_LINES]]
        parts.append("\n".join([f"Not readable ({len(history.unreadable)}):", *lines]))
    parts += [textwrap.fill(text, width) for text in filter(None, [hint(history)])]
    return "\n\n".join(parts)


def _bullet(line: str, width: int) -> str:
    return textwrap.fill(plain(line), width, initial_indent="  - ", subsequent_indent="    ")


def _latest_rate(track: Track) -> str:
    return number(math.exp(track.levels.found[-1].value))


def _span(story: Story) -> str:
    return " to ".join(dates(story.series.runs))


def _short(path: str) -> str:
    """Return the last two parts of a path."""
    return str(Path(*Path(path).parts[-2:]))


def headline(history: History) -> str:
    """Return the verdict on the whole history in one sentence; a single series is named."""
    if not history.stories:
        return "No result can be used."
    slower, other = history.having(SLOWER), [story for story in history.stories if story.loss_changes]
    parts = []
    if other:
        parts.append(f"loss changed: {_of(other, history)}")
    if slower:
        parts.append(f"slower by more than {history.band:.1%}: {_of(slower, history)}")
    if not parts:
        if len(history.having(TOO_FEW)) == len(history.stories):
            return f"Nothing can be said yet: {len(history.stories)} series, all with too few runs."
        parts.append(f"nothing got slower by more than {history.band:.1%} in {len(history.stories)} series")
    if suspected := history.having(SUSPECTED):
        parts.append(f"not certain yet, more runs are needed: {_of(suspected, history)}")
    sentence = "; ".join(parts)
    return plain(f"{sentence[0].upper()}{sentence[1:]}.")


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
        parts.append(f"{text}; {_resolution(speed) if word == STEADY else _why_too_few(speed)}")
    return "; ".join(parts)


def details(story: Story) -> list[str]:
    """Return the lines behind the sentence: causes, memory, what weakens it, odd days, earlier changes."""
    lines = list(
        dict.fromkeys(cause(track.latest) for track in (*story.loss_changes, story.speed) if track.latest is not None)
    )
    if story.speed.word == SUSPECTED and story.speed.latest:
        lines.append(_why_suspected(story.speed.latest))
    if story.memory and story.memory.latest and story.memory.word in (MORE, LESS):
        text = change_text(story.memory, story.memory.latest)
        lines.append(f"{story.memory.word} peak memory: {text}")
        if (why := cause(story.memory.latest)) not in lines:
            lines.append(f"memory: {why}")
    lines += filter(None, (_below_best(story.speed), _last_day(story.speed)))
    lines += odd_days(story.speed)
    return lines


def change_text(track: Track, change: Change) -> str:
    """Return both levels of a change, its size with the interval, and since when the later one holds."""
    return f"{size_text(track, change)} since {change.first_after.started:%Y-%m-%d %H:%M} UTC"


def size_text(track: Track, change: Change) -> str:
    """Return both levels of a change, and its size with the interval and the runs."""
    values = [number(math.exp(level.value)) for level in (change.before, change.after)]
    ends = ""
    if change.interval:
        ends = f", 95 % interval {change.interval[0] - 1:+.1%} to {change.interval[1] - 1:+.1%}"
    seed = f" with seed {track.seed}" if track.seed is not None else ""
    counts = f"{change.before.runs} and {_runs(change.after.runs)}"
    return f"{values[0]} -> {values[1]} {UNITS[track.quantity]}{seed} ({change.ratio - 1:+.1%}{ends}; {counts})"


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


def version_rows(story: Story) -> list[tuple[str, ...]]:
    """Return versions, days, runs, and the mean throughput, MFU, memory and loss of each set of versions."""
    return [
        (
            one.text,
            " to ".join(dates(one.runs)),
            str(len(one.runs)),
            number(one.rate),
            *(("unknown" if value is None else number(value)) for value in (one.mfu_percent, one.memory_gb, one.loss)),
        )
        for one in by_version(story.series.runs)
    ]


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


def _of(stories: Sequence[Story], history: History) -> str:
    if len(stories) == 1:
        return stories[0].series.name
    return f"{len(stories)} of {len(history.stories)} series"


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _resolution(track: Track) -> str:
    found = track.levels.resolution
    return "the noise is unknown" if found is None else f"one more day would show a change of {math.expm1(found):.1%}"


def _why_too_few(track: Track) -> str:
    if len(track.blocks) < 2:
        return "all of one day with one set of versions; a change needs another day"
    return f"a change needs at least {LEAST_RUNS} runs before and {LEAST_RUNS} after it"


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
    earlier = track.levels.blocks[level.first : -1]
    if not earlier:
        return ""
    means = [sum(block) / len(block) for block in (*earlier, last)]
    ratio = math.exp(means[-1] - sum(means[:-1]) / len(earlier))
    if means[-1] > min(means) or not is_beyond(ratio, max(track.band, LEAST_REMARK)):
        return ""
    run: Run = track.blocks[-1][0]
    return f"last: {_runs(len(last))} of {run.started:%Y-%m-%d} {ratio - 1:+.1%} against the level; not certain yet"
