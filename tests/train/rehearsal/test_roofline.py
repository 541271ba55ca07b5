"""The roofline of an operator is the larger of its compute and its traffic, by the numbers of the datasheet."""

import pytest

from train.rehearsal import roofline
from utils.hardware.devices import SHORT_NAMES, find_device, named


def operator(kind, flops, moved, dtype="bfloat16", count=1):
    return {"kind": kind, "flops": flops, "bytes": moved, "dtypes": [dtype], "count": count}


def test_an_operator_needs_its_compute_or_its_traffic_whichever_is_more():
    h200 = named("H200")
    seconds = roofline.seconds_by_kind(
        [
            operator("matmul", 989.4e12, 1.0, count=2),  # two seconds at 989.4 TFLOP/s
            operator("memory_bound", 0, 4.8e12),  # one at 4.8 TB/s
            operator("matmul", 1.0, 2.4e12),  # half a second of traffic
            operator("attention", 989.4e12, 0),  # causal: half of the pairs
        ],
        h200,
    )
    assert seconds == pytest.approx({"matmul": 2.5, "attention": 0.5, "memory_bound": 1.0, "optimizer": 0})


def test_fp8_products_count_at_the_fp8_peak_where_there_is_one():
    of = lambda name: roofline.seconds_by_kind([operator("matmul", 1e15, 0, "float8_e4m3fn")], named(name))  # noqa: E731
    assert of("H100")["matmul"] == pytest.approx(1e15 / 1978.9e12)
    assert of("A100")["matmul"] == pytest.approx(1e15 / 312e12)


def test_copies_between_host_and_device_have_no_figure():
    assert sum(roofline.seconds_by_kind([operator("host_copy", 0, 1e9)], named("H100")).values()) == 0
    assert set(roofline.NOT_COUNTED) >= {"host_copy", "communication_exposed"}


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_a_short_name_is_a_board_of_the_table(name):
    board = named(name)
    assert name in board.name
    assert named(f" {name.lower()} ") == named(board.name.removesuffix(" (one of 2 dies)")) == board


def test_a_board_of_two_dies_is_one_die():
    assert named("MI250X").memory_bandwidth_gb_per_second == 1600


def test_a_drivers_name_is_known_and_another_is_not():
    assert named("NVIDIA H100 80GB HBM3") == find_device("NVIDIA H100 80GB HBM3")
    assert named("H1000") is None
