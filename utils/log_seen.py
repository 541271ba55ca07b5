"""What one line of a log says of one iteration, in one form for every format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from utils.log_lines import Printed

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
