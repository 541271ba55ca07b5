"""What hf runs as one kernel on a GPU, against plain PyTorch in float64 and against transformers' own functions."""

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.support import tied_model
from tests.support.compiling import KINDS, leave_plain
from train.common import cross_entropy
from train.hf import fused, linear
from train.hf.gradients import GradientSums
from train.hf.model import build_model
from train.hf.recompute import set_recompute
from utils import models

NAMES = (*models.NAMES, tied_model.NAME)
TOKENS = 64


@pytest.fixture(autouse=True)
def plain(request, monkeypatch):
    """Nothing is compiled but what a test asks for; a model's rotary embedding is put back."""
    leave_plain(request, monkeypatch, fused, cross_entropy)
    monkeypatch.setitem(models.MODELS, tied_model.NAME, tied_model.LLAMA_1B)
    for name in models.NAMES:
        module = fused._module(build_model(models.get(name, "tiny")))
        monkeypatch.setattr(module, fused.ROTARY, getattr(module, fused.ROTARY))


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def model_of(name, dtype=torch.float32, recompute="none"):
    """Return a model whose norms and biases are not all the same, on sequences as long as its window or shorter."""
    torch.manual_seed(0)
    model = build_model(models.get(name, "tiny"), dtype=dtype, sequence_length=TOKENS).train()
    set_recompute(model, recompute)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if parameter.dim() == 1:
                parameter.add_(0.1 * drawn(number, *parameter.shape).to(dtype))
    return model


def micro_batch(seed=1):
    tokens = torch.randint(0, 4096, (2, TOKENS), generator=torch.Generator().manual_seed(seed))
    labels = tokens.clone()
    labels[0, :5] = fused.IGNORED
    return {
        "input_ids": tokens,
        "labels": labels,
        "shift_labels": labels,
        "num_items_in_batch": torch.tensor(2 * TOKENS - 5),
    }


def trained(model, micro_batches=1, sums=None):
    """Return loss and gradients, of some micro batches together."""
    losses = []
    for number in range(micro_batches):
        losses.append(model(**micro_batch(number)).loss)
        losses[-1].backward()
    gradients = {
        name: parameter.grad if sums is None else parameter.main_gradient
        for name, parameter in model.named_parameters()
    }
    return torch.stack([loss.detach() for loss in losses]), gradients


def fused_model(*arguments, sums_dtype=None):
    """Return the model with everything fused, and the sums of its gradients if they are asked for."""
    model = model_of(*arguments)
    fused.fuse(model, with_loss=True)
    if sums_dtype is None:
        return model, None
    sums = GradientSums(model.parameters(), sums_dtype)
    linear.add_in_products(model, sums)
    return model, sums


def largest_error(gradients, wanted):
    return max(
        ((gradients[name].double() - exact).norm() / exact.norm()).item()
        for name, exact in wanted.items()
        if not name.endswith("k_proj.bias")  # softmax does not depend on it: its gradient is rounding alone
    )


def whole_error(gradients, wanted):
    squares = [[(gradients[name].double() - exact).norm() ** 2, exact.norm() ** 2] for name, exact in wanted.items()]
    wrong, whole = torch.tensor(squares).sum(0)
    return (wrong / whole).sqrt().item()


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_swiglu_rounds_once_in_both_directions(kind, dtype, bound):
    gate, up = (drawn(seed, 6, 20).to(dtype).requires_grad_() for seed in (1, 2))
    gradient = drawn(3, 6, 20).to(dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in (gate, up)]
    wanted = F.silu(exact[0]) * exact[1]
    wanted.backward(gradient.double())
    result = fused._SwiGLU.apply(gate, up)
    found = torch.autograd.grad(result, (gate, up), gradient)
    assert {tensor.dtype for tensor in (result, *found)} == {dtype}
    assert (result.double() - wanted).norm() < bound * wanted.norm()
    for one, tensor in zip(found, exact, strict=True):
        assert (one.double() - tensor.grad).norm() < bound * tensor.grad.norm()


