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

from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item, Sides, compared
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
    **{GOVERNOR: "cpu governor", "ecc": "ECC", "partition": "partition", "persistence": "persistence mode"},
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
Conditions = Sequence[Sequence[_Condition]]
"""A condition of each run of a, then of b."""


def items(sides: Sides) -> Iterator[Item]:
    """Yield an item for each condition that either side has on record, and always those on handicaps."""
    sections = [[_section(one) for one in side] for side in sides]
    are_known = all(section for side in sections for section in side)
    for name, (read, judge, note) in _READERS.items():
        if are_known or judge is _handicaps:
            found = [[read(one) if one else _Condition("not recorded", None) for one in side] for side in sections]
            a, b = (" or ".join(dict.fromkeys(one.text for one in side)) for side in found)
            yield judge(Item(name, SAME if a == b else ALLOWED, a, b), found, note)
    is_one_vendor = sides[0][0]["platform"] == sides[1][0]["platform"] != "cpu"
    for key, name in MODES.items() if are_known else ():
        modes = [[section.get(key) or None for section in side] for side in sections]
        if any(modes[0] + modes[1]) and (is_one_vendor or key == GOVERNOR):  # else no machine has it
            yield compared(name, modes, ALLOWED)


def _section(result: Result) -> Section:
    """Return the conditions of a result, with the larger share of each slow-down where `energy_metrics` has it too."""
    found = dict(result.get("conditions") or {})
    if found and (of_energy := result["energy_metrics"].get("throttled_percent")):
        shares = found.get("throttled_percent") or {}
        found["throttled_percent"] = {
            key: max(share for share in (shares.get(key), of_energy.get(key), 0) if share is not None)
            for key in {*shares, *of_energy}
        }
    return found


def _unknown_item(item: Item) -> Item:
    return replace(item, state=SAME if item.a == item.b == NO_GPU else UNKNOWN)


def _handicaps(item: Item, sides: Conditions, note: str) -> Item:
    """Return an item that blocks if one side is held back more than the other, or if the runs of one side differ."""
    # an unknown condition with a share of its own is a cap whose default is not known
    shares = [[one.share for one in side if one.is_handicap is not None or one.share != 1] for side in sides]
    if any(side and max(side) - min(side) > TOLERANCE for side in shares):
        return replace(item, state=BLOCKING, note=f"{item.name} differs between the runs of one side")
    if any(one.is_handicap is None for side in sides for one in side):
        held = [any(one.is_handicap and abs(one.share - 1) > TOLERANCE for one in side) for side in sides]
        return replace(item, state=BLOCKING, note=note) if held[0] != held[1] else _unknown_item(item)
    if abs(min(shares[0]) - min(shares[1])) > TOLERANCE:
        return replace(item, state=BLOCKING, note=note)
    if any(one.is_handicap for one in sides[0]):
        return replace(item, state=ALLOWED, note=f"{item.name}: both sides are off their default alike")
    return item


def _events(item: Item, sides: Conditions, note: str) -> Item:
    """Return an item on an event during a run. It blocks if most runs of one side were hit, and those of the other side
    were not or less; the effect on fewer runs is in the interval of the ratio."""
    if any(one.is_handicap is None for side in sides for one in side):
        return _unknown_item(item)
    usual = [statistics.median(one.share for one in side) for side in sides]
    if abs(usual[0] - usual[1]) > MOST_APART:
        return replace(item, state=BLOCKING, note=note)
    hit = [any(one.is_handicap for one in side) for side in sides]
    return replace(item, note=note) if hit[0] != hit[1] else item


def _power_cap(section: Section) -> _Condition:
    cap, default = section.get("power_cap_watts"), section.get("default_power_cap_watts")
    most = section.get("max_power_cap_watts")
    if cap is None:
        return _unknown(section, "power_cap_watts")
    if default and abs(cap - default) > TOLERANCE * default:
        return _Condition(f"{cap:g} W, default {default:g} W", is_handicap=True, share=cap / default)
    if default or (most and cap >= most * (1 - TOLERANCE)):
        usual = "the default" if default else "the highest that the board allows"
        return _Condition(f"{cap:g} W, {usual}", is_handicap=False)
    return _Condition(f"{cap:g} W, default unknown", None, min(1.0, cap / most) if most else 1.0)


def _clocks(section: Section) -> _Condition:
    limit, default, most = (
        section.get(key) for key in ("clock_limit_mhz", "default_clock_limit_mhz", "max_sm_clock_mhz")
    )
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
    if shares is not None:
        slow = {name: share for name, share in shares.items() if name in SLOWDOWNS and (share or 0) >= LEAST_PERCENT}
        text = ", ".join(f"{name} {share:.0f} % of the run" for name, share in sorted(slow.items()))
        return _Condition(text or "no", bool(slow), 1 - max(slow.values(), default=0.0) / 100)
    if section.get("throttle_after") is None:
        return _unknown(section, "throttle_after")
    slow_now = sorted(SLOWDOWNS.intersection(section["throttle_after"]))
    return _Condition(f"{', '.join(slow_now) or 'not'} at the end", bool(slow_now))


def _other_work(section: Section) -> _Condition:
    processes, busy = section.get("other_processes"), section.get("busy_before_percent")
    found = [f"{processes} processes on the GPUs"] if processes else []
    found += [f"{busy:.0f} % of the cores busy"] if busy is not None and busy > MAX_BUSY_PERCENT else []
    return _Condition(", ".join(found) or "none", bool(found), 0.0 if processes else 1.0)


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
