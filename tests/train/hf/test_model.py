"""What is in the model of hf, read from its functions; what RECOMPUTE repeats; sums of gradients in float32."""

import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from train import train_hf
from train.hf import model, resolved
from train.job.report import MismatchError
from utils import models
from utils.errors import ConfigError

TOKENS, LAYERS = 64, 4
LINEAR = 7 * LAYERS + 1
"""q, k, v, o, gate, up, down of each layer, and the output layer."""


def model_of(name, dtype=torch.float32, kind="none"):
    built = model.build_model(models.get(name, "tiny"), dtype=dtype).train()
    model.set_recompute(built, kind)
    assert model.read_recompute(built) == kind
    return built


def backward(built, seed=0):
    tokens = torch.randint(0, 4096, (2, TOKENS), generator=torch.Generator().manual_seed(seed))
    count = torch.tensor(2 * TOKENS)
    built(input_ids=tokens, labels=tokens, shift_labels=tokens, num_items_in_batch=count).loss.backward()


def of_package(name, function):
    """Return a function that does the same and comes from another package."""

    def same(*arguments, **named):
        return function(*arguments, **named)

    same.__module__ = name
    return same


# The functions of a model


@pytest.mark.parametrize("name", models.NAMES)
def test_every_function_of_a_stock_model_is_transformers_own(name):
    built = model_of(name)
    assert resolved._kernels(built) == "stock" and not any(resolved._fused_ops(built).values())


PLACES = {
    "rms_norm_fusion": lambda built: (built.model.layers[0].input_layernorm, "forward"),
    "bias_activation_fusion": lambda built: (built.model.layers[0].mlp, "forward"),
    "cross_entropy_loss_fusion": lambda built: (built, "forward"),
    "apply_rope_fusion": lambda built: (sys.modules[type(built.model.layers[0].self_attn).__module__], resolved.ROTARY),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_function_of_liger_is_named_and_any_other_stops_the_job(name, monkeypatch):
    built = model_of("llama")
    holder, attribute = PLACES[name](built)
    monkeypatch.setattr(holder, attribute, of_package("liger_kernel.ops", getattr(holder, attribute)))
    assert resolved._kernels(built) == "liger"
    assert [key for key, is_on in resolved._fused_ops(built).items() if is_on] == [name]
    monkeypatch.setattr(holder, attribute, of_package("train.hf.fused", getattr(holder, attribute)))
    with pytest.raises(RuntimeError, match="functions of train, wanted those of transformers"):
        resolved._kernels(built)


# Recomputation


class CountOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def test_selective_repeats_norms_and_activation_but_neither_products_nor_attention():
    counted = {}
    for kind in ("none", "selective", "full"):
        with CountOperators() as counter:
            backward(model_of("llama", kind=kind))
        counted[kind] = counter.calls
    none, selective, full = counted.values()
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    # one product forward and two backward for each weight; computing a layer again repeats its forward ones
    assert none["mm"] == selective["mm"] == 3 * LINEAR
    # the last product of a layer, whose result nobody needs, may be left out
    assert full["mm"] >= 3 * LINEAR + 6 * LAYERS
    assert (none[attention], selective[attention], full[attention]) == (LAYERS, LAYERS, 2 * LAYERS)
    assert (none["silu"], selective["silu"], full["silu"]) == (LAYERS, 2 * LAYERS, 2 * LAYERS)
    assert none["rsqrt"] == 2 * LAYERS + 1
    assert selective["rsqrt"] == full["rsqrt"] == 4 * LAYERS + 1


def test_layers_that_differ_are_not_called_by_one_name():
    built = model_of("llama", kind="full")
    built.model.layers[1].gradient_checkpointing = False
    with pytest.raises(MismatchError, match="layers: got recomputation full, none"):
        model.read_recompute(built)


# Sums of gradients


def test_gradients_of_bf16_weights_add_up_in_float32():
    built = model_of("llama", torch.bfloat16)
    train_hf.add_gradients_in(torch.float32, built)
    parts = []
    for seed in range(4):
        backward(built, seed)
        parts.append({name: one.grad.clone() for name, one in built.named_parameters()})
        built.zero_grad()
    for seed in range(4):
        backward(built, seed)
    for name, parameter in built.named_parameters():
        total = sum(part[name].double() for part in parts)
        assert parameter.dtype is torch.bfloat16 and parameter.grad.dtype is torch.float32
        assert (parameter.grad.double() - total).norm() <= 1e-6 * total.norm()
        assert all(torch.equal(part[name], part[name].bfloat16().float()) for part in parts), "autograd's are bf16"


def test_a_torch_that_adds_up_in_bf16_is_refused():
    older = SimpleNamespace(parameters=lambda: [SimpleNamespace(dtype=torch.bfloat16)])
    with pytest.raises(ConfigError, match=r"use torch 2\.10 or newer, or GRADIENT_DTYPE=bf16"):
        train_hf.add_gradients_in(torch.float32, older)
    train_hf.add_gradients_in(torch.bfloat16, older)
