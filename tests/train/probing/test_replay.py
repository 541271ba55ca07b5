"""A repeated call runs the operator itself; other ways to its result do the same work; what cannot run says why."""

import pytest
import torch
import torch.nn.functional as F

from tests.train.probing.test_inputs import call, tensor
from train.probing import replay
from train.probing.inputs import UnrepeatableError

CPU = torch.device("cpu")
SHAPE = (2, 4, 16, 8)
"""Batch, heads, tokens, head dimension."""


def variants(described, kind="memory_bound"):
    return {one.name: one for one in replay.of_call(described, kind, CPU).variants}


def test_a_product_also_runs_as_matmul_and_as_linear_with_the_same_result():
    found = variants(call("aten::mm.default", tensor(6, 10), tensor(10, 4, stride=[1, 10])), "matmul")
    assert set(found) == {"operator", "matmul", "linear"}
    wanted = found["operator"].run()
    for name in ("matmul", "linear"):
        torch.testing.assert_close(found[name].run(), wanted)


def test_both_ways_of_a_product_are_those_of_torch(monkeypatch):
    called = []
    matmul, linear = torch.matmul, F.linear
    monkeypatch.setattr(torch, "matmul", lambda a, b: called.append((a.stride(), b.stride())) or matmul(a, b))
    monkeypatch.setattr(F, "linear", lambda a, w: called.append((a.stride(), w.stride())) or linear(a, w))
    found = variants(call("aten::mm.default", tensor(6, 10, stride=[1, 6]), tensor(10, 4)), "matmul")
    called.clear()
    found["matmul"].run()
    found["linear"].run()
    assert called == [((10, 1), (4, 1)), ((10, 1), (10, 1))], "row-major matrices, and a weight [n, k]"


def test_a_product_that_adds_in_place_has_no_other_way():
    described = call("aten::addmm_.default", tensor(6, 4), tensor(6, 10), tensor(10, 4), beta=1)
    assert set(variants(described, "matmul")) == {"operator"}


def attention():
    q, k, v = (tensor(*SHAPE) for _ in range(3))
    return call("aten::_scaled_dot_product_flash_attention_for_cpu.default", q, k, v, 0.0, True)


def test_attention_runs_with_each_backend_that_a_cpu_has():
    found = variants(attention(), "attention")
    assert set(found) == {"operator", "flash", "math"}
    with found["operator"].context():
        wanted = found["operator"].run()[0]
    for name in ("flash", "math"):
        with found[name].context():
            torch.testing.assert_close(found[name].run(), wanted, rtol=1e-4, atol=1e-5)


def test_the_backward_pass_of_attention_runs_with_each_backend():
    q, k, v, gradient, out = (tensor(*SHAPE) for _ in range(5))
    log_sum = tensor(*SHAPE[:3])
    name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward.default"
    found = variants(call(name, gradient, q, k, v, out, log_sum, 0.0, True), "attention")
    assert set(found) == {"operator", "flash", "math"}
    results = []
    for name in ("flash", "math"):
        with torch.no_grad(), found[name].context():
            results.append(found[name].run())
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (None, "region of torch.compile"),
        (call("aten::bincount.default", tensor(3, dtype="int64")), "no safe range"),
        (call("aten::no_such_thing.default"), "no operator"),
        (call("aten::mm.default", tensor(6, 10), tensor(9, 4)), "RuntimeError: "),
    ],
)
def test_a_call_that_cannot_be_repeated_has_a_reason_in_one_line(described, reason):
    with pytest.raises(UnrepeatableError, match=reason) as raised:
        replay.of_call(described, "memory_bound", CPU)
    assert "\n" not in str(raised.value)


def test_a_copy_in_place_of_a_call_moves_as_many_bytes():
    made = replay.as_copy(800.0, 1e9, "why", CPU)
    (variant,) = made.variants
    assert (made.method, made.reason, made.share) == ("bandwidth", "why", 1.0)
    assert 2 * variant.run().nbytes == 800


def test_a_copy_that_would_not_fit_moves_a_known_part():
    made = replay.as_copy(8000.0, 800.0, "why", CPU)
    assert 2 * made.variants[0].run().nbytes == 800 and made.share == 0.1