def test_rotary_embedding_is_that_of_transformers():
    model = model_of("llama")
    original = getattr(fused._module(model), fused.ROTARY)
    query, key = drawn(1, 2, 8, TOKENS, 16), drawn(2, 2, 2, TOKENS, 16)
    cosine, sine = model.model.rotary_emb(query, torch.arange(TOKENS)[None])
    pairs = [[one.requires_grad_() for one in (query.clone(), key.clone())] for _ in range(2)]
    results = [function(*pair, cosine, sine) for function, pair in zip((original, fused.rotary), pairs, strict=True)]
    weights = drawn(3, 2, 8, TOKENS, 16)
    for result, pair in zip(results, pairs, strict=True):
        (result[0] * weights).sum().backward(retain_graph=True)
        (result[1] * weights[:, :2]).sum().backward()
        assert pair[0].grad is not None
    for theirs, ours in zip(*results, strict=True):
        assert torch.allclose(theirs, ours, rtol=1e-6, atol=1e-6)
    for theirs, ours in zip(*pairs, strict=True):
        assert torch.allclose(theirs.grad, ours.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_of_a_fused_model_are_those_of_transformers(name, recompute):
    loss, wanted = trained(model_of(name).double(), micro_batches=2)
    model, sums = fused_model(name, torch.float32, recompute, sums_dtype=torch.float32)
    found, gradients = trained(model, 2, sums)
    assert (found.double() - loss).abs().max() < 2e-6 * loss.max()
    assert largest_error(gradients, wanted) < 2e-6
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", models.NAMES)
def test_in_bf16_a_fused_model_is_no_less_exact_than_that_of_transformers(name):
    model = model_of(name, torch.bfloat16)
    loss, wanted = trained(copy.deepcopy(model).double())
    _, composed = trained(model)
    model, sums = fused_model(name, torch.bfloat16, sums_dtype=torch.float32)  # from now on the rotary embedding too
    found, gradients = trained(model, 1, sums)
    assert abs(found.item() - loss.item()) < 5e-5 * loss.item()
    assert whole_error(gradients, wanted) < 1.05 * whole_error(composed, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_linear_weight_is_added_inside_its_product_and_a_tied_one_is_whole(monkeypatch, dtype):
    model, sums = fused_model(tied_model.NAME, dtype, sums_dtype=dtype)
    added = []
    original = sums.add_product
    monkeypatch.setattr(
        sums, "add_product", lambda weight, *tensors: added.append(weight) or original(weight, *tensors)
    )
    for _ in range(2):  # the sums of the first step must not stay in the second
        sums.begin_step()
        _, gradients = trained(model, 2, sums)
    layers = len(model.model.layers)
    assert len(added) == 2 * 2 * (7 * layers + 1)
    _, wanted = trained(model_of(tied_model.NAME, dtype).double(), micro_batches=2)
    assert gradients["model.embed_tokens.weight"].dtype is dtype
    assert largest_error(gradients, wanted) < (2e-6 if dtype is torch.float32 else 3e-2)


def test_what_is_fused_is_read_from_the_model_itself():
    model = model_of("llama")
    assert set(fused.read(model).values()) == {False}
    assert not linear.adds_in_products(model)
    fused.fuse(model, with_loss=False)
    assert fused.read(model) == {
        "rms_norm_fusion": True,
        "bias_activation_fusion": True,
        "apply_rope_fusion": True,
        "cross_entropy_loss_fusion": False,
    }
    fused.fuse(model, with_loss=True)
    assert fused.read(model)["cross_entropy_loss_fusion"]
    del model.model.layers[1].mlp.forward
    assert not fused.read(model)["bias_activation_fusion"]
    linear.add_in_products(model, GradientSums(model.parameters()))
    assert linear.adds_in_products(model)
    del model.model.layers[1].mlp.up_proj.forward
    assert not linear.adds_in_products(model)
