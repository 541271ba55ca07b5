"""Limits that a probe measured on the device of a trace, and the share of them that its operators reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from evaluate.timing.breakdown import Breakdown
from evaluate.timing.kinds import ATTENTION, COMMUNICATION, MATMUL, MEMORY_BOUND
from evaluate.timing.tables import OperatorRow
from utils.results.probe_file import Probe


def probe_of(side: Breakdown, probes: Sequence[Probe]) -> tuple[Probe | None, str]:
    """Return the probe of the device of a trace, and why there is none, empty if there is one or none was given."""
    if not probes:
        return None, ""
    alike = [probe for probe in probes if (probe.platform == "cpu") == side.is_of_host]
    if side.is_of_host:
        reason = "the probe is of a GPU, the trace of a CPU"
    elif side.device_name is None:
        reason = "the trace does not name its device, and the probes are not of one GPU"
        if len(alike) > 1:
            return None, reason
    else:
        alike = [probe for probe in alike if probe.device_name.strip() == side.device_name.strip()]
        reason = f"the probe is of {probes[0].device_name}, the trace of {side.device_name}"
    if not alike:
        return None, reason
    return alike[0], ""


def share(row: OperatorRow, probe: Probe | None) -> float | None:
    """Return a matrix product's share of the best rate that was measured in its precision; None if one is unknown."""
    rate = None if probe is None else probe.rates.get(row.work.precision or "")
    if rate is None or row.kind != MATMUL or row.tflops is None:
        return None
    return row.tflops / rate.best_tflops


class Limit(NamedTuple):
    """A rate that a probe measured for one kind of time, for one rank."""

    rate: float
    share: float | None = None
    """The part of the measured rate that the operators of the trace reached; None where a trace does not tell."""


UNITS = {MATMUL: "TFLOP/s", ATTENTION: "TFLOP/s", MEMORY_BOUND: "GB/s", COMMUNICATION: "GB/s (bus)"}
"""Unit of the limit of each kind of time that has one."""


def limits(side: Breakdown | None, probe: Probe | None, precision: str, ranks: int) -> dict[str, Limit]:
    """Return the limit of each kind that was measured on the device of a trace, which `ranks` ranks share.

    Matrix products in `precision`, causal attention (forward, bf16; the trace's has its backward pass too), the triad
    of STREAM, and the all-reduce of the largest size. A trace holds no bytes, so the last two have no share.
    """
    if probe is None:
        return {}
    found = {}
    if precision in probe.rates:
        found[MATMUL] = _limit(probe.rates[precision].best_tflops / ranks, side, MATMUL, precision)
    if probe.attention_tflops is not None:
        found[ATTENTION] = _limit(probe.attention_tflops / ranks, side, ATTENTION)
    if "triad" in probe.bandwidth:
        found[MEMORY_BOUND] = Limit(probe.bandwidth["triad"].gb_per_second / ranks)
    all_reduces = [collective for collective in probe.collectives if collective.name == "all_reduce"]
    if all_reduces:
        # small messages are bound by latency
        largest = max(all_reduces, key=attrgetter("ranks", "bytes"))
        found[COMMUNICATION] = Limit(largest.bus_gb_per_second)
    return found


def _limit(rate: float, side: Breakdown | None, kind: str, precision: str | None = None) -> Limit:
    """Return a limit in TFLOP/s with the share of all operators of a kind whose operations are known."""
    seconds = done = 0.0
    for row in side.operators if side else ():
        if row.kind == kind and row.tflops is not None and precision in (None, row.work.precision):
            seconds += row.seconds
            done += row.tflops * row.seconds
    return Limit(rate, done / seconds / rate if seconds else None)


# Two breakdowns side by side: their operators aligned by kind, computation and shape, with the difference.


@dataclass(frozen=True)
class Aligned:
    """An operator of both sides: the same computation with the same sizes in the same phase; kernels may differ."""

    kind: str
    family: str
    sizes: str
    phase: str | None
    """One of PHASES; None where a trace does not tell."""
    a: OperatorRow | None
    """On the first side; None if it does not run there."""
    b: OperatorRow | None

    @property
    def difference_seconds(self) -> float:
        """Seconds a step that the second side takes more than the first."""
        seconds_a = self.a.seconds if self.a else 0.0
        seconds_b = self.b.seconds if self.b else 0.0
        return seconds_b - seconds_a


_Key = tuple[str, str, str, str | None]


def align(a: Breakdown, b: Breakdown) -> list[Aligned]:
    """Return the operators of both sides, the largest difference first."""
    of_a, of_b = _by_key(a.operators), _by_key(b.operators)
    aligned = [Aligned(*key, of_a.get(key), of_b.get(key)) for key in of_a | of_b]
    return sorted(aligned, key=lambda row: (-abs(row.difference_seconds), row.kind, row.family, row.sizes))


def _by_key(rows: Iterable[OperatorRow]) -> dict[_Key, OperatorRow]:
    """Return the rows by kind, family, sizes and phase; equal ones become one, named after the longest."""
    found: dict[_Key, OperatorRow] = {}
    # the longest first
    for row in rows:
        key = (row.kind, row.work.family, row.work.sizes, row.phase)
        first = found.setdefault(key, row)
        if first is not row:
            found[key] = replace(first, count=first.count + row.count, seconds=first.seconds + row.seconds)
    return found
