"""Nested operators of the host: kind and phase of each from what it runs in, its own time, what launched a kernel."""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any

import numpy as np

from evaluate.timing.trace_file import NONE, Columns, Trace
from utils.kinds import KINDS, is_backward, kind_within

_RANGE, _OPERATOR, _LAUNCH = range(3)
_State = tuple[int, bool]
"""Kind, as a place in KINDS or NONE, and True in the backward pass."""


class _Thread:
    """Walk along one thread, from event to event."""

    def __init__(self, stretches: array[float] | None) -> None:
        self._stretches = stretches
        """Start, end and operator of each stretch of own time, one after the other; None if they are not wanted."""
        self.open: list[tuple[float, int, _State]] = [(np.inf, NONE, (NONE, False))]
        """End, operator (NONE: a range), and state of what is open, from the outside in; the thread itself first."""
        self._cursor = -np.inf

    def move_to(self, time: float) -> None:
        """Close everything that ends until `time`; each stretch goes to the innermost operator that is open."""
        while self.open[-1][0] <= time:
            end, operator, _ = self.open.pop()
            self._own(operator, end)
        self._own(self.open[-1][1], time)

    def _own(self, operator: int, end: float) -> None:
        if self._stretches is not None and operator != NONE and end > self._cursor:
            self._stretches.extend((self._cursor, end, operator))
        self._cursor = max(self._cursor, end)


def walk(trace: Trace, *, own_times: bool) -> Columns:
    """Add columns to a trace by the nesting of its operators and ranges, and return stretches of own time.

    `trace.operators` gets `kind`, by its name and by what it runs in, and `backward`: 1 in the backward pass, else 0.
    `trace.launches` gets the same of what is around a launch, and `operator`: the innermost one, NONE outside all. The
    stretches, with their `operator`, are those of each thread during which an operator runs and no operator inside it
    does; there are none unless they are asked for. Takes 2 to 4 microseconds an event.
    """
    operators, launches = (
        table.of | {"kind": np.full(len(table), NONE), "backward": np.full(len(table), 0)}
        for table in (trace.operators, trace.launches)
    )
    launches["operator"] = np.full(len(trace.launches), NONE)
    stretches = array("d")
    state_within = cache(_state_within)
    for sorts, places, starts, ends, names in _by_thread(trace):
        thread = _Thread(stretches if own_times else None)
        for sort, place, start, end, name in zip(sorts, places, starts, ends, names, strict=True):
            thread.move_to(start)
            outer = thread.open[-1][2]
            if sort == _LAUNCH:
                around = (operator for _, operator, _ in reversed(thread.open) if operator != NONE)
                launches["operator"][place] = next(around, NONE)
                launches["kind"][place], launches["backward"][place] = outer
                continue
            state = state_within(outer, trace.names[name], sort == _RANGE)
            if sort == _OPERATOR:
                operators["kind"][place], operators["backward"][place] = state
            thread.open.append((end, place if sort == _OPERATOR else NONE, state))
        thread.move_to(max(ends, default=-np.inf))
    trace.operators.of.update(operators)
    trace.launches.of.update(launches)
    own_start, own_end, operator = np.array(stretches).reshape(-1, 3).T.copy()
    return Columns(own_start, own_end, {"operator": operator.astype(np.int64)})


def _state_within(outer: _State, name: str, is_range: bool) -> _State:
    kind = kind_within(None if outer[0] == NONE else KINDS[outer[0]], name, is_range=is_range)
    return NONE if kind is None else KINDS.index(kind), outer[1] or is_backward(name)


def _by_thread(trace: Trace) -> Any:
    """Yield lists of each thread's events, in order: sort, number within the sort, start, end, name.

    Of events that start together the longer comes first, since it contains the other.
    """
    parts = [
        (np.full(len(table), sort), np.arange(len(table)), table.start, end, name, table.of["thread"])
        for sort, table, end, name in (
            (_RANGE, trace.ranges, trace.ranges.end, trace.ranges.of["name"]),
            (_OPERATOR, trace.operators, trace.operators.end, trace.operators.of["name"]),
            (_LAUNCH, trace.launches, trace.launches.start, np.zeros(len(trace.launches), int)),
        )
    ]
    sorts, places, start, end, names, threads = map(np.concatenate, zip(*parts, strict=True))
    order = np.lexsort((-end, start, threads))
    bounds = np.flatnonzero(np.diff(threads[order])) + 1
    for part in np.split(order, bounds):
        yield tuple(column[part].tolist() for column in (sorts, places, start, end, names))
