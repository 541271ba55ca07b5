"""The tables of a breakdown: kernels by name, and operators by name and shape, with their rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluate.timing.intervals import Floats, Windows, covered
from evaluate.timing.shapes import Work, work_of
from evaluate.timing.trace_file import NONE, Integers, Trace
from utils.kinds import COMMUNICATION, COMPUTE, KINDS, OVERLAPPED, PHASES

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
class OperatorRow:
    """All calls of an operator with the same shapes in one step; calls and seconds are means over the steps."""

    name: str
    kind: str
    work: Work
    count: float
    seconds: float
    """On a GPU the time of the kernels that it launched."""
    kernel: str
    """Its longest kernel; empty for an operator of the host."""
    phase: str | None
    """One of PHASES; None where the trace does not have the launch."""

    @property
    def tflops(self) -> float | None:
        """Rate in TFLOP/s; None if the operations are not known."""
        if self.work.flops is None or self.seconds <= 0:
            return None
        return self.work.flops * self.count / self.seconds / TERA


@dataclass(frozen=True)
class Pieces:
    """Work of a device, or stretches of own time of the host's operators, in columns of equal length."""

    start: Floats
    end: Floats
    kind: Integers
    """Place in KINDS."""
    name: Integers
    operator: Integers
    """Operator that it belongs to, NONE if that is not known."""
    call: Integers
    """Number of the call; the stretches of one operator of the host are one call."""
    phase: Integers
    """Place in PHASES, NONE if it is not known."""
    group: Integers
    """Place in `Trace.groups`, NONE if the trace does not name a group."""


def select(work: Pieces, chosen: Any) -> tuple[Floats, Floats]:
    """Return start and end of the chosen pieces."""
    return work.start[chosen], work.end[chosen]


def kernels(trace: Trace, windows: Windows, work: Pieces, steps: int) -> tuple[Row, ...]:
    """Return the kernels, or the operators of the host, by name and kind, the longest first."""
    seconds, ran = _inside(windows, work)
    found, calls, totals = _summed([work.name[ran], work.kind[ran]], work.call[ran], seconds)
    computing = select(work, np.isin(work.kind, [KINDS.index(kind) for kind in COMPUTE]))
    rows = []
    for (name, kind), count, total in zip(found.tolist(), calls, totals, strict=True):
        word = KINDS[kind]
        spans = select(work, (work.name == name) & (work.kind == kind))
        if word == COMMUNICATION and _exposed(windows, spans, computing) <= _SHORTEST:
            word = OVERLAPPED
        rows.append(Row(trace.names[name], word, float(count) / steps, float(total) / steps))
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.name)))


def groups(trace: Trace, windows: Windows, work: Pieces, steps: int) -> tuple[GroupRow, ...]:
    """Return the process groups that the trace names, the one with the longest collectives first."""
    computing = select(work, np.isin(work.kind, [KINDS.index(kind) for kind in COMPUTE]))
    rows = []
    for place, (name, ranks) in enumerate(trace.groups):
        mine = select(work, work.group == place)
        inside = windows.inside(*mine)
        seconds, exposed = float(inside.sum()), _exposed(windows, mine, computing)
        rows.append(GroupRow(name, ranks, float((inside > 0).sum()) / steps, seconds / steps, exposed / steps))
    return tuple(sorted((row for row in rows if row.count), key=lambda row: (-row.seconds, row.group)))


def operators(trace: Trace, windows: Windows, work: Pieces, steps: int, *, is_of_host: bool) -> tuple[OperatorRow, ...]:
    """Return the operators by name, kind, shapes and phase, the longest first; a kernel without one stands alone."""
    seconds, ran = _inside(windows, work)
    operator, kind, kernel, phase = work.operator[ran], work.kind[ran], work.name[ran], work.phase[ran]
    is_known = operator != NONE
    name = np.where(is_known, _of(trace.operators.of["name"], operator), kernel)
    shapes = np.where(is_known, _of(trace.operators.of["shapes"], operator), NONE)
    call = np.where(is_known, operator, -2 - work.call[ran])
    keys = [name, kind, shapes, phase]
    found, calls, totals = _summed(keys, call, seconds)
    longest = {} if is_of_host else _longest(np.column_stack(keys), kernel, seconds)
    rows = []
    for (number, place, shape, part), count, total in zip(found.tolist(), calls, totals, strict=True):
        text = trace.names[number]
        work_done = work_of(text, None if shape == NONE else trace.shapes[shape])
        top = longest.get((number, place, shape, part))
        label = "" if top is None else trace.names[top]
        means = (float(count) / steps, float(total) / steps)
        rows.append(OperatorRow(text, KINDS[place], work_done, *means, label, None if part == NONE else PHASES[part]))
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.name)))


def _inside(windows: Windows, work: Pieces) -> tuple[Floats, Any]:
    """Return the seconds inside the windows of the pieces that have any, and which those are."""
    seconds = windows.inside(work.start, work.end)
    ran = seconds > 0
    return seconds[ran], ran


def _summed(keys: list[Integers], call: Integers, seconds: Floats) -> tuple[Any, Any, Any]:
    """Return the different keys, and for each its calls and its seconds."""
    groups, inverse = np.unique(np.column_stack(keys), axis=0, return_inverse=True)
    inverse = inverse.ravel()
    one_each = np.unique(np.column_stack([inverse, call]), axis=0)[:, 0]
    calls = np.bincount(one_each, minlength=len(groups))
    return groups, calls, np.bincount(inverse, weights=seconds, minlength=len(groups))


def _of(values: Integers, places: Integers) -> Integers:
    return values[np.maximum(places, 0)] if len(values) else np.full(len(places), NONE)


def _longest(keys: Any, kernel: Integers, seconds: Floats) -> dict[tuple[int, ...], int]:
    """Return for each key the kernel with most of its seconds."""
    groups, _, totals = _summed([*keys.T, kernel], kernel, seconds)
    order = np.argsort(totals, kind="stable")  # the longest comes last and stays
    return {tuple(row[:-1]): row[-1] for row in groups[order].tolist()}


def _exposed(windows: Windows, spans: tuple[Floats, Floats], computing: tuple[Floats, Floats]) -> float:
    """Return the seconds of the spans in which nothing computes."""
    start, end = (np.concatenate([a, b]) for a, b in zip(spans, computing, strict=True))
    return covered(windows, start, end) - covered(windows, *computing)
