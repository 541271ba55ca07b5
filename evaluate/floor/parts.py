"""The parts of an attribution: floor, measured time and losses of each side, and the factors of a pair.

Times are in seconds of one optimizer step of one rank. The kinds are those of utils/kinds.py. `as_json` gives the value
of the key `why` of a pair in compare.json; keys and fields have the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from evaluate.timing.breakdown import Breakdown

NOT_USED = "not used: "
"""First words of a remark on a profile of the same job that does not fit."""


@dataclass(frozen=True)
class Loss:
    """Measured time less floor of one kind. It is below 0 where the probe's call is slower than that of the step."""

    kind: str
    seconds: float
    words: str
    """A sentence without its full stop, e.g. `matrix products: 1.8 ms over their floor, mostly aten::mm`."""


@dataclass(frozen=True)
class SideWhy:
    """Floor and measured time of one side of a pair."""

    name: str
    step_seconds: float
    """Tokens of a step over the side's tokens/s, as in the verdict: of its counted runs, without a profiler."""
    step_low: float | None
    """Lower end of the 95 % interval of `step_seconds`; both ends are None if the side has a single run."""
    step_high: float | None
    floor_seconds: float
    floor_spread_percent: float
    """Half width of the 95 % interval of the floor, in percent of it."""
    floor_by_kind: Mapping[str, float]
    """All of utils.kinds.KINDS; host_copy, idle and unattributed are 0. The values sum to `floor_seconds`."""
    measured_by_kind: Mapping[str, float] | None
    """All of utils.kinds.KINDS, from a profile of the same job and machine, without the cost of the profiler. The
    values sum to the step of the profile's own run; None without a profile."""
    losses: tuple[Loss, ...]
    """Largest first. Without a profile one Loss of the kind unattributed, with the whole difference."""
    probe: str
    """Name of the probe's file."""
    profile: str
    """Place of the profile's folder in its output folder; empty without a profile."""
    remarks: tuple[str, ...]
    profiled_by_kind: Mapping[str, float] | None = None
    """`measured_by_kind` before the cost of the profiler was subtracted; sums to the profiled step."""
    trace: Breakdown | None = field(default=None, repr=False)
    """Breakdown of the trace behind `measured_by_kind`; not in compare.json."""


@dataclass(frozen=True)
class Factor:
    """A factor of a ratio with its 95 % interval; `low` and `high` are None where a side has a single run."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PairWhy:
    """The attribution of a pair: ratio = hardware * framework, in the direction of the verdict, speed of b over a.

    With equal tokens a step and equally many GPUs, ratio = step_a / step_b, hardware = floor_a / floor_b, and
    framework = (step_a / floor_a) / (step_b / floor_b). Above 1, the factor favours b.
    """

    a: SideWhy | None
    b: SideWhy | None
    refused: str
    """The first reason why nothing is attributed; empty if it is. The factors are None then."""
    ratio: Factor | None
    hardware: Factor | None
    framework: Factor | None
    sentences: tuple[str, ...]
    """Three sentences if the ratio is attributed: factors, arithmetic, losses. One sentence if it is refused."""


def as_json(why: PairWhy) -> dict[str, Any]:
    """Return the value of `why` in compare.json."""
    a, b = (side and replace(side, trace=None) for side in (why.a, why.b))
    content = asdict(replace(why, a=a, b=b))
    for side in filter(None, (content["a"], content["b"])):
        del side["trace"]
    return content
