"""One recorded call as functions that can be timed: the operator itself, and other ways to the same result.

- A product of two matrices also runs as `torch.matmul` of two row-major matrices, and as `F.linear` with the weight
  [n, k] as a layer keeps it. Both are the same work in the two layouts that users meet.
- Attention also runs through `F.scaled_dot_product_attention` with each backend that the device has, its backward pass
  through autograd.

What cannot be repeated is replaced by a copy of as many bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from train.probing.inputs import Inputs, UnrepeatableError, make

REPLAYED, BANDWIDTH = "replayed", "bandwidth"
PRODUCT = "aten::mm.default"
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ITSELF, COPY = "operator", "copy"
"""Names of the variants that are the recorded operator, and a copy in its place."""
MOST_SCORES_BYTES = 2**32
"""Size of the scores of attention, in float32, above which the backend that keeps them all is not tried."""
MOST_WRITING_CALLS = 4
"""Calls in a row of an operator that writes its argument, before the argument gets its first values back."""
MOST_CALLS = 50


@dataclass
class Variant:
    """A function to time, and the context that it needs, which is entered before."""

    name: str
    run: Callable[[], Any]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass
class Replay:
    """A call that is ready to be timed."""

    variants: list[Variant]
    method: str
    reason: str = ""
    restore: Callable[[], None] = lambda: None
    most_calls: int = MOST_CALLS
    """Most calls in a row between two calls of `restore`."""
    share: float = 1.0
    """Part of the bytes that a copy moves, where memory does not allow all."""


def of_call(call: Mapping[str, Any] | None, kind: str, device: torch.device) -> Replay:
    """Return a described call (train/rehearsal/calls.py) as a replay, each variant having run once.

    Raises UnrepeatableError with the reason for a call that cannot be repeated here.
    """
    if call is None:
        raise UnrepeatableError("no operator of torch: a region of torch.compile, or arguments of an unknown form")
    try:
        inputs = make(call, device)
        variants = [Variant(ITSELF, partial(inputs.operator, *inputs.args, **inputs.keywords))]
        failure = _failure(variants[0])
        others = _products(inputs) if call["operator"] == PRODUCT else []
        others += _backends(inputs) if kind == "attention" else []
    except (RuntimeError, TypeError, ValueError, LookupError) as error:  # the device or this torch lacks something
        raise error if isinstance(error, UnrepeatableError) else UnrepeatableError(first_line(error)) from error
    found = [one for one in others if not _failure(one)] + ([] if failure else variants)
    if not found:
        raise UnrepeatableError(failure)
    inputs.restore()
    most = MOST_WRITING_CALLS if inputs.writes else MOST_CALLS
    return Replay(found, REPLAYED, restore=inputs.restore, most_calls=most)


def as_copy(size: float, largest: float, reason: str, device: torch.device) -> Replay:
    """Return a copy that reads and writes `size` bytes together, of at most `largest`, for a call that is not run."""
    moved = min(max(size, 8.0), max(largest, 8.0))
    source = torch.full((int(moved // 8),), 1.5, device=device)
    target = torch.empty_like(source)
    return Replay([Variant(COPY, lambda: target.copy_(source))], BANDWIDTH, reason, share=moved / max(size, 8.0))


def _failure(variant: Variant) -> str:
    """Run a variant once; return why it failed, or nothing."""
    try:
        with warnings.catch_warnings(), variant.context():
            warnings.simplefilter("ignore")  # torch explains at length why a backend does not take the arguments
            variant.run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        return first_line(error)
    return ""


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _products(inputs: Inputs) -> list[Variant]:
    left, right = inputs.args[0].contiguous(), inputs.args[1].contiguous()
    weight = inputs.args[1].t().contiguous()
    return [
        Variant("matmul", lambda: torch.matmul(left, right)),
        Variant("linear", lambda: F.linear(left, weight)),
    ]


def _backends(inputs: Inputs) -> list[Variant]:
    """Return attention with each backend; those that do not take these arguments fail when they run."""
    named = inputs.named
    if "_scaled_dot_product_" not in inputs.operator._schema.name:
        return []  # other operators have the dimensions in another order
    gradient = named.get("grad_out", named.get("grad_out_"))
    query, key, value = (named[name].detach() for name in ("query", "key", "value"))
    mask = next((named[name] for name in ("attn_mask", "attn_bias") if named.get(name) is not None), None)
    keywords = {
        "attn_mask": mask,
        "is_causal": bool(named.get("is_causal", False)) and mask is None,
        "scale": named.get("scale"),
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    found = []
    scores = 4 * query.shape[0] * query.shape[1] * query.shape[-2] * key.shape[-2]
    for name, backend in BACKENDS.items():
        if name == "math" and scores > MOST_SCORES_BYTES:
            continue
        if gradient is None:
            attention = partial(F.scaled_dot_product_attention, query, key, value, **keywords)
            found.append(Variant(name, attention, partial(sdpa_kernel, backend)))
        else:
            found.append(Variant(name, _Backward(query, key, value, gradient, keywords, backend), torch.enable_grad))
    return found


class _Backward:
    """The backward pass of attention through autograd, over a forward pass that runs once."""

    def __init__(
        self, query: Any, key: Any, value: Any, gradient: Any, keywords: Mapping[str, Any], backend: SDPBackend
    ) -> None:
        self._inputs = [one.clone().requires_grad_() for one in (query, key, value)]
        self._gradient, self._keywords, self._backend = gradient, keywords, backend
        self._result: torch.Tensor | None = None

    def __call__(self) -> Any:
        if self._result is None:
            with sdpa_kernel(self._backend):
                self._result = F.scaled_dot_product_attention(*self._inputs, **self._keywords)
        return torch.autograd.grad(self._result, self._inputs, self._gradient, retain_graph=True)
