"""Traces of torch.profiler with a known truth, written event by event, and what `evaluate.trace` makes of them.

Times are whole microseconds. `painted` finds the truth of a GPU trace by painting each microsecond of a step by itself,
`painted_operators` that of a recorded trace of the CPU.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from evaluate import trace
from evaluate.timing.kinds import IDLE, PRIORITY, UNATTRIBUTED, kind_within

FIRST = 1_700_000_000_000_000
"""Time stamp of the first microsecond, as large as the clocks of real traces."""
HOST, AUTOGRAD = 100, 200
MOST_UNATTRIBUTED = 0.25
"""Largest share of a real step that may have no kind: under 3 % on an idle machine, more beside other work."""


def divided(*arguments: object, code: int = 0) -> dict[str, Any]:
    """Return what `evaluate.trace` writes as JSON, which is nothing where the wanted exit code is not 0."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert trace.main([*map(str, arguments), "--format", "json"]) == code
    return dict(json.loads(printed.getvalue())) if code == 0 else {}


class MadeTrace:
    """Collects events; `at` and `length` are microseconds from the start."""

    def __init__(self, **header: Any) -> None:
        self.header = header
        self.events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "python"}}
        ]
        self._correlation = 0

    def add(self, category: str, name: str, at: float, length: float, *, tid: int = HOST, **args: Any) -> None:
        place = {"pid": 1, "tid": tid, "ts": FIRST + at, "dur": length}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})

    def step(self, number: int, at: float, length: float) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", at, length)

    def op(self, name: str, at: float, length: float, **keywords: Any) -> None:
        self.add("cpu_op", name, at, length, **keywords)

    def kernel(
        self,
        name: str,
        at: float,
        length: float,
        *,
        stream: int = 7,
        device: int = 0,
        launched: float | None = None,
        tid: int = HOST,
        category: str = "kernel",
        external: int | None = None,
        **more: Any,
    ) -> None:
        """Add a kernel; with `launched` also the call that launched it. `more` has arguments of the kernel's event."""
        args: dict[str, Any] = {"device": device, "stream": stream, **more}
        if external is not None:
            args["External id"] = external
        if launched is not None:
            self._correlation += 1
            args["correlation"] = self._correlation
            self.add("cuda_runtime", "cudaLaunchKernel", launched, 1, tid=tid, correlation=self._correlation)
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": device, "tid": stream, "ts": FIRST + at, "dur": length}
            | {"args": args}
        )

    def write(self, path: Path) -> Path:
        head = {"schemaVersion": 1, "displayTimeUnit": "ns", **self.header}
        text = json.dumps(head | {"traceEvents": self.events, "traceName": path.name}).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def painted(pieces: list[tuple[str, int, int]], start: int, end: int) -> dict[str, int]:
    """Return the microseconds of each kind from `start` to `end`; `pieces` has kind, first and last microsecond."""
    order = ["matmul", "attention", "optimizer", "memory_bound", "unattributed", "communication_exposed", "host_copy"]
    found = dict.fromkeys([*order, "idle", "communication_overlapped"], 0)
    for moment in range(start, end):
        running = {kind for kind, first, last in pieces if first <= moment < last}
        winner = next((kind for kind in order if kind in running), "idle")
        found[winner] += 1
        if "communication_exposed" in running and winner not in ("communication_exposed", "host_copy", "idle"):
            found["communication_overlapped"] += 1
    return found


def painted_operators(path: Path) -> dict[str, float]:
    """Return the seconds of each kind in a step of a trace of the CPU.

    Each tenth of a microsecond of a thread has the kind of what began last there; of several threads, the first kind in
    `evaluate.timing.kinds.PRIORITY` counts. Gloo's own threads have ranges instead of operators.
    """
    events = [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] == "X"]
    begin = np.array([float(event["ts"]) for event in events])
    end = begin + [float(event["dur"]) for event in events]
    is_step = np.array([event["name"].startswith("ProfilerStep#") for event in events])
    first = begin[is_step].min()
    begin, end = (np.rint((times - first) * 10).astype(int) for times in (begin, end))
    length, order = end[is_step].max(), [*PRIORITY, IDLE]
    winner = np.full(length, order.index(IDLE))
    threads = defaultdict(list)
    for place in np.lexsort((-end, begin)):
        if events[place]["cat"] in ("cpu_op", "user_annotation") and not is_step[place]:
            threads[events[place]["tid"]].append(place)
    for places in threads.values():
        kinds: list[str | None] = [None]
        around, seen = np.zeros(length + 1, int), np.full(length, order.index(IDLE))
        for place in places:
            name, here = events[place]["name"], slice(*np.clip((begin[place], end[place]), 0, length))
            is_range = events[place]["cat"] == "user_annotation" and not name.startswith("gloo:")
            kinds.append(kind_within(kinds[around[here.start]], name, is_range=is_range))
            around[here] = len(kinds) - 1
            if not is_range:
                seen[here] = order.index(kinds[-1] or UNATTRIBUTED)
        winner = np.minimum(winner, seen)
    is_inside = np.zeros(length, bool)
    for place in np.flatnonzero(is_step):
        is_inside[begin[place] : end[place]] = True
    shares = np.bincount(winner[is_inside], minlength=len(order)) / 1e7 / is_step.sum()
    return dict(zip(order, shares.tolist(), strict=True))


# Profiles of made-up runs: `profiles/<job>/profile.json` and a trace beside it, as PROFILING=true writes them.

STEP = 1e-3
TYPES = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}


def made_trace(
    path: Path,
    *,
    product: str = "nvjet_tst",
    microseconds: int = 100,
    idle_microseconds: int = 650,
    device: str = "<b>made up</b>",
) -> Path:
    """Write one step: a product of `microseconds`, 200 of a reduction, 50 of exposed communication, the rest idle."""
    it = MadeTrace(deviceProperties=[{"id": 0, "name": device}])
    it.step(3, 0, 250 + microseconds + idle_microseconds)
    it.op("aten::mm", 0, 20, **{"Input Dims": [[4096, 1024], [1024, 4096]], **TYPES})
    it.kernel(product, 100, microseconds, launched=5)
    it.op("aten::sum", 20, 10, **{"Input Dims": [[4096, 4096]]})
    it.kernel("at::native::reduce_kernel", 400, 200, launched=25)
    it.kernel("ncclDevKernel_AllReduce", 580, 70, stream=20)
    return it.write(path)


def write_profile(folder: Path, result: dict[str, Any], trace: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write the profile of a job whose run is `result`; return its folder.

    `trace` has the arguments of `made_trace`, and `changes` replace keys of profile.json.
    """
    place = folder / "profiles" / f"profiled_train_{result['platform']}_mega_llama_run1_attempt1"
    place.mkdir(parents=True)
    path = made_trace(place / "rank0.json.gz", **(trace or {}))
    content = {
        "profile_version": 1,
        **{key: result[key] for key in ("platform", "framework", "model", "model_size", "run")},
        "host": result["provenance"]["host"],
        "device_name": result["gpu_info"]["device_name"],
        "started_utc": result["provenance"]["started_utc"],
        "reasons": {},
        "settings": result["training_config"],
        "steps": [3],
        "ranks": [0],
        "traces": {"0": {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}},
        "profiled_step_seconds": [STEP],
        "unprofiled_step_seconds": 0.8 * STEP,
    }
    (place / "profile.json").write_text(json.dumps(content | changes))
    return place
