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
    "runs.loop_over_steps": "performance_metrics.loop_seconds / sum of step_times; the loop has a timer of its own",
    "runs.peak_memory_gb": "memory_metrics.peak_memory_allocated_gb",
    "runs.last_loss": "mean of loss_values over the last tenth of the steps, nats per token",
    "tracks.levels.value": "geometric mean over the blocks (UTC day and versions) of the mean of their runs, or of the "
    "median from three runs on; a level begins where most of the next five blocks are beyond the noise",
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
    cards = []
    rest: list[tuple[Cell, ...]] = []
    for story in history.stories:
        if story.loss_changes or story.word not in (STEADY, TOO_FEW) or details(story):
            cards.append(_card(story))
        else:
            level = Value(math.exp(story.speed.levels.found[-1].value))
            # steady series take a line each: the cards are for what needs a reader
            runs = story.series.runs
            rest.append((story.series.name, story.word, level, str(len(runs)), " to ".join(dates(runs))))
    refused = []
    for entry, reason in history.left_out:
        result = entry.result
        name = f"{result['platform']}/{result['framework']} {run_label(result)}"
        refused.append((name, reason, str(entry.path)))
    copies = []
    if history.copies:
        count = len(history.copies)
        copies.append(f"{count} {'copy' if count == 1 else 'copies'} of runs in several folders: counted once.")
    method: list[Block] = [
        Heading("Method", 2, "method"),
        Lines([PICTURE], HINT),
        Lines([f"{name}: {text}" for name, text in DEFINITIONS.items()], LIST),
    ]
    return [
        Heading("History", 1),
        Lines([headline(history)]),
        *cards,
        Table("Other series", ("series", "speed", "tokens/s/GPU", "runs", "days"), rest, first_number=2, words=(4,)),
        Table("Results in no series", ("In no series", "Reason", "File"), refused),
        Lines(copies),
        Lines([f"not readable: {error}" for _, error in history.unreadable], LIST),
        Lines(hint(history), HINT),
        *(Details(list(_series(story, place))) for place, story in enumerate(history.stories)),
        Details(method),
    ]


def _card(story: Story) -> Card:
    return Card(
        "loss changed" if story.loss_changes else story.word,
        f"{story.series.name}: {sentence(story)}",
        support=details(story),
        kind="bad" if story.loss_changes or story.word == SLOWER else "plain",
        is_claim=False,
    )


def _series(story: Story, place: int) -> Iterator[Block]:
    yield Heading(story.series.name, 2, f"series-{place}")
    yield Lines([f"{sentence(story)}."])
    # the first series explains the pictures of all
    yield Pictures(story.series.name, [PICTURE] if place == 0 else [], lambda: tracks(story))
    changes = []
    for track in story.tracks:
        for number_of_change, change in enumerate(track.changes):
            name = f"{letter_of(number_of_change)}: {track.title}"
            since = f"{change.first_after.started:%Y-%m-%d %H:%M}"
            changes.append((name, since, size_text(track, change), cause(change)))
    yield Table(f"Changes: {story.series.name}", ("Change", "Since (UTC)", "Size", "On record"), changes)
    versions: list[tuple[Cell, ...]] = []
    for text, runs, figures in by_version(story.series.runs):
        values = [Value(figures[name]) for name in (SPEED, "mfu_percent", MEMORY)]
        loss = Value(figures[LOSS], digits=LOSS_DIGITS)
        versions.append((text, " to ".join(dates(runs)), str(len(runs)), *values, loss))
    header = ("Versions", "Days", "Runs", "tokens/s/GPU", "MFU (%)", "Peak memory (GB)", "Last loss (nats/token)")
    yield Table(f"By version: {story.series.name}", header, versions, 2)
    steps = []
    for run, differing in reversed(story.version_changes):
        steps.append((f"{run.started:%Y-%m-%d %H:%M} UTC", ", ".join(difference.text for difference in differing)))
    if steps:
        summary = f"What changed from run to run, the latest first ({len(steps)})"
        yield Folded(summary, [Table(f"From run to run: {story.series.name}", ("Since", "What"), steps)])


def headline(history: History) -> str:
    """Return the verdict on the whole history in one sentence; a single series is named."""
    if not history.stories:
        return "No result can be used."
    count = len(history.stories)
    by_word = grouped(history.stories, lambda story: story.word)
    loss_changed = [story for story in history.stories if story.loss_changes]
    if not loss_changed and by_word.keys() == {TOO_FEW}:
        return f"Nothing can be said yet: {count} series, all with too few runs."
    parts = []
    if not loss_changed and SLOWER not in by_word:
        parts.append(f"nothing got slower by more than {history.band:.1%} in {count} series")
    for words, stories in (
        ("loss changed", loss_changed),
        (f"slower by more than {history.band:.1%}", by_word.get(SLOWER, [])),
        ("not certain yet, more runs are needed", by_word.get(SUSPECTED, [])),
    ):
        if len(stories) == 1:
            parts.append(f"{words}: {stories[0].series.name}")
        elif stories:
            parts.append(f"{words}: {len(stories)} of {count} series")
    sentence = "; ".join(parts)
    return plain(f"{sentence[0].upper()}{sentence[1:]}.")


