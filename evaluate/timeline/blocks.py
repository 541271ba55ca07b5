"""A history as blocks: the verdict, a card for each series, its charts and tables, what is in no series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evaluate.checks.recorded import grouped
from evaluate.report.blocks import (
    HINT,
    LIST,
    LOSS_DIGITS,
    Block,
    Card,
    Cell,
    Details,
    Folded,
    Heading,
    Lines,
    Pictures,
    Table,
    Value,
)
from evaluate.report.groups import run_label
from evaluate.report.tables import counted, number, plain
from evaluate.timeline import levels
from evaluate.timeline.history import (
    LESS,
    MARKS,
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
from evaluate.timeline.panels import tracks
from evaluate.timeline.series import LOSS, MEMORY, SPEED, by_version, dates
from evaluate.verdict.inference import LEAST_RUNS, is_beyond

DEFINITIONS = {
    "series": "runs of equal key (evaluate/timeline/series.py), in the order of provenance.started_utc",
    "runs.tokens_per_second_per_gpu": "global_batch_size x sequence_length / num_gpus x steady steps / sum of their "
    "step_times",
    "runs.mfu_percent": "model TFLOP/s with causal attention / peak of the device; null with its reason in mfu_how",
    "runs.peak_memory_gb": "memory_metrics.peak_memory_allocated_gb",
    "runs.last_loss": "mean of loss_values over the last tenth of the steps, nats per token",
    "tracks.levels.value": "geometric mean over the blocks (UTC day and versions) of the mean of their runs, or of the "
    "median from three runs on",
    "tracks.changes.ratio": "later level over earlier level; interval: 95 %, not corrected for the search",
    "tracks.changes.p_value": "two-sided, times the number of places at which a change can be; certain below "
    f"{levels.LEVEL:g}",
    "tracks.latest": "the latest level against the last earlier one that differs from it by more than the band",
    "by_version": "runs of equal packages, driver, device software and container image; means over the runs, "
    "of tokens/s/GPU the geometric one",
    "tracks.resolution": "relative difference, in logarithms, that one more day would show",
    "tracks.odd": "days far from the levels on both sides of them; in no level",
}
LEAST_REMARK = 0.01
"""Share below which a last day that is slower than its level is not worth a remark."""
PICTURE = (
    "A point is a run, a line a level, a dashed line with a letter a change; a hollow point is of an odd day; a "
    "triangle is a version, setting or commit that changed. The axes do not begin at 0."
)


def blocks(history: History) -> list[Block]:
    """Return the report: what changed, one line for each other series, what does not count, then every series."""
    told = [
        one for one in history.stories if one.loss_changes or one.speed.word not in (STEADY, TOO_FEW) or details(one)
    ]
    rest: list[tuple[Cell, ...]] = [
        (
            *(one.series.name, one.speed.word, Value(math.exp(one.speed.levels.found[-1].value))),
            *(str(len(one.series.runs)), " to ".join(dates(one.series.runs))),
        )
        for one in history.stories
        if one not in told
    ]
    refused = [
        (f"{e.result['platform']}/{e.result['framework']} {run_label(e.result)}", reason, str(e.path))
        for e, reason in history.left_out
    ]
    count = len(history.copies)
    copies = f"{count} {'copy' if count == 1 else 'copies'} of runs in several folders: counted once."
    return [
        Heading("History", 1),
        Lines([headline(history)]),
        *map(_card, told),
        Table("Other series", ("series", "speed", "tokens/s/GPU", "runs", "days"), rest, first_number=2, words=(4,)),
        Table("Results in no series", ("In no series", "Reason", "File"), refused),
        Lines([copies] if count else []),
        Lines([f"not readable: {error}" for _, error in history.unreadable], LIST),
        Lines(list(filter(None, [hint(history)])), HINT),
        *(Details(list(_series(story, place))) for place, story in enumerate(history.stories)),
        Details(
            [
                Heading("Method", 2, "method"),
                Lines([PICTURE], HINT),
                Lines([f"{name}: {text}" for name, text in DEFINITIONS.items()], LIST),
            ]
        ),
    ]


def _card(story: Story) -> Card:
    return Card(
        "loss changed" if story.loss_changes else story.speed.word,
        f"{story.series.name}: {sentence(story)}",
        support=details(story),
        kind="bad" if story.loss_changes or story.speed.word == SLOWER else "plain",
        is_claim=False,
    )


def _series(story: Story, place: int) -> Iterator[Block]:
    yield Heading(story.series.name, 2, f"series-{place}")
    yield Lines([f"{sentence(story)}."])
    yield Pictures(story.series.name, [PICTURE] if not place else [], lambda: tracks(story))
    changes = [
        (
            f"{MARKS[at % len(MARKS)]}: {track.title}",
            *(f"{change.first_after.started:%Y-%m-%d %H:%M}", size_text(track, change), cause(change)),
        )
        for track in story.tracks
        for at, change in enumerate(track.changes)
    ]
    yield Table(f"Changes: {story.series.name}", ("Change", "Since (UTC)", "Size", "On record"), changes)
    versions: list[tuple[Cell, ...]] = [
        (
            *(text, " to ".join(dates(runs)), str(len(runs))),
            *(Value(figures[name]) for name in (SPEED, "mfu_percent", MEMORY)),
            Value(figures[LOSS], digits=LOSS_DIGITS),
        )
        for text, runs, figures in by_version(story.series.runs)
    ]
    header = ("Versions", "Days", "Runs", "tokens/s/GPU", "MFU (%)", "Peak memory (GB)", "Last loss (nats/token)")
    yield Table(f"By version: {story.series.name}", header, versions, 2)
    steps = [
        (f"{run.started:%Y-%m-%d %H:%M} UTC", ", ".join(one.text for one in what))
        for run, what in reversed(story.version_changes)
    ]
    if steps:
        said = f"What changed from run to run, the latest first ({len(steps)})"
        yield Folded(said, [Table(f"From run to run: {story.series.name}", ("Since", "What"), steps)])


def headline(history: History) -> str:
    """Return the verdict on the whole history in one sentence; a single series is named."""
    if not history.stories:
        return "No result can be used."
    by_word = grouped(history.stories, lambda story: story.speed.word)
    slower, other = by_word.get(SLOWER), [story for story in history.stories if story.loss_changes]
    parts = []
    if other:
        parts.append(f"loss changed: {_of(other, history)}")
    if slower:
        parts.append(f"slower by more than {history.band:.1%}: {_of(slower, history)}")
    if not parts:
        if by_word.keys() == {TOO_FEW}:
            return f"Nothing can be said yet: {len(history.stories)} series, all with too few runs."
        parts.append(f"nothing got slower by more than {history.band:.1%} in {len(history.stories)} series")
    if suspected := by_word.get(SUSPECTED):
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
            parts.append("the loss changed too, so a difference in speed shows no gain and no loss of speed")
    else:
        level = number(math.exp(speed.levels.found[-1].value))
        runs, since = speed.levels.found[-1].runs, " to ".join(dates(speed.runs))
        text = f"{word}: {level} {UNITS[speed.quantity]}, {counted(runs, 'run')}, {since}"
        parts.append(f"{text}; {_resolution(speed) if word == STEADY else _why_too_few(speed)}")
    return "; ".join(parts)


def details(story: Story) -> list[str]:
    """Return the lines behind the sentence: causes, memory, what weakens it, odd days, earlier changes."""
    lines = list(
        dict.fromkeys(cause(track.latest) for track in (*story.loss_changes, story.speed) if track.latest is not None)
    )
    if story.speed.word == SUSPECTED and story.speed.latest:
        lines.append(_why_suspected(story.speed.latest))
    for memory in story.tracks:
        if memory.latest and memory.word in (MORE, LESS):
            lines.append(f"{memory.word} peak memory: {change_text(memory, memory.latest)}")
            if (why := cause(memory.latest)) not in lines:
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
    counts = f"{change.before.runs} and {counted(change.after.runs, 'run')}"
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
                f"odd day {block[0].started:%Y-%m-%d}: {ratio - 1:+.1%} against its level, "
                f"{counted(len(block), 'run')}; the days after it are back"
            )
    return lines


def hint(history: History) -> str:
    """Return advice if runs that could share a series are spread over hosts or labels."""
    names = [name for name in ("host", "label") if name not in history.join]
    keys = [
        str([(k, v) for k, v in story.series.key.items() if k not in names])
        for story in history.stories
        if story.speed.word == TOO_FEW
    ]
    if len(keys) == len(set(keys)):
        return ""
    return (
        "Some series differ in host or label only; --join host,label puts runs of several hosts or labels into one "
        "series."
    )


def _of(stories: Sequence[Story], history: History) -> str:
    if len(stories) == 1:
        return stories[0].series.name
    return f"{len(stories)} of {len(history.stories)} series"


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
    runs, day = counted(len(last), "run"), track.blocks[-1][0].started
    return f"last: {runs} of {day:%Y-%m-%d} {ratio - 1:+.1%} against the level; not certain yet"
