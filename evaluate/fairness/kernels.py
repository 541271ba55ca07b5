"""Certificate items on kernels: between platforms the name of a kernel is the vendor's means, its kind is not.

`attention_backend` has the implementation before the colon and the kernel after it, such as `torch_sdpa:cudnn`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, SAME, UNKNOWN, Item
from utils.results.schema import Result

COMPOSED = ("math", "unfused", "eager", "dot_product")
"""Attention of several kernels, which writes all scores to memory."""
LOW_PRECISION = ("fp8", "float8", "fp4", "int8", "sage")
"""Words in the name of an attention that computes in less than 16 bits."""
TORCH = ("torch_sdpa", "torch_varlen")
"""Implementations of PyTorch: the second is its flash attention with a window."""
PRODUCT = "gradient_accumulation_fusion"
"""Key of `fused_ops` that depends on whether the vendor's matrix product adds to a float32 sum."""
EACH_OWN = "each vendor's own kernel"


def attention(a: Sequence[Result], b: Sequence[Result], state_if_other_kind: str) -> Item:
    """Return the item on attention: composed attention or lower precision of one side blocks."""
    names = [_names(side, "attention_backend") for side in (a, b)]
    left, right = (" or ".join(side) for side in names)
    if any(NOT_KNOWN in side for side in names):
        return Item("attention", UNKNOWN, left, right)
    if names[0] == names[1] and len(names[0]) == 1:
        return Item("attention", SAME, left, right)
    kinds = [{_kind(name) for name in side} for side in names]
    has_gpus = all(one["platform"] != "cpu" for one in (*a, *b))
    for place, words in enumerate(("is composed of several kernels", "computes in lower precision")):
        if has_gpus and {kind[place] for kind in kinds[0]} != {kind[place] for kind in kinds[1]}:
            return Item("attention", BLOCKING, left, right, f"attention of one side {words}")
    is_other_kind = len(kinds[0] | kinds[1]) > 1
    if is_other_kind or not _are_two_platforms(a, b):
        return Item("attention", state_if_other_kind, left, right)
    return Item("attention", ALLOWED, left, right, EACH_OWN)


def library(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield the item on the libraries of the attention kernels, if one is known."""
    sides = [_names(side, "attention_library") for side in (a, b)]
    if sides != [[NOT_KNOWN], [NOT_KNOWN]]:
        left, right = (" or ".join(side) for side in sides)
        yield Item("attention library", SAME if sides[0] == sides[1] else ALLOWED, left, right)


def fused_ops(a: Sequence[Result], b: Sequence[Result]) -> tuple[list[object], list[object]]:
    """Return the fused operations of the runs of both sides; between platforms without the choice of a product."""
    left_out = {PRODUCT} if _are_two_platforms(a, b) else set()
    left, right = (
        [
            {key: on for key, on in found.items() if key not in left_out} if isinstance(found, dict) else found
            for found in (one["resolved_config"].get("fused_ops") for one in side)
        ]
        for side in (a, b)
    )
    return left, right


def product(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield an item if the products of two platforms differ in whether they add to the sum of the gradients."""
    sides = [{(one["resolved_config"].get("fused_ops") or {}).get(PRODUCT) for one in side} for side in (a, b)]
    if _are_two_platforms(a, b) and sides[0] != sides[1]:
        words = {True: "added in the product", False: "added by a kernel of its own", None: "unknown"}
        left, right = (" or ".join(sorted(words.get(value, str(value)) for value in side)) for side in sides)
        yield Item("sum of weight gradients", ALLOWED, left, right, EACH_OWN)


def _names(side: Sequence[Result], key: str) -> list[str]:
    return sorted({str(one["resolved_config"].get(key) or NOT_KNOWN) for one in side})


def _are_two_platforms(a: Sequence[Result], b: Sequence[Result]) -> bool:
    return {one["platform"] for one in a} != {one["platform"] for one in b}


def _kind(name: str) -> tuple[bool, bool, str]:
    """Return whether an attention is composed, whether it computes in lower precision, and its implementation."""
    implementation, _, kernel = name.lower().partition(":")
    is_low = any(word in name.lower() for word in LOW_PRECISION)
    return (
        kernel in COMPOSED or implementation in COMPOSED,
        is_low,
        TORCH[0] if implementation in TORCH else implementation,
    )
