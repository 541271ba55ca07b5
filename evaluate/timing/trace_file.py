"""A trace of torch.profiler in columns: operators, ranges, steps, launches and the work of the devices.

Times are seconds from the first event. In the file `ts` and `dur` are microseconds; `displayTimeUnit` is for display
only (Chromium's "Trace Event Format"). Categories are those of Kineto in torch 1.8 to 2.13
(libkineto/src/output_json.cpp).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from evaluate.timing.stream import EventStream, TraceError
from utils.errors import quoted, shortened
from utils.kinds import kind_of_range

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MICROSECOND = 1e-6
NONE = -1
"""Number in place of what an event does not have: a link to an operator, a correlation, shapes."""
STEP = "ProfilerStep#"
SHOW_PROGRESS_FROM_BYTES = 1 << 24
_OPERATORS = frozenset({"cpu_op", "operator"})
_RANGES = frozenset({"user_annotation"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "runtime"})
_DEVICE = {"kernel": 0, "gpu_memcpy": 1, "memcpy": 1, "gpu_memset": 1, "memset": 1, "gpu_kernel": 0}
"""Category of work of a device: 1 for copies and fills."""
_THREAD_OF_COMMUNICATION = ("gloo:", "mpi:", "ucc:")
"""Ranges in which a thread of torch.distributed runs a collective on the host."""


class Names:
    """Numbers for texts and shapes, from 0 in the order of appearance."""

    def __init__(self) -> None:
        self.known: dict[Hashable, int] = {}

    def number(self, thing: Hashable) -> int:
        """Return the number of `thing`."""
        return self.known.setdefault(thing, len(self.known))

    def all(self) -> list[Any]:
        """Return all things, each at its number."""
        return list(self.known)


class Columns:
    """Events of one sort, an array for each quantity; `start` and `end` in seconds once `freeze` was called."""

    def __init__(self, *integers: str) -> None:
        self._times = (array("d"), array("d"))
        self._integers = {name: array("q") for name in integers}
        self.start: Floats = np.empty(0)
        self.end: Floats = np.empty(0)
        self.of: dict[str, Integers] = {}

    def __len__(self) -> int:
        return len(self._times[0]) or len(self.start)

    def add(self, start: float, duration: float, *values: int) -> None:
        """Add an event; the times in microseconds."""
        self._times[0].append(start)
        self._times[1].append(duration)
        for column, value in zip(self._integers.values(), values, strict=True):
            column.append(value)

    def first(self) -> float:
        """Return the earliest start, in microseconds; infinity if there is no event."""
        return float(np.frombuffer(self._times[0]).min()) if self._times[0] else np.inf

    def freeze(self, origin: float) -> None:
        """Turn into arrays with times from `origin` (microseconds); a duration below 0 becomes 0."""
        start, duration = (np.frombuffer(column) if column else np.empty(0) for column in self._times)
        self.start = (start - origin) * MICROSECOND
        self.end = self.start + np.maximum(duration, 0.0) * MICROSECOND
        self.of = {name: np.array(column, dtype=np.int64) for name, column in self._integers.items()}
        self._times = (array("d"), array("d"))
        self._integers = {}


@dataclass
class Trace:
    """One trace. Names, shapes and threads are numbers; the lists have what they stand for."""

    path: Path
    header: dict[str, Any] = field(default_factory=dict)
    operators: Columns = field(default_factory=lambda: Columns("name", "thread", "external", "shapes"))
    ranges: Columns = field(default_factory=lambda: Columns("name", "thread"))
    """Annotated ranges that give a kind to what is inside (utils/kinds.py)."""
    steps: Columns = field(default_factory=lambda: Columns("number", "thread"))
    launches: Columns = field(default_factory=lambda: Columns("correlation", "thread"))
    work: Columns = field(
        default_factory=lambda: Columns("name", "is_copy", "device", "correlation", "external", "group")
    )
    """Kernels, copies and fills of all devices."""
    names: list[str] = field(default_factory=list)
    shapes: list[tuple[Any, ...]] = field(default_factory=list)
    """Input Dims, Input type and, of attention, Concrete Inputs of an operator, each as the text of the list."""
    threads: list[Any] = field(default_factory=list)
    groups: list[tuple[str, int | None]] = field(default_factory=list)
    """Description, or name, and number of ranks of the process groups of kernels (libkineto/src/output_json.cpp)."""
    events: int = 0

    @property
    def device_names(self) -> dict[int, str]:
        """Names of the devices by their number, as far as the trace has them."""
        found = self.header.get("deviceProperties")
        devices = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        return {one["id"]: str(one["name"]) for one in devices if isinstance(one.get("id"), int) and one.get("name")}

    def device_name(self, number: int) -> str | None:
        """Return the name of a device; ROCm numbers its work otherwise than its properties, where all may be alike."""
        names = self.device_names
        return names.get(number) or (next(iter(names.values())) if len(set(names.values())) == 1 else None)


def read(path: Path) -> Trace:
    """Return the trace in a file, plain or compressed with gzip; raise TraceError if there is none that can be used."""
    trace = Trace(path)
    size = path.stat().st_size if path.is_file() else 0
    is_silent = None if size >= SHOW_PROGRESS_FROM_BYTES else True
    label = f"reading {shortened(path.name, 40)}"
    with tqdm(
        total=size, unit="B", unit_scale=True, desc=label, disable=is_silent, leave=False, file=sys.stderr
    ) as bar:
        stream = EventStream(path, bar.update)
        _Filler(trace).fill(stream)
    trace.header = stream.header
    tables = (trace.operators, trace.ranges, trace.steps, trace.launches, trace.work)
    if not len(trace.operators) and not len(trace.work):
        raise TraceError(
            f"{path}: has {trace.events:,} events, none of them an operator, a kernel or a copy; wanted a trace of "
            "torch.profiler with activities CPU, CUDA or both"
        )
    origin = min(table.first() for table in tables)
    for table in tables:
        table.freeze(origin)
        if not (np.isfinite(table.start).all() and np.isfinite(table.end).all()):
            raise TraceError(f"{path}: has an event whose time is no finite number; export the trace again")
    return trace


class _Filler:
    """Sorts the events of a stream into the columns of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names, self._shapes, self._threads, self._groups = Names(), Names(), Names(), Names()

    def fill(self, stream: EventStream) -> None:
        count = 0
        for count, event in enumerate(stream, start=1):  # noqa: B007
            if event.get("ph") == "X":
                try:
                    self._take(event)
                except (TypeError, ValueError, OverflowError) as error:
                    what = shortened(quoted(event), 120)
                    raise TraceError(
                        f"{stream.path}: event {count:,}: {what}: {error}; export the trace again"
                    ) from error
        trace = self._trace
        trace.events = count
        trace.names = self._names.all()
        trace.shapes, trace.threads, trace.groups = self._shapes.all(), self._threads.all(), self._groups.all()

    def _take(self, event: dict[str, Any]) -> None:
        category = str(event.get("cat", "")).lower()
        if category in _OPERATORS:
            self._take_host(event, is_range=False)
        elif category in _RANGES:
            self._take_host(event, is_range=True)
        elif category in _DEVICE:
            self._take_work(event, _DEVICE[category])
        elif category in _LAUNCHES:
            correlation = _arguments(event).get("correlation")
            if correlation is not None:
                self._trace.launches.add(*self._times(event), int(correlation), self._thread(event))

    def _take_host(self, event: dict[str, Any], *, is_range: bool) -> None:
        trace, name = self._trace, str(event.get("name", ""))
        if name.startswith(STEP) and name.removeprefix(STEP).isdecimal():
            trace.steps.add(*self._times(event), int(name.removeprefix(STEP)), self._thread(event))
        elif kind_of_range(name):
            trace.ranges.add(*self._times(event), self._names.number(name), self._thread(event))
        elif not is_range or name.startswith(_THREAD_OF_COMMUNICATION):
            arguments = _arguments(event)
            external = arguments.get("External id", arguments.get("external id", arguments.get("Ev Idx", NONE)))
            trace.operators.add(
                *self._times(event),
                self._names.number(name),
                self._thread(event),
                int(external),
                self._shape(name, arguments),
            )

    def _take_work(self, event: dict[str, Any], is_copy: int) -> None:
        arguments = _arguments(event)
        device = arguments.get("device", event.get("pid", 0))
        external = arguments.get("External id", arguments.get("external id", NONE))
        correlation = arguments.get("correlation", NONE)
        name = self._names.number(str(event.get("name", "")))
        numbers = (int(device), int(correlation), int(external), self._group(arguments))
        self._trace.work.add(*self._times(event), name, is_copy, *numbers)

    def _times(self, event: dict[str, Any]) -> tuple[float, float]:
        return float(event["ts"]) if "ts" in event else _no_time(), float(event.get("dur", 0.0))

    def _thread(self, event: dict[str, Any]) -> int:
        return self._threads.number((str(event.get("pid")), str(event.get("tid"))))

    def _group(self, arguments: dict[str, Any]) -> int:
        said = (str(arguments.get(f"Process Group {key}", "")) for key in ("Description", "Name"))
        name = next((text for text in said if text not in ("", "undefined")), "")
        size = arguments.get("Group size")
        return self._groups.number((name, size if isinstance(size, int) else None)) if name else NONE

    def _shape(self, name: str, arguments: dict[str, Any]) -> int:
        dims = arguments.get("Input Dims", arguments.get("Input dims"))
        if not dims:
            return NONE
        concrete = str(arguments.get("Concrete Inputs", "")) if "attention" in name else ""
        return self._shapes.number((str(dims), str(arguments.get("Input type", "")), concrete))


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _no_time() -> float:
    raise ValueError("has no ts")
