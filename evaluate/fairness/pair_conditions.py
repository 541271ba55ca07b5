"""Certificate items on the conditions of both sides: power cap, clocks, throttling, NUMA balancing, other work.

They come from the section `conditions` of the results (train/machine/conditions.py), which results of earlier versions
lack, and from the slow-downs in `energy_metrics`. Caps and clocks of different products differ by design; an item
compares how far each side was held below the default of its own product, or raised above it. A handicap that is known
in one run of a side counts for the side, whatever the others lack.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item
from utils.results.schema import SLOWDOWNS, Result

NOT_RECORDED = "not recorded"
NO_GPU = "no GPU"
NOT_SHOWN = "not shown there"
TOLERANCE = 0.01
LEAST_PERCENT = 1.0
MOST_APART = 0.2
"""Difference of the shares of time that slow-downs, or other work, take from a run of each side."""
MAX_BUSY_PERCENT = 20.0
"""The limit above which train/preflight/job_checks.py warns."""
OF_MACHINE = {"cpu_governor": "cpu governor"}
MODES = {"ecc": "ECC", "partition": "partition", "persistence": "persistence mode", "compute_mode": "compute mode"}

Section = Mapping[str, Any]


@dataclass(frozen=True)
class _Condition:
    """One condition of one run, in words."""

    text: str
    is_handicap: bool | None
    """True if it slows the run, or speeds it up; None if unknown."""
    share: float = 1.0
    """Share of the product's default; above 1 if it was raised."""


_Reader = Callable[[Section], _Condition]


