"""The rotary embedding of mega on a GPU, against rotations in float64; plain and compiled."""

import pytest
import torch

from tests.support.compiling import KINDS, leave_plain
from train.mega import rope


@pytest.fixture(autouse=True)
def plain(request, monkeypatch):
    """Nothing is compiled but what a test asks for."""
    leave_plain(request, monkeypatch, rope)


def angles(length, head_dim):
    """theta_i = 500000^(-2 i / d) at position p, for both halves of a head (Su et al., arXiv 2104.09864)."""
    half = torch.tensor([500000.0 ** (-2 * i / head_dim) for i in range(head_dim // 2)])
    table = torch.arange(length)[:, None] * half
    return torch.cat((table, table), dim=-1)[:, None, None, :]


def rotated_as_complex_numbers(values, table):
    """Rotation of each pair as a complex number, in float64."""
    first, second = values.double().chunk(2, dim=-1)
    half = table.double()[..., : first.shape[-1]]
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(half), half)
    return torch.cat((turned.real, turned.imag), dim=-1)


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_rotary_embedding_rounds_once_in_both_directions(kind, dtype, bound):
    table = angles(12, 16)
    mixed = torch.randn(12, 2, 3, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    values = mixed[..., :16].requires_grad_()  # a view with gaps, as of a split QKV
    gradient = torch.randn(12, 2, 3, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    exact = values.detach().double().requires_grad_()
    rotated_as_complex_numbers(exact, table).backward(gradient.double())
    result = rope.fused(values, table)
    (found,) = torch.autograd.grad(result, values, gradient)
    assert result.dtype is found.dtype is dtype
    wanted = rotated_as_complex_numbers(values.detach(), table)
    assert (result.double() - wanted).norm() < bound * wanted.norm()
    assert (found.double() - exact.grad).norm() < bound * exact.grad.norm()


def test_rotary_embedding_keeps_only_the_angles():
    table, kept = angles(4, 8), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        rope.fused(torch.randn(4, 1, 2, 8, requires_grad=True), table)
    assert [tensor.data_ptr() for tensor in kept] == [table.data_ptr()]


def test_what_no_model_here_has_is_refused():
    values, table = torch.zeros(4, 1, 2, 8), angles(4, 8)
    for wrong in ({"interleaved": True, "freqs": table}, {"freqs": table[..., :4]}):
        with pytest.raises(NotImplementedError):
            rope.fused(values, **wrong)
