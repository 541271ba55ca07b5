"""Kernels of mega: weight gradients, the loss whose gradient takes the place of the logits, rotary embedding.

Against plain PyTorch in float64; the loss and the rotary embedding plain and compiled.
"""

import inspect
import math
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from megatron.core.fusions import fused_bias_swiglu
from torch.nn.attention import SDPBackend, varlen

from train.mega import attention, kernels
from utils.errors import ConfigError


def test_a_gpu_gets_one_product_with_the_buffers_type(monkeypatch):
    """On the device `meta`, which stands for a GPU: torch has `out_dtype` for CUDA and ROCm only."""
    calls = []
    monkeypatch.setattr(torch, "addmm", lambda *tensors, **keywords: calls.append((tensors, keywords)))
    inputs, gradients = (torch.empty(7, size, dtype=torch.bfloat16, device="meta") for size in (5, 3))
    buffer = torch.empty(3, 5, device="meta")
    kernels.wgrad_gemm_accum_fp32(inputs, gradients, buffer)
    (((added, left, right), keywords),) = calls
    assert added is keywords["out"] is buffer and keywords["out_dtype"] is torch.float32 and "beta" not in keywords
    assert (left.shape, right.shape, left.dtype) == ((3, 7), (7, 5), torch.bfloat16)


def of_apex(share):
    """Return Apex's extension, which adds this share of a product to the buffer."""
    return SimpleNamespace(
        wgrad_gemm_accum_fp32=lambda inputs, gradients, buffer: buffer.add_(
            share * gradients.float().t() @ inputs.float()
        )
    )


@pytest.mark.parametrize(
    ("module", "is_exact"),
    [
        (of_apex(1), True),
        (of_apex(0), False),
        (of_apex(torch.ones(3)), False),  # it raises a RuntimeError
        (kernels, True),  # the suite's own in its place
        (None, False),  # an extension that cannot be imported
    ],
)
def test_a_fusion_that_adds_wrongly_is_found_in_what_megatron_core_calls(monkeypatch, module, is_exact):
    monkeypatch.setitem(sys.modules, kernels.APEX_NAME, module)
    assert kernels.is_exact("cpu") == is_exact


# The loss

ALONE = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
"""A group of one rank."""


@pytest.fixture(autouse=True)
def plain(request, monkeypatch):
    """Nothing is compiled, as on a machine without a compiler, but where the parameter `kind` is `compiled`."""
    if getattr(getattr(request.node, "callspec", None), "params", {}).get("kind") != "compiled":
        monkeypatch.setattr(kernels, "compiled", lambda function: function)


COMPILED = (
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"),
    pytest.mark.full("torch.compile with the C++ compiler, about 10 s each"),
)
KINDS = [
    ("plain", torch.float32, 1e-6),
    ("plain", torch.bfloat16, 4e-3),
    pytest.param("compiled", torch.bfloat16, 4e-3, marks=COMPILED),
]
"""Kind, dtype, and bound of a relative error: some roundings of float32, one of bf16."""


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_the_loss_is_that_of_float64_and_its_gradient_takes_the_place_of_the_logits(kind, dtype, bound):
    generator = torch.Generator().manual_seed(3)
    logits = (4 * torch.randn(6, 2, 50, generator=generator)).to(dtype)
    labels = torch.randint(0, 50, (6, 2), generator=generator)
    weights = torch.rand(6, 2, generator=generator)
    exact = logits.double().requires_grad_()
    wanted = F.cross_entropy(exact.flatten(0, 1), labels.flatten(), reduction="none").view(6, 2)
    (wanted * weights).sum().backward()
    leaf = logits.clone().requires_grad_()
    logits = leaf * 1  # not a leaf, as the output layer's result
    losses = kernels.in_place_cross_entropy(logits, labels, ALONE)
    assert losses.dtype is torch.float32
    assert losses.double().tolist() == [pytest.approx(row, rel=1e-6, abs=1e-6) for row in wanted.tolist()]
    (losses * weights).sum().backward()
    assert (leaf.grad.double() - exact.grad).norm() < bound * exact.grad.norm()
    assert torch.equal(logits.detach(), leaf.grad)  # written over them


