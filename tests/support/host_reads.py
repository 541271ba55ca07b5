"""Finds reads of a device's numbers by the host: each makes the host wait for everything that was queued."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class CountHostReads(TorchDispatchMode):
    """Counts reads of single numbers: `item`, `float`, `bool`. On a CPU `tolist` is no operator and is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in str(function):
            self.read()
        return function(*args, **(kwargs or {}))

    def read(self) -> None:
        """Count one read."""
        self.count += 1


class NoHostRead(CountHostReads):
    """Fails at the first read."""

    def read(self) -> None:
        """Fail."""
        raise AssertionError("the host reads a number of the device")
