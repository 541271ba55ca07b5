"""Under which conditions both sides of a pair ran: power cap, clocks, slowing down, NUMA balancing, other work.

From the `conditions` section of the results (train/machine/conditions.py), which earlier results do not have. Caps and
clocks of different products differ by design; what counts is whether a side was held below what its own product does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from utils.results.schema import SLOWDOWNS, Result

SAME, ALLOWED, BLOCKING, UNKNOWN = "same", "allowed", "blocking", "unknown"
NOT_RECORDED = "not recorded"
NO_GPU = "no GPU"
NOT_SHOWN = "not shown there"
ALWAYS = ("power cap", "clocks", "NUMA balancing")
"""Items that a certificate always has."""
TOLERANCE = 0.01
LEAST_PERCENT = 1.0
MAX_BUSY_PERCENT = 20.0
"""As train/preflight/machine_warnings.py warns."""
OF_MACHINE = {"cpu_governor": "cpu governor"}
MODES = {"ecc": "ECC", "partition": "partition", "persistence": "persistence mode", "compute_mode": "compute mode"}

Section = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """What is the same or different in one condition."""

    name: str
    state: str
    a: str
    b: str
    note: str = ""


@dataclass(frozen=True)
class _Side:
    """One condition of one side: how it reads, and whether it holds the side back; None where that is unknown."""

    said: str
    is_handicap: bool | None
    share: float = 1.0
    """Of what the product does by itself, at most 1."""


def findings(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Finding]:
    """Yield a finding for each condition that either side has on record; always one for each of ALWAYS."""
    sides: list[list[Section]] = [[one.get("conditions") or {} for one in side] for side in (a, b)]
    if not all(section for side in sides for section in side):
        words = [NOT_RECORDED if not all(side) else "recorded" for side in sides]
        yield from (Finding(name, UNKNOWN, *words) for name in ALWAYS)
        return
    yield _handicaps("power cap", sides, _power_cap, "power cap below the default on one side")
    yield _handicaps("clocks", sides, _clocks, "clocks limited on one side")
    yield _handicaps("NUMA balancing", sides, _numa, "NUMA balancing slows one side")
    yield _noted("slowing down", sides, _slowing, "one side was slowed down by heat or its power supply")
    yield _noted("other work", sides, _other_work, "other work was there before one side's job")
    is_one_vendor = a[0]["platform"] == b[0]["platform"] != "cpu"
    for key, name in (*OF_MACHINE.items(), *(MODES.items() if is_one_vendor else ())):
        if any(section.get(key) is not None for side in sides for section in side):  # else there is no such thing
            yield _plain(name, sides, key)


def _handicaps(name: str, sides: Sequence[Sequence[Section]], read: Callable[[Section], _Side], note: str) -> Finding:
    """A side that is held back against one that is not, or less so, cannot be compared; nor one whose runs differ."""
    (left, right), (said_a, said_b) = _read(sides, read)
    known = [one.is_handicap is not None for one in (*left, *right)]
    if said_a == said_b and not any(known):
        return Finding(name, SAME if said_a == NO_GPU else UNKNOWN, said_a, said_b)
    if not all(known):
        return Finding(name, UNKNOWN, said_a, said_b)
    shares = [[one.share for one in side] for side in (left, right)]
    if any(max(side) - min(side) > TOLERANCE for side in shares):
        return Finding(name, BLOCKING, said_a, said_b, f"{name} differs between the runs of one side")
    if abs(min(shares[0]) - min(shares[1])) > TOLERANCE:
        return Finding(name, BLOCKING, said_a, said_b, note)
    both = f"{name}: both sides are held back alike" if any(one.is_handicap for one in left) else ""
    return Finding(name, SAME if said_a == said_b and not both else ALLOWED, said_a, said_b, both)


def _noted(name: str, sides: Sequence[Sequence[Section]], read: Callable[[Section], _Side], note: str) -> Finding:
    """What happened to a run is shown and forbids nothing: the intervals are there for it."""
    (left, right), (said_a, said_b) = _read(sides, read)
    if any(one.is_handicap is None for one in (*left, *right)):
        return Finding(name, SAME if said_a == said_b == NO_GPU else UNKNOWN, said_a, said_b)
    hit = [any(one.is_handicap for one in side) for side in (left, right)]
    if hit[0] != hit[1]:
        return Finding(name, ALLOWED, said_a, said_b, note)
    return Finding(name, SAME if said_a == said_b else ALLOWED, said_a, said_b)


def _read(
    sides: Sequence[Sequence[Section]], read: Callable[[Section], _Side]
) -> tuple[list[list[_Side]], tuple[str, str]]:
    found = [[read(section) for section in side] for side in sides]
    said_a, said_b = (" or ".join(dict.fromkeys(one.said for one in side)) for side in found)
    return found, (said_a, said_b)


def _plain(name: str, sides: Sequence[Sequence[Section]], key: str) -> Finding:
    words = [sorted({str(section.get(key) or NOT_SHOWN) for section in side}) for side in sides]
    said_a, said_b = (" or ".join(side) for side in words)
    if NOT_SHOWN in words[0] + words[1]:
        return Finding(name, UNKNOWN, said_a, said_b)
    return Finding(name, SAME if words[0] == words[1] and len(words[0]) == 1 else ALLOWED, said_a, said_b)


def _power_cap(section: Section) -> _Side:
    cap, default = section.get("power_cap_watts"), section.get("default_power_cap_watts")
    most = section.get("max_power_cap_watts")
    if cap is None:
        return _unknown(section, "power_cap_watts")
    if default:
        share = min(1.0, cap / default)
        if abs(cap - default) <= TOLERANCE * default:
            return _Side(f"{cap:g} W, the default", is_handicap=False)
        return _Side(f"{cap:g} W, default {default:g} W", cap < default, share)
    if most and cap >= most * (1 - TOLERANCE):
        return _Side(f"{cap:g} W, the highest that the board allows", is_handicap=False)
    return _Side(f"{cap:g} W, default unknown", None)


def _clocks(section: Section) -> _Side:
    limit, default, most = (
        section.get(key) for key in ("clock_limit_mhz", "default_clock_limit_mhz", "max_sm_clock_mhz")
    )
    level = str(section.get("performance_level") or "auto").lower().removeprefix("amdsmi_dev_perf_level_")
    if level not in ("auto", "unknown"):
        return _Side(f"performance level {level}", is_handicap=True, share=0.0)
    if limit is not None and default and limit < default * (1 - TOLERANCE):
        return _Side(f"limited to {limit:g} MHz, default {default:g} MHz", is_handicap=True, share=limit / default)
    if most is None:
        return _unknown(section, "max_sm_clock_mhz")
    return _Side(f"up to {most:g} MHz", is_handicap=False)


def _numa(section: Section) -> _Side:
    balancing, nodes = section.get("numa_balancing"), section.get("numa_nodes")
    if nodes == 1:
        return _Side("one node", is_handicap=False)
    if balancing is None:
        return _Side("not shown by the kernel", None)
    return _Side("on", is_handicap=True, share=0.0) if balancing else _Side("off", is_handicap=False)


def _slowing(section: Section) -> _Side:
    shares = section.get("throttled_percent")
    if shares is not None:
        slow = {name: share for name, share in shares.items() if name in SLOWDOWNS and share >= LEAST_PERCENT}
        said = ", ".join(f"{name} {share:.0f} % of the run" for name, share in sorted(slow.items()))
        return _Side(said or "no", bool(slow))
    active = section.get("throttle_after")
    if active is None:
        return _unknown(section, "throttle_after")
    slow_now = sorted(SLOWDOWNS.intersection(active))
    return _Side(f"{', '.join(slow_now)} at the end" if slow_now else "not at the end", bool(slow_now))


def _other_work(section: Section) -> _Side:
    processes, busy = section.get("other_processes"), section.get("busy_before_percent")
    said = [f"{processes} processes on the GPUs"] if processes else []
    said += [f"{busy:.0f} % of the cores busy"] if busy is not None and busy > MAX_BUSY_PERCENT else []
    return _Side(", ".join(said) or "none", bool(said))


def _unknown(section: Section, key: str) -> _Side:
    reason = section.get("reasons", {}).get(key, "unknown")
    return _Side(NO_GPU if reason == NO_GPU else f"unknown ({reason})", None)
