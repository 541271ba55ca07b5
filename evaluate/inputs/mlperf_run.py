"""Reader of one MLPerf Training log: `:::MLLOG` lines, read into the time, samples and tracked speeds of a run.

A log may come from anybody. A line without `key`, a value of another type and a number that no run has are errors with
the name of the file, never a number in a result.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.inputs.partly_known import is_number
from utils.errors import quoted
from utils.input_files import InputFileError, content_of

MARK = b":::MLLOG "
MINUTE_MS = 60_000.0
TRACKED_RELATIVE = 0.05
"""Largest difference of tracked speed and time of the blocks: a block also contains pauses between steps."""
LARGEST_COUNT = 10**12
"""No run has more samples, no batch more sequences and no sequence more tokens."""
LONGEST_MS = 1e15
"""Times are milliseconds since 1970; this one is in the year 33658."""
MOST_STEPS = 10**6
"""Of one run: a log of MLPerf has thousands."""


class MlperfLogError(ValueError):
    """A log or system description is unusable; the message names the file."""


@dataclass(frozen=True)
class TrackedSpeed:
    """A speed that a run tracked: the mean over the steps since the speed before."""

    step: int | None
    """The last of those steps; None for the mean of a whole block, and if the log does not contain it."""
    samples_per_second: float
    loss: float | None


@dataclass(frozen=True)
class MlperfRun:
    """One run of a system."""

    minutes: float
    """Minutes from run_start to run_stop."""
    samples: int
    block_seconds: float
    """Time inside training blocks."""
    samples_per_second: float
    """Median of the tracked speeds; samples / block_seconds if the run tracked none."""
    path: Path
    tracked: tuple[TrackedSpeed, ...] = ()


def read(path: Path) -> tuple[MlperfRun, int, int]:
    """Return a run, its global batch and its sequence length; raise MlperfLogError for an unusable log."""
    events = list(_events(path))
    # the first event of each key counts
    first = {event["key"]: event for event in reversed(events)}
    try:
        start, stop = _time(first["run_start"]), _time(first["run_stop"])
        batch, length = (count(first[key]["value"], key) for key in ("global_batch_size", "max_sequence_length"))
        status, samples = first["run_stop"]["metadata"]["status"], first["run_stop"]["metadata"]["samples_count"]
        block_ms = _block_ms(events)
        tracked = tuple(_tracked(events, batch))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise MlperfLogError(
            f"{path}: has no complete run ({why}); wanted run_start, run_stop, batch and blocks"
        ) from error
    if status != "success" or not is_number(samples) or samples < 1 or block_ms <= 0 or stop <= start:
        what = f"status {quoted(status)}, {quoted(samples)} samples"
        raise MlperfLogError(f"{path}: the run is no success with samples and time: {what}")
    if samples > LARGEST_COUNT or samples / batch > MOST_STEPS:
        raise MlperfLogError(f"{path}: got {samples:g} samples in batches of {batch}, wanted a run that can be")
    # a second source of the speed
    in_blocks = samples / block_ms * 1000
    rate = in_blocks
    if tracked:
        rate = statistics.median(speed.samples_per_second for speed in tracked)
    if abs(rate / in_blocks - 1) > TRACKED_RELATIVE:
        raise MlperfLogError(
            f"{path}: it tracked {rate:.4g} samples/s, and its blocks hold {in_blocks:.4g}; one is wrong"
        )
    return MlperfRun((stop - start) / MINUTE_MS, int(samples), block_ms / 1000, rate, path, tracked), batch, length


def count(value: Any, name: str) -> int:
    """Return a whole number from 1, also one that is written as a text; raise ValueError for anything else."""
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 16 else value
    if not is_number(number) or number != int(number) or not 1 <= number <= LARGEST_COUNT:
        raise ValueError(f"{name}: got {quoted(value)}, wanted a whole number from 1")
    return int(number)


def _block_ms(events: Sequence[dict[str, Any]]) -> float:
    block_ms, opened = 0.0, None
    for event in events:
        if event["key"] == "block_start":
            opened = _time(event)
        elif event["key"] == "block_stop" and opened is not None:
            block_ms, opened = block_ms + _time(event) - opened, None
    return block_ms


def _tracked(events: Sequence[dict[str, Any]], batch: int) -> Iterator[TrackedSpeed]:
    """Yield the speeds that a run tracked: samples/s of a block, or the time of a step of `batch` samples.

    The log gives their positions in samples: `step` beside a throughput, `samples_count` (and a `step`) beside a step
    time.
    """
    for event in events:
        value = event.get("value")
        if event["key"] != "tracked_stats" or not isinstance(value, dict):
            continue
        if value.keys().isdisjoint(("throughput", "train_step_time")):
            continue
        done = event["metadata"].get("step")
        if "throughput" in value:
            rate = _above_0(value["throughput"], "throughput")
        else:
            rate = batch / _above_0(value["train_step_time"], "train_step_time")
            if done is not None:
                done = event["metadata"].get("samples_count")
        step = None
        if done is not None:
            step = round(_above_0(done, "samples_count") / batch)
            if step > MOST_STEPS:
                raise ValueError(f"samples_count: got {quoted(done)} in batches of {batch}, wanted a step that can be")
        loss = value.get("reduced_train_loss")
        yield TrackedSpeed(step, rate, loss if is_number(loss) else None)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = content_of(path)
    except InputFileError as error:
        raise MlperfLogError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(content.splitlines(), 1):
        _, mark, text = line.partition(MARK)
        if mark:
            yield _event(text, f"{path}:{number}")


def _event(text: bytes, where: str) -> dict[str, Any]:
    try:
        event = json.loads(text.decode("utf8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise MlperfLogError(f"{where}: no JSON behind {MARK.decode().strip()} ({error})") from error
    if not isinstance(event, dict) or not isinstance(event.get("key"), str):
        raise MlperfLogError(f"{where}: got {quoted(event)}, wanted an object with the name of an event as `key`")
    return event


def _time(event: dict[str, Any]) -> float:
    value = event["time_ms"]
    if not is_number(value) or not 0 <= value <= LONGEST_MS:
        raise ValueError(f"time_ms: got {quoted(value)}, wanted milliseconds")
    return float(value)


def _above_0(value: Any, name: str) -> float:
    number = float(value) if isinstance(value, str) and len(value) < 40 else value
    if not is_number(number) or not 1e-9 <= number <= LARGEST_COUNT:
        raise ValueError(f"{name}: got {quoted(value)}, wanted a number above 0")
    return float(number)
