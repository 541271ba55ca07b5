"""Traces of torch.profiler with a known truth, written event by event, and what `evaluate.trace` makes of them.

Times are whole microseconds. `painted` finds the truth of a GPU trace by painting each microsecond of a step by itself.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from pathlib import Path
from typing import Any

from evaluate import trace

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
        content = {"schemaVersion": 1, "displayTimeUnit": "ns", **self.header, "traceEvents": self.events}
        content["traceName"] = path.name
        text = json.dumps(content).encode()
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
