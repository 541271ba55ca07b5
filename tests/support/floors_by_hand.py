"""Probes of a few operators and collectives with round numbers, whose floors are easy to work out."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from utils.results.probe_file import CollectiveTime, JobOperators, OperatorTime, Probe

DAY = datetime(2026, 11, 21, tzinfo=timezone.utc)


def operator(kind: str, seconds: float, warm: float, spread: float = 0.0, **changes: Any) -> OperatorTime:
    known: dict[str, Any] = {
        "name": f"aten::{kind}",
        "shapes": "[]",
        "dtypes": "[]",
        "phase": "forward",
        "kind": kind,
        "flops": 10.0,
    }
    known |= {"bytes": 1.0, "seconds": seconds, "warm_seconds": warm, "spread_percent": spread}
    return OperatorTime(**(known | {"method": "replayed", "reason": "", "variants": {}} | changes))


def collective(size: float, seconds: float, nodes: int = 1, spread: float = 2.0, **changes: Any) -> CollectiveTime:
    known: dict[str, Any] = {"name": "allreduce", "bytes": size, "ranks": 4, "nodes": nodes, "seconds": seconds}
    return CollectiveTime(**(known | {"spread_percent": spread, "bus_gb_per_second": 1.0} | changes))


def probe(operators: list[OperatorTime], collectives: list[CollectiveTime] | None = None) -> Probe:
    return Probe(
        path=Path("probe_cpu_here.json"),
        platform="cpu",
        host="here",
        device_name="CPU",
        total_memory_gb=None,
        started=DAY,
        rates={},
        reasons={},
        operators=tuple(operators),
        collectives=tuple(collectives or ()),
    )


def job(counts: list[float], *collectives: dict[str, Any]) -> JobOperators:
    return JobOperators("hf", "llama", "tiny", {}, tuple(enumerate(counts)), collectives, 4, None)


def sent(size: float, count: float = 1, **changes: Any) -> dict[str, Any]:
    return {"name": "all_reduce", "bytes": size, "ranks": 4, "count": count} | changes
