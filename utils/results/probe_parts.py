"""The parts of a probe from version 2 on: collectives and bandwidths.

The dataclasses have the names of the JSON's keys. Seconds are those of one call, of one rank. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from utils.errors import quoted

MOST_RANKS = 1 << 20


class PartError(ValueError):
    """A part is not valid; the message names key, value and what was wanted, without the file."""


@dataclass(frozen=True)
class CollectiveTime:
    """One collective of one size between `ranks` ranks on `nodes` nodes."""

    name: str
    bytes: float
    ranks: int
    nodes: int
    seconds: float
    """Median of the slowest rank."""
    spread_percent: float
    bus_gb_per_second: float
    """As nccl-tests defines it (train/probing/collectives.py)."""


@dataclass(frozen=True)
class Bandwidth:
    """Measured bandwidth, bytes counted as STREAM counts them."""

    gb_per_second: float
    spread_percent: float
    gb: float
    """Bytes of one pass, in 1e9."""


def collectives(found: Any) -> tuple[CollectiveTime, ...]:
    """Return the measured collectives in the value of `collectives`; raise PartError."""
    rows = []
    for place, one in enumerate(_list(found, "collectives")):
        where = f"collectives[{place}]"
        content = _map(one, where)
        rows.append(
            CollectiveTime(
                name=_text(content, "name", where),
                bytes=_number(content, "bytes", where),
                ranks=_count(content, "ranks", where),
                nodes=_count(content, "nodes", where),
                seconds=_number(content, "seconds", where, is_positive=True),
                spread_percent=_number(content, "spread_percent", where),
                bus_gb_per_second=_number(content, "bus_gb_per_second", where, is_positive=True),
            )
        )
    return tuple(rows)


def bandwidths(found: Any) -> dict[str, Bandwidth]:
    """Return the bandwidths in the value of `bandwidth`; raise PartError."""
    rows = {}
    for name, one in _map(found, "bandwidth").items():
        where = f"bandwidth of {quoted(name)}"
        content = _map(one, where)
        positive = {key: _number(content, key, where, is_positive=True) for key in ("gb_per_second", "gb")}
        rows[name] = Bandwidth(spread_percent=_number(content, "spread_percent", where), **positive)
    return rows


def _map(found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise PartError(f"{where}: got {quoted(found)}, wanted an object")
    return found


def _list(found: Any, where: str) -> list[Any]:
    if not isinstance(found, list):
        raise PartError(f"{where}: got {quoted(found)}, wanted a list")
    return found


def _text(content: Mapping[str, Any], key: str, where: str) -> str:
    found = content.get(key)
    if not isinstance(found, str) or not found:
        raise PartError(f"{where}: {key}: got {quoted(found)}, wanted a text")
    return found


def _is_number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)


def _number(content: Mapping[str, Any], key: str, where: str, *, is_positive: bool = False) -> float:
    found = content.get(key)
    is_good: Callable[[float], bool] = (lambda value: value > 0) if is_positive else (lambda value: value >= 0)
    if not _is_number(found) or not is_good(float(found or 0)):
        raise PartError(
            f"{where}: {key}: got {quoted(found)}, wanted a number {'above 0' if is_positive else 'from 0'}"
        )
    return float(found or 0)


def _count(content: Mapping[str, Any], key: str, where: str) -> int:
    found = content.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= MOST_RANKS:
        raise PartError(f"{where}: {key}: got {quoted(found)}, wanted a whole number from 1")
    return found
