"""The steps of a trace: windows of time, cut by the profiler's own marks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluate.timing.intervals import Floats, Windows
from evaluate.timing.stream import TraceError
from evaluate.timing.trace_file import NONE, Integers, Trace

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
    chosen = np.ones(len(numbers), bool) if wanted is None else (numbers >= wanted[0]) & (numbers <= wanted[1])
    missing = [] if wanted is None else [n for n in (wanted[0], wanted[1]) if n not in numbers]
    if missing or not chosen.any():
        have = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
        raise TraceError(f"{trace.path}: --steps: got {missing[0] if missing else wanted}, the trace has step {have}")
    windows, remarks = Windows(start[chosen], end[chosen]), []
    place = np.searchsorted(start, launched, side="right") - 1
    step = np.where((place >= 0) & (launched < end[place]), place, NONE)  # of each launch, NONE outside all steps
    if (late := _late_share(trace, (step != NONE) & chosen[step], windows)) > LATE_SHARE:
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
    start = np.maximum(start, np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]]))
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
    return 1.0 - float(windows.inside(start, end).sum()) / total if total else 0.0


def _on_device(trace: Trace, step: Integers, chosen: Mask) -> Windows:
    """Return windows from the first work of each step to that of the next one; the last ends with its last work."""
    first, last = np.full(len(chosen), np.inf), np.full(len(chosen), -np.inf)
    launched = step != NONE
    np.minimum.at(first, step[launched], trace.work.start[launched])
    np.maximum.at(last, step[launched], trace.work.end[launched])
    with_work = np.isfinite(first)
    starts = np.maximum.accumulate(first[with_work])
    ends = np.append(starts[1:], max(last[with_work][-1], starts[-1]))
    return Windows(starts[chosen[with_work]], ends[chosen[with_work]])
