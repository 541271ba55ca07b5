"""Finds reads of a device's numbers by the host: each makes the host wait for everything that was queued."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class NoHostRead(TorchDispatchMode):
    """Fails at the first read of a number: `item`, `float`, `bool`. On a CPU `tolist` is no operator."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in str(function):
            raise AssertionError("the host reads a number of the device")
        return function(*args, **(kwargs or {}))
