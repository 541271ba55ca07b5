"""Losses are named with the operator and the shape that loses, from a trace and a probe worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from floors_by_hand import job, operator, probe
from made_traces import MadeTrace

from evaluate.floor import floors, losses
from evaluate.floor.parts import Loss
from evaluate.timing import breakdown
from utils.results.probe_file import OperatorTime

US = 1e-6
SMALL, LARGE = ((8, 16), (16, 8)), ((64, 64), (64, 64))


def product(shapes: tuple[tuple[int, int], tuple[int, int]], microseconds: float) -> OperatorTime:
    text = str([list(shape) for shape in shapes])
    return operator("matmul", microseconds * US, microseconds * US, name="aten::mm", shapes=text)


def found(folder: Path, small: float, large: float, extra: float = 0.0, wait: float | None = 0.0) -> dict[str, Loss]:
    """Return the losses of a step of 1000 us; the floors are 100 us (small) and 300 us (large)."""
    trace = MadeTrace()
    trace.step(1, 0, 1000)
    for at, (shapes, length) in zip((10, 400), ((SMALL, small), (LARGE, large)), strict=True):
        trace.op("aten::mm", at, length, **{"Input Dims": [list(shape) for shape in shapes]})
    if extra:
        trace.op("aten::silu", 900, extra)
    read = breakdown.of_file(trace.write(folder / "trace.json"))
    floor = floors.of_job(probe([product(SMALL, 100), product(LARGE, 300)]), job([1, 1]), 1)
    lost = losses.by_kind(read.kinds, floor.by_kind, floor.calls, read, wait)
    assert sum(loss.seconds for loss in lost) == pytest.approx(1000 * US - 400 * US)
    return {loss.kind: loss for loss in lost}


def test_the_shape_that_loses_is_named_and_not_the_longest(tmp_path: Path) -> None:
    one = found(tmp_path, 250, 310)["matmul"]
    assert one.words == "matrix products: 160 us over the floor, mostly aten::mm (8, 16) x (16, 8)"
    both = found(tmp_path, 200, 450)["matmul"]
    assert both.words.endswith("mostly aten::mm (64, 64) x (64, 64) and aten::mm (8, 16) x (16, 8)")


def test_an_operator_that_only_the_trace_has_is_lost_as_a_whole(tmp_path: Path) -> None:
    lost = found(tmp_path, 100, 300, extra=50)
    assert lost["memory_bound"].words == "memory-bound operators: 50.0 us over the floor, mostly aten::silu"
    assert lost["matmul"].words == "matrix products: at the floor" and "attention" not in lost


def test_a_kind_below_its_floor_says_so(tmp_path: Path) -> None:
    lost = found(tmp_path, 80, 300)["matmul"]
    assert lost.seconds == pytest.approx(-20 * US) and lost.words == "matrix products: 20.0 us below the floor"


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (None, "; the wait for data in it is not known"),
        (0.0, ", launch gaps and other waits of the host"),
        (200 * US, ": 200 us wait for data, 400 us launch gaps and other waits of the host"),
        (5.0, ": 600 us wait for data, 0 us launch gaps and other waits of the host"),
    ],
)
def test_idle_time_is_waiting_for_data_and_the_rest(tmp_path: Path, wait: float | None, words: str) -> None:
    idle = found(tmp_path, 100, 300, wait=wait)["idle"]
    assert idle.words == f"idle (the device waits for the host): 600 us{words}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2345, "1.23 s"), (0.0456, "45.6 ms"), (7.89e-6, "7.89 us"), (0.0, "0 us"), (-0.5, "-500 ms"), (123.4, "123 s")],
)
def test_a_time_has_three_digits_and_its_unit(seconds: float, text: str) -> None:
    assert losses.duration(seconds) == text
