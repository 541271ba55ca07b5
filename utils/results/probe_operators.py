"""The parts of a probe from version 2 on: measured operators, the jobs they are of, collectives, bandwidths.

The dataclasses have the names of the JSON's keys. Seconds are those of one call, of one rank. Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from utils.errors import quoted
from utils.kinds import KINDS

METHODS = ("replayed", "bandwidth")
MOST_THREADS = 1 << 20


class PartError(ValueError):
    """A part is not valid; the message names key, value and what was wanted, without the file."""


@dataclass(frozen=True)
class OperatorTime:
    """One distinct call of a rehearsed step, measured."""

    name: str
    """With its namespace, `aten::mm`; `compiled::NAME` is a region of torch.compile."""
    shapes: str
    """Shapes of its tensor arguments, as JSON text."""
    dtypes: str
    """Their dtypes, as JSON text."""
    phase: str
    kind: str
    """One of utils.kinds.KINDS."""
    flops: float
    """Floating-point operations of one call."""
    bytes: float
    """Bytes that one call reads and writes at least."""
    seconds: float
    """Median of one call with a cold cache, the fastest variant."""
    warm_seconds: float
    """The same with a warm cache."""
    spread_percent: float
    """Half width of the 95 % interval of the median `seconds`, in percent of it."""
    method: str
    """`replayed`: the operator itself ran. `bandwidth`: a copy of as many bytes ran, for the reason in `reason`."""
    reason: str
    variants: Mapping[str, float]
    """Seconds with a cold cache by variant: `operator`, `matmul`, `linear`, `flash`, `efficient`, `cudnn`, `math`."""

    @property
    def least_seconds(self) -> float:
        """The smaller of the times with a cold and a warm cache."""
        return min(self.seconds, self.warm_seconds)


@dataclass(frozen=True)
class JobOperators:
    """The operators of one optimizer step of one rank of a job."""

    framework: str
    model: str
    model_size: str
    settings: Mapping[str, Any]
    """Settings of the job by the keys of `training_config`."""
    calls: tuple[tuple[int, float], ...]
    """Place in `Probe.operators`, and calls in a step."""
    collectives: tuple[Mapping[str, Any], ...]
    """`name`, `bytes` (of the larger of input and output of a rank), `ranks`, `count` of a step."""
    ranks: int
    threads: int | None
    """Threads of a rank on a CPU, with which its operators were measured; None on a GPU."""


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


def operators(found: Any) -> tuple[OperatorTime, ...]:
    """Return the measured operators in the value of `operators`; raise PartError."""
    return tuple(_operator(one, f"operators[{place}]") for place, one in enumerate(_list(found, "operators")))


def jobs(found: Any, count: int) -> tuple[JobOperators, ...]:
    """Return the jobs in the value of `jobs`, whose calls lead to one of `count` operators; raise PartError."""
    return tuple(_job(one, count, f"jobs[{place}]") for place, one in enumerate(_list(found, "jobs")))


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


def _operator(found: Any, where: str) -> OperatorTime:
    content = _map(found, where)
    texts = {key: _text(content, key, where) for key in ("name", "phase", "kind", "method")}
    for key, allowed in (("kind", KINDS), ("method", METHODS)):
        if texts[key] not in allowed:
            raise PartError(f"{where}: {key}: got {quoted(texts[key])}, wanted one of {', '.join(allowed)}")
    variants = _map(content.get("variants"), f"{where}: variants")
    return OperatorTime(
        name=texts["name"],
        shapes=_json_list(content, "shapes", where),
        dtypes=_json_list(content, "dtypes", where),
        phase=texts["phase"],
        kind=texts["kind"],
        flops=_number(content, "flops", where),
        bytes=_number(content, "bytes", where),
        seconds=_number(content, "seconds", where, is_positive=True),
        warm_seconds=_number(content, "warm_seconds", where, is_positive=True),
        spread_percent=_number(content, "spread_percent", where),
        method=texts["method"],
        reason=str(content.get("reason") or ""),
        variants={name: _number(variants, name, f"{where}: variants", is_positive=True) for name in variants},
    )


def _job(found: Any, count: int, where: str) -> JobOperators:
    content = _map(found, where)
    threads = content.get("threads")
    return JobOperators(
        **{key: _text(content, key, where) for key in ("framework", "model", "model_size")},
        settings=_map(content.get("settings"), f"{where}: settings"),
        calls=tuple(_call(one, count, where) for one in _list(content.get("calls"), f"{where}: calls")),
        collectives=tuple(
            _sent(one, f"{where}: collectives") for one in _list(content.get("collectives"), f"{where}: collectives")
        ),
        ranks=_count(content, "ranks", where),
        threads=None if threads is None else _count(content, "threads", where),
    )


def _call(found: Any, count: int, where: str) -> tuple[int, float]:
    pair: tuple[Any, Any] = tuple(found) if isinstance(found, list) and len(found) == 2 else (None, None)
    place, calls = pair
    is_place = isinstance(place, int) and not isinstance(place, bool) and 0 <= place < count
    if not is_place or not _is_number(calls) or calls <= 0:
        raise PartError(
            f"{where}: calls: got {quoted(found)}, wanted the place of one of {count} operators and its calls in a step"
        )
    return place, float(calls)


def _sent(found: Any, where: str) -> Mapping[str, Any]:
    content = _map(found, where)
    _text(content, "name", where)
    for key in ("bytes", "ranks", "count"):
        _number(content, key, where)
    return content


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


def _json_list(content: Mapping[str, Any], key: str, where: str) -> str:
    """Return a text that holds a list of JSON."""
    text = _text(content, key, where)
    try:
        is_list = isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        is_list = False
    if not is_list:
        raise PartError(f"{where}: {key}: got {quoted(text)}, wanted a list as JSON text")
    return text


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
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= MOST_THREADS:
        raise PartError(f"{where}: {key}: got {quoted(found)}, wanted a whole number from 1")
    return found
