"""The breakdown of a training step: seconds of each kind, the kernels, and the operators with shapes and rates.

On a GPU the work of the device counts, over all its streams: where several kinds run at once, the time counts for the
first one in `PRIORITY` of kinds.py. Communication is exposed while nothing computes. In a trace without work of a
device, each operator counts with its own time, without the operators inside it, over all threads in the same way; time
in which no operator runs is idle. The additive kinds sum to the step by construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evaluate.timing import steps, tables
from evaluate.timing.kinds import (
    COMMUNICATION,
    COMPUTE,
    IDLE,
    KINDS,
    OPTIMIZER,
    PHASES,
    PRIORITY,
    UNATTRIBUTED,
    kind_of_copy,
    kind_of_launch,
)
from evaluate.timing.stream import TraceError
from evaluate.timing.tables import GroupRow, OperatorRow, Row, select
from evaluate.timing.trace_file import NONE, Columns, Floats, Integers, Trace, Windows, at, covered, exclusive, read


@dataclass(frozen=True)
class Breakdown:
    """Times of one step, means over the steps of the trace, in seconds."""

    path: Path
    step_seconds: float
    kinds: Mapping[str, float]
    overlapped: float
    phases: Mapping[str, float]
    """Time in which work of each of PHASES runs; where several do, it counts for the last one. Work whose launch is not
    known has none; work launched outside autograd's backward pass and the optimizer counts as forward."""
    groups: tuple[GroupRow, ...]
    """Collectives by process group, where the trace names it."""
    kernels: tuple[Row, ...]
    operators: tuple[OperatorRow, ...]
    steps: tuple[int, ...]
    device: int | None
    """Number of the device; None for a trace of the host alone."""
    device_name: str | None
    remarks: tuple[str, ...]

    @property
    def is_of_host(self) -> bool:
        """True if the operators of the host are the work, because the trace has none of a device."""
        return self.device is None

    def share(self, kind: str) -> float:
        """Return the share of a kind in the step."""
        return self.kinds[kind] / self.step_seconds

    @property
    def unattributed_of_kernels(self) -> float:
        """Share of the kernels (on a host: of the operators) without a kind in the time of all, one after the other."""
        total = sum(row.seconds for row in self.kernels)
        without_kind = sum(row.seconds for row in self.kernels if row.kind == UNATTRIBUTED)
        return without_kind / total if total else 0.0


def of_file(path: Path, *, wanted: tuple[int, int] | None = None, device: int | None = None) -> Breakdown:
    """Return the breakdown of a trace; `wanted` has the first and the last step, `device` the number of a GPU.

    Raises TraceError for a file that is no trace, and for steps or a device that it does not have.
    """
    trace = read(path)
    is_of_host = not len(trace.work)
    if is_of_host and device is not None:
        raise TraceError(f"{trace.path}: --device: got {device}, the trace has no work of a device")
    own = steps.walk(trace, own_times=is_of_host)
    if is_of_host:
        windows, numbers, remarks = steps.choose(trace, wanted, np.empty(0))
        work = _of_host(trace, own)
        remarks.append("no kernels in the trace: its operators on the CPU count, each with its own time")
    else:
        launched, work = _of_devices(trace)
        windows, numbers, remarks = steps.choose(trace, wanted, launched)
        device, others = _choose_device(trace, windows, device)
        work = work.where(trace.work.of["device"] == device)
        remarks += others
    count = len(windows.start)
    kinds, overlapped = _kinds(windows, work)
    return Breakdown(
        path=trace.path,
        step_seconds=windows.seconds / count,
        kinds={kind: kinds[kind] / count for kind in KINDS},
        overlapped=overlapped / count,
        phases={phase: seconds / count for phase, seconds in _phases(windows, work).items()},
        groups=tables.groups(trace, windows, work, count),
        kernels=tables.kernels(trace, windows, work, count),
        operators=tables.operators(trace, windows, work, count, is_of_host=is_of_host),
        steps=numbers,
        device=device,
        device_name=None if device is None else trace.device_name(device),
        remarks=tuple(remarks),
    )


def _of_host(trace: Trace, own: Columns) -> Columns:
    """Return the stretches of own time of the operators, each operator as one call."""
    operator = own.of["operator"]
    kind, backward, name = (trace.operators.of[column][operator] for column in ("kind", "backward", "name"))
    # an operator without a kind takes time all the same
    kind = np.where(kind == NONE, KINDS.index(UNATTRIBUTED), kind)
    columns = {"kind": kind, "name": name, "call": operator, "phase": _phase(kind, backward)}
    return Columns(own.start, own.end, own.of | columns | {"group": np.full(len(operator), NONE)})


