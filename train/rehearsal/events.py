"""Events of a step: operators with their traffic and floating-point operations, collectives, host reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

OVERWRITING = ("copy_", "zero_", "fill_", "normal_", "uniform_", "_foreach_copy_", "_foreach_zero_")
"""In-place operators that do not read the tensor they write."""
PICKING = ("embedding", "index", "index_select", "gather")
"""Operators that read only the chosen elements of their first tensor."""
SCATTERING = ("index_put_", "index_put", "_index_put_impl_", "index_add_", "scatter_", "scatter_add_")
"""Operators that read and write only the chosen elements of their first tensor, as many as their last one has."""
WITHOUT_WORK = (
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "detach",
    "alias",
    "set_",
    "_unsafe_view",
    "lift_fresh",
    "resize_",
    "record_stream",
    "is_same_size",
)
"""Operators that only reserve memory or give another tensor the same; those that make a view are known to torch."""


@dataclass(frozen=True)
class Operator:
    """One kind of call below autograd: an operator with its shapes; all numbers are those of one call."""

    name: str
    """With its namespace, `aten::mm`; `compiled::NAME` is a region of torch.compile, counted as one operator."""
    shapes: tuple[tuple[int, ...], ...]
    """Of all tensors among the arguments, in order."""
    dtypes: tuple[str, ...]
    phase: str
    """`forward`, `backward` or `optimizer`."""
    kind: str
    """`matmul`, `attention`, `memory_bound`, `optimizer` or `host_copy`."""
    flops: int
    """Floating-point operations of products, 2 m n k each (torch.utils.flop_counter); 0 for all other operators."""
    bytes: int
    """Bytes read and written if each tensor passes once between memory and processor."""


@dataclass(frozen=True)
class Collective:
    """One kind of communication between ranks."""

    name: str
    """`all_reduce`, `send`, ..."""
    bytes: int
    """Size of the larger of input and output on this rank; the bytes on the wire depend on the algorithm."""
    group: str
    """Description of the process group."""
    ranks: int


@dataclass(frozen=True)
class HostRead:
    """One place that reads a number from the device; the host waits there until the device has computed it."""

    where: str
    """File and line of the innermost caller outside torch."""


Event = Operator | Collective | HostRead


def base_name(func: Any) -> str:
    """Return `mm` of the operator `aten::mm.out`."""
    return str(func._schema.name).partition("::")[2]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return all tensors inside arguments or results, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def size_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; an expanded dimension holds the same elements again."""
    elements = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(length if stride or not length else 1 for length, stride in elements) * tensor.element_size()


def sizes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors, each counted once."""
    # a * a reads one tensor once
    return sum(size_of(tensor) for tensor in {id(tensor): tensor for tensor in tensors}.values())


def traffic(func: Any, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> int:
    """Return the bytes that a call reads and writes."""
    name = base_name(func)
    inputs, outputs = tensors_in((args, keywords)), tensors_in(result)
    changed = changed_by(func, args, keywords)
    # an embedding of 128,256 rows would otherwise count as read whole
    if name in PICKING:
        return sizes(inputs[1:]) + 2 * sizes(outputs)
    if name in SCATTERING:
        return sizes(inputs[1:]) + 2 * size_of(inputs[-1])
    if name == "all_gather_copy_in":  # of FSDP2: into its own part of a buffer, which is also an argument
        return 2 * sizes(tensors_in(args[0]))
    is_overwriting = name in OVERWRITING or "out" in _written(func)[1]
    places = Counter(map(id, inputs))  # torch.addmm(a, b, c, out=a) reads what it overwrites
    unread = {id(tensor) for tensor in changed if is_overwriting and places[id(tensor)] == 1}
    return sizes(t for t in inputs if id(t) not in unread) + sizes([*changed, *outputs])


def changed_by(func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among the arguments that the operator writes in place."""
    positions, names = _written(func)
    places = [args[position] for position in positions if position < len(args)]
    return tensors_in([*places, *(keywords[name] for name in names if name in keywords)])


@cache
def _written(func: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    positions, names = [], []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            positions.append(position)
            names.append(argument.name)
    return tuple(positions), tuple(names)


def flops_of(func: Any, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> int:
    """Return the floating-point operations of a call by torch's formulas; 0 for what is no product.

    Of grouped products, for which torch has none: each row meets one of the matrices, 2 m n k in all, in whatever of
    the three dimensions the groups are.
    """
    if base_name(func) == "_grouped_mm":
        return int(2 * args[0].numel() * args[1].shape[-1])
    formula = _formula(func)
    if formula is None:
        return 0
    shaped = [value for value in args if not isinstance(value, torch.dtype)]  # mm.dtype: the formula takes tensors
    known = {name: value for name, value in keywords.items() if not isinstance(value, torch.dtype) and name != "out"}
    return int(formula(*shaped, **known, out_val=result))


@cache
def _formula(func: Any) -> Any:
    """Return torch's formula, for `addmm_` that of `addmm`, for attention on a CPU that of flash, else None."""
    packet, name = func._overloadpacket, base_name(func)
    # torch has formulas for the plain names only
    if packet not in flop_registry and func.namespace == "aten":
        packet = getattr(torch.ops.aten, name.removesuffix("_").replace("_for_cpu", ""), packet)
    return flop_registry.get(packet)
