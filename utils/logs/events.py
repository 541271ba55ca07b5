"""Step times and losses in a TensorBoard event file, as Megatron-LM, NeMo / Lightning and torchtitan write them.

Framing: records of length (8 bytes), its checksum (4), data, checksum (4), little-endian (TensorFlow, TFRecord). The
data is an `Event` (event.proto: step = 2, summary = 5; summary.proto: value = 1, tag = 1, simple_value = 2). Checksums
are not verified; an incomplete last record is ignored. No event file holds the planned number of steps.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from utils.logs.lines import Printed
from utils.logs.run_log import IterationLine

Value = TypeVar("Value", int, bytes)
FILE_NAME = "events.out.tfevents."
"""Prefix of the name of every event file."""
FLOAT32_DIGITS = 7
LARGEST_RECORD = 1 << 26
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


class _BrokenError(ValueError):
    """The bytes are not a protocol buffer."""


def event_steps(path: Path) -> Iterator[IterationLine]:
    """Yield every step of an event file that has a time; raise OSError if the file cannot be read."""
    by_step: dict[int, dict[str, float]] = {}
    for record in _records(path):
        try:
            step, scalars = _scalars(record)
        except _BrokenError:
            continue
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
    known = {name: scalars[tag] for tag, name in tags.items() if tag in scalars}
    iteration = IterationLine(
        framework, f"TensorBoard events of {framework}", number, None, f"{path.name}, step {number}"
    )
    for name, value in known.items():
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
            (length,) = struct.unpack("<Q", head[:8])
            if length > LARGEST_RECORD:
                return
            data = file.read(length)
            if len(data) < length or len(file.read(4)) < 4:
                return
            yield data


def _scalars(record: bytes) -> tuple[int, dict[str, float]]:
    """Return the step of an event and its scalars by tag."""
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
        kind = key & 7
        if kind == 0:
            whole, at = _varint(data, at)
            yield key >> 3, whole
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise _BrokenError
        value, at = data[at : at + size], at + size
        if at > len(data):
            raise _BrokenError
        yield key >> 3, value if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", value)[0]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise _BrokenError
