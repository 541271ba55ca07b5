"""The tables of a breakdown: kernels by name, and operators by name and shape, with their rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from evaluate.timing.kinds import COMMUNICATION, COMPUTE, KINDS, MEMORY_BOUND, OVERLAPPED, PHASES, is_product
from evaluate.timing.trace_file import NONE, Columns, Floats, Integers, Trace, Windows, at, covered
from evaluate.timing.work import Work, work_of

Key = tuple[int, ...]
TERA = 1e12
_SHORTEST = 1e-9
"""Seconds; a shorter exposure is rounding."""


@dataclass(frozen=True)
class Row:
    """A kernel, or an operator of the host, in one step: calls and seconds are means over the steps."""

    name: str
    kind: str
    count: float
    seconds: float


@dataclass(frozen=True)
class GroupRow:
    """The collectives of one process group in one step: calls and seconds are means over the steps."""

    group: str
    """Its description, else its name, as torch.distributed has it."""
    ranks: int | None
    count: float
    seconds: float
    exposed_seconds: float
    """Seconds in which nothing computes."""


@dataclass(frozen=True)
class OperatorRow(Row):
    """All calls of an operator with the same shapes; on a GPU its time is that of the kernels that it launched."""

    work: Work
    kernel: str
    """Its longest kernel; empty for an operator of the host."""
    phase: str | None
    """One of PHASES; None where the trace does not have the launch."""

    @property
    def tflops(self) -> float | None:
        """Rate in TFLOP/s; None if the operations are not known, and for casts and copies around a product."""
        if self.work.flops is None or self.kind == MEMORY_BOUND:
            return None
        return self.work.flops * self.count / self.seconds / TERA


def select(work: Columns, chosen: Any) -> tuple[Floats, Floats]:
    """Return start and end of the chosen pieces."""
    return work.start[chosen], work.end[chosen]


def kernels(trace: Trace, windows: Windows, work: Columns, steps: int) -> tuple[Row, ...]:
    """Return the kernels, or the operators of the host, by name and kind, the longest first."""
    of = _inside(windows, work).of
    computing = _computing(work)
    rows = []
    for (name, kind), count, seconds in _summed([of["name"], of["kind"]], of["call"], of["seconds"], steps):
        word = KINDS[kind]
        if word == COMMUNICATION:
            mine = select(work, (work.of["name"] == name) & (work.of["kind"] == kind))
            if _exposed(windows, mine, computing) <= _SHORTEST:
                word = OVERLAPPED
        rows.append(Row(trace.names[name], word, count, seconds))
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.name)))


def groups(trace: Trace, windows: Windows, work: Columns, steps: int) -> tuple[GroupRow, ...]:
    """Return the process groups that the trace names, the one with the longest collectives first."""
    computing = _computing(work)
    rows = []
    for place, (name, ranks) in enumerate(trace.groups):
        mine = select(work, work.of["group"] == place)
        inside = windows.inside(*mine)
        count, seconds, exposed = int((inside > 0).sum()), float(inside.sum()), _exposed(windows, mine, computing)
        if count:
            rows.append(GroupRow(name, ranks, count / steps, seconds / steps, exposed / steps))
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.group)))


def operators(
    trace: Trace, windows: Windows, work: Columns, steps: int, *, is_of_host: bool
) -> tuple[OperatorRow, ...]:
    """Return the operators by name, kind, sizes and phase, the longest first; a kernel without one stands alone."""
    of = _inside(windows, work).of
    is_known = of["operator"] != NONE
    name = np.where(is_known, at(trace.operators.of["name"], of["operator"]), of["name"])
    shapes = at(trace.operators.of["shapes"], of["operator"])
    keys = [name, of["kind"], shapes, of["phase"]]
    launched = {} if is_of_host else _kernels_of(trace, keys, of, steps)
    rows = []
    # a kernel without an operator is a call of its own, by a number that no operator has
    call = np.where(is_known, of["operator"], -2 - of["call"])
    for key, count, seconds in _summed(keys, call, of["seconds"], steps):
        number, kind, shape, phase = key
        kernels = launched.get(key, {})
        products = {kernel: calls / count for kernel, calls in kernels.items() if is_product(kernel)}
        operator = trace.names[number]
        # rates need the products that one call launched
        work_done = work_of(operator, ("", "", "") if shape == NONE else trace.shapes[shape], products)
        part = None if phase == NONE else PHASES[phase]
        longest = next(reversed(kernels), "")
        rows.append(OperatorRow(operator, KINDS[kind], count, seconds, work_done, longest, part))
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.name)))


def _inside(windows: Windows, work: Columns) -> Columns:
    """Return the pieces with time inside the windows, and that time as their `seconds`."""
    seconds: Any = windows.inside(work.start, work.end)
    return Columns(work.start, work.end, work.of | {"seconds": seconds}).where(seconds > 0)


def _computing(work: Columns) -> tuple[Floats, Floats]:
    return select(work, np.isin(work.of["kind"], [KINDS.index(kind) for kind in COMPUTE]))


def _summed(keys: list[Integers], call: Integers, seconds: Any, steps: int) -> Iterator[tuple[Key, float, float]]:
    """Yield the different keys, each with its calls and its seconds in one step."""
    groups, inverse = np.unique(np.column_stack(keys), axis=0, return_inverse=True)
    inverse = inverse.ravel()
    # an operator counts once, however many kernels it launches
    one_each = np.unique(np.column_stack([inverse, call]), axis=0)[:, 0]
    counts = np.bincount(one_each, minlength=len(groups)) / steps
    sums = np.bincount(inverse, seconds, len(groups)) / steps
    return zip(map(tuple, groups.tolist()), counts.tolist(), sums.tolist(), strict=True)


def _kernels_of(trace: Trace, keys: list[Integers], of: Mapping[str, Any], steps: int) -> dict[Key, dict[str, float]]:
    """Return for each key the names and calls in one step of its kernels, the one with most of its seconds last."""
    kernels: dict[Key, dict[str, float]] = defaultdict(dict)
    by_seconds = sorted(_summed([*keys, of["name"]], of["call"], of["seconds"], steps), key=itemgetter(2))
    for (*key, name), calls, _ in by_seconds:
        kernels[tuple(key)][trace.names[name]] = calls
    return kernels


def _exposed(windows: Windows, spans: tuple[Floats, Floats], computing: tuple[Floats, Floats]) -> float:
    """Return the seconds of the spans in which nothing computes."""
    start, end = (np.concatenate([a, b]) for a, b in zip(spans, computing, strict=True))
    return covered(windows, start, end) - covered(windows, *computing)
