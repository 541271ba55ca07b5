"""Data of a training log: the result of `utils.logs.reader.read_log` and its parts."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from utils.logs.lines import Printed


class Fact(NamedTuple):
    """A figure of the whole run, and its line (`name:number`)."""

    value: int | float | str
    where: str


@dataclass(frozen=True)
class RunLog:
    """A training as recorded in its log. Nothing is guessed: what no line holds is None or missing.

    A run without problems has each iteration from 1 to the last, except `excluded`, with a time and a loss.
    """

    framework: str
    """`prim`, `nemo`, `mega`, `hf`, `torchtitan`, `bridge` or `ours`."""
    format: str
    """Generation of its lines, in words; several are joined by ` + `."""
    steps: tuple[IterationLine, ...]
    """One entry per iteration, sorted by number; without those of `excluded`."""
    excluded: Mapping[int, str]
    """Iterations that were printed but are excluded, with the reason."""
    facts: Mapping[str, Fact]
    """`world_size`, `global_batch_size`, `total_steps`, `sequence_length` and others: see utils/logs/facts.py."""
    memory: Mapping[str, Memory]
    """The largest figure of each meaning."""
    problems: tuple[str, ...]
    """Faults of the run, worst first; empty for a good run."""
    notes: tuple[str, ...]
    """Remarks for a reader of the numbers."""
    status: str
    """`ok`, or the kind of the problems: `nan`, `oom`, `failed`."""
    step_time_digits: int | None
    """Significant digits of the printed step times, the fewest of any."""

    def samples(self, left_out: Container[int] = ()) -> dict[str, list[Any]]:
        """Return the samples of a result: one each of the iterations whose time is known, without those `left_out`."""
        timed = [step for step in self.steps if step.step_time is not None and step.number not in left_out]
        return {
            "steps": [step.number for step in timed],
            "step_times": [value_of(step.step_time) for step in timed],
            "data_wait_seconds": [None] * len(timed),
            "loss_values": [value_of(step.loss) for step in timed],
            "grad_norms": [value_of(step.grad_norm) for step in timed],
            "learning_rates": [value_of(step.learning_rate) for step in timed],
        }

    @property
    def reason(self) -> str | None:
        """All problems in one text; None for a good run."""
        return "; ".join(self.problems) or None

    def fact(self, name: str) -> int | float | str | None:
        """Return a figure of the whole run; None if the log does not hold it."""
        found = self.facts.get(name)
        return found.value if found else None


def value_of(printed: Printed | None) -> float | None:
    """Return the number without its rounding."""
    return None if printed is None else printed.value


MEBIBYTE_IN_GB = 2**20 / 1e9
GIBIBYTE_IN_GB = 2**30 / 1e9


class Memory(NamedTuple):
    """A memory figure and its meaning: `allocated` of the framework is not `used` of the whole device."""

    meaning: str
    gb: float
    """GB of 1e9 bytes, computed from the printed figure and its real unit."""
    printed: str
    """Figure and unit as printed in the log."""
    where: str


@dataclass(slots=True)
class IterationLine:
    """The instantaneous values of one iteration in one line; None for what the line does not hold."""

    framework: str
    format: str
    number: int
    """From 1, also if the framework counts from 0."""
    total: int | None
    where: str
    step_time: Printed | None = None
    """Seconds."""
    loss: Printed | None = None
    """Nats per token; also None if it is not finite."""
    grad_norm: Printed | None = None
    learning_rate: Printed | None = None
    tokens: Printed | None = None
    """Tokens per second and GPU."""
    tflops: Printed | None = None
    """TFLOP/s per GPU by the framework's own formula."""
    global_batch_size: int | None = None
    consumed_samples: int | None = None
    world_size: int | None = None
    is_mean_of_two: bool = False
    """Time and loss are means over this iteration and the one before."""
    excluded: str = ""
    """Why its time does not count; empty if it does."""
    is_from_any_rank: bool = False
    """Every rank prints such a line, with its own clock."""
    not_finite: list[str] = field(default_factory=list)
    """Values in it that are not finite, in words."""
    troubles: list[str] = field(default_factory=list)
    """Its other faults, in words."""
    memory: tuple[Memory, ...] = ()