def test_parts_of_a_vocabulary_add_up_to_the_whole(monkeypatch):
    """Two ranks with half of the vocabulary each, their numbers combined as the two all-reduces do."""
    logits, labels = (
        5 * torch.randn(4, 1, 10, generator=torch.Generator().manual_seed(5)),
        torch.tensor([[0], [4], [5], [9]]),
    )
    parts = [kernels.statistics(logits[..., first : first + 5], labels, first) for first in (0, 5)]
    maximum, total, chosen = parts[1]
    top = torch.maximum(parts[0][0], maximum)

    def all_reduce(tensor, op=torch.distributed.ReduceOp.SUM, group=None):
        is_sum = op is torch.distributed.ReduceOp.SUM
        tensor.copy_(tensor + torch.stack((total * (maximum - top).exp(), chosen)) if is_sum else top)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    maximum, total, chosen = kernels._over_ranks(*parts[0], group=None)
    wanted = F.cross_entropy(logits.double().flatten(0, 1), labels.flatten(), reduction="none")
    assert (total.log() + maximum - chosen).flatten().tolist() == pytest.approx(wanted.tolist(), rel=1e-6)


def test_a_label_of_another_rank_changes_no_gradient_here():
    logits, labels = torch.zeros(1, 1, 4), torch.tensor([[6]])
    log_sum = torch.full((1, 1), math.log(8.0))  # two ranks with four equal logits each
    kernels.write_gradient(logits, labels, log_sum, torch.ones(1, 1), 0)
    assert logits.flatten().tolist() == pytest.approx([1 / 8] * 4)


# Rotary embedding


