"""The cost of the profiler is removed from a profiled step, and the truth of a made trace comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_traces import MadeTrace

from evaluate.floor.calibration import calibrated
from evaluate.timing import breakdown
from utils.kinds import KINDS

US = 1e-6


def kinds(**seconds: float) -> dict[str, float]:
    return dict.fromkeys(KINDS, 0.0) | seconds


def test_a_step_that_is_not_longer_is_left_as_it_is() -> None:
    found = kinds(matmul=3.0, idle=1.0)
    assert calibrated(found, {"matmul": 9.0}, 0.0, 4.0, is_of_host=True) == found
    assert calibrated(found, {"matmul": 9.0}, 0.0, 5.0, is_of_host=True) == found


def test_time_between_two_steps_is_taken_from_idle_alone() -> None:
    found = calibrated(kinds(matmul=3.0, idle=1.0), {"matmul": 9.0}, 0.5, 3.5, is_of_host=True)
    assert found == kinds(matmul=3.0, idle=0.5)


def test_on_the_host_each_event_costs_the_same() -> None:
    recorded = {"matmul": 10.0, "memory_bound": 30.0, "idle": 0.0}
    found = calibrated(kinds(matmul=5.0, memory_bound=5.0, idle=2.0), recorded, 0.0, 8.0, is_of_host=True)
    assert found == pytest.approx(kinds(matmul=4.0, memory_bound=2.0, idle=2.0))


def test_a_kind_never_falls_below_nothing_and_the_others_pay_the_rest() -> None:
    recorded = {"matmul": 10.0, "memory_bound": 30.0}
    found = calibrated(kinds(matmul=5.0, memory_bound=2.0), recorded, 0.0, 3.0, is_of_host=True)
    assert found == pytest.approx(kinds(matmul=3.0))


def test_on_a_gpu_the_waiting_device_pays_first() -> None:
    recorded = {"matmul": 10.0, "memory_bound": 10.0}
    gpu = kinds(matmul=5.0, memory_bound=5.0, idle=2.0)
    assert calibrated(gpu, recorded, 0.0, 11.0, is_of_host=False) == kinds(matmul=5.0, memory_bound=5.0, idle=1.0)
    assert calibrated(gpu, recorded, 0.0, 9.0, is_of_host=False) == pytest.approx(kinds(matmul=4.5, memory_bound=4.5))


def test_without_known_events_all_kinds_pay_in_proportion() -> None:
    found = calibrated(kinds(matmul=6.0, idle=2.0), {}, 0.0, 4.0, is_of_host=True)
    assert found == pytest.approx(kinds(matmul=3.0, idle=1.0))


COST = 5
"""Microseconds of the profiler in front of each operator."""
LINEARS, PRODUCT, VIEW, ADD, PYTHON = 4, 100, 10, 60, 30


def trace_of_the_host(folder: Path, cost: int) -> Path:
    """Each linear runs a view and a product inside it, with 8 us of its own; then an addition follows in Python."""
    trace, at = MadeTrace(), PYTHON
    for _ in range(LINEARS):
        at += cost
        begin = at
        at += 4 + cost
        trace.op("aten::t", at, VIEW)
        at += VIEW + cost
        trace.op("aten::mm", at, PRODUCT)
        at += PRODUCT + 4
        trace.op("aten::linear", begin, at - begin)
        at += PYTHON + cost
        trace.op("aten::add", at, ADD)
        at += ADD
    trace.step(3, 0, at + PYTHON)
    return trace.write(folder / f"trace{cost}.json")


def test_the_kinds_of_a_trace_without_the_profiler_come_back(tmp_path: Path) -> None:
    true = breakdown.of_file(trace_of_the_host(tmp_path, 0))
    profiled = breakdown.of_file(trace_of_the_host(tmp_path, COST))
    # two operators inside each linear cost time of its kind, linear and addition cost idle time
    assert profiled.recorded["matmul"] == 2 * LINEARS and profiled.recorded["idle"] == 2 * LINEARS
    assert profiled.step_seconds == pytest.approx(true.step_seconds + 4 * LINEARS * COST * US)
    found = calibrated(profiled.kinds, profiled.recorded, 0.0, true.step_seconds, is_of_host=True)
    assert found == pytest.approx(dict(true.kinds), abs=1e-12)
    assert true.kinds["matmul"] == pytest.approx(LINEARS * (PRODUCT + 8) * US)
    assert true.kinds["memory_bound"] == pytest.approx(LINEARS * (VIEW + ADD) * US)


def test_on_a_gpu_kernels_and_copies_are_the_recorded_events(tmp_path: Path) -> None:
    trace = MadeTrace()
    trace.step(1, 0, 1000)
    for at in (100, 300, 500):
        trace.kernel("Cijk_Alik_Bljk", at, 50)
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 700, 10, category="gpu_memcpy")
    recorded = breakdown.of_file(trace.write(tmp_path / "trace.json")).recorded
    assert {kind: count for kind, count in recorded.items() if count} == {"matmul": 3, "host_copy": 1}


def test_recording_an_operator_in_a_range_alone_costs_idle_time(tmp_path: Path) -> None:
    """Python that runs inside an optimizer's range and outside its operators is idle time, and so is the recording."""
    trace = MadeTrace()
    trace.step(1, 0, 200)
    trace.add("user_annotation", "Optimizer.step#AdamW.step", 10, 150)
    trace.op("aten::_foreach_add_", 40, 80)
    result = breakdown.of_file(trace.write(tmp_path / "trace.json"))
    assert result.kinds["optimizer"] == pytest.approx(80 * US) and result.kinds["idle"] == pytest.approx(120 * US)
    assert {kind: count for kind, count in result.recorded.items() if count} == {"idle": 1}
