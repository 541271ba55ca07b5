"""The JSON of `python -m evaluate.trace`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from evaluate.timing import ceiling
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.pairing import Aligned
from utils.kinds import KINDS, OVERLAPPED, UNATTRIBUTED
from utils.own_files import json_with
from utils.results.probe_file import Probe

VERSION = 1
MS = 1e3
is_trace_json = json_with("trace_version")
"""Recogniser of trace.json of any version."""


def of_side(side: Breakdown, probe: Probe | None = None) -> dict[str, Any]:
    """Return one trace: times in seconds a step, counts a step."""
    return {
        "trace_version": VERSION,
        "file": str(side.path),
        "steps": list(side.steps),
        "device": side.device,
        "device_name": side.device_name,
        "step_seconds": side.step_seconds,
        "kinds": dict(side.kinds),
        OVERLAPPED: side.overlapped,
        "unattributed_percent": {
            "of_step": 100 * side.share(UNATTRIBUTED),
            "of_kernel_time": 100 * side.unattributed_of_kernels,
        },
        "phases": dict(side.phases),
        "communication_groups": [asdict(row) for row in side.groups],
        "kernels": [
            {"name": row.name, "kind": row.kind, "count": row.count, "seconds": row.seconds} for row in side.kernels
        ],
        "operators": [
            {
                "name": row.name,
                "kind": row.kind,
                "phase": row.phase,
                "operator": row.work.family,
                "shapes": row.work.sizes,
                "precision": row.work.precision,
                "count": row.count,
                "seconds": row.seconds,
                "flops": row.work.flops,
                "tflops": row.tflops,
                "share_of_probe": ceiling.share(row, probe),
                "kernel": row.kernel or None,
            }
            for row in side.operators
        ],
        "remarks": list(side.remarks),
    }


def of_pair(
    sides: tuple[Breakdown, Breakdown], probes: tuple[Probe | None, Probe | None], aligned: list[Aligned]
) -> dict[str, Any]:
    """Return two traces and their differences, the second less the first, in milliseconds a step."""
    a, b = sides
    return {
        "trace_version": VERSION,
        "a": of_side(a, probes[0]),
        "b": of_side(b, probes[1]),
        "difference_ms": (b.step_seconds - a.step_seconds) * MS,
        "kinds_difference_ms": {kind: (b.kinds[kind] - a.kinds[kind]) * MS for kind in KINDS},
        "operators": [
            {
                "kind": one.kind,
                "phase": one.phase,
                "operator": one.family,
                "shapes": one.sizes,
                "a_ms": None if one.a is None else one.a.seconds * MS,
                "b_ms": None if one.b is None else one.b.seconds * MS,
                "difference_ms": one.difference_seconds * MS,
            }
            for one in aligned
        ],
    }
