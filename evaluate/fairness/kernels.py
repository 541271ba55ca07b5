"""Certificate items on kernels: between platforms the name of a kernel is the vendor's means, its kind is not.

`attention_backend` has the implementation before the colon and the kernel after it, such as `torch_sdpa:cudnn`.
"""

from __future__ import annotations

from collections.abc import Iterator

from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, Item, Sides, Values, compared, values

COMPOSED = ("math", "unfused", "eager", "dot_product")
"""Attention of several kernels, which writes all scores to memory."""
LOW_PRECISION = ("fp8", "float8", "fp4", "int8", "sage")
"""Words in the name of an attention that computes in less than 16 bits."""
TORCH = ("torch_sdpa", "torch_varlen")
"""Implementations of PyTorch: the second is its flash attention with a window."""
PRODUCT = "gradient_accumulation_fusion"
"""Key of `fused_ops` that depends on whether the vendor's matrix product adds to a float32 sum."""
NOT_HF = "not hf"
EACH_OWN = "each vendor's own kernel"


def attention(sides: Sides, if_other_kind: str) -> Item:
    """Return the item on attention: composed attention or lower precision of one side blocks."""
    names = [
        [str(name) if name else None for name in side] for side in values(sides, "resolved_config", "attention_backend")
    ]
    kinds = [{_kind(name or NOT_KNOWN) for name in side} for side in names]
    has_gpus = all(one["platform"] != "cpu" for side in sides for one in side)
    for place, words in enumerate(("is composed of several kernels", "computes in lower precision")):
        if has_gpus and {kind[place] for kind in kinds[0]} != {kind[place] for kind in kinds[1]}:
            return compared("attention", names, BLOCKING, f"attention of one side {words}")
    if len(kinds[0] | kinds[1]) > 1 or not _are_two_platforms(sides):
        return compared("attention", names, if_other_kind)
    return compared("attention", names, ALLOWED, EACH_OWN)


def fused_ops(sides: Sides) -> Values:
    """Return the fused operations of the runs of both sides; between platforms without the choice of a product."""
    found = values(sides, "resolved_config", "fused_ops")
    if not _are_two_platforms(sides):
        return found
    return [
        [{key: on for key, on in ops.items() if key != PRODUCT} if isinstance(ops, dict) else ops for ops in side]
        for side in found
    ]


def product(sides: Sides) -> Iterator[Item]:
    """Yield an item if the products of two platforms differ in whether they add to the sum of the gradients."""
    words = {True: "added in the product", False: "added by a kernel of its own", None: "unknown"}
    found = [{(ops or {}).get(PRODUCT) for ops in side} for side in values(sides, "resolved_config", "fused_ops")]
    if _are_two_platforms(sides) and found[0] != found[1]:
        a, b = (" or ".join(sorted(words.get(value, str(value)) for value in side)) for side in found)
        yield Item("sum of weight gradients", ALLOWED, a, b, EACH_OWN)


def of_hf(sides: Sides, if_different: str) -> Iterator[Item]:
    """Yield the item on the functions of hf's models, `stock` or `liger`, if a run has read them back.

    A run of hf that has not is older than HF_KERNELS: the functions of its model are unknown.
    """
    found = [
        [one["resolved_config"].get("hf_kernels", None if one["framework"] == "hf" else NOT_HF) for one in side]
        for side in sides
    ]
    if {*found[0], *found[1]} - {None, NOT_HF}:
        note = "one side trains on transformers' own functions, the other on those of liger-kernel"
        yield compared("kernels of hf", found, if_different, note if NOT_HF not in found[0] + found[1] else "")


def _are_two_platforms(sides: Sides) -> bool:
    return {one["platform"] for one in sides[0]} != {one["platform"] for one in sides[1]}


def _kind(name: str) -> tuple[bool, bool, str]:
    """Return whether an attention is composed, whether it computes in lower precision, and its implementation."""
    implementation, _, kernel = name.lower().partition(":")
    is_composed = kernel in COMPOSED or implementation in COMPOSED
    is_low = any(word in name.lower() for word in LOW_PRECISION)
    return is_composed, is_low, TORCH[0] if implementation in TORCH else implementation
