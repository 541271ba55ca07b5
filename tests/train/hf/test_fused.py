"""What hf fuses on a GPU, recomputes and adds up, against plain PyTorch in float64 and transformers itself."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import tied_model
from tests.support.compiling import KINDS, leave_plain
from tests.support.host_reads import NoHostRead
from train.hf import fused, gradients, model
from utils import models

NAMES = (*models.NAMES, tied_model.NAME)
TOKENS, LAYERS = 64, 4
LINEAR = 7 * LAYERS + 1
"""q, k, v, o, gate, up, down of each layer, and the output layer."""


@pytest.fixture(autouse=True)
def plain(request, monkeypatch):
    """Nothing is compiled but what a test asks for; a model's rotary embedding is put back."""
    leave_plain(request, monkeypatch, fused)
    monkeypatch.setitem(fused.in_place_cross_entropy.__globals__, "compiled", lambda function: function)
    monkeypatch.setitem(models.MODELS, tied_model.NAME, tied_model.LLAMA_1B)
    for name in models.NAMES:
        module = fused._module(model.build_model(models.get(name, "tiny")))
        monkeypatch.setattr(module, fused.ROTARY, getattr(module, fused.ROTARY))


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def model_of(name, dtype=torch.float32, kind="none"):
    """Return a model whose norms and biases are not all the same, on sequences as long as its window or shorter."""
    torch.manual_seed(0)
    built = model.build_model(models.get(name, "tiny"), dtype=dtype, sequence_length=TOKENS).train()
    model.set_recompute(built, kind)
    assert model.read_recompute(built) == kind
    with torch.no_grad():
        for number, parameter in enumerate(built.parameters()):
            if parameter.dim() == 1:
                parameter.add_(0.1 * drawn(number, *parameter.shape).to(dtype))
    return built


def trained(built, micro_batches=1, sums=None):
    """Return losses and gradients, of some micro batches together."""
    losses = []
    for number in range(micro_batches):
        tokens = torch.randint(0, 4096, (2, TOKENS), generator=torch.Generator().manual_seed(number))
        labels = tokens.clone()
        labels[0, :5] = fused.IGNORED
        count = torch.tensor(2 * TOKENS - 5)
        losses.append(built(input_ids=tokens, labels=labels, shift_labels=labels, num_items_in_batch=count).loss)
        losses[-1].backward()
    name_of = "grad" if sums is None else "main_gradient"
    found = {name: getattr(parameter, name_of) for name, parameter in built.named_parameters()}
    return torch.stack([loss.detach() for loss in losses]), found


def fused_model(name, dtype, kind="none"):
    """Return the model with everything fused, and the sums of its gradients."""
    built = model_of(name, dtype, kind)
    fused.fuse(built, with_loss=True)
    sums = gradients.GradientSums(built.parameters(), torch.float32)
    gradients.add_in_products(built, sums)
    return built, sums


def error(found, wanted, name):
    """Return the relative error of one gradient."""
    return ((found[name].double() - wanted[name]).norm() / wanted[name].norm()).item()


def largest_error(found, wanted):
    # softmax does not depend on the bias of the keys: its gradient is rounding alone
    return max(error(found, wanted, name) for name in wanted if not name.endswith("k_proj.bias"))


def whole_error(found, wanted):
    whole = [torch.cat([one[name].double().flatten() for name in wanted]) for one in (found, wanted)]
    return ((whole[0] - whole[1]).norm() / whole[1].norm()).item()


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_swiglu_rounds_once_in_both_directions(kind, dtype, bound):
    gate, up = (drawn(seed, 6, 20).to(dtype).requires_grad_() for seed in (1, 2))
    gradient = drawn(3, 6, 20).to(dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in (gate, up)]
    wanted = F.silu(exact[0]) * exact[1]
    wanted.backward(gradient.double())
    result = fused._SwiGLU.apply(gate, up)
    found = torch.autograd.grad(result, (gate, up), gradient)
    for one, right in zip((result, *found), (wanted, exact[0].grad, exact[1].grad), strict=True):
        assert one.dtype is dtype and (one.double() - right).norm() < bound * right.norm()


