"""Certificate items on the conditions of both sides: power cap, clocks, throttling, NUMA balancing, other work.

They come from the section `conditions` of the results (train/machine/conditions.py), which results of earlier versions
lack, and from the slow-downs in `energy_metrics`. Caps and clocks of different products differ by design; an item
compares how far each side was held below the default of its own product, or raised above it. A handicap that is known
in one run of a side counts for the side, whatever the others lack.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item, Sides, Values, both, compared, of_runs
from utils.results.schema import SLOWDOWNS, Result

NO_GPU = "no GPU"
TOLERANCE = 0.01
LEAST_PERCENT = 1.0
MOST_APART = 0.2
"""Difference of the shares of time that slow-downs, or other work, take from a run of each side."""
MAX_BUSY_PERCENT = 20.0
"""The limit above which train/preflight/job_checks.py warns."""
GOVERNOR = "cpu_governor"
MODES = {
    GOVERNOR: "cpu governor",
    "ecc": "ECC",
    "partition": "partition",
    "persistence": "persistence mode",
    "compute_mode": "compute mode",
}
"""All but the governor are compared on boards of one vendor only."""

Section = Mapping[str, Any]


@dataclass(frozen=True)
class _Condition:
    """One condition of one run, in words."""

    text: str
    is_handicap: bool | None
    """True if it slows the run, or speeds it up; None if unknown."""
    share: float = 1.0
    """Share of the product's default; above 1 if it was raised."""


BALANCING = {
    True: _Condition("on", is_handicap=True, share=0.0),
    False: _Condition("off", is_handicap=False),
    None: _Condition("not shown by the kernel", None),
}
"""The condition for each value of `numa_balancing`."""
NOT_RECORDED = _Condition("not recorded", None)
Conditions = Sequence[Sequence[_Condition]]
"""A condition of each run of a, then of b."""


def items(sides: Sides) -> Iterator[Item]:
    """Yield an item for each condition that either side has on record, and always those on handicaps."""
    sections = of_runs(sides, _section)
    are_known = all(both(sections))
    for name, (read, judge, note) in _READERS.items():
        # a handicap that is known of one side is shown, whatever the other lacks
        if not are_known and judge is not _handicaps:
            continue
        conditions = _conditions(sections, read)
        a, b = (" or ".join(dict.fromkeys(condition.text for condition in side)) for side in conditions)
        yield judge(Item(name, SAME if a == b else ALLOWED, a, b), conditions, note)
    if not are_known:
        return
    # vendors have other modes by other names
    is_one_vendor = sides[0][0]["platform"] == sides[1][0]["platform"] != "cpu"
    for key, name in MODES.items():
        modes = _modes(sections, key)
        if any(both(modes)) and (is_one_vendor or key == GOVERNOR):  # else no machine has it
            yield compared(name, modes, ALLOWED)


def _conditions(sections: Values, read: Callable[[Section], _Condition]) -> Conditions:
    return of_runs(sections, lambda section: read(section) if section else NOT_RECORDED)


def _modes(sections: Values, key: str) -> Values:
    return of_runs(sections, lambda section: section.get(key) or None)


def _section(result: Result) -> Section:
    """Return the conditions of a result, with the larger share of each slow-down where `energy_metrics` has it too."""
    section = dict(result.get("conditions") or {})
    of_energy = result["energy_metrics"].get("throttled_percent")
    if not section or not of_energy:
        return section
    shares = dict(section.get("throttled_percent") or {})
    for key, share in of_energy.items():
        shares[key] = max(shares.get(key) or 0, share or 0)
    return section | {"throttled_percent": shares}


def _unknown_item(item: Item) -> Item:
    return replace(item, state=SAME if item.a == item.b == NO_GPU else UNKNOWN)


def _handicaps(item: Item, sides: Conditions, note: str) -> Item:
    """Return an item that blocks if one side is held back more than the other, or if the runs of one side differ."""
    for side in sides:
        # an unknown condition with a share of its own is a cap whose default is not known
        shares = [run.share for run in side if run.is_handicap is not None or run.share != 1]
        if shares and max(shares) - min(shares) > TOLERANCE:
            return replace(item, state=BLOCKING, note=f"{item.name} differs between the runs of one side")
    a, b = sides
    if any(run.is_handicap is None for run in both(sides)):
        # what is known of one run of a side holds for the side, whatever the others lack
        is_blocking = _is_held(a) != _is_held(b)
        return replace(item, state=BLOCKING, note=note) if is_blocking else _unknown_item(item)
    # the same cap on both sides is a condition of the measurement, not a handicap
    if abs(min(run.share for run in a) - min(run.share for run in b)) > TOLERANCE:
        return replace(item, state=BLOCKING, note=note)
    if any(run.is_handicap for run in a):
        return replace(item, state=ALLOWED, note=f"{item.name}: both sides are off their default alike")
    return item


