"""A slower F.linear is a finding beyond spread and 10 %; figures above a datasheet are impossible."""

import json

import pytest
import torch
import torch.nn.functional as F

from tests.train.probing.test_inputs import call, tensor
from tests.train.probing.test_operators import CEILINGS, job, row
from tests.train.probing.test_rounds import Clocked
from train.probing import findings, operators
from utils.hardware.devices import named

H100 = named("H100")


def product(matmul=(10.0, 9.9, 10.1), linear=(10.0, 9.9, 10.1), **other):
    """Return an operator of the file; of each variant median, low and high in microseconds, cold and warm alike."""
    times = {"matmul": matmul, "linear": linear}
    return {
        **{"name": "aten::mm", "shapes": "[[6, 10], [10, 4]]", "dtypes": '["bfloat16", "bfloat16"]', "kind": "matmul"},
        **{"seconds": 1e-5, "warm_seconds": 1e-5, "flops": 1e3, "bytes": 1e3, "method": "replayed"},
        "variants": {name: 1e-6 * time[0] for name, time in times.items()},
        "intervals": {name: [[1e-6 * time[1], 1e-6 * time[2]]] * 2 for name, time in times.items()},
        **other,
    }


JOB = {"framework": "mega", "model": "llama", "calls": [[0, 5]]}


def test_linear_that_is_a_fifth_slower_is_a_finding_and_its_twin_none():
    (line,) = findings.of_software([product(linear=(12.0, 11.9, 12.1))], [JOB])
    assert line.startswith("aten::mm (6, 10) x (10, 4) bfloat16: F.linear takes 1.20x the time of torch.matmul")
    assert "12 us against 10 us" in line and "100.0 % of a step" in line
    assert findings.of_software([product()], [JOB]) == []


def test_matmul_that_is_slower_is_a_finding_too():
    (line,) = findings.of_software([product(matmul=(15.0, 14.9, 15.1))], [JOB])
    assert "torch.matmul takes 1.50x the time of F.linear" in line


@pytest.mark.parametrize(
    "linear",
    [(10.9, 10.8, 11.0), (12.0, 10.5, 13.0), (10.0, 9.0, 11.0)],
    ids=["under 10 %", "its interval reaches below", "equal"],
)
def test_what_the_spread_explains_is_no_finding(linear):
    assert findings.of_software([product(linear=linear)], [JOB]) == []


def test_a_difference_with_a_cold_cache_only_is_no_finding():
    one = product(linear=(12.0, 11.9, 12.1))
    one["intervals"]["linear"][1] = one["intervals"]["matmul"][1]
    assert findings.of_software([one], [JOB]) == []


def test_an_operator_without_weight_is_not_reported():
    heavy = product(seconds=1.0, warm_seconds=1.0)
    slow = product(linear=(12.0, 11.9, 12.1))
    assert findings.of_software([heavy, slow], [JOB | {"calls": [[0, 5], [1, 5]]}]) == []


@pytest.mark.parametrize(("factor", "count"), [(1.2, 1), (1.0, 0)])
def test_a_linear_that_is_slowed_for_real_is_found(monkeypatch, factor, count):
    place = Clocked()
    matmul, linear = torch.matmul, F.linear
    times = {"matmul": 1.0, "linear": factor}

    def slowed(name, function):
        def run(*arguments):
            place.now += times[name]
            return function(*arguments)

        return run

    monkeypatch.setattr(torch, "matmul", slowed("matmul", matmul))
    monkeypatch.setattr(F, "linear", slowed("linear", linear))
    described = call("aten::mm.default", tensor(8, 8), tensor(8, 8))
    original = operators.replay.of_call

    def without_itself(*arguments):
        made = original(*arguments)
        made.variants = [one for one in made.variants if one.name != "operator"]  # it does not move the clock
        return made

    monkeypatch.setattr(operators.replay, "of_call", without_itself)
    distinct = operators.distinct([job(row("aten::mm", described, flops=1024, kind="matmul"))])
    measured = operators.measure(distinct, place, CEILINGS, 0.0)
    assert measured[0]["variants"] == pytest.approx(times)
    assert len(findings.of_software(measured, [JOB])) == count


def content(**changes):
    known = {"rates": {}, "bandwidth": {}, "operators": []}
    return known | changes


@pytest.mark.parametrize(
    ("found", "count"),
    [
        # datasheet of the H100 SXM: 989.4 dense bf16 TFLOP/s, 3.35 TB/s
        (content(rates={"bf16": {"best_tflops": 800.0}}), 0),
        (content(rates={"bf16": {"best_tflops": 1100.0}}), 1),
        (content(bandwidth={"copy": {"gb_per_second": 3000.0}, "host_to_device": {"gb_per_second": 9000.0}}), 0),
        (content(bandwidth={"triad": {"gb_per_second": 3500.0}}), 1),
        (content(operators=[product(flops=1.1e12, seconds=1e-3, warm_seconds=2e-3)]), 1),
        (content(operators=[product(flops=1e12, seconds=2e-3, warm_seconds=2e-3)]), 0),
    ],
)
def test_no_figure_may_be_above_the_datasheet_of_a_known_device(found, count):
    lines = findings.of_physics(found, H100)
    assert len(lines) == count and all(line.startswith("impossible: ") for line in lines)
    assert findings.of_physics(found, None) == []


def test_a_step_that_was_estimated_by_copies_is_said():
    copied = product(method="bandwidth", kind="memory_bound")
    (line,) = findings.of_coverage([product(), copied], [JOB | {"calls": [[0, 5], [1, 5]]}])
    assert line.startswith("mega llama: 50 % of the step")
    assert findings.of_coverage([product(), copied], [JOB | {"calls": [[0, 96], [1, 4]]}]) == []


def test_an_operator_is_described_in_a_few_words():
    many = product(shapes=json.dumps([[2]] * 5), dtypes=json.dumps(["float32"] * 5), name="aten::_foreach_add_")
    assert findings.described(many) == "aten::_foreach_add_ (2) x (2) x (2) and 2 more float32"
    assert findings.described(product(shapes="[]", dtypes="[]")) == "aten::mm"
