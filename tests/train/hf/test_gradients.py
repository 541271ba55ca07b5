"""Gradients of hf: sums in float32, their norm, and what clipping multiplies by."""

import pytest
import torch

from tests.support.host_reads import NoHostRead
from train.hf.gradients import GradientSums, clip_coefficient, total_norm


def weights(count=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(5, 7, generator=generator).bfloat16()) for _ in range(count)]


def micro_batch(parameters, seed):
    """Run a backward pass; return the gradients that autograd alone makes of it, in float64."""
    generator = torch.Generator().manual_seed(seed)
    factors = [torch.randn(5, 7, generator=generator).bfloat16() for _ in parameters]
    sum((parameter * factor).sum() for parameter, factor in zip(parameters, factors, strict=True)).backward()
    return [factor.double() for factor in factors]


def test_gradients_of_micro_batches_add_up_in_float32_and_a_step_begins_anew():
    parameters = weights()
    sums = GradientSums(parameters)
    for step in (0, 1):
        sums.begin_step()
        expected = [torch.zeros(5, 7, dtype=torch.float64) for _ in parameters]
        for number in range(4):
            made = micro_batch(parameters, seed=10 * step + number)
            expected = [total + gradient for total, gradient in zip(expected, made, strict=True)]
        for parameter, total in zip(parameters, expected, strict=True):
            assert parameter.grad is None, "the bf16 gradient must not stay beside the sum"
            assert parameter.main_gradient.dtype is torch.float32
            assert torch.allclose(parameter.main_gradient.double(), total, rtol=1e-6, atol=1e-6)
            rounded = total.bfloat16().double()
            assert not torch.allclose(rounded, total, rtol=1e-6, atol=1e-6), "a sum in bf16 would not pass"


@pytest.mark.parametrize("has_sums", [True, False])
def test_norm_is_that_of_float64_and_clipping_reads_nothing(has_sums):
    parameters = weights()
    if has_sums:
        GradientSums(parameters)
    exact = torch.cat([gradient.flatten() for gradient in micro_batch(parameters, seed=5)]).norm()
    with NoHostRead():
        norm = total_norm(parameters)
        coefficient = clip_coefficient(norm, 1.0)
    assert norm.dtype is torch.float32
    assert norm.item() == pytest.approx(exact.item(), rel=1e-6)
    assert coefficient.item() == pytest.approx(1 / exact.item(), rel=1e-5)
    assert clip_coefficient(norm, 100.0).item() == 1.0
