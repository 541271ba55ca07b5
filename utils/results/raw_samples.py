"""Lines that a trainer writes into its log: one for each finished step, and its raw samples at the end of a training.

The launcher's watchdog and the matrix's view follow a job only by the lines of its steps. Our recorder prints them;
lines of a vendor's log are translated into them.

A line of raw samples is `raw: ` and one JSON object: first the identity of the job, then one line per section of the
result, then one line per step with all digits. evaluate/bundle/raw_logs.py checks results against them; a terminal does
not show them. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from utils.results.schema import SAMPLES
from utils.settings.profiling import PROFILED

PREFIX = "raw: "
IDENTITY = ("identity_sha256", "platform", "framework", "model", "model_size", "method", "label", "run", "attempt")
SECTIONS = ("gpu_info", "training_config", "resolved_config", "memory_metrics", "fingerprint")


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines, with newline, for a result whose samples are not rounded yet.

    Write each line with one call, so that lines of other ranks do not mix with it.
    """
    yield _line({key: result[key] for key in IDENTITY})
    for section in SECTIONS:
        yield _line({section: {key: value for key, value in result[section].items() if key != "reasons"}})
    # a line a step, so that a log that ends early has all steps before it
    columns = [result[key] for key in SAMPLES]
    for values in zip(*columns, strict=True):
        yield _line(dict(zip(SAMPLES, values, strict=True)))


def _line(content: Mapping[str, Any]) -> str:
    return PREFIX + json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"


@dataclass(frozen=True)
class Step:
    """One finished optimizer step, with the rounded figures of its line, for people and for the watchdog."""

    number: int
    """From 1."""
    total: int
    seconds: float | None
    """None for a profiled step, whose time does not count."""
    average_seconds: float | None
    """Mean of the steps so far without the first; None for a profiled step."""
    loss: float
    """Nats per token; may be NaN."""
    memory_gb: float
    """NaN if a vendor's log does not contain it."""

    @property
    def time(self) -> str:
        """The time of the step in words: `1.234 s`, or `profiled`."""
        return PROFILED if self.seconds is None else f"{self.seconds:.3f} s"


_STEP = re.compile(
    r"\[\w+\] Step (?P<number>\d{1,12})/(?P<total>\d{1,12}) \| "
    rf"(?:(?P<seconds>\d+\.\d+) s \| avg (?P<average>\d+\.\d+) s|{PROFILED}) \| "
    r"loss (?P<loss>-?(?:\d+\.\d+|inf|nan)) \| (?P<memory>\d+\.\d+|nan) GB"
)


def format_step(
    title: str, number: int, total: int, seconds: float, average_seconds: float, loss: float, memory_gb: float
) -> str:
    """Return the line of one step, with newline (see Step); `title` is one word for the platform.

    It takes numbers instead of a Step, which would cost a tenth of the recorder's time budget between two steps.
    """
    return (
        f"[{title}] Step {number}/{total} | {seconds:.3f} s | avg {average_seconds:.3f} s | loss {loss:.4f} | "
        f"{memory_gb:.1f} GB\n"
    )


def format_profiled(title: str, number: int, total: int, loss: float, memory_gb: float) -> str:
    """Return the line of one profiled step, with newline: it has no time (see Step and `format_step`)."""
    return f"[{title}] Step {number}/{total} | {PROFILED} | loss {loss:.4f} | {memory_gb:.1f} GB\n"


def parse_step(line: str) -> Step | None:
    """Return the step in a line of a trainer's output, or None for any other line."""
    match = _STEP.match(line)
    if match is None:
        return None
    return Step(
        number=int(match["number"]),
        total=int(match["total"]),
        seconds=None if match["seconds"] is None else float(match["seconds"]),
        average_seconds=None if match["average"] is None else float(match["average"]),
        loss=float(match["loss"]),
        memory_gb=float(match["memory"]),
    )