def items(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield an item for each condition that either side has on record, and always those of _READERS."""
    sides = [[_section(one) for one in side] for side in (a, b)]
    if not all(section for side in sides for section in side):
        yield from (_partly_known(name, sides, read, note) for name, (read, note) in _READERS.items())
        return
    yield from (_handicaps(name, sides, read, note) for name, (read, note) in _READERS.items())
    yield _noted("slowing down", sides, _slowing, "one side was slowed down by heat or its power supply")
    yield _noted("other work", sides, _other_work, "other work was there before one side's job")
    is_one_vendor = a[0]["platform"] == b[0]["platform"] != "cpu"
    for key, name in (*OF_MACHINE.items(), *(MODES.items() if is_one_vendor else ())):
        if any(section.get(key) is not None for side in sides for section in side):  # else no machine has it
            yield _plain(name, sides, key)


def _section(result: Result) -> Section:
    """Return the conditions of a result, with the larger share of each slow-down where `energy_metrics` has it too."""
    found = dict(result.get("conditions") or {})
    if found and (of_energy := result["energy_metrics"].get("throttled_percent")):
        shares = found.get("throttled_percent") or {}
        found["throttled_percent"] = {k: max(shares.get(k, 0), of_energy.get(k, 0)) for k in {*shares, *of_energy}}
    return found


def _handicaps(name: str, sides: Sequence[Sequence[Section]], read: _Reader, note: str) -> Item:
    """Return an item that blocks if one side is held back more than the other, or if the runs of one side differ."""
    (left, right), (text_a, text_b) = _read(sides, read)
    known = [one.is_handicap is not None for one in (*left, *right)]
    if any(_spread(side) > TOLERANCE for side in (left, right)):
        return Item(name, BLOCKING, text_a, text_b, f"{name} differs between the runs of one side")
    if text_a == text_b and not any(known):
        return Item(name, SAME if text_a == NO_GPU else UNKNOWN, text_a, text_b)
    if not all(known):
        is_one_sided = _is_held_back(left) != _is_held_back(right)
        return Item(name, BLOCKING if is_one_sided else UNKNOWN, text_a, text_b, note if is_one_sided else "")
    shares = [[one.share for one in side] for side in (left, right)]
    if abs(min(shares[0]) - min(shares[1])) > TOLERANCE:
        return Item(name, BLOCKING, text_a, text_b, note)
    both = f"{name}: both sides are off their default alike" if any(one.is_handicap for one in left) else ""
    return Item(name, SAME if text_a == text_b and not both else ALLOWED, text_a, text_b, both)


def _partly_known(name: str, sides: Sequence[Sequence[Section]], read: _Reader, note: str) -> Item:
    """Return the item of sides of which some runs have no record: a known handicap of one side alone still blocks."""
    known = [[section for section in side if section] for side in sides]
    found, texts = _read(known, read)
    if _is_held_back(found[0]) != _is_held_back(found[1]):
        shown = [
            " or ".join([text] * bool(text) + [NOT_RECORDED] * (not all(side)))
            for text, side in zip(texts, sides, strict=True)
        ]
        return Item(name, BLOCKING, shown[0], shown[1], note)
    words = [NOT_RECORDED if not all(side) else "recorded" for side in sides]
    return Item(name, UNKNOWN, words[0], words[1])


def _spread(side: Sequence[_Condition]) -> float:
    """Return the difference of the largest and smallest known share among the runs of a side."""
    shares = [one.share for one in side if one.is_handicap is not None or one.share != 1]
    return max(shares, default=0.0) - min(shares, default=0.0)


def _is_held_back(conditions: Sequence[_Condition]) -> bool:
    """Return whether a run of a side is known to be slowed down, or sped up, by this condition."""
    return any(one.is_handicap and abs(one.share - 1) > TOLERANCE for one in conditions)


def _noted(name: str, sides: Sequence[Sequence[Section]], read: _Reader, note: str) -> Item:
    """Return an item on an event during a run. It blocks if most runs of one side were hit, and those of the other side
    were not or less; the effect on fewer runs is in the interval of the ratio."""
    (left, right), (text_a, text_b) = _read(sides, read)
    if any(one.is_handicap is None for one in (*left, *right)):
        return Item(name, SAME if text_a == text_b == NO_GPU else UNKNOWN, text_a, text_b)
    usual = [statistics.median(one.share for one in side) for side in (left, right)]
    if abs(usual[0] - usual[1]) > MOST_APART:
        return Item(name, BLOCKING, text_a, text_b, note)
    hit = [any(one.is_handicap for one in side) for side in (left, right)]
    if hit[0] != hit[1]:
        return Item(name, ALLOWED, text_a, text_b, note)
    return Item(name, SAME if text_a == text_b else ALLOWED, text_a, text_b)


def _read(sides: Sequence[Sequence[Section]], read: _Reader) -> tuple[list[list[_Condition]], tuple[str, str]]:
    found = [[read(section) for section in side] for side in sides]
    text_a, text_b = (" or ".join(dict.fromkeys(one.text for one in side)) for side in found)
    return found, (text_a, text_b)


def _plain(name: str, sides: Sequence[Sequence[Section]], key: str) -> Item:
    words = [sorted({str(section.get(key) or NOT_SHOWN) for section in side}) for side in sides]
    text_a, text_b = (" or ".join(side) for side in words)
    if NOT_SHOWN in words[0] + words[1]:
        return Item(name, UNKNOWN, text_a, text_b)
    return Item(name, SAME if words[0] == words[1] and len(words[0]) == 1 else ALLOWED, text_a, text_b)


def _power_cap(section: Section) -> _Condition:
    cap, default = section.get("power_cap_watts"), section.get("default_power_cap_watts")
    most = section.get("max_power_cap_watts")
    if cap is None:
        return _unknown(section, "power_cap_watts")
    if default:
        if abs(cap - default) <= TOLERANCE * default:
            return _Condition(f"{cap:g} W, the default", is_handicap=False)
        return _Condition(f"{cap:g} W, default {default:g} W", is_handicap=True, share=cap / default)
    if most and cap >= most * (1 - TOLERANCE):
        return _Condition(f"{cap:g} W, the highest that the board allows", is_handicap=False)
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
    balancing, nodes = section.get("numa_balancing"), section.get("numa_nodes")
    if nodes == 1:
        return _Condition("one node", is_handicap=False)
    if balancing is None:
        return _Condition("not shown by the kernel", None)
    return _Condition("on", is_handicap=True, share=0.0) if balancing else _Condition("off", is_handicap=False)


def _slowing(section: Section) -> _Condition:
    shares = section.get("throttled_percent")
    if shares is not None:
        slow = {name: share for name, share in shares.items() if name in SLOWDOWNS and share >= LEAST_PERCENT}
        text = ", ".join(f"{name} {share:.0f} % of the run" for name, share in sorted(slow.items()))
        return _Condition(text or "no", bool(slow), 1 - max(slow.values(), default=0.0) / 100)
    active = section.get("throttle_after")
    if active is None:
        return _unknown(section, "throttle_after")
    slow_now = sorted(SLOWDOWNS.intersection(active))
    return _Condition(f"{', '.join(slow_now)} at the end" if slow_now else "not at the end", bool(slow_now))


def _other_work(section: Section) -> _Condition:
    processes, busy = section.get("other_processes"), section.get("busy_before_percent")
    found = [f"{processes} processes on the GPUs"] if processes else []
    found += [f"{busy:.0f} % of the cores busy"] if busy is not None and busy > MAX_BUSY_PERCENT else []
    return _Condition(", ".join(found) or "none", bool(found), 0.0 if processes else 1.0)


def _unknown(section: Section, key: str) -> _Condition:
    reason = section.get("reasons", {}).get(key, "unknown")
    return _Condition(NO_GPU if reason == NO_GPU else f"unknown ({reason})", None)


_READERS: dict[str, tuple[_Reader, str]] = {
    "power cap": (_power_cap, "power cap off the default on one side"),
    "clocks": (_clocks, "clocks limited or raised on one side"),
    "NUMA balancing": (_numa, "NUMA balancing slows one side"),
}
"""Items that every certificate has: how each is read, and the note of one that blocks."""
