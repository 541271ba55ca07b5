"""Weight gradients that are added inside their product, against products in float64."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch

from train.common import weight_gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_added_to_what_the_buffer_holds(dtype):
    generator = torch.Generator().manual_seed(6)
    inputs, gradients = (torch.randn(7, size, generator=generator).to(dtype) for size in (5, 3))
    buffer = torch.randn(3, 5, generator=generator)
    wanted = buffer.double() + gradients.double().t() @ inputs.double()
    weight_gradient.wgrad_gemm_accum_fp32(inputs, gradients, buffer)
    assert buffer.flatten().tolist() == pytest.approx(wanted.flatten().tolist(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("total", [torch.float32, torch.bfloat16])
def test_the_first_product_replaces_what_the_buffer_holds_even_if_that_is_no_number(total):
    generator = torch.Generator().manual_seed(7)
    inputs, gradients = (torch.randn(7, size, generator=generator).bfloat16() for size in (5, 3))
    buffer = torch.full((3, 5), math.nan, dtype=total)
    weight_gradient.add_product(inputs, gradients, buffer, is_first=True)
    wanted = (gradients.double().t() @ inputs.double()).to(total)
    assert torch.allclose(buffer.double(), wanted.double(), rtol=1e-5 if total is torch.float32 else 1e-2, atol=1e-5)


@pytest.mark.parametrize(("is_first", "beta"), [(True, 0), (False, 1)])
def test_a_gpu_gets_one_product_with_the_buffers_type(monkeypatch, is_first, beta):
    """On the device `meta`, which stands for a GPU: torch has `out_dtype` for CUDA and ROCm only."""
    calls = []
    monkeypatch.setattr(torch, "addmm", lambda *tensors, **keywords: calls.append((tensors, keywords)))
    inputs, gradients = (torch.empty(7, size, dtype=torch.bfloat16, device="meta") for size in (5, 3))
    buffer = torch.empty(3, 5, device="meta")
    weight_gradient.add_product(inputs, gradients, buffer, is_first=is_first)
    (((added, left, right), keywords),) = calls
    assert added is keywords["out"] is buffer and keywords["out_dtype"] is torch.float32 and keywords["beta"] == beta
    assert (left.shape, right.shape, left.dtype) == ((3, 7), (7, 5), torch.bfloat16)


def test_a_torch_that_adds_wrongly_is_found(monkeypatch):
    assert weight_gradient.is_exact("cpu")
    real = weight_gradient.add_product
    monkeypatch.setattr(weight_gradient, "add_product", lambda *tensors, is_first=False: None)
    assert not weight_gradient.is_exact("cpu")
    monkeypatch.setattr(weight_gradient, "add_product", lambda *tensors, is_first=False: real(*tensors))
    assert not weight_gradient.is_exact("cpu"), "the first product is added"

    def refuses(*tensors, is_first=False):
        raise NotImplementedError("addmm.dtype_out")

    monkeypatch.setattr(weight_gradient, "add_product", refuses)
    assert not weight_gradient.is_exact("cpu")


def of_apex(*, adds):
    def product(total_input, grad_output, main_grad):
        main_grad.add_(grad_output.float().t() @ total_input.float() * adds)

    return SimpleNamespace(wgrad_gemm_accum_fp32=product)


@pytest.mark.parametrize(
    ("module", "is_exact"),
    [
        (of_apex(adds=True), True),
        (of_apex(adds=False), False),
        (weight_gradient, False),  # the suite's own in its place
        (None, False),  # an extension that cannot be imported
    ],
)
def test_where_apex_does_the_work_apex_is_tested(monkeypatch, module, is_exact):
    """An old torch whose product is wrong does not switch off a fusion that it has no part in."""
    monkeypatch.setattr(weight_gradient, "add_product", lambda *tensors, is_first=False: None)
    monkeypatch.setitem(sys.modules, weight_gradient.APEX_NAME, module)
    assert weight_gradient.is_exact("cpu", weight_gradient.APEX_NAME) == is_exact
    assert not weight_gradient.is_exact("cpu")