def rotated_as_complex_numbers(values, table):
    """Rotation of each pair as a complex number, in float64."""
    first, second = values.double().chunk(2, dim=-1)
    half = table.double()[..., : first.shape[-1]]
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(half), half)
    return torch.cat((turned.real, turned.imag), dim=-1)


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_rotary_embedding_rounds_once_in_both_directions(kind, dtype, bound):
    """theta_i = 500000^(-2 i / d) at position p, for both halves of a head (Su et al., arXiv 2104.09864)."""
    angles = torch.arange(12)[:, None] * torch.tensor([500000.0 ** (-2 * i / 16) for i in range(8)])
    table = torch.cat((angles, angles), dim=-1)[:, None, None, :]
    mixed = torch.randn(12, 2, 3, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    values = mixed[..., :16].requires_grad_()  # a view with gaps, as of a split QKV
    gradient = torch.randn(12, 2, 3, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    exact = values.detach().double().requires_grad_()
    rotated_as_complex_numbers(exact, table).backward(gradient.double())
    result = kernels.fused_rotary(values, table)
    (found,) = torch.autograd.grad(result, values, gradient)
    assert result.dtype is found.dtype is dtype
    wanted = rotated_as_complex_numbers(values.detach(), table)
    assert (result.double() - wanted).norm() < bound * wanted.norm()
    assert (found.double() - exact.grad).norm() < bound * exact.grad.norm()


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_the_gradient_of_swiglu_is_that_of_float64(kind, dtype, bound):
    generator = torch.Generator().manual_seed(6)
    halves, gradient = (2 * torch.randn(24, size, generator=generator).to(dtype) for size in (32, 16))
    exact = halves.double().requires_grad_()
    (F.silu(exact[:, :16]) * exact[:, 16:]).backward(gradient.double())
    found = kernels.swiglu_gradient(gradient, halves)
    assert found.dtype is dtype
    assert (found.double() - exact.grad).norm() < bound * exact.grad.norm()


def test_megatrons_fused_swiglu_takes_this_gradient(monkeypatch):
    monkeypatch.setattr(fused_bias_swiglu, "swiglu_back", None)
    monkeypatch.setattr(fused_bias_swiglu, "swiglu", lambda y: F.silu(y[:, :4]) * y[:, 4:])  # not compiled
    kernels.install_swiglu()
    halves = torch.randn(3, 8, requires_grad=True)
    found, wanted = (
        torch.autograd.grad(result.sum(), halves)[0]
        for result in (
            fused_bias_swiglu.bias_swiglu_impl(halves, None),
            F.silu(halves[:, :4]) * halves[:, 4:],
        )
    )
    assert torch.allclose(found, wanted, atol=1e-6)


# Embedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_rows_is_added_to_the_buffer_and_nothing_dense_is_made(dtype):
    weight = torch.nn.Parameter(torch.randn(50, 8).to(dtype))
    weight.main_grad = torch.ones(50, 8)
    weight.grad_added_to_main_grad = False
    tokens = torch.tensor([[3, 7, 3], [0, 49, 3]])  # one token three times
    gradient = torch.randn(2, 3, 8).to(dtype)
    found = kernels.rows(weight, tokens)
    assert torch.equal(found, weight[tokens])
    found.backward(gradient)
    wanted = torch.ones(50, 8, dtype=torch.float64)
    for place, token in enumerate(tokens.flatten().tolist()):
        wanted[token] += gradient.double().flatten(0, 1)[place]
    assert torch.allclose(weight.main_grad.double(), wanted, atol=1e-5)
    assert weight.grad_added_to_main_grad, "DDP would add the gradient that is not one"


# Core attention of mega on a GPU: named, fused kernels, against its definition in float64.


def core(window=None):
    return attention.SdpaCoreAttention(SimpleNamespace(context_parallel_size=1, window_size=window))


def tensors(dtype=torch.bfloat16, device="meta", length=8, batch=2, heads=4, groups=2, head_dim=16):
    generator = None if device == "meta" else torch.Generator().manual_seed(4)
    shapes = [(length, batch, count, head_dim) for count in (heads, groups, groups)]
    return [torch.randn(shape, dtype=dtype, device=device, generator=generator) for shape in shapes]


def exact(query, key, value, left):
    """Attention in float64 by its definition: row i sees the columns i - left to i."""
    repeats = query.shape[2] // key.shape[2]
    query, key, value = (tensor.double().permute(1, 2, 0, 3) for tensor in (query, key, value))
    key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    distance = torch.arange(query.shape[2])[:, None] - torch.arange(query.shape[2])[None, :]
    scores = scores.masked_fill((distance < 0) | (distance > left), float("-inf"))
    attended = scores.softmax(-1) @ value
    return attended.permute(2, 0, 1, 3).flatten(2)


@pytest.mark.parametrize("left", [None, 3, 100])
def test_attention_is_its_definition_in_float64(left):
    query, key, value = tensors(torch.float32, "cpu")
    found = core(left and (left, 0))(query, key, value)
    assert torch.allclose(found.double(), exact(query, key, value, 1000 if left is None else left), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_a_gpu_the_composed_kernel_is_off(dtype, monkeypatch):
    """The device `meta` stands for a GPU: anything but a CPU is pinned."""
    cuda, is_half = torch.backends.cuda, dtype is torch.bfloat16

    def attend(query, key, value, is_causal, enable_gqa, **_):
        assert (cuda.math_sdp_enabled(), cuda.flash_sdp_enabled()) == (False, is_half) and is_causal
        assert cuda.mem_efficient_sdp_enabled() != is_half
        assert (key.shape[1], enable_gqa) == ((2, True) if is_half else (4, False))  # 2 groups, 4 heads
        return query

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    core()(*tensors(dtype))
    assert cuda.math_sdp_enabled()


@pytest.mark.parametrize(
    ("choice", "window", "of_tensors", "name"),
    [
        (SDPBackend.CUDNN_ATTENTION, None, (), "torch_sdpa:cudnn"),
        (SDPBackend.FLASH_ATTENTION, None, (), "torch_sdpa:flash"),
        (SDPBackend.FLASH_ATTENTION, (3, 0), (), "torch_varlen:flash"),
        (SDPBackend.FLASH_ATTENTION, (7, 0), (), "torch_sdpa:flash"),  # the window is as long as the sequence
        (SDPBackend.FLASH_ATTENTION, (3, 0), (torch.float32, "cpu"), "torch_sdpa"),
    ],
)
def test_the_name_of_the_kernel_is_torchs_own_choice(monkeypatch, choice, window, of_tensors, name):
    query, key, _ = tensors(*of_tensors)
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda **_: int(choice))
    assert core(window).backend(query, key) == name


def test_cudnn_comes_before_flash_when_attention_runs_and_when_it_is_named(monkeypatch):
    """torch's own order has flash first: on an H200 it took 1.9 times as long."""
    orders = []

    def attend(query, **_):
        orders.append(torch._C._get_sdp_priority_order()[:2])
        return query

    def choose(**_):
        orders.append(torch._C._get_sdp_priority_order()[:2])
        return int(SDPBackend.CUDNN_ATTENTION)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(torch, "_fused_sdp_choice", choose)
    query, key, value = tensors()
    core()(query, key, value)
    core().backend(query, key)
    assert orders == [[int(SDPBackend.CUDNN_ATTENTION), int(SDPBackend.FLASH_ATTENTION)]] * 2


def test_a_torch_that_does_not_tell_its_kernel_gives_no_name(monkeypatch):
    def changed(**_):
        raise TypeError("unexpected keyword")

    monkeypatch.setattr(torch, "_fused_sdp_choice", changed)
    assert core().backend(*tensors()[:2]) is None


def test_shapes_that_no_fused_kernel_takes_are_refused_by_name():
    query, key, _ = tensors()
    with pytest.raises(ConfigError, match=r"attention: no fused kernel .* torch.bfloat16 .* tried cudnn, flash"):
        core().backend(query, key)  # torch has only its composed kernel for the device `meta`


def test_a_window_that_torchs_flash_attention_does_not_know_is_a_mask_for_the_efficient_kernel(monkeypatch):
    """torch 2.10 has `varlen_attn` without `scale` and `window_size`."""

    def of_torch_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
        raise AssertionError("it would attend to tokens outside of the window")

    seen = {}

    def chooses(**arguments):
        seen.update(arguments)
        return int(SDPBackend.EFFICIENT_ATTENTION) if torch.backends.cuda.mem_efficient_sdp_enabled() else 0

    monkeypatch.setattr(attention, "varlen_attn", of_torch_2_10)
    monkeypatch.setattr(torch, "_fused_sdp_choice", chooses)
    query, key, value = tensors()
    assert core((3, 0)).backend(query, key) == "torch_sdpa:efficient"
    assert seen["key"].shape[1] == 4 and not seen["enable_gqa"], "this kernel reads no grouped keys"
    assert seen["attn_mask"].shape == (8, 8) and not seen["is_causal"]
    assert core((3, 0))(query, key, value).shape == (8, 2, 64)


def test_a_window_goes_to_flash_attention_in_its_own_layout(monkeypatch):
    """A stand-in for torch's `varlen_attn` with its real signature, which needs a GPU; by definition in float64."""
    signature = inspect.signature(varlen.varlen_attn)
    left = 3

    def stand_in(*arguments, **keywords):
        given = signature.bind(*arguments, **keywords).arguments
        query, key, value, bounds = (given[name] for name in ("query", "key", "value", "cu_seq_q"))
        assert bounds.tolist() == [0, 8, 16] and bounds.dtype is torch.int32 and given["max_q"] == given["max_k"] == 8
        assert given["window_size"] == (left, 0) and given["enable_gqa"] is True
        split = [tensor.view(2, 8, *tensor.shape[1:]).transpose(0, 1) for tensor in (query, key, value)]
        return exact(*split, left).transpose(0, 1).reshape(query.shape)

    stand_in.__signature__ = signature
    monkeypatch.setattr(attention, "varlen_attn", stand_in)
    query, key, value = tensors(torch.float64, "cpu")
    found = attention.windowed_flash(query, key, value, (left, 0), None)
    assert torch.allclose(found, exact(query, key, value, left))
