"""Step times and losses in a TensorBoard event file, as Megatron-LM, NeMo / Lightning and torchtitan write them.

Framing: records of length (8 bytes), its checksum (4), data, checksum (4), little-endian (TensorFlow, TFRecord). The
data is an `Event` (event.proto: step = 2, summary = 5; summary.proto: value = 1, tag = 1, simple_value = 2). Checksums
are not verified; an incomplete last record is ignored. No event file holds the planned number of steps.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from utils.logs.lines import IterationLine, Printed

Value = TypeVar("Value", int, bytes)
FILE_NAME = "events.out.tfevents."
"""Prefix of the name of every event file."""
FLOAT32_DIGITS = 7
LARGEST_RECORD = 1 << 26
_FIXED = {1: struct.Struct("<d"), 5: struct.Struct("<f")}
"""Numbers of a fixed size, by their type on the wire."""
_FIELDS = {  # tag of the step time, which identifies the framework: framework, and its other tags
    "iteration-time": (
        "mega",
        {"lm loss": "loss", "learning-rate": "learning_rate", "grad-norm": "grad_norm", "throughput": "tflops"},
    ),
    "train_step_timing in s": (
        "nemo",
        {"reduced_train_loss": "loss", "lr": "learning_rate", "grad_norm": "grad_norm"},
    ),
    "time_metrics/end_to_end(s)": (
        "torchtitan",
        {"loss_metrics/global_avg_loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"},
    ),
}


def event_steps(path: Path) -> Iterator[IterationLine]:
    """Yield every step of an event file that has a time; raise OSError if the file cannot be read."""
    by_step: dict[int, dict[str, float]] = {}
    for record in _records(path):
        with suppress(ValueError, LookupError, struct.error):  # damaged
            step, scalars = _scalars(record)
            if scalars:
                by_step.setdefault(step, {}).update(scalars)
    for timing, (framework, tags) in _FIELDS.items():
        steps = {step: scalars for step, scalars in by_step.items() if timing in scalars}
        first = min(steps, default=1)
        for step, scalars in steps.items():
            yield _iteration(path, framework, step + (first == 0), {timing: "step_time"} | tags, scalars)


def _iteration(
    path: Path, framework: str, number: int, tags: dict[str, str], scalars: dict[str, float]
) -> IterationLine:
    iteration = IterationLine(
        framework, f"TensorBoard events of {framework}", number, None, f"{path.name}, step {number}"
    )
    for value, name in ((scalars[tag], name) for tag, name in tags.items() if tag in scalars):
        if math.isfinite(value):
            shortened = float(f"{value:.{FLOAT32_DIGITS}g}")
            setattr(iteration, name, Printed(shortened, abs(value) * 2**-24, FLOAT32_DIGITS))
        else:
            iteration.not_finite.append(f"{name.replace('_', ' ')} is {value}")
    # an event file does not record the version that wrote it; see utils/logs/iterations.py
    iteration.is_mean_of_two = framework == "mega" and number == 2
    return iteration


def _records(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack_from("<Q", head)
            data = file.read(length + 4) if length <= LARGEST_RECORD else b""
            if len(data) < length + 4:
                return
            yield data[:length]


def _scalars(record: bytes) -> tuple[int, dict[str, float]]:
    """Return the step of an event and its scalars by tag; raise ValueError, LookupError or struct.error if damaged."""
    scalars = {}
    for summary in _values(record, 5, bytes):
        for value in _values(summary, 1, bytes):
            parts = dict(_protobuf(value))
            tag, number = parts.get(1), parts.get(2)
            if isinstance(tag, bytes) and isinstance(number, float):
                scalars[tag.decode("utf8", "replace")] = number
    return [0, *_values(record, 2, int)][-1], scalars


def _values(data: bytes, field: int, kind: type[Value]) -> list[Value]:
    """Return the values of a field that are of one type."""
    return [value for number, value in _protobuf(data) if number == field and isinstance(value, kind)]


def _protobuf(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield number and value of each field: integers, floats of 4 and 8 bytes, bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | float | bytes
        if key & 7 == 0:
            value, at = _varint(data, at)
        elif key & 7 == 2:
            size, start = _varint(data, at)
            value, at = data[start : start + size], start + size
        else:
            fixed = _FIXED[key & 7]
            value, at = fixed.unpack_from(data, at)[0], at + fixed.size
        yield key >> 3, value
    if at > len(data):
        raise ValueError


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError
