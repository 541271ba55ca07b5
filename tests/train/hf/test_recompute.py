"""RECOMPUTE of hf: the same numbers to the last bit, from more or fewer operations."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from train.hf.model import build_model
from train.hf.recompute import read_recompute, set_recompute
from utils import models

LAYERS = 4
LINEAR = 7 * LAYERS + 1  # q, k, v, o, gate, up, down of each layer, and the output layer


class CountOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def trained(name, recompute):
    """Return the loss, all gradients and the operators of one micro batch."""
    torch.manual_seed(0)
    model = build_model(models.get(name, "tiny"), sequence_length=64).train()
    set_recompute(model, recompute)
    assert read_recompute(model) == recompute
    tokens = torch.randint(0, 4096, (2, 64), generator=torch.Generator().manual_seed(1))
    with CountOperators() as counted:
        loss = model(input_ids=tokens, labels=tokens, shift_labels=tokens, num_items_in_batch=128).loss
        loss.backward()
    return loss, [parameter.grad for parameter in model.parameters()], counted.calls


@pytest.mark.parametrize("name", models.NAMES)
def test_losses_and_gradients_are_equal_to_the_last_bit(name):
    loss, gradients, _ = trained(name, "none")
    for recompute in ("selective", "full"):
        again, others, _ = trained(name, recompute)
        assert torch.equal(loss, again), recompute
        assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True)), recompute


def test_selective_repeats_norms_and_activation_but_neither_products_nor_attention():
    none, selective, full = (trained("llama", recompute)[2] for recompute in ("none", "selective", "full"))
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    # one product forward and two backward for each weight; computing a layer again repeats its forward ones
    assert none["mm"] == selective["mm"] == 3 * LINEAR
    assert (
        full["mm"] >= 3 * LINEAR + 6 * LAYERS
    )  # the last product of a layer, whose result nobody needs, may be left out
    assert (none[attention], selective[attention], full[attention]) == (LAYERS, LAYERS, 2 * LAYERS)
    assert (none["silu"], selective["silu"], full["silu"]) == (LAYERS, 2 * LAYERS, 2 * LAYERS)
    assert none["rsqrt"] == 2 * LAYERS + 1
    assert selective["rsqrt"] == full["rsqrt"] == 4 * LAYERS + 1


def test_layers_that_differ_are_not_called_by_one_name():
    model = build_model(models.get("llama", "tiny"))
    set_recompute(model, "full")
    model.model.layers[1].gradient_checkpointing = False
    with pytest.raises(ValueError, match="layers differ"):
        read_recompute(model)