@pytest.mark.parametrize("kind", ["none", "selective", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_of_a_fused_model_are_those_of_transformers(name, kind):
    loss, wanted = trained(model_of(name).double(), micro_batches=2)
    built, sums = fused_model(name, torch.float32, kind)
    found, made = trained(built, 2, sums)
    assert (found.double() - loss).abs().max() < 2e-6 * loss.max()
    assert largest_error(made, wanted) < 2e-6
    assert all(parameter.grad is None for parameter in built.parameters())


@pytest.mark.parametrize("name", models.NAMES)
def test_in_bf16_a_fused_model_is_no_less_exact_than_that_of_transformers(name):
    built = model_of(name, torch.bfloat16)
    loss, wanted = trained(copy.deepcopy(built).double())
    _, composed = trained(built)
    built, sums = fused_model(name, torch.bfloat16)  # from now on the rotary embedding too
    found, made = trained(built, 1, sums)
    assert abs(found.item() - loss.item()) < 5e-5 * loss.item()
    assert whole_error(made, wanted) < 1.05 * whole_error(composed, wanted)


def test_what_is_fused_is_read_from_the_model_itself():
    built = model_of("llama")
    assert set(fused.read(built).values()) == {False} and not gradients.adds_in_products(built)
    fused.fuse(built, with_loss=False)
    kernels = dict.fromkeys(("rms_norm_fusion", "bias_activation_fusion", "apply_rope_fusion"), True)
    assert fused.read(built) == kernels | {"cross_entropy_loss_fusion": False}
    fused.fuse(built, with_loss=True)
    assert fused.read(built)["cross_entropy_loss_fusion"]
    del built.model.layers[1].mlp.forward
    assert not fused.read(built)["bias_activation_fusion"]
    gradients.add_in_products(built, gradients.GradientSums(built.parameters()))
    assert gradients.adds_in_products(built)
    del built.model.layers[1].mlp.up_proj.forward
    assert not gradients.adds_in_products(built)


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
            trained(model_of("llama", kind=kind))
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
    with pytest.raises(ValueError, match="layers differ"):
        model.read_recompute(built)


# Sums of gradients


def weights(count=3):
    return [torch.nn.Parameter(drawn(seed, 5, 7).bfloat16()) for seed in range(count)]


def micro_batch(parameters, seed):
    """Run a backward pass; return the gradients that autograd alone makes of it, in float64."""
    factors = [drawn(seed + number, 5, 7).bfloat16() for number in range(len(parameters))]
    sum((parameter * factor).sum() for parameter, factor in zip(parameters, factors, strict=True)).backward()
    return [factor.double() for factor in factors]


def test_gradients_of_micro_batches_add_up_in_float32_and_a_step_begins_anew():
    parameters = weights()
    sums = gradients.GradientSums(parameters)
    for step in (0, 1):
        sums.begin_step()
        made = [micro_batch(parameters, seed=100 * step + 10 * number) for number in range(4)]
        for parameter, parts in zip(parameters, zip(*made, strict=True), strict=True):
            total = sum(parts)
            assert parameter.grad is None, "the bf16 gradient must not stay beside the sum"
            assert parameter.main_gradient.dtype is torch.float32
            assert torch.allclose(parameter.main_gradient.double(), total, rtol=1e-6, atol=1e-6)
            rounded = total.bfloat16().double()
            assert not torch.allclose(rounded, total, rtol=1e-6, atol=1e-6), "a sum in bf16 would not pass"


@pytest.mark.parametrize("has_sums", [True, False])
def test_norm_is_that_of_float64_and_clipping_reads_nothing(has_sums):
    parameters = weights()
    if has_sums:
        gradients.GradientSums(parameters)
    exact = torch.cat([gradient.flatten() for gradient in micro_batch(parameters, seed=5)]).norm()
    with NoHostRead():
        norm = gradients.total_norm(parameters)
        coefficient = gradients.clip_coefficient(norm, 1.0)
    assert norm.dtype is torch.float32
    assert norm.item() == pytest.approx(exact.item(), rel=1e-6)
    assert coefficient.item() == pytest.approx(1 / exact.item(), rel=1e-5)
    assert gradients.clip_coefficient(norm, 100.0).item() == 1.0
