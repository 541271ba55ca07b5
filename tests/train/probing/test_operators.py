"""Distinct operators of several jobs are measured once each; a slowed one shows; memory and weights divide the work."""

import json
import time

import pytest
import torch

from tests.train.probing.test_inputs import call, tensor
from train.probing import operators
from train.probing.jobs import Rehearsed
from train.probing.operators import Ceilings
from train.probing.place import Place

CPU = torch.device("cpu")
CEILINGS = Ceilings({"fp32": 0.1, "bf16": 0.2}, 10.0)


def row(name, described, *, count=1, flops=0, moved=1000, kind="memory_bound", phase="forward"):
    shapes = [one["shape"] for one in described["args"] if isinstance(one, dict)] if described else [[8]]
    return {
        **{"name": name, "shapes": shapes, "dtypes": ["float32"] * len(shapes), "phase": phase, "kind": kind},
        **{"flops": flops, "bytes": moved, "count": count, "call": described},
    }


def job(*rows, framework="mega"):
    return Rehearsed(framework, "llama", "tiny", {}, list(rows), [], 1, 1)


RELU = row("aten::relu", call("aten::relu.default", tensor(64)), count=4)
MM = row("aten::mm", call("aten::mm.default", tensor(8, 8), tensor(8, 8)), count=2, flops=1024, kind="matmul")
REGION = row("compiled::swiglu", None, moved=8000)


@pytest.fixture
def place(monkeypatch):
    """This CPU with a small cache, so that a round takes no time."""
    monkeypatch.setattr("train.probing.place.cache_bytes", lambda device: 2**16)
    return Place(CPU)


def test_an_operator_of_two_jobs_is_one_with_a_count_of_each():
    found = operators.distinct([job(RELU, MM), job(RELU | {"count": 7}, framework="hf")])
    assert [(one.row["name"], one.counts) for one in found] == [("aten::relu", {0: 4, 1: 7}), ("aten::mm", {0: 2})]


def test_the_weight_is_the_largest_share_of_a_step():
    found = operators.distinct([job(RELU, MM), job(RELU)])
    # of job 0: 4 x 1 s against 2 x 3 s; of job 1 all
    assert operators.weights(found, [1.0, 3.0]) == [1.0, 0.6]


def test_the_estimate_is_the_slower_of_work_and_traffic():
    slow = row("aten::mm", None, flops=int(0.1e12), moved=1000, kind="matmul")
    assert CEILINGS.seconds(slow) == pytest.approx(1.0, rel=1e-4)
    assert CEILINGS.seconds(row("aten::add", None, moved=int(10e9))) == pytest.approx(1.0, rel=1e-4)


def test_each_operator_is_in_the_file_with_its_method(place):
    found = operators.measure(operators.distinct([job(RELU, MM, REGION)]), place, CEILINGS, 0.0)
    assert [(one["name"], one["method"], bool(one["reason"])) for one in found] == [
        ("aten::relu", "replayed", False),
        ("aten::mm", "replayed", False),
        ("compiled::swiglu", "bandwidth", True),
    ]
    assert set(found[1]["variants"]) == {"operator", "matmul", "linear"}
    for one in found:
        assert one["seconds"] == min(one["variants"].values()) > 0 and one["warm_seconds"] > 0
        assert isinstance(json.loads(one["shapes"]), list)


def test_calls_that_differ_only_in_phase_share_one_measurement(place, monkeypatch):
    made = []
    original = operators.replay.of_call
    monkeypatch.setattr(operators.replay, "of_call", lambda *a: made.append(a) or original(*a))
    found = operators.measure(operators.distinct([job(RELU, RELU | {"phase": "backward"})]), place, CEILINGS, 0.0)
    assert len(made) == 1 and [one["phase"] for one in found] == ["forward", "backward"]
    assert found[0]["seconds"] == found[1]["seconds"]


def test_a_product_that_is_not_run_takes_its_work_at_the_best_rate(place):
    found = operators.measure(
        operators.distinct([job(row("aten::mm", None, flops=int(1e9), moved=800, kind="matmul"))]), place, CEILINGS, 0.0
    )
    assert found[0]["seconds"] == found[0]["warm_seconds"] == pytest.approx(0.01)  # 1 GFLOP at 0.1 TFLOP/s


def test_a_call_that_needs_more_memory_than_is_free_is_not_made(place, monkeypatch):
    monkeypatch.setattr(Place, "free_bytes", property(lambda self: 1000))
    (found,) = operators.measure(
        operators.distinct([job(row("aten::relu", call("aten::relu.default", tensor(1000))))]), place, CEILINGS, 0.0
    )
    assert found["method"] == "bandwidth" and "of memory" in found["reason"]


def test_calls_that_do_not_fit_together_are_measured_in_groups(place, monkeypatch):
    rows = [row("aten::relu", call("aten::relu.default", tensor(size))) for size in (250, 250, 250, 100)]
    monkeypatch.setattr(Place, "free_bytes", property(lambda self: 25_000))
    # each of the first needs twice its 1,000 bytes and a quarter of its 1,000 bytes of traffic; 5,000 are allowed
    assert list(operators._groups(rows, place)) == [[0, 1], [2, 3]]


def test_a_slowed_operator_shows_in_its_time_and_its_twin_does_not(place):
    def measured():
        rows = operators.measure(operators.distinct([job(RELU, MM)]), place, CEILINGS, 0.0)
        return {one["name"]: one for one in rows}

    before = measured()
    slowed = torch.library.Library("aten", "IMPL")
    try:
        slowed.impl("relu", lambda x: time.sleep(0.01) or x.clamp_min(0), "CPU", with_keyset=False)
        after = measured()
    finally:
        slowed._destroy()
    assert after["aten::relu"]["seconds"] >= 0.01 and after["aten::relu"]["warm_seconds"] >= 0.01
    assert before["aten::relu"]["seconds"] < after["aten::relu"]["seconds"]
    assert after["aten::mm"]["seconds"] < after["aten::relu"]["seconds"]


def test_calls_for_whose_results_memory_does_not_last_are_measured_apart_and_at_last_by_a_copy(place, monkeypatch):
    original = operators.rounds.measure

    def measure(calls, *arguments):
        if len(calls) > 1 or calls[0].replay.method == "replayed":
            raise torch.OutOfMemoryError("out of memory\nmore")
        original(calls, *arguments)

    monkeypatch.setattr(operators.rounds, "measure", measure)
    found = operators.measure(operators.distinct([job(RELU, MM)]), place, CEILINGS, 0.0)
    assert [one["name"] for one in found] == ["aten::relu", "aten::mm"]
    assert all(one["method"] == "bandwidth" and one["reason"].endswith("out of memory") for one in found)