def _of_devices(trace: Trace) -> tuple[Floats, Columns]:
    """Return the time of launch (NaN: unknown) and the work of all devices, each piece as a call."""
    table, launches, operators = trace.work, trace.launches, trace.operators
    launch = _matching(table.of["correlation"], launches.of["correlation"])
    launched = at(launches.start, launch, np.nan)
    operator, outer, backward = (at(launches.of[column], launch) for column in ("operator", "kind", "backward"))
    by_id = _matching(table.of["external"], operators.of["external"])
    # a kernel whose launch is not in the trace may still have the number of its operator
    is_by_id = (operator == NONE) & (by_id != NONE)
    operator = np.where(is_by_id, by_id, operator)
    backward = np.where(is_by_id, at(operators.of["backward"], by_id), backward)
    outer = np.where(is_by_id & (outer == NONE), at(operators.of["kind"], by_id), outer)
    launched = np.where(np.isnan(launched), at(operators.start, by_id, np.nan), launched)
    # millions of kernels have a few hundred names: each case is decided once
    cases = np.column_stack([table.of["name"], table.of["is_copy"], outer, at(operators.of["name"], operator)])
    unique, inverse = np.unique(cases, axis=0, return_inverse=True)
    kind = np.array([_kind_of_work(trace, *case) for case in unique.tolist()], int)[inverse.ravel()]
    columns = {"kind": kind, "operator": operator, "call": np.arange(len(table)), "phase": _phase(kind, backward)}
    return launched, Columns(table.start, table.end, table.of | columns)


def _kind_of_work(trace: Trace, name: int, is_copy: int, outer: int, operator: int) -> int:
    launched_in = None if outer == NONE else KINDS[outer]
    if not is_copy:
        around = "" if operator == NONE else trace.names[operator]
        return KINDS.index(kind_of_launch(trace.names[name], launched_in, around))
    kind = kind_of_copy(trace.names[name])
    if kind in COMPUTE and launched_in in COMPUTE:
        # a copy inside an optimizer belongs to it
        kind = launched_in
    return KINDS.index(kind)


def _phase(kind: Integers, backward: Integers) -> Integers:
    """Return the place in PHASES; `backward` is NONE where the launch is not known."""
    return np.where(kind == KINDS.index(OPTIMIZER), PHASES.index(OPTIMIZER), backward)


def _phases(windows: Windows, work: Columns) -> dict[str, float]:
    spans = {phase: select(work, work.of["phase"] == PHASES.index(phase)) for phase in reversed(PHASES)}
    seconds = exclusive(windows, spans)
    return {phase: seconds[phase] for phase in PHASES}


def _matching(keys: Integers, known: Integers) -> Integers:
    """Return for each key the place of the last equal one in `known`, NONE if there is none or the key is NONE."""
    order = np.argsort(known, kind="stable")
    place = np.searchsorted(known[order], keys, side="right") - 1
    found = np.where(place >= 0, at(order, place), NONE)
    return np.where((found != NONE) & (keys != NONE) & (at(known, found) == keys), found, NONE)


def _choose_device(trace: Trace, windows: Windows, wanted: int | None) -> tuple[int, list[str]]:
    """Return the device that counts, the busiest if none is wanted, and a remark if there are others."""
    busy = windows.inside(trace.work.start, trace.work.end)
    numbers, inverse = np.unique(trace.work.of["device"], return_inverse=True)
    if wanted is not None and wanted not in numbers:
        raise TraceError(f"{trace.path}: --device: got {wanted}, the trace has {', '.join(map(str, numbers))}")
    device = wanted
    if device is None:
        device = int(numbers[np.bincount(inverse.ravel(), weights=busy).argmax()])
    if len(numbers) == 1:
        return device, []
    others = ", ".join(str(number) for number in numbers if number != device)
    return device, [f"the trace has work of several devices: device {device} counts, not {others}; see --device"]


def _kinds(windows: Windows, work: Columns) -> tuple[dict[str, float], float]:
    """Return the seconds of each kind in all windows, and those of communication during which something computes."""
    spans = {kind: select(work, work.of["kind"] == KINDS.index(kind)) for kind in PRIORITY}
    seconds = exclusive(windows, spans)
    seconds[IDLE] = max(0.0, windows.seconds - sum(seconds.values()))
    overlapped = covered(windows, *spans[COMMUNICATION]) - seconds[COMMUNICATION]
    return seconds, max(0.0, overlapped)
