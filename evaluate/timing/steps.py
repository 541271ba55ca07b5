"""The steps of a trace: windows of time, cut by the profiler's own marks."""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluate.timing.kinds import KINDS, is_backward, kind_within
from evaluate.timing.stream import TraceError
from evaluate.timing.trace_file import NONE, Columns, Floats, Integers, Trace, Windows

Mask = NDArray[np.bool_]

LATE_SHARE = 0.02
"""Share of the device's work that runs after the host's step from which on steps are cut on the device."""


def choose(
    trace: Trace, wanted: tuple[int, int] | None, launched: Floats
) -> tuple[Windows, tuple[int, ...], list[str]]:
    """Return windows, numbers and remarks of the steps from first to last of `wanted`, or of all.

    There are no numbers if the trace has no `ProfilerStep#` and counts as one step. `launched` has the time of launch
    of each piece of device work, NaN where it is unknown. Raises TraceError if the trace does not have the steps.
    """
    numbers, start, end = _marked(trace)
    if not len(numbers):
        if wanted:
            raise TraceError(
                f"{trace.path}: --steps: the trace has no ProfilerStep marks; leave --steps out, or record again with "
                "profiler.step() after each step"
            )
        return _whole(trace), (), ["the trace has no ProfilerStep marks: all of it counts as one step"]
    chosen = np.ones(len(numbers), bool)
    if wanted is not None:
        first, last = wanted
        chosen = (numbers >= first) & (numbers <= last)
        for number in wanted:
            if number not in numbers:
                have = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
                raise TraceError(f"{trace.path}: --steps: got {number}, the trace has step {have}")
    windows, remarks = Windows(start[chosen], end[chosen]), []
    place = np.searchsorted(start, launched, side="right") - 1
    # the step of each launch, NONE outside all steps
    step = np.where((place >= 0) & (launched < end[place]), place, NONE)
    late = _late_share(trace, (step != NONE) & chosen[step], windows)
    if late > LATE_SHARE:
        windows = _on_device(trace, step, chosen)
        remarks.append(
            f"the host ran ahead: {late:.0%} of the device's work ran after the step that launched it, so the steps "
            "are cut where the device begins the work of each"
        )
    return windows, tuple(int(n) for n in numbers[chosen]), remarks


def _marked(trace: Trace) -> tuple[Integers, Floats, Floats]:
    """Return number, start and end of the steps of the thread that has most of them, in order, without empty ones."""
    table = trace.steps
    if not len(table):
        return np.empty(0, int), np.empty(0), np.empty(0)
    threads, counts = np.unique(table.of["thread"], return_counts=True)
    mine = np.flatnonzero(table.of["thread"] == threads[counts.argmax()])
    mine = mine[np.argsort(table.start[mine], kind="stable")]
    start, end, numbers = table.start[mine], table.end[mine], table.of["number"][mine]
    # a step begins where those before it have ended
    ended = np.maximum.accumulate(end)
    start[1:] = np.maximum(start[1:], ended[:-1])
    # a mark without an event inside is of a step that was not recorded
    begun = np.sort(np.concatenate([trace.operators.start, trace.launches.start, trace.work.start]))
    events = np.searchsorted(begun, end) - np.searchsorted(begun, start)
    keep = (end > start) & (events > 0)
    return numbers[keep], start[keep], end[keep]


def _whole(trace: Trace) -> Windows:
    tables = [table for table in (trace.operators, trace.launches, trace.work) if len(table)]
    first, last = min(table.start.min() for table in tables), max(table.end.max() for table in tables)
    if last <= first:
        raise TraceError(f"{trace.path}: all events have the same time, so there is no step to divide")
    return Windows(np.array([first]), np.array([last]))


def _late_share(trace: Trace, here: Mask, windows: Windows) -> float:
    """Return the share of the work launched in the windows, which is `here`, that runs outside them."""
    start, end = trace.work.start[here], trace.work.end[here]
    total = float((end - start).sum())
    if not total:
        return 0.0
    return 1.0 - float(windows.inside(start, end).sum()) / total


def _on_device(trace: Trace, step: Integers, chosen: Mask) -> Windows:
    """Return windows from the first work of each step to that of the next one; the last ends with its last work."""
    first, last = np.full(len(chosen), np.inf), np.full(len(chosen), -np.inf)
    launched = step != NONE
    np.minimum.at(first, step[launched], trace.work.start[launched])
    np.maximum.at(last, step[launched], trace.work.end[launched])
    # a step that launches nothing has no place on the device
    with_work = np.isfinite(first)
    starts = np.maximum.accumulate(first[with_work])
    ends = np.append(starts[1:], max(last[with_work][-1], starts[-1]))
    return Windows(starts[chosen[with_work]], ends[chosen[with_work]])


# Nested operators of the host: kind and phase of each from what it runs in, its own time, what launched a kernel.

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

    def innermost_operator(self) -> int:
        """Return the innermost operator that is open, NONE outside all."""
        for _, operator, _ in reversed(self.open):
            if operator != NONE:
                return operator
        return NONE

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
    operators, launches = trace.operators.of, trace.launches.of
    for table in (trace.operators, trace.launches):
        table.of["kind"] = np.full(len(table), NONE)
        table.of["backward"] = np.full(len(table), 0)
    launches["operator"] = np.full(len(trace.launches), NONE)
    stretches = array("d")
    state_within = cache(_state_within)
    for sorts, places, starts, ends, names in _by_thread(trace):
        thread = _Thread(stretches if own_times else None)
        for sort, place, start, end, name in zip(sorts, places, starts, ends, names, strict=True):
            thread.move_to(start)
            outer = thread.open[-1][2]
            if sort == _LAUNCH:
                launches["operator"][place] = thread.innermost_operator()
                launches["kind"][place], launches["backward"][place] = outer
                continue
            state = state_within(outer, trace.names[name], sort == _RANGE)
            if sort == _OPERATOR:
                operators["kind"][place], operators["backward"][place] = state
            thread.open.append((end, place if sort == _OPERATOR else NONE, state))
        thread.move_to(max(ends, default=-np.inf))
    own_start, own_end, operator = np.array(stretches).reshape(-1, 3).T.copy()
    return Columns(own_start, own_end, {"operator": operator.astype(np.int64)})


def _state_within(outer: _State, name: str, is_range: bool) -> _State:
    outer_kind, is_in_backward = outer
    kind = kind_within(None if outer_kind == NONE else KINDS[outer_kind], name, is_range=is_range)
    return NONE if kind is None else KINDS.index(kind), is_in_backward or is_backward(name)


def _by_thread(trace: Trace) -> Any:
    """Yield lists of each thread's events, in order: sort, number within the sort, start, end, name.

    Of events that start together the longer comes first, since it contains the other.
    """
    parts = []
    for sort, table in ((_RANGE, trace.ranges), (_OPERATOR, trace.operators), (_LAUNCH, trace.launches)):
        end, name = table.end, table.of.get("name")
        if name is None:
            # a launch contains nothing, however long the call takes
            end, name = table.start, np.zeros(len(table), int)
        parts.append((np.full(len(table), sort), np.arange(len(table)), table.start, end, name, table.of["thread"]))
    sorts, places, start, end, names, threads = map(np.concatenate, zip(*parts, strict=True))
    # of events that start together the longer one is outside
    order = np.lexsort((-end, start, threads))
    bounds = np.flatnonzero(np.diff(threads[order])) + 1
    for part in np.split(order, bounds):
        yield tuple(column[part].tolist() for column in (sorts, places, start, end, names))
