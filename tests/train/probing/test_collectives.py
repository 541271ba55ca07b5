"""Bus bandwidth follows nccl-tests; two real gloo ranks are measured; one rank has nothing to measure."""

import pytest

from train.probing import collectives


@pytest.mark.parametrize(
    ("name", "ranks", "wanted"),
    # nccl-tests, doc/PERFORMANCE.md: all-reduce S/t * 2(n-1)/n, all-gather and reduce-scatter S/t * (n-1)/n
    [
        ("all_reduce", 8, 100 * 2 * 7 / 8),
        ("all_gather", 8, 87.5),
        ("reduce_scatter", 8, 87.5),
        ("all_reduce", 2, 100.0),
    ],
)
def test_the_bus_bandwidth_is_that_of_nccl_tests(name, ranks, wanted):
    assert collectives.bus_gb_per_second(name, 10**9, 0.01, ranks) == pytest.approx(wanted)


def test_sizes_go_from_one_mebibyte_to_the_largest_of_the_jobs():
    sent = [{"name": "all_gather", "bytes": 50 * 2**20}, {"name": "send", "bytes": 2**40}]
    assert [size / 2**20 for size in collectives.sizes_of(sent, "cpu")] == [1, 4, 16, 50]
    assert collectives.sizes_of([{"name": "all_reduce", "bytes": 8}], "cpu") == [2**20]
    assert collectives.sizes_of([], "cpu")[-1] == collectives.USUAL_BYTES
    assert collectives.sizes_of([{"name": "all_reduce", "bytes": 2**50}], "cpu")[-1] == 2**28


def test_two_ranks_of_this_machine_exchange_for_real():
    rows = collectives.on_this_machine("cpu", 2, [2**20, 2**21], 0.2, 1)
    assert [(one["name"], one["bytes"]) for one in rows] == [
        (name, size) for name in collectives.NAMES for size in (2**20, 2**21)
    ]
    for one in rows:
        assert (one["ranks"], one["nodes"]) == (2, 1) and one["seconds"] > 0
        wanted = collectives.bus_gb_per_second(one["name"], one["bytes"], one["seconds"], 2)
        assert one["bus_gb_per_second"] == pytest.approx(wanted, rel=1e-3)


def test_one_rank_is_a_reason():
    with pytest.raises(collectives.CollectiveError, match="one rank"):
        collectives.on_this_machine("cpu", 1, [2**20], 0.1, 1)


def test_ranks_that_fail_are_a_reason(monkeypatch):
    # an unknown platform has no backend here, so each rank ends with an error
    with pytest.raises(collectives.CollectiveError, match="ended with codes"):
        collectives.on_this_machine("nvd", 2, [2**20], 0.1, 1)
