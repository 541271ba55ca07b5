"""A history as blocks: the verdict, a card for each series, its charts and tables, what is in no series."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
from evaluate.report.groups import letter_of, run_label
from evaluate.report.tables import counted, number, plain
from evaluate.timeline import levels
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
            f"{letter_of(at)}: {track.title}",
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
    by_word, count = grouped(history.stories, lambda story: story.speed.word), len(history.stories)
    other = [story for story in history.stories if story.loss_changes]
    if not other and by_word.keys() == {TOO_FEW}:
        return f"Nothing can be said yet: {count} series, all with too few runs."
    found = {
        "loss changed": other,
        f"slower by more than {history.band:.1%}": by_word.get(SLOWER),
        "not certain yet, more runs are needed": by_word.get(SUSPECTED),
    }
    parts = [
        f"{said}: {stories[0].series.name if len(stories) == 1 else f'{len(stories)} of {count} series'}"
        for said, stories in found.items()
        if stories
    ]
    if not other and SLOWER not in by_word:
        parts.insert(0, f"nothing got slower by more than {history.band:.1%} in {count} series")
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
        told = f"a change needs at least {LEAST_RUNS} runs before and {LEAST_RUNS} after it"
        if word == STEADY:
            least = speed.levels.resolution
            told = f"one more day would show a change of {math.expm1(least):.1%}" if least else "the noise is unknown"
        elif len(speed.blocks) < 2:
            told = "all of one day with one set of versions; a change needs another day"
        parts.append(f"{word}: {level} {UNITS[speed.quantity]}, {counted(runs, 'run')}, {since}; {told}")
    return "; ".join(parts)


def details(story: Story) -> list[str]:
    """Return the lines behind the sentence: causes, memory, what weakens it, odd days, earlier changes."""
    lines = list(
        dict.fromkeys(cause(track.latest) for track in (*story.loss_changes, story.speed) if track.latest is not None)
    )
    if story.speed.word == SUSPECTED and story.speed.latest:
        why = f"slower and faster need at least {LEAST_RUNS} runs before and after the change"
        by_chance = "chance explains it too often; repeat the runs"
        lines.append(f"not certain: {by_chance if story.speed.latest.has_enough_runs else why}")
    for memory in story.tracks:
        if memory.latest and memory.word in (MORE, LESS):
            lines.append(f"{memory.word} peak memory: {change_text(memory, memory.latest)}")
            if (why := cause(memory.latest)) not in lines:
                lines.append(f"memory: {why}")
    return [*lines, *_remarks(story.speed)]


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


def _remarks(track: Track) -> Iterator[str]:
    """Yield lines that weaken the verdict on a track: a better level before, a slow last day, days that are odd.

    Each is beyond the band. The first is left out where the verdict is on that level; a slow last day is not yet a
    level of its own; an odd day is far from the level around it and belongs to none.
    """
    last, blocks = track.levels.found[-1], track.levels.blocks
    best = max(track.levels.found, key=lambda level: level.value)
    ratio = math.exp(last.value - best.value)
    if is_beyond(ratio, track.band) and not (track.latest and track.latest.before == best):
        when = track.blocks[best.last][-1].started
        yield f"{ratio - 1:+.1%} against the best level, {number(math.exp(best.value))} until {when:%Y-%m-%d}"
    *earlier, mean = (sum(block) / len(block) for block in blocks[last.first :])
    ratio = math.exp(mean - sum(earlier) / len(earlier)) if earlier and mean <= min(earlier) else 1.0
    if is_beyond(ratio, max(track.band, LEAST_REMARK)):
        runs, day = counted(len(blocks[-1]), "run"), track.blocks[-1][0].started
        yield f"last: {runs} of {day:%Y-%m-%d} {ratio - 1:+.1%} against the level; not certain yet"
    for place in track.levels.odd:
        level = next(one for one in track.levels.found if one.first <= place <= one.last)
        ratio = math.exp(sum(blocks[place]) / len(blocks[place]) - level.value)
        if is_beyond(ratio, track.band):
            runs, day = counted(len(blocks[place]), "run"), track.blocks[place][0].started
            yield f"odd day {day:%Y-%m-%d}: {ratio - 1:+.1%} against its level, {runs}; the days after it are back"
