"""Arguments of a recorded call, made on a real device: normally distributed numbers, integers in a safe range.

The values of the numbers matter to a GPU's power and so to its clocks: zeros would be faster than what a training has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed.fsdp  # registers the operators of FSDP2

from train.probing.safe import INTEGERS, ORDINARY, UnsafeError, beyond
from train.rehearsal.events import changed_by

BLOCK = 2**20 + 7
"""Different random numbers on a CPU, repeated in larger tensors: making them takes longer than the call."""
STRIDE = 104_729
LARGEST_RESTORED_BYTES = 2**28
"""Tensors up to this size that a call writes get their first values back before each round."""


class UnrepeatableError(RuntimeError):
    """A call cannot be repeated here; the message is the reason."""


@dataclass
class Inputs:
    """An operator with its arguments on a device."""

    operator: Any
    args: list[Any]
    keywords: dict[str, Any]
    named: dict[str, Any]
    """All arguments by their names in the schema of the operator."""
    _restored: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def writes(self) -> bool:
        """Whether the call writes one of its arguments."""
        return bool(changed_by(self.operator, self.args, self.keywords))

    def keep(self) -> None:
        """Keep the values of the tensors that the call writes, for `restore`."""
        changed = changed_by(self.operator, self.args, self.keywords)
        kept = {id(one): one for one in changed if one.nbytes <= LARGEST_RESTORED_BYTES}
        self._restored = [(tensor, tensor.clone()) for tensor in kept.values()]

    def restore(self) -> None:
        """Give tensors that the call has written their first values: halved often enough, a number leaves its range."""
        for tensor, values in self._restored:
            tensor.copy_(values)


def operator_of(name: str) -> Any:
    """Return the operator of `aten::mm.default`; raise UnrepeatableError if this torch has none of that name."""
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), base), overload)
    except (AttributeError, RuntimeError) as error:
        raise UnrepeatableError(f"this torch has no operator {name}") from error


def bytes_of(call: Mapping[str, Any]) -> int:
    """Return the memory of the tensors among the arguments of a described call."""
    return sum(_elements(one) * _dtype(one["dtype"]).itemsize for one in _tensors([call["args"], call["kwargs"]]))


def make(call: Mapping[str, Any], device: torch.device) -> Inputs:
    """Return the operator of a described call (train/rehearsal/calls.py), and arguments for it.

    Raises UnrepeatableError, and RuntimeError if memory is lacking.
    """
    operator = operator_of(call["operator"])
    names = [one.name for one in operator._schema.arguments]
    described = dict(zip(names, call["args"], strict=False)) | call["kwargs"]
    try:
        limits = beyond(operator._schema.name.partition("::")[2], described)
    except UnsafeError as error:
        raise UnrepeatableError(str(error)) from error
    values = _Values(device)
    made = {name: values.of(one, limits.get(name)) for name, one in described.items()}
    args = [made[name] for name in names[: len(call["args"])]]
    found = Inputs(operator, args, {name: made[name] for name in call["kwargs"]}, made)
    found.keep()
    return found


class _Values:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generator = torch.Generator(device).manual_seed(42)
        self._tensors: list[torch.Tensor] = []

    def of(self, found: Any, limit: Any = None) -> Any:
        """Return one described argument; `limit` is the first integer beyond its range, of a list one for each."""
        if isinstance(found, list):
            limits = limit if isinstance(limit, list) else [limit] * len(found)
            return [self.of(one, limits[place] if place < len(limits) else None) for place, one in enumerate(found)]
        if not isinstance(found, dict):
            return found
        if "same" in found:
            return self._tensors[found["same"]]
        if "shape" in found:
            self._tensors.append(self._tensor(found, limit))
            return self._tensors[-1]
        if "float" in found:
            return float(found["float"])
        if "device" in found:
            return self._device if found["device"] == "job" else torch.device("cpu")
        (kind,) = found.values()
        return getattr(torch, kind)  # a dtype, a layout or a memory format

    def _tensor(self, found: Mapping[str, Any], limit: int | None) -> torch.Tensor:
        flat = self._flat(_elements(found), found["dtype"], limit)
        if found.get("host") and self._device.type == "cuda":
            flat = flat.cpu().pin_memory()  # as the loader of a job does
        return flat.as_strided(found["shape"], found["stride"])

    def _flat(self, count: int, name: str, limit: int | None) -> torch.Tensor:
        dtype = _dtype(name)
        if name == "bool" or name in INTEGERS:
            low, high = (0, 2) if name == "bool" else (0, limit) if limit is not None else ORDINARY
            numbers = torch.randint(low, max(high, 1), (count,), generator=self._generator, device=self._device)
            return numbers.to(dtype)
        if self._device.type != "cpu":
            numbers = torch.empty(count, dtype=dtype if dtype.itemsize > 1 else torch.float32, device=self._device)
            return numbers.normal_(generator=self._generator).to(dtype)
        start = len(self._tensors) * STRIDE % BLOCK  # no two tensors of a call are equal
        if count <= BLOCK:
            return _block()[start : start + count].to(dtype, copy=True)
        return _block()[start : start + BLOCK].to(dtype).repeat(math.ceil(count / BLOCK))[:count]


@cache
def _block() -> torch.Tensor:
    return torch.randn(BLOCK, generator=torch.Generator().manual_seed(42)).repeat(2)


def _tensors(found: Any) -> list[Mapping[str, Any]]:
    """Return the described tensors inside arguments, each once."""
    if isinstance(found, dict):
        return [found] if "shape" in found else [one for value in found.values() for one in _tensors(value)]
    return [one for value in found for one in _tensors(value)] if isinstance(found, list) else []


def _elements(found: Mapping[str, Any]) -> int:
    """Return the elements of the storage that a described tensor reaches into."""
    shape: Sequence[int] = found["shape"]
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(shape, found["stride"], strict=True))


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)
