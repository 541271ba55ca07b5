"""Functions of tensors as one kernel of torch.compile, for either vendor's GPU; rotary embedding in both directions.

Rotary embedding: pairs of numbers half a head apart turn by the angle at their position. Su et al., arXiv 2104.09864,
equation 34, in the order of GPT-NeoX. Both functions compute in float32 and round once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function, for fixed shapes. Nothing of the compiler is imported before the first call."""
    return torch.compile(function, dynamic=False)


def turned(values: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return `values` [..., head_dim] turned by angles whose cosine and sine have a shape that broadcasts to them."""
    exact = values.float()
    first, second = exact.chunk(2, dim=-1)
    return (exact * cosine + torch.cat((-second, first), dim=-1) * sine).to(values.dtype)


def turned_gradient(gradient: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return the gradient of `values` from that of the result of `turned`."""
    exact = gradient.float()
    first, second = (exact * sine).chunk(2, dim=-1)
    return (exact * cosine + torch.cat((second, -first), dim=-1)).to(gradient.dtype)
