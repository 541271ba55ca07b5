"""Sizes, floating-point operations and precision of operators, from the shapes that torch.profiler records.

A matrix product of (m, k) and (k, n) counts 2*m*n*k. Attention counts its two matrix products, half of them if the
operator is causal; a backward pass has five instead of two, since it computes the scores again (Dao,
FlashAttention-2, arXiv 2307.08691, sections 2.3 and 3.1).

The linear layers of TransformerEngine launch their products themselves, without an operator of torch around each. Their
work is known by this evidence from the trace, and unknown where a part of it is missing:
- The inputs of the forward operator have the sizes of two matrices, tokens (m, k) and weight (n, k).
- The backward operator has only its gradient, (m, n). It belongs to the forward operator of the same name without
  "Backward" and with the same sequence number of autograd. Each thread counts by itself, so a number that two forward
  operators of a name have is no evidence.
- The sizes of both agree. They do not where a layer gathers its tokens for sequence parallelism.
- The device ran one product in the forward operator and two in the backward operator. It runs fewer for a frozen weight
  and more for a product in pieces that overlaps communication.
Inputs may be cast to fp8 inside the layer, so the precision is that in the names of the kernels. A forward operator
without a backward one (first pass of recomputed layers), grouped products and `_LayerNormMLP` are unknown.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.timing.kinds import BACKWARD
from evaluate.timing.trace_file import PAIR

_FIRST_MATRIX = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::_int_mm": 0,
    "aten::_scaled_mm": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
    "aten::_addmm_activation": 1,
}
"""Place of the first matrix among the inputs (torch/_meta_registrations.py, native_functions.yaml)."""
CAUSAL_PLACE = {
    "aten::_flash_attention_forward": 8,
    "aten::_flash_attention_backward": 11,
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_scaled_dot_product_flash_attention_backward": 11,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "aten::_scaled_dot_product_efficient_attention_backward": 11,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14,
}
"""Place of `is_causal` among the inputs (native_functions.yaml of torch 2.4 to 2.13)."""
_PRECISIONS = {"c10::BFloat16": "bf16", "float": "fp32"}
_BF16 = re.compile(r"nvjet_(sm\d+_)?ts|gemm_bf16bf16_|Cijk_A[a-z]+_B[a-z]+_B[BS]S_")
"""Products of two matrices in bf16 in the names of cuBLAS (nvjet, XMMA) and hipBLASLt."""
_TOKENS_BEFORE_HEADS = ("aten::_flash_attention_forward", "aten::_flash_attention_backward")
"""Operators whose tensors are (batch, tokens, heads, width); those of the others are (batch, heads, tokens, width)."""


@dataclass(frozen=True)
class Work:
    """Computation of one call of an operator."""

    family: str
    """Name that operators with the same computation share."""
    sizes: str
    """Sizes as text, equal for equal computation."""
    flops: float | None
    """Floating-point operations of one call; None if they cannot be told from the shapes."""
    precision: str | None
    """`bf16`, `fp8` or `fp32` of the inputs; None for any other."""


def work_of(name: str, shapes: Sequence[str], kernels: Mapping[str, float]) -> Work:
    """Return what one call of the operator `name` computes.

    `shapes` is an entry of `Trace.shapes`, and `kernels` has the products that a call launches, by name.
    """
    dims, types, concrete = map(_parsed, shapes)
    try:
        if PAIR in shapes:
            return _linear(name, dims, types, kernels)
        if name in _FIRST_MATRIX:
            return _product(dims, types, _FIRST_MATRIX[name])
        if name in CAUSAL_PLACE:
            return _attention(name, dims, types, concrete)
    except (LookupError, TypeError, ValueError):
        # shapes of another form than this operator's: it is then known by its name alone
        pass
    sizes = " ".join(str(size).replace("[", "(").replace("]", ")") for size in dims if size != [])
    return Work(name, sizes, None, None)


def _product(dims: Sequence[Any], types: Sequence[Any], place: int) -> Work:
    *batch, m, k = dims[place]
    *same_batch, inner, n = dims[place + 1]
    if (same_batch, inner) != (batch, k) or len(batch) > 1:
        raise ValueError
    sizes = f"({m}, {k}) x ({k}, {n})"
    if batch:
        sizes = f"{batch[0]} of {sizes}"
    return Work("matrix product", sizes, 2.0 * math.prod(batch) * m * n * k, _precision(types, place))


def _linear(name: str, forward: Sequence[Any], backward: Sequence[Any], kernels: Mapping[str, float]) -> Work:
    """Return the work of a linear layer of TransformerEngine; raise ValueError if the evidence is not enough."""
    # input and weight
    first, second = (size for size in forward if len(size) > 1)
    *tokens, n = backward[0]
    m, k = math.prod(tokens), first[-1]
    products, sizes = 1, f"({m}, {k}) x ({k}, {n})"
    if name.endswith(BACKWARD):
        products, sizes = 2, f"both gradients of {sizes}"
    if second[-1] != k or {math.prod(first), math.prod(second)} != {m * k, n * k}:
        raise ValueError
    # calls a step are quotients of counts
    if round(sum(kernels.values()), 6) != products:
        raise ValueError
    precision = "bf16" if all(map(_BF16.search, kernels)) else None
    return Work("matrix product", sizes, 2.0 * products * m * n * k, precision)


def _attention(name: str, dims: Sequence[Any], types: Sequence[Any], concrete: Sequence[Any]) -> Work:
    is_backward = name.endswith("_backward")
    place = 1 if is_backward else 0
    (batch, heads, queries, width), (_, _, keys, _), _ = dims[place : place + 3]
    if name in _TOKENS_BEFORE_HEADS:
        (_, queries, heads, _), (_, keys, _, _) = dims[place : place + 2]
    flops = 2.0 * (5 if is_backward else 2) * batch * heads * queries * keys * width
    sizes = f"{batch} x {heads} heads, {queries} x {keys} tokens, width {width}"
    family = "attention backward" if is_backward else "attention forward"
    causal = concrete[CAUSAL_PLACE[name]] if len(concrete) > CAUSAL_PLACE[name] else ""
    precision = _precision(types, place)
    if causal == "True":
        return Work(family, f"{sizes}, causal", 0.5 * flops, precision)
    # without the argument nobody knows whether half was computed
    return Work(family, sizes, flops if causal == "False" else None, precision)


def _precision(types: Sequence[Any], place: int) -> str | None:
    if place >= len(types):
        return None
    dtype = str(types[place])
    return "fp8" if "Float8" in dtype else _PRECISIONS.get(dtype)


def _parsed(text: str) -> list[Any]:
    """Return the list whose text was kept; an empty one for anything else."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return found if isinstance(found, list) else []
