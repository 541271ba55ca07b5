"""Core attention of mega on a GPU: named, fused kernels, against its definition in float64."""

import inspect
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, varlen

from train.mega import attention
from utils.errors import ConfigError


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
    seen = {}

    def looks(query, key, value, **keywords):
        seen.update(
            math=torch.backends.cuda.math_sdp_enabled(),
            flash=torch.backends.cuda.flash_sdp_enabled(),
            efficient=torch.backends.cuda.mem_efficient_sdp_enabled(),
            heads=key.shape[1],
            **keywords,
        )
        return query

    monkeypatch.setattr(F, "scaled_dot_product_attention", looks)
    core()(*tensors(dtype))
    is_half = dtype is torch.bfloat16
    assert (seen["math"], seen["flash"], seen["efficient"]) == (False, is_half, not is_half)
    assert (seen["heads"], seen["enable_gqa"]) == ((2, True) if is_half else (4, False))  # 2 groups, 4 heads
    assert seen["is_causal"] and torch.backends.cuda.math_sdp_enabled()


def test_the_name_of_the_kernel_is_torchs_own_choice(monkeypatch):
    query, key, _ = tensors()
    for choice, name in ((3, "torch_sdpa:cudnn"), (1, "torch_sdpa:flash")):
        monkeypatch.setattr(torch, "_fused_sdp_choice", lambda choice=choice, **_: choice)
        assert core().backend(query, key) == name
    assert int(SDPBackend.CUDNN_ATTENTION) == 3 and int(SDPBackend.FLASH_ATTENTION) == 1
    assert core((3, 0)).backend(query, key) == "torch_varlen:flash"
    assert core((7, 0)).backend(query, key) == "torch_sdpa:flash"  # the window is as long as the sequence
    query, key, _ = tensors(torch.float32, "cpu")
    assert core((3, 0)).backend(query, key) == "torch_sdpa"


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


def test_a_torch_without_the_flag_for_grouped_keys_gets_no_flag(monkeypatch):
    given = {}

    def older(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        given["keys"] = key.shape
        return query

    monkeypatch.setattr(attention, "varlen_attn", older)
    attention.windowed_flash(*tensors(torch.float32, "cpu"), (3, 0), None)
    assert given["keys"] == (16, 2, 16)
