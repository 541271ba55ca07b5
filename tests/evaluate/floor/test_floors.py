"""The floor of a step, worked out by hand from a few calls and collectives."""

from __future__ import annotations

from typing import Any

import pytest
from floors_by_hand import collective, job, operator, probe, sent

from evaluate.floor import floors
from evaluate.floor.floors import FloorError
from utils.kinds import KINDS


def test_each_call_counts_with_the_shorter_of_both_times() -> None:
    found = floors.of_job(probe([operator("matmul", 3.0, 2.0), operator("memory_bound", 1.0, 4.0)]), job([5, 7]), 1)
    assert found.by_kind == dict.fromkeys(KINDS, 0.0) | {"matmul": 10.0, "memory_bound": 7.0}
    assert found.seconds == 17.0 and found.flops == 120.0


def test_errors_add_up_within_a_kind_and_as_squares_between_kinds() -> None:
    operators = [
        operator("matmul", 3.0, 3.0, 10),
        operator("matmul", 1.0, 1.0, 10),
        operator("optimizer", 3.0, 3.0, 10),
    ]
    found = floors.of_job(probe(operators), job([1, 1, 1]), 1)
    # 0.1 x (3 + 1) and 0.1 x 3: sqrt(0.16 + 0.09) = 0.5 of 7
    assert found.spread_percent == pytest.approx(100 * 0.5 / 7)


def test_copies_of_the_host_have_no_floor() -> None:
    found = floors.of_job(probe([operator("matmul", 1.0, 1.0), operator("host_copy", 9.0, 9.0)]), job([1, 1]), 1)
    assert found.seconds == 1.0 and found.by_kind["host_copy"] == 0.0


def test_communication_is_exposed_only_beyond_computation() -> None:
    measured = probe([operator("matmul", 1.0, 1.0)], [collective(100, 0.5), collective(400, 3.0)])
    assert floors.of_job(measured, job([1], sent(100)), 1).by_kind["communication_exposed"] == 0.0
    found = floors.of_job(measured, job([1], sent(400)), 1)
    assert found.by_kind["communication_exposed"] == 2.0 and found.seconds == 3.0
    assert found.spread_percent == pytest.approx(2.0)  # that of the collectives, which are the floor


def test_between_two_sizes_the_logarithms_are_interpolated() -> None:
    measured = probe([operator("matmul", 0.1, 0.1)], [collective(100, 1.0), collective(400, 4.0)])
    # 200 is half way between 100 and 400 in the logarithm: sqrt(1 x 4) = 2
    assert floors.of_job(measured, job([1], sent(200, 3)), 1).seconds == pytest.approx(6.0)


def test_a_larger_collective_than_the_largest_measured_one_is_unknown() -> None:
    measured = probe([operator("matmul", 1.0, 1.0)], [collective(100, 1.0)])
    with pytest.raises(FloorError, match="all_reduce of 101 bytes over 4 ranks: the largest measured size is 100"):
        floors.of_job(measured, job([1], sent(101)), 1)


def test_a_smaller_collective_counts_as_nothing_and_is_remarked() -> None:
    measured = probe([operator("matmul", 1.0, 1.0)], [collective(100, 9.0)])
    found = floors.of_job(measured, job([1], sent(4, 3)), 1)
    assert found.seconds == 1.0
    assert found.remarks == ("3 collectives a step are smaller than the measured ones and count as 0 in the floor",)


@pytest.mark.parametrize("changes", [{"ranks": 2}, {"name": "all_gather"}])
def test_another_collective_is_not_taken_instead(changes: dict[str, Any]) -> None:
    measured = probe([operator("matmul", 1.0, 1.0)], [collective(100, 1.0)])
    with pytest.raises(FloorError, match="has no time of"):
        floors.of_job(measured, job([1], sent(100, **changes)), 1)


def test_a_group_of_one_rank_needs_no_time_and_a_transfer_between_stages_has_none() -> None:
    found = floors.of_job(probe([operator("matmul", 1.0, 1.0)]), job([1], sent(9, ranks=1), sent(9, 2, ranks=0)), 1)
    assert found.seconds == 1.0
    assert found.remarks == ("2 transfers a step between pipeline stages count as 0 in the floor",)


def test_of_the_places_of_a_group_the_faster_one_counts() -> None:
    measured = probe([operator("matmul", 0.1, 0.1)], [collective(100, 1.0), collective(100, 5.0, nodes=2)])
    assert floors.of_job(measured, job([1], sent(100)), 2).seconds == 1.0
    only_between = probe([operator("matmul", 0.1, 0.1)], [collective(100, 5.0, nodes=2)])
    assert floors.of_job(only_between, job([1], sent(100)), 2).seconds == 5.0
    with pytest.raises(FloorError):
        floors.of_job(only_between, job([1], sent(100)), 1)


def test_the_share_that_was_not_run_is_remarked() -> None:
    estimated = operator("memory_bound", 1.0, 1.0, method="bandwidth", reason="has no kernel")
    found = floors.of_job(probe([operator("matmul", 3.0, 3.0), estimated]), job([1, 1]), 1)
    assert found.remarks == ("25 % of the floor is of operators that were not run: bytes over the measured bandwidth",)


def test_a_job_without_operators_has_no_floor() -> None:
    with pytest.raises(FloorError, match="no operator of hf llama"):
        floors.of_job(probe([]), job([]), 1)
    with pytest.raises(FloorError, match="kind 'sleep'"):
        floors.of_job(probe([operator("sleep", 1.0, 1.0)]), job([1]), 1)


def test_the_mean_of_two_machines_has_the_spread_of_a_mean() -> None:
    one = floors.of_job(probe([operator("matmul", 3.0, 3.0, 10)]), job([1]), 1)
    other = floors.of_job(probe([operator("matmul", 4.0, 4.0, 10)]), job([1]), 1)
    found = floors.mean([one, other])
    # half widths 0.3 and 0.4: sqrt(0.09 + 0.16) / 2 = 0.25 of 3.5
    assert found.seconds == 3.5 and found.spread_percent == pytest.approx(100 * 0.25 / 3.5)
