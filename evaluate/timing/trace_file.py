"""A trace of torch.profiler in columns: operators, ranges, steps, launches and the work of the devices.

Times are seconds from the first event. In the file `ts` and `dur` are microseconds; `displayTimeUnit` is for display
only (Chromium's "Trace Event Format"). Categories are those of Kineto in torch 1.8 to 2.13
(libkineto/src/output_json.cpp).
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from evaluate.timing.kinds import BACKWARD, LINEAR_LAYERS, kind_of_range
from evaluate.timing.stream import EventStream, TraceError
from utils.errors import quoted, shortened

Integers = NDArray[np.int64]

MICROSECOND = 1e-6
NONE = -1
"""Number in place of what an event does not have: a link to an operator, a correlation, shapes."""
PAIR = "forward and backward"
STEP = "ProfilerStep#"
SHOW_PROGRESS_FROM_BYTES = 1 << 24
_HOST = {"cpu_op": False, "operator": False, "user_annotation": True}
"""Category of what the host runs: True for annotated ranges."""
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "runtime"})
_DEVICE = {"kernel": 0, "gpu_memcpy": 1, "memcpy": 1, "gpu_memset": 1, "memset": 1, "gpu_kernel": 0}
"""Category of work of a device: 1 for copies and fills."""
_THREAD_OF_COMMUNICATION = ("gloo:", "mpi:", "ucc:")
"""Ranges in which a thread of torch.distributed runs a collective on the host."""


_INTEGERS = {
    "operators": ("name", "thread", "external", "shapes"),
    "ranges": ("name", "thread"),
    "steps": ("number", "thread"),
    "launches": ("correlation", "thread"),
    "work": ("name", "is_copy", "device", "correlation", "external", "group"),
}
"""Columns of each table of a trace beside start and end."""


@dataclass(frozen=True)
class Columns:
    """Events of one sort, an array for each quantity; `start` and `end` in seconds, the others in `of`."""

    start: Floats
    end: Floats
    of: dict[str, Integers]
    """A column `kind` has places in KINDS, `phase` places in PHASES; NONE where it is not known."""

    def __len__(self) -> int:
        return len(self.start)

    def where(self, chosen: Any) -> Columns:
        """Return the chosen events."""
        columns = {name: column[chosen] for name, column in self.of.items()}
        return Columns(self.start[chosen], self.end[chosen], columns)


def at(values: Any, places: Integers, missing: float = NONE) -> Any:
    """Return `values` at `places`, and `missing` where a place is NONE."""
    if not len(values):
        return np.full(len(places), missing)
    return np.where(places == NONE, missing, values[np.maximum(places, 0)])


@dataclass(frozen=True)
class Trace:
    """One trace. Names, shapes and threads are numbers; the lists have what they stand for."""

    path: Path
    header: dict[str, Any]
    operators: Columns
    ranges: Columns
    """Annotated ranges that give a kind to what is inside (evaluate/timing/kinds.py)."""
    steps: Columns
    launches: Columns
    work: Columns
    """Kernels, copies and fills of all devices."""
    names: list[str]
    shapes: list[tuple[str, str, str]]
    """Input Dims, Input type and, of attention, Concrete Inputs of an operator, each as the text of the list. Of a
    linear layer whose forward and backward operators are both known: Input Dims of each, and PAIR."""
    groups: list[tuple[str, int | None]]
    """Description, or name, and number of ranks of the process groups of kernels (libkineto/src/output_json.cpp)."""

    def device_name(self, number: int) -> str | None:
        """Return the name of a device, None if the trace does not have it.

        ROCm numbers its work otherwise than its properties, where all may be alike.
        """
        properties = self.header.get("deviceProperties")
        names = {}
        for device in properties if isinstance(properties, list) else ():
            if isinstance(device, dict) and isinstance(device.get("id"), int) and device.get("name"):
                names[device["id"]] = str(device["name"])
        # ROCm numbers its work otherwise than its properties
        if number not in names and len(set(names.values())) == 1:
            return next(iter(names.values()))
        return names.get(number)


def read(path: Path) -> Trace:
    """Return the trace in a file, plain or compressed with gzip; raise TraceError if there is none that can be used."""
    size = path.stat().st_size if path.is_file() else 0
    events = _Events()
    with tqdm(
        total=size,
        unit="B",
        unit_scale=True,
        desc=f"reading {shortened(path.name, 40)}",
        disable=None if size >= SHOW_PROGRESS_FROM_BYTES else True,
        leave=False,
        file=sys.stderr,
    ) as bar:
        stream = EventStream(path, bar.update)
        count = events.fill(stream)
    if not events.tables["operators"]["start"] and not events.tables["work"]["start"]:
        raise TraceError(
            f"{path}: has {count:,} events, none of them an operator, a kernel or a copy; wanted a trace of "
            "torch.profiler with activities CPU, CUDA or both"
        )
    # times since 1970 in microseconds leave no digits for nanoseconds
    origin = min(min(table["start"], default=np.inf) for table in events.tables.values())
    tables: dict[str, Any] = {}
    for sort, table in events.tables.items():
        tables[sort] = _columns(table, origin)
        if not np.isfinite([tables[sort].start, tables[sort].end]).all():
            raise TraceError(f"{path}: has an event whose time is no finite number; export the trace again")
    names: Any = list(events.names)
    shapes: Any = list(events.shapes)
    groups: Any = list(events.groups)
    return Trace(path, stream.header, **tables, names=names, shapes=shapes, groups=groups)


def _columns(table: dict[str, Any], origin: float) -> Columns:
    """Return columns with times from `origin` (microseconds); a duration below 0 becomes 0."""
    start = (np.asarray(table.pop("start")) - origin) * MICROSECOND
    end = start + np.maximum(table.pop("duration"), 0.0) * MICROSECOND
    return Columns(start, end, {name: np.asarray(column) for name, column in table.items()})


def _numbers() -> dict[Hashable, int]:
    """Return numbers for texts and shapes, from 0 in the order of appearance."""
    return defaultdict(itertools.count().__next__)


class _Events:
    """The events of a stream, sorted into tables; times in microseconds."""

    def __init__(self) -> None:
        # arrays, because millions of events as lists of objects do not fit a laptop
        self.tables: dict[str, dict[str, array[Any]]] = {}
        for sort, names in _INTEGERS.items():
            self.tables[sort] = {"start": array("d"), "duration": array("d")}
            for name in names:
                self.tables[sort][name] = array("q")
        self.names, self.shapes, self.groups, self._threads = _numbers(), _numbers(), _numbers(), _numbers()
        self._passes: dict[Hashable, list[tuple[str, int]]] = defaultdict(list)
        """Name and place of the operators of a linear layer, by layer and sequence number of autograd."""

    def fill(self, stream: EventStream) -> int:
        """Take all events and return their number."""
        count = 0
        for count, event in enumerate(stream, start=1):  # noqa: B007
            if event.get("ph") == "X":
                try:
                    self._take(event)
                except (TypeError, ValueError, OverflowError) as error:
                    where = f"{stream.path}: event {count:,}"
                    raise TraceError(
                        f"{where}: {shortened(quoted(event), 120)}: {error}; export the trace again"
                    ) from error
        self._pair()
        return count

    def _pair(self) -> None:
        """Give the forward and the backward operator of a layer the sizes of both as shapes."""
        shapes, texts = self.tables["operators"]["shapes"], list(self.shapes)
        for calls in self._passes.values():
            if len(calls) != 2:
                # a pass is missing, or two threads have the number
                continue
            # the name of the forward operator is the beginning of the other, so it sorts first
            (forward_name, forward), (backward_name, backward) = sorted(calls)
            if forward_name != backward_name:
                both = (texts[shapes[forward]][0], texts[shapes[backward]][0], PAIR)
                shapes[forward] = shapes[backward] = self.shapes[both]

    def _take(self, event: dict[str, Any]) -> None:
        category = str(event.get("cat", "")).lower()
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            arguments = {}
        if category in _HOST:
            self._take_host(event, arguments, is_range=_HOST[category])
        elif category in _DEVICE:
            self._take_work(event, arguments, _DEVICE[category])
        elif category in _LAUNCHES and arguments.get("correlation") is not None:
            self._add("launches", _times(event), int(arguments["correlation"]), self._thread(event))

    def _take_host(self, event: dict[str, Any], arguments: dict[str, Any], *, is_range: bool) -> None:
        name = str(event.get("name", ""))
        if name.startswith(STEP) and name.removeprefix(STEP).isdecimal():
            self._add("steps", _times(event), int(name.removeprefix(STEP)), self._thread(event))
        elif kind_of_range(name):
            self._add("ranges", _times(event), self.names[name], self._thread(event))
        elif not is_range or name.startswith(_THREAD_OF_COMMUNICATION):
            # Kineto has written this number under three names
            external = arguments.get("External id", arguments.get("external id", arguments.get("Ev Idx", NONE)))
            number, thread = self.names[name], self._thread(event)
            shape = self._shape(name, arguments)
            sequence = arguments.get("Sequence number", NONE)
            layer = name.removesuffix(BACKWARD)
            if layer in LINEAR_LAYERS and NONE not in (shape, sequence):
                self._passes[layer, sequence].append((name, len(self.tables["operators"]["start"])))
            self._add("operators", _times(event), number, thread, int(external), shape)

    def _take_work(self, event: dict[str, Any], arguments: dict[str, Any], is_copy: int) -> None:
        device = arguments.get("device", event.get("pid", 0))
        external = arguments.get("External id", arguments.get("external id", NONE))
        correlation = arguments.get("correlation", NONE)
        name = self.names[str(event.get("name", ""))]
        numbers = (int(device), int(correlation), int(external), self._group(arguments))
        self._add("work", _times(event), name, is_copy, *numbers)

    def _add(self, sort: str, times: tuple[float, float], *numbers: int) -> None:
        for column, value in zip(self.tables[sort].values(), (*times, *numbers), strict=True):
            column.append(value)

    def _thread(self, event: dict[str, Any]) -> int:
        return self._threads[str(event.get("pid")), str(event.get("tid"))]

    def _group(self, arguments: dict[str, Any]) -> int:
        size = arguments.get("Group size")
        for key in ("Process Group Description", "Process Group Name"):
            name = str(arguments.get(key, ""))
            if name not in ("", "undefined"):
                return self.groups[name, size if isinstance(size, int) else None]
        return NONE

    def _shape(self, name: str, arguments: dict[str, Any]) -> int:
        dims = arguments.get("Input Dims", arguments.get("Input dims"))
        if not dims:
            return NONE
        # only whether attention is causal is read, and these texts are long
        concrete = str(arguments.get("Concrete Inputs", "")) if "attention" in name else ""
        return self.shapes[str(dims), str(arguments.get("Input type", "")), concrete]


def _times(event: dict[str, Any]) -> tuple[float, float]:
    if "ts" not in event:
        raise ValueError("has no ts")
    return float(event["ts"]), float(event.get("dur", 0.0))


# Lengths of sets of intervals: their union, and the part of them inside the windows of the steps.

Floats = NDArray[np.float64]


class Windows:
    """Windows of time that do not overlap, in order; the measure of everything else is what lies inside them."""

    def __init__(self, start: Floats, end: Floats) -> None:
        self.start, self.end = start, end
        self._edges = np.column_stack([start, end]).ravel()
        lengths = np.diff(self._edges)
        # from the end of a window to the start of the next
        lengths[1::2] = 0.0
        self._inside = np.concatenate([[0.0], np.cumsum(lengths)])

    @property
    def seconds(self) -> float:
        """Sum of the lengths of all windows."""
        return float(self._inside[-1])

    def inside(self, start: Floats, end: Floats) -> Floats:
        """Return the length of each interval that lies inside the windows, in seconds."""
        length: Floats = np.interp(end, self._edges, self._inside) - np.interp(start, self._edges, self._inside)
        return length.clip(min=0.0)


def union(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Return the union of intervals as intervals that do not touch, in order."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([[True], start[1:] > end[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return start[opens], end[closes]


def covered(windows: Windows, start: Floats, end: Floats) -> float:
    """Return the time inside the windows during which at least one interval runs, in seconds."""
    return float(windows.inside(*union(start, end)).sum())


def exclusive(windows: Windows, spans: Mapping[str, tuple[Floats, Floats]]) -> dict[str, float]:
    """Return the seconds of each kind inside the windows; where several kinds run, the time counts for the first."""
    seconds: dict[str, float] = {}
    before = 0.0
    start = end = np.empty(0)
    for kind, (starts, ends) in spans.items():
        # what a kind adds to the union of those before it
        start, end = union(np.concatenate([start, starts]), np.concatenate([end, ends]))
        total = float(windows.inside(start, end).sum())
        seconds[kind] = max(0.0, total - before)
        before = total
    return seconds
