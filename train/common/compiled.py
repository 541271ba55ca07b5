"""Functions of tensors as one kernel of torch.compile, for either vendor's GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function, for fixed shapes. Nothing of the compiler is imported before the first call."""
    return torch.compile(function, dynamic=False)
