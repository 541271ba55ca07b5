"""The loss that writes its gradient over the logits, against plain PyTorch in float64; plain and compiled."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from tests.support.compiling import KINDS, leave_plain
from train.common import cross_entropy

ALONE = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
"""A group of one rank."""


@pytest.fixture(autouse=True)
def plain(request, monkeypatch):
    """Nothing is compiled but what a test asks for."""
    leave_plain(request, monkeypatch, cross_entropy)


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
@pytest.mark.parametrize("group", [ALONE, None], ids=["a group", "no group"])
def test_the_loss_is_that_of_float64_and_its_gradient_takes_the_place_of_the_logits(kind, dtype, bound, group):
    generator = torch.Generator().manual_seed(3)
    logits = (4 * torch.randn(6, 2, 50, generator=generator)).to(dtype)
    labels = torch.randint(0, 50, (6, 2), generator=generator)
    weights = torch.rand(6, 2, generator=generator)
    exact = logits.double().requires_grad_()
    wanted = F.cross_entropy(exact.flatten(0, 1), labels.flatten(), reduction="none").view(6, 2)
    (wanted * weights).sum().backward()
    leaf = logits.clone().requires_grad_()
    logits = leaf * 1  # not a leaf, as the output layer's result
    losses = cross_entropy.in_place_cross_entropy(logits, labels, group)
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
    parts = [cross_entropy.statistics(logits[..., first : first + 5], labels, first) for first in (0, 5)]
    others = iter([torch.maximum(parts[0][0], parts[1][0]), None])

    def all_reduce(tensor, op=None, group=None):
        whole = next(others)
        if whole is None:
            maximum, total, chosen = parts[1]
            top = torch.maximum(parts[0][0], maximum)
            tensor += torch.stack((total * (maximum - top).exp(), chosen))
        else:
            tensor.copy_(whole)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    maximum, total, chosen = cross_entropy._over_ranks(*parts[0], group=None)
    wanted = F.cross_entropy(logits.double().flatten(0, 1), labels.flatten(), reduction="none")
    assert (total.log() + maximum - chosen).flatten().tolist() == pytest.approx(wanted.tolist(), rel=1e-6)


def test_a_label_of_another_rank_changes_no_gradient_here():
    logits, labels = torch.zeros(1, 1, 4), torch.tensor([[6]])
    log_sum = torch.full((1, 1), math.log(8.0))  # two ranks with four equal logits each
    cross_entropy.write_gradient(logits, labels, log_sum, torch.ones(1, 1), 0)
    assert logits.flatten().tolist() == pytest.approx([1 / 8] * 4)