def sentence(story: Story) -> str:
    """Return the verdict on one series: the loss first if it changed, then the speed."""
    parts = [f"loss changed: {change_text(track, track.latest)}" for track in story.loss_changes if track.latest]
    loop = story.slower_loop
    if loop is not None and loop.latest is not None:
        parts.append(
            f"slower: more time outside the steps, training loop over its steps {change_text(loop, loop.latest)}"
        )
    speed = story.speed
    if speed.latest is not None:
        parts.append(f"{speed.word}: {change_text(speed, speed.latest)}")
        if story.loss_changes:
            parts.append("the loss changed too, so a difference in speed shows no gain and no loss of speed")
        return "; ".join(parts)
    last = speed.levels.found[-1]
    level = f"{number(math.exp(last.value))} {UNITS[speed.quantity]}, {counted(last.runs, 'run')}"
    if speed.word == STEADY:
        least = speed.levels.resolution
        basis = f"one more day would show a change of {math.expm1(least):.1%}" if least else "the noise is unknown"
    elif len(speed.blocks) < 2:
        basis = "all of one day with one set of versions; a change needs another day"
    else:
        basis = f"a change needs at least {LEAST_RUNS} runs before and {LEAST_RUNS} after it"
    parts.append(f"{speed.word}: {level}, {' to '.join(dates(speed.runs))}; {basis}")
    return "; ".join(parts)


def details(story: Story) -> list[str]:
    """Return the lines behind the sentence: causes, memory, a slow last day, odd days; each line once."""
    lines = []
    for track in (*story.loss_changes, story.slower_loop, story.speed):
        if track is not None and track.latest is not None:
            lines.append(cause(track.latest))
    if story.speed.word == SUSPECTED and story.speed.latest:
        if story.speed.latest.has_enough_runs:
            lines.append("not certain: chance explains it too often; repeat the runs")
        else:
            lines.append(f"not certain: slower and faster need at least {LEAST_RUNS} runs before and after the change")
    for track in story.tracks:
        if track.latest and track.word in (MORE, LESS):
            lines.append(f"{track.word} peak memory: {change_text(track, track.latest)}")
            why = cause(track.latest)
            if why not in lines:
                lines.append(f"memory: {why}")
    lines += _remarks(story.speed)
    return list(dict.fromkeys(lines))


def change_text(track: Track, change: Change) -> str:
    """Return both levels of a change, its size with the interval, and since when the later one holds."""
    return f"{size_text(track, change)} since {change.first_after.started:%Y-%m-%d %H:%M} UTC"


def size_text(track: Track, change: Change) -> str:
    """Return both levels of a change, and its size with the interval and the runs."""
    before, after = (number(math.exp(level.value)) for level in (change.before, change.after))
    seed = f" with seed {track.seed}" if track.seed is not None else ""
    size = f"{change.ratio - 1:+.1%}"
    if change.interval:
        size += f", 95 % interval {change.interval[0] - 1:+.1%} to {change.interval[1] - 1:+.1%}"
    counts = f"{change.before.runs} and {counted(change.after.runs, 'run')}"
    return f"{before} -> {after} {UNITS[track.quantity]}{seed} ({size}; {counts})"


def cause(change: Change) -> str:
    """Return what changed with a level."""
    if change.differing:
        return f"changed with it: {', '.join(difference.text for difference in change.differing)}"
    return "nothing on record changed with it: look at the machine (heat, other work, network, storage)"


def hint(history: History) -> list[str]:
    """Return advice if runs that could share a series are spread over hosts or labels."""
    names = [name for name in ("host", "label") if name not in history.join]
    keys = []
    for story in history.stories:
        if story.word == TOO_FEW:
            # host and label put runs apart that are alike in everything else
            keys.append(str([(name, value) for name, value in story.series.key.items() if name not in names]))
    if len(keys) == len(set(keys)):
        return []
    return [
        "Some series differ in host or label only; --join host,label puts runs of several hosts or labels into one "
        "series."
    ]


def _remarks(track: Track) -> Iterator[str]:
    """Yield lines on days that are no level: a last day that is slower than all others of its level, and odd days.

    Each is beyond the band.
    """
    last, logarithms = track.levels.found[-1], track.levels.blocks
    # the last day may be the first of a slower level
    *earlier, mean = (sum(block) / len(block) for block in logarithms[last.first :])
    if earlier and mean <= min(earlier):
        ratio = math.exp(mean - sum(earlier) / len(earlier))
        if is_beyond(ratio, max(track.band, LEAST_REMARK)):
            runs, day = counted(len(logarithms[-1]), "run"), track.blocks[-1][0].started
            yield f"last: {runs} of {day:%Y-%m-%d} {ratio - 1:+.1%} against the level; not certain yet"
    for place in track.levels.odd:
        level = next(level for level in track.levels.found if level.first <= place <= level.last)
        ratio = math.exp(sum(logarithms[place]) / len(logarithms[place]) - level.value)
        if is_beyond(ratio, track.band):
            runs, day = counted(len(logarithms[place]), "run"), track.blocks[place][0].started
            yield f"odd day {day:%Y-%m-%d}: {ratio - 1:+.1%} against its level, {runs}; the days after it are back"
