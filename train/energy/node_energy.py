"""Energy of one node over the steady steps, from its samples: by counter, by power, and the state of the devices.

A counter is made to rise without end first: one that starts again at its largest value is continued there; one that
falls anywhere else was reset and counts nothing. Power is integrated by the trapezoidal rule. Energy at a time between
two samples is on the straight line between them.

The unit is a package: a GPU, the dies that share a package, or a processor. Where one die reports the power of its
package and the other dies report none, the package has that power, if the job uses all of its dies.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from train.energy.sampler import Header, NodeSamples

MOST_WATTS = 3000.0
"""More than any device draws. A counter that starts again has grown by no more than this in the meantime."""
LARGEST_GAP_SECONDS = 1.0
Floats = NDArray[np.float64]
Interval = tuple[float, float]
"""Start and end in seconds."""
MILLI, MICRO = 1e-3, 1e-6
IDLE_USE_PERCENT = 5.0
"""A device that is used more than this is not idle."""
TWO_DIES = ("MI250",)
"""GPUs with two dies in a package, of which one reports the power of both (ml-energy/zeus pull request 203)."""
PARTITIONS = (
    "several devices share this package; each may report the energy of all of it, and none has been read yet, so it is "
    "unknown what their sum is; set the partition mode SPX"
)
STATES = ("sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "gpu_use_percent")
NOT_A_SLOWDOWN = "gpu_idle"


class JoulesError(ValueError):
    """No energy follows from these samples; the message contains the reason."""


def known(times: Sequence[float], values: Sequence[float | None]) -> tuple[Floats, Floats]:
    """Return the times and values of the samples that have a value."""
    column = np.asarray(values, dtype=np.float64)  # None becomes NaN
    is_known = ~np.isnan(column)
    return np.asarray(times, dtype=np.float64)[is_known], column[is_known]


def require_cover(times: Floats, intervals: Sequence[Interval]) -> None:
    """Raise JoulesError unless the samples reach over all intervals without a gap."""
    first, last = intervals[0][0], intervals[-1][1]
    if len(times) < 2:
        raise JoulesError("none of the steady steps were sampled")
    if times[0] > first:
        raise JoulesError(f"the first {times[0] - first:.1f} s of the steady steps were not sampled")
    if times[-1] < last:
        raise JoulesError(f"the samples end {last - times[-1]:.1f} s before the last steady step")
    inside = times[(times >= first) & (times <= last)]
    widest = float(np.diff(np.concatenate([[first], inside, [last]])).max())
    if widest > LARGEST_GAP_SECONDS:
        raise JoulesError(f"there is a gap of {widest:.1f} s between two samples (limit {LARGEST_GAP_SECONDS:g} s)")


def by_counter(times: Floats, counts: Floats, joules_a_count: float, wraps: float | None) -> Floats:
    """Return the joules since the first sample, from a counter; `wraps` is its largest value plus one, in counts.

    Raises JoulesError for a counter that was reset.
    """
    steps = np.diff(counts)
    for place in np.flatnonzero(steps < 0):
        grown = steps[place] + (wraps or 0.0)
        most = MOST_WATTS * (times[place + 1] - times[place])
        # a fall that the wrap does not explain
        if not wraps or not 0 <= grown * joules_a_count <= most:
            before, after = joules_a_count * counts[place : place + 2]
            raise JoulesError(f"the counter was reset: it fell from {before:,.1f} J to {after:,.1f} J")
        steps[place] = grown
    return np.concatenate([[0.0], np.cumsum(steps)]) * joules_a_count


def spent(times: Floats, joules: Floats, intervals: Sequence[Interval]) -> float:
    """Return the joules inside the intervals; `joules` is the energy up to each time. Raises JoulesError."""
    require_cover(times, intervals)
    at = np.interp(np.asarray(intervals, dtype=np.float64), times, joules)
    return float((at[:, 1] - at[:, 0]).sum())


def steady_intervals(ends: Sequence[float], seconds: Sequence[float], skipped: int) -> list[Interval]:
    """Return the intervals of the steps after the first `skipped` ones; steps without a gap between them become one."""
    intervals: list[Interval] = []
    for end, lasted in zip(ends[skipped:], seconds[skipped:], strict=True):
        start = end - lasted
        # the times of two steps are rounded, and no step ends exactly where the next one starts
        if intervals and start - intervals[-1][1] <= 1e-3 * lasted:
            intervals[-1] = (intervals[-1][0], end)
        else:
            intervals.append((start, end))
    return intervals


@dataclass(frozen=True)
class Measured:
    """Joules of one package by one way, or what follows from them; None with the reason."""

    joules: float | None
    why: str = ""

    def per(self, amount: float) -> Measured:
        """Return the joules for each of an amount: by token, or by second (watts)."""
        return self if self.joules is None else Measured(self.joules / amount)


def total(parts: Sequence[Measured]) -> Measured:
    """Return the sum of one part or more; None with the reason of the first part that is None."""
    joules = 0.0
    for part in parts:
        if part.joules is None:
            return part
        joules += part.joules
    return Measured(joules)


@dataclass(frozen=True)
class PackageEnergy:
    """One package: its name, the devices in it, and its energy by both ways."""

    name: str
    devices: int
    counter: Measured
    power: Measured


@dataclass(frozen=True)
class NodeEnergy:
    """Energy and state of one node; the samples themselves are not kept."""

    header: Header
    why: Mapping[str, str]
    packages: list[PackageEnergy]
    cpu_joules: Measured
    idle_watts: Measured
    samples: int
    hertz: float
    states: dict[str, Floats]
    """STATES and `cpu_use_percent` over the steady steps, of all GPUs."""
    throttled: list[dict[str, float]]
    """For each GPU that reports it, the percentage of its samples with each reason for reduced clocks."""


def of_node(node: NodeSamples, intervals: Sequence[Interval]) -> NodeEnergy:
    """Return the energy of a node in the intervals, in seconds of its own clock.

    Raises JoulesError if the clock of the samples goes back.
    """
    for number, (before, after) in enumerate(pairwise(node.times), 2):
        if after <= before:
            raise JoulesError(f"the clock of the samples goes back from {before:.3f} s to {after:.3f} s ({number})")
    first, last = intervals[0][0], intervals[-1][1]
    times = np.asarray(node.times)
    # samples at the edges belong to the first and the last step
    inside = np.flatnonzero((times >= first) & (times <= last))
    gpus = range(len(node.header["gpus"]))
    states = {name: _known([node.gpu(index, name) for index in gpus], inside) for name in STATES}
    states["cpu_use_percent"] = _known([[sample["cpu"] for sample in node.samples]], inside)
    return NodeEnergy(
        node.header,
        node.why,
        packages=list(_gpu_packages(node, intervals)),
        cpu_joules=_processors(node, intervals),
        idle_watts=_idle_watts(node),
        samples=len(inside),
        hertz=len(inside) / (last - first),
        states=states,
        throttled=list(_throttled(node, inside)),
    )


def _known(columns: Sequence[Sequence[float | None]], inside: NDArray[np.intp]) -> Floats:
    """Return the values of some columns in the samples `inside`, without those that are missing."""
    parts = [np.empty(0)]
    for column in columns:
        values = np.asarray(column, dtype=np.float64)[inside]
        parts.append(values[~np.isnan(values)])
    return np.concatenate(parts)


def _gpu_packages(node: NodeSamples, intervals: Sequence[Interval]) -> Iterator[PackageEnergy]:
    groups: dict[str, list[int]] = {}
    for index, gpu in enumerate(node.header["gpus"]):
        groups.setdefault(gpu["package"], []).append(index)
    for members in groups.values():
        gpus = [node.header["gpus"][index] for index in members]
        name = f"{gpus[0]['name']} at {' and '.join(gpu['bus_id'] for gpu in gpus)}"
        dies = gpus[0]["package_dies"]
        has_two_dies = any(product in gpus[0]["name"].upper() for product in TWO_DIES)
        why = ""
        if dies > 1 and not has_two_dies:
            why = PARTITIONS
        elif len(members) < dies:
            why = f"the power of its package is that of {dies} dies, and the job uses {len(members)} of them"
        if why:
            counter = power = Measured(None, f"{name}: {why}")
        else:
            counter = _sum([_by_counter(node, index, intervals) for index in members])
            power = _sum([_by_power(node, index, intervals) for index in members])
        yield PackageEnergy(name, len(members), counter, power)


def _sum(dies: Sequence[Measured]) -> Measured:
    """Return the sum over the dies of a package; a die without a value counts nothing if another one has a value."""
    # no die has a value: the reason of the first is as good as any
    if not any(die.joules for die in dies):
        return dies[0]
    counted = []
    for die in dies:
        is_silent = die.joules is None and die.why.startswith(SILENT)
        if not is_silent:
            counted.append(die)
    return total(counted)


SILENT = "no values: "
"""Beginning of the reason of a device that reports nothing, as opposed to one whose values are unusable."""


def _by_counter(node: NodeSamples, index: int, intervals: Sequence[Interval]) -> Measured:
    times, counts = known(node.times, node.gpu(index, "counter_mj"))
    if not len(counts):
        return Measured(None, SILENT + node.why_of(index, "counter_mj"))
    wraps = node.header["gpus"][index]["counter_wraps_mj"]
    where, lost = f"{node.name(index)}, counter", node.why.get(str(index))
    return _measured(times, lambda: by_counter(times, counts, MILLI, wraps), intervals, where, lost)


def _by_power(node: NodeSamples, index: int, intervals: Sequence[Interval]) -> Measured:
    """Integrate the power of this moment, or the average that the device makes where it does not report the first."""
    times, watts = _power(node, index)
    if not len(watts):
        return Measured(None, SILENT + node.why_of(index, "instant_mw"))
    if not watts.any():
        return Measured(None, f"{SILENT}{node.name(index)}: the device reports 0 W")
    risen = np.concatenate([[0.0], np.cumsum(np.diff(times) * (watts[1:] + watts[:-1]) / 2)])
    return _measured(times, lambda: risen, intervals, f"{node.name(index)}, power", node.why.get(str(index)))


def _power(node: NodeSamples, index: int) -> tuple[Floats, Floats]:
    """Return times and watts of a GPU."""
    # an average lags behind, by up to a second on some devices
    times, milliwatts = known(node.times, node.gpu(index, "instant_mw"))
    if not milliwatts.any():
        times, milliwatts = known(node.times, node.gpu(index, "average_mw"))
    return times, milliwatts * MILLI


def _measured(
    times: Floats, rise: Callable[[], Floats], intervals: Sequence[Interval], where: str, lost: str | None = None
) -> Measured:
    try:
        return Measured(spent(times, rise(), intervals))
    except JoulesError as error:
        why = f"{where}: {error}"
        if lost:
            why += f" ({lost})"
        return Measured(None, why)


def _processors(node: NodeSamples, intervals: Sequence[Interval]) -> Measured:
    packages = node.header["packages"]
    if not packages:
        return Measured(None, node.why.get("rapl", "no RAPL"))
    parts = []
    for index, package in enumerate(packages):
        times, counts = known(node.times, node.rapl(index))
        rise = partial(by_counter, times, counts, MICRO, package["wraps_uj"])
        parts.append(_measured(times, rise, intervals, f"RAPL, {package['name']}"))
    return total(parts)


def _idle_watts(node: NodeSamples) -> Measured:
    """Return the power of the GPUs, or without a GPU of the processors, before the ranks were started."""
    ready = -math.inf if node.ready is None else node.ready
    # two samples are the least that have an interval
    samples = [sample for sample in node.samples if sample["t"] <= ready]
    if len(samples) < 2:
        return Measured(None, node.why.get("rapl") or "there was no idle period before the job")
    early = NodeSamples(node.header, samples, node.ready, node.why)
    if node.header["platform"] == "cpu":
        use = statistics.fmean(sample["cpu"] for sample in samples)
        if use > IDLE_USE_PERCENT:
            return Measured(None, f"the cores were {use:.0f} % used before the job")
        start, end = early.times[0], early.times[-1]
        return _processors(early, [(start, end)]).per(end - start)
    if not node.header["gpus"]:
        return Measured(None, node.why["gpus"])
    node_watts = 0.0
    for index, gpu in enumerate(node.header["gpus"]):
        _, used = known(early.times, early.gpu(index, "gpu_use_percent"))
        if not len(used):
            return Measured(None, f"{early.name(index)} does not report its use before the job")
        if used.max() > IDLE_USE_PERCENT:
            return Measured(None, f"{early.name(index)} was {used.max():.0f} % used before the job")
        _, watts = _power(early, index)
        # a silent die of a package with two is in the power that the other one reports
        if not watts.any() and gpu["package_dies"] == 1:
            return Measured(None, early.why_of(index, "instant_mw"))
        if len(watts):
            node_watts += float(watts.mean())
    return Measured(node_watts)


def _throttled(node: NodeSamples, inside: NDArray[np.intp]) -> Iterator[dict[str, float]]:
    for index in range(len(node.header["gpus"])):
        rows = node.gpu(index, "throttle")
        reasons = [set(rows[place]) for place in inside if rows[place] is not None]
        if reasons:
            counts = Counter(itertools.chain.from_iterable(reasons))
            del counts[NOT_A_SLOWDOWN]
            yield {name: 100 * count / len(reasons) for name, count in counts.items()}
