"""A training as its log tells it: what `utils.logs.reader.read_log` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from utils.logs.lines import Printed


class Fact(NamedTuple):
    """A figure of the whole run, and the line that says it (`name:number`)."""

    value: int | float | str
    where: str


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration, with the instantaneous values of its line; None where the line does not say it."""

    number: int
    """From 1."""
    step_time_seconds: float | None
    loss: float | None
    """Nats per token; None too where it is not finite."""
    grad_norm: float | None
    learning_rate: float | None
    tokens_per_second_per_gpu: float | None
    tflops: float | None
    """By the framework's own formula, as printed."""
    where: str
    step_time_rounding: float = 0.0
    """Half a unit of the last printed digit of the step time, seconds."""
    tokens_rounding: float = 0.0
    """Half a unit of the last printed digit of the tokens a second."""


@dataclass(frozen=True)
class RunLog:
    """A training as its log tells it. Nothing in it is guessed: what no line says is None or not there.

    A run without problems has each iteration from 1 to the last, but for `excluded`, with a time and a loss.
    """

    framework: str
    """`prim`, `nemo`, `mega`, `hf`, `torchtitan`, `bridge` or `ours`."""
    format: str
    """Which generation of its lines, in words; several are joined by ` + `."""
    steps: tuple[Step, ...]
    """One entry an iteration, sorted by number; without those of `excluded`."""
    excluded: Mapping[int, str]
    """Iterations that were printed and are left out, with the reason."""
    facts: Mapping[str, Fact]
    """`world_size`, `global_batch_size`, `total_steps`, `sequence_length` and others: see utils/logs/facts.py."""
    memory: Mapping[str, Memory]
    """The largest figure of each meaning."""
    problems: tuple[str, ...]
    """Why this is no good run, worst first; empty where it is one."""
    notes: tuple[str, ...]
    """What a reader of the numbers should know."""
    status: str
    """`ok`, or what kind the problems are of: `nan`, `oom`, `failed`."""
    step_time_digits: int | None
    """Significant digits of the printed step times, the fewest of any."""

    @property
    def reason(self) -> str | None:
        """All problems in one text; None for a good run."""
        return "; ".join(self.problems) or None

    def fact(self, name: str) -> int | float | str | None:
        """Return a figure of the whole run; None where the log does not say it."""
        found = self.facts.get(name)
        return found.value if found else None


def value_of(printed: Printed | None) -> float | None:
    """Return the number without its rounding."""
    return None if printed is None else printed.value


MEBIBYTE_IN_GB = 2**20 / 1e9
GIBIBYTE_IN_GB = 2**30 / 1e9


class Memory(NamedTuple):
    """A memory figure with what it means: `allocated` of the framework is not `used` of the whole device."""

    meaning: str
    gb: float
    """GB of 1e9 bytes, worked out from the printed figure and its real unit."""
    printed: str
    """Figure and unit as they stand in the log."""
    where: str


@dataclass(slots=True)
class Seen:
    """One iteration as one line tells it."""

    framework: str
    format: str
    number: int
    """From 1, whatever the framework counts from."""
    total: int | None
    where: str
    step_time: Printed | None = None
    """Seconds."""
    loss: Printed | None = None
    grad_norm: Printed | None = None
    learning_rate: Printed | None = None
    tokens: Printed | None = None
    """Tokens a second and GPU."""
    tflops: Printed | None = None
    """TFLOP/s a GPU by the framework's own formula."""
    global_batch_size: int | None = None
    consumed_samples: int | None = None
    world_size: int | None = None
    is_mean_of_two: bool = False
    """Time and loss are means over this iteration and the one before."""
    is_from_any_rank: bool = False
    """Every rank prints such a line by its own clock."""
    not_finite: list[str] = field(default_factory=list)
    """What is no finite number in it, in words."""
    troubles: list[str] = field(default_factory=list)
    """What else makes it unfit, in words."""
    memory: tuple[Memory, ...] = ()