def _is_held(side: Sequence[_Condition]) -> bool:
    return any(run.is_handicap and abs(run.share - 1) > TOLERANCE for run in side)


def _events(item: Item, sides: Conditions, note: str) -> Item:
    """Return an item on an event during a run, which blocks if most runs of one side were hit by more.

    An event in few runs does not block, because its effect widens the interval of the ratio.
    """
    if any(run.is_handicap is None for run in both(sides)):
        return _unknown_item(item)
    usual_a, usual_b = (statistics.median(run.share for run in side) for side in sides)
    # the median: one hot run of three is a part of the spread
    if abs(usual_a - usual_b) > MOST_APART:
        return replace(item, state=BLOCKING, note=note)
    was_hit_a, was_hit_b = (any(run.is_handicap for run in side) for side in sides)
    return replace(item, note=note) if was_hit_a != was_hit_b else item


def _power_cap(section: Section) -> _Condition:
    cap, default = section.get("power_cap_watts"), section.get("default_power_cap_watts")
    most = section.get("max_power_cap_watts")
    if cap is None:
        return _unknown(section, "power_cap_watts")
    if default:
        if abs(cap - default) > TOLERANCE * default:
            return _Condition(f"{cap:g} W, default {default:g} W", is_handicap=True, share=cap / default)
        return _Condition(f"{cap:g} W, the default", is_handicap=False)
    if most and cap >= most * (1 - TOLERANCE):
        return _Condition(f"{cap:g} W, the highest that the board allows", is_handicap=False)
    # the board may allow more than its default, so this is no handicap for certain
    share = min(1.0, cap / most) if most else 1.0
    return _Condition(f"{cap:g} W, default unknown", None, share)


def _clocks(section: Section) -> _Condition:
    limit, default = section.get("clock_limit_mhz"), section.get("default_clock_limit_mhz")
    most = section.get("max_sm_clock_mhz")
    level = str(section.get("performance_level") or "auto").lower().removeprefix("amdsmi_dev_perf_level_")
    if level not in ("auto", "unknown"):
        return _Condition(f"performance level {level}", is_handicap=True, share=0.0)
    if limit is not None and default and abs(limit - default) > TOLERANCE * default:
        return _Condition(f"limited to {limit:g} MHz, default {default:g} MHz", is_handicap=True, share=limit / default)
    if most is None:
        return _unknown(section, "max_sm_clock_mhz")
    return _Condition(f"up to {most:g} MHz", is_handicap=False)


def _numa(section: Section) -> _Condition:
    if section.get("numa_nodes") == 1:
        return _Condition("one node", is_handicap=False)
    return BALANCING[section.get("numa_balancing")]


def _slowing(section: Section) -> _Condition:
    shares = section.get("throttled_percent")
    if shares is None:
        return _slowing_at_the_end(section)
    slow = {}
    for name, share in sorted(shares.items()):
        if name in SLOWDOWNS and (share or 0) >= LEAST_PERCENT:
            slow[name] = share
    text = ", ".join(f"{name} {share:.0f} % of the run" for name, share in slow.items())
    return _Condition(text or "no", bool(slow), 1 - max(slow.values(), default=0.0) / 100)


def _slowing_at_the_end(section: Section) -> _Condition:
    """Return what an older tool knows: the state after the run, and no share of its time."""
    if section.get("throttle_after") is None:
        return _unknown(section, "throttle_after")
    slow = sorted(SLOWDOWNS.intersection(section["throttle_after"]))
    return _Condition(f"{', '.join(slow) or 'not'} at the end", bool(slow))


def _other_work(section: Section) -> _Condition:
    processes, busy = section.get("other_processes"), section.get("busy_before_percent")
    work = []
    if processes:
        work.append(f"{processes} processes on the GPUs")
    if busy is not None and busy > MAX_BUSY_PERCENT:
        work.append(f"{busy:.0f} % of the cores busy")
    return _Condition(", ".join(work) or "none", bool(work), 0.0 if processes else 1.0)


def _unknown(section: Section, key: str) -> _Condition:
    reason = section.get("reasons", {}).get(key, "unknown")
    return _Condition(NO_GPU if reason == NO_GPU else f"unknown ({reason})", None)


_READERS: dict[str, tuple[Callable[[Section], _Condition], Callable[[Item, Conditions, str], Item], str]] = {
    "power cap": (_power_cap, _handicaps, "power cap off the default on one side"),
    "clocks": (_clocks, _handicaps, "clocks limited or raised on one side"),
    "NUMA balancing": (_numa, _handicaps, "NUMA balancing slows one side"),
    "slowing down": (_slowing, _events, "one side was slowed down by heat or its power supply"),
    "other work": (_other_work, _events, "other work was there before one side's job"),
}
"""How each condition is read and judged, and the note of one that blocks."""
