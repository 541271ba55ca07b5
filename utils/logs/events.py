"""Step times and losses in a TensorBoard event file, as Megatron-LM, NeMo / Lightning and torchtitan write them.

TensorBoard's own reader reads the file, up to the first damaged or incomplete record. No event file holds the planned
number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from utils.logs.lines import MEGA, NEMO, TORCHTITAN, IterationLine, Printed

FILE_NAME = "events.out.tfevents."
"""Prefix of the name of every event file."""
FLOAT32_DIGITS = 7
TENSORBOARD = "2.21.0"
"""Release of the reader that this was tested with."""
_FIELDS = {  # tag of the step time, which identifies the framework: framework, and its other tags
    "iteration-time": (
        MEGA,
        {"lm loss": "loss", "learning-rate": "learning_rate", "grad-norm": "grad_norm", "throughput": "tflops"},
    ),
    "train_step_timing in s": (
        NEMO,
        {"reduced_train_loss": "loss", "lr": "learning_rate", "grad_norm": "grad_norm"},
    ),
    "time_metrics/end_to_end(s)": (
        TORCHTITAN,
        {"loss_metrics/global_avg_loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"},
    ),
}


class EventFileError(ValueError):
    """An event file cannot be read, or TensorBoard cannot be imported; the message names the file and what to do."""


def event_steps(path: Path) -> Iterator[IterationLine]:
    """Yield every step of an event file that has a time.

    Raises OSError if the file cannot be opened, and EventFileError as `_events` does.
    """
    by_step: dict[int, dict[str, float]] = {}
    for event in _events(path):
        scalars = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
        if scalars:
            by_step.setdefault(event.step, {}).update(scalars)
    for timing, (framework, tags) in _FIELDS.items():
        steps = {step: scalars for step, scalars in by_step.items() if timing in scalars}
        # Lightning counts from 0, the others from 1
        counted_from_0 = 0 in steps
        for step, scalars in steps.items():
            number = step + 1 if counted_from_0 else step
            yield _iteration(path, framework, number, {timing: "step_time"} | tags, scalars)


def _iteration(
    path: Path, framework: str, number: int, tags: dict[str, str], scalars: dict[str, float]
) -> IterationLine:
    iteration = IterationLine(
        framework, f"TensorBoard events of {framework}", number, None, f"{path.name}, step {number}"
    )
    for tag, name in tags.items():
        value = scalars.get(tag)
        if value is None:
            continue
        if math.isfinite(value):
            # the value is a float32: 24 bits, which are 7 digits
            shortened = float(f"{value:.{FLOAT32_DIGITS}g}")
            setattr(iteration, name, Printed(shortened, abs(value) * 2**-24, FLOAT32_DIGITS))
        else:
            iteration.not_finite.append(f"{name.replace('_', ' ')} is {value}")
    # an event file does not record the version that wrote it; see utils/logs/iterations.py
    iteration.is_mean_of_two = framework == MEGA and number == 2
    return iteration


def _events(path: Path) -> Iterator[Any]:
    """Yield the events of a file as TensorBoard has them (event.proto, summary.proto)."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError as error:
        raise EventFileError(
            f"{path}: event files are read by TensorBoard, which cannot be imported here ({error}); "
            f"pip install tensorboard=={TENSORBOARD}, or name the text log of the training"
        ) from error
    path.open("rb").close()  # TensorBoard's error for a file that cannot be read is none of Python's
    try:
        for record in RawEventFileLoader(str(path)).Load():
            with suppress(DecodeError):  # the checksum is right, and the content is no event
                yield Event.FromString(record)
    except (MemoryError, OverflowError) as error:
        raise EventFileError(
            f"{path}: a record states a size beyond this machine's memory; name the text log of the training"
        ) from error
