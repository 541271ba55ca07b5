"""One GPU as the sampler sees it, in one form for both vendors: what a reading holds, and errors that stay errors.

A value that a device does not report is None, and `why` says why, once for each value. It is never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

FIELDS = (
    *("counter_mj", "instant_mw", "average_mw", "sm_clock_mhz", "memory_clock_mhz", "temperature_celsius"),
    *("use_percent", "throttle"),
)
"""Values of a reading, in the order of the sample file: energy counter in mJ, power in mW (now, and averaged by the
device), clocks in MHz, temperature in C, use in percent, and the reasons for reduced clocks as a list of names."""
WRAP = 2**32
"""Counters of 32 bits start again at 0 here."""


class ReaderError(RuntimeError):
    """The GPUs of the job cannot be read at all; the message contains the reason and, if there is one, the remedy."""


class GpuLostError(RuntimeError):
    """A GPU that was read before does not answer any more."""


@dataclass(frozen=True)
class GpuFacts:
    """Facts about one GPU that do not change while it is sampled."""

    bus_id: str
    name: str
    package: str
    """Equal for the dies of one package, which share one power supply."""
    package_dies: int
    """Number of devices of this package on the machine, whether the job uses them or not."""
    counter_wraps_mj: float | None
    """Value at which a 32-bit counter would start again, mJ."""


Reading = list[Any]
"""The values of FIELDS."""


class Gpu(Protocol):
    """A GPU that is read again and again."""

    facts: GpuFacts

    @property
    def why(self) -> Mapping[str, str]:
        """The reasons for values that are None for good, by field."""

    def read(self) -> Reading:
        """Return the values now; raise GpuLostError if the device is gone."""


@dataclass
class Calls:
    """The calls that read a GPU; a call that the device refuses for good is not repeated."""

    errors: tuple[type[Exception], ...]
    """Exceptions of the vendor's library and of zeus."""
    is_lost: Callable[[Exception], bool]
    is_final: Callable[[Exception], bool]
    """Whether an error will come again: not supported, or no permission."""
    why: dict[str, str] = field(default_factory=dict)

    def value(self, name: str, call: Callable[[], Any]) -> Any:
        """Return the value of a call; None if it fails. Raises GpuLostError if the device is gone."""
        if name in self.why:
            return None
        try:
            return call()
        except self.errors as error:
            if self.is_lost(error):
                raise GpuLostError(f"the GPU is lost: {in_one_line(error)}") from error
            if self.is_final(error):
                self.why[name] = f"{type(error).__name__}: {in_one_line(error)}"
            return None


def in_one_line(error: Exception) -> str:
    """Return the text of an error without line breaks."""
    return " ".join(str(error).split())


def number(value: Any) -> float | None:
    """Return a number that a library reports; None for "N/A", a truth value and everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if value - value == 0 else None


def select(
    known: Mapping[str, Any], bus_ids: list[str] | None, count: int, why_unknown: str, library: str
) -> list[tuple[str, Any]]:
    """Return bus id and entry of the `count` GPUs of a job; raise ReaderError.

    `known` has the library's devices by bus id, `bus_ids` those of the runtime in the order of the ranks. If the
    runtime is unknown, the order does not matter only where the job uses every GPU of the machine.
    """
    if bus_ids is None:
        if len(known) == count:
            return sorted(known.items())
        raise ReaderError(
            f"it is unknown which {count} of the {len(known)} GPUs of {library} the job uses: {why_unknown}"
        )
    if len(bus_ids) < count:
        raise ReaderError(f"the runtime shows {len(bus_ids)} GPUs, and the job has {count} ranks here")
    missing = [one for one in bus_ids[:count] if one not in known]
    if missing:
        raise ReaderError(f"{library} does not show the GPU at {', '.join(missing)}, which the job uses")
    return [(one, known[one]) for one in bus_ids[:count]]
