"""The tables of a breakdown: kernels by name, and operators by name and shape, with their rates."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from evaluate.timing.kinds import COMMUNICATION, COMPUTE, KINDS, OVERLAPPED, PHASES
from evaluate.timing.trace_file import NONE, Columns, Floats, Integers, Trace, Windows, at, covered

TERA = 1e12
_SHORTEST = 1e-9
"""Seconds; a shorter exposure is rounding."""


@dataclass(frozen=True)
class Row:
    """A kernel, or an operator of the host, in one step: calls and seconds are means over the steps."""

    name: str
    kind: str
    count: float
    seconds: float


@dataclass(frozen=True)
class GroupRow:
    """The collectives of one process group in one step: calls and seconds are means over the steps."""

    group: str
    """Its description, else its name, as torch.distributed has it."""
    ranks: int | None
    count: float
    seconds: float
    exposed_seconds: float
    """Seconds in which nothing computes."""


@dataclass(frozen=True)
class OperatorRow(Row):
    """All calls of an operator with the same shapes; on a GPU its time is that of the kernels that it launched."""

    work: Work
    kernel: str
    """Its longest kernel; empty for an operator of the host."""
    phase: str | None
    """One of PHASES; None where the trace does not have the launch."""

    @property
    def tflops(self) -> float | None:
        """Rate in TFLOP/s; None if the operations are not known."""
        if self.work.flops is None or self.seconds <= 0:
            return None
        return self.work.flops * self.count / self.seconds / TERA


def select(work: Columns, chosen: Any) -> tuple[Floats, Floats]:
    """Return start and end of the chosen pieces."""
    return work.start[chosen], work.end[chosen]


def kernels(trace: Trace, windows: Windows, work: Columns, steps: int) -> tuple[Row, ...]:
    """Return the kernels, or the operators of the host, by name and kind, the longest first."""
    of = _inside(windows, work).of
    computing = _computing(work)
    rows = []
    for (name, kind), count, seconds in _summed([of["name"], of["kind"]], of["call"], of["seconds"], steps):
        word = KINDS[kind]
        if word == COMMUNICATION:
            mine = select(work, (work.of["name"] == name) & (work.of["kind"] == kind))
            word = OVERLAPPED if _exposed(windows, mine, computing) <= _SHORTEST else word
        rows.append(Row(trace.names[name], word, count, seconds))
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.name)))


def groups(trace: Trace, windows: Windows, work: Columns, steps: int) -> tuple[GroupRow, ...]:
    """Return the process groups that the trace names, the one with the longest collectives first."""
    computing = _computing(work)
    rows = []
    for place, (name, ranks) in enumerate(trace.groups):
        mine = select(work, work.of["group"] == place)
        inside = windows.inside(*mine)
        seconds, exposed = float(inside.sum()), _exposed(windows, mine, computing)
        rows.append(GroupRow(name, ranks, float((inside > 0).sum()) / steps, seconds / steps, exposed / steps))
    return tuple(sorted((row for row in rows if row.count), key=lambda row: (-row.seconds, row.group)))


def operators(
    trace: Trace, windows: Windows, work: Columns, steps: int, *, is_of_host: bool
) -> tuple[OperatorRow, ...]:
    """Return the operators by name, kind, shapes and phase, the longest first; a kernel without one stands alone."""
    of = _inside(windows, work).of
    is_known = of["operator"] != NONE
    name = np.where(is_known, at(trace.operators.of["name"], of["operator"]), of["name"])
    shapes = at(trace.operators.of["shapes"], of["operator"])
    keys = [name, of["kind"], shapes, of["phase"]]
    longest = {} if is_of_host else _longest(trace, keys, of["name"], of["seconds"])
    rows = []
    for key, count, seconds in _summed(keys, np.where(is_known, of["operator"], -2 - of["call"]), of["seconds"], steps):
        number, kind, shape, phase = key
        work_done = work_of(trace.names[number], None if shape == NONE else trace.shapes[shape])
        part = None if phase == NONE else PHASES[phase]
        rows.append(
            OperatorRow(trace.names[number], KINDS[kind], count, seconds, work_done, longest.get(key, ""), part)
        )
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.name)))


def _inside(windows: Windows, work: Columns) -> Columns:
    """Return the pieces with time inside the windows, and that time as their `seconds`."""
    seconds: Any = windows.inside(work.start, work.end)
    return Columns(work.start, work.end, work.of | {"seconds": seconds}).where(seconds > 0)


def _computing(work: Columns) -> tuple[Floats, Floats]:
    return select(work, np.isin(work.of["kind"], [KINDS.index(kind) for kind in COMPUTE]))


def _summed(
    keys: list[Integers], call: Integers, seconds: Any, steps: int
) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """Yield the different keys, each with its calls and its seconds in one step."""
    groups, inverse = np.unique(np.column_stack(keys), axis=0, return_inverse=True)
    inverse = inverse.ravel()
    one_each = np.unique(np.column_stack([inverse, call]), axis=0)[:, 0]
    figures = np.bincount(one_each, minlength=len(groups)), np.bincount(inverse, seconds, len(groups))
    return zip(map(tuple, groups.tolist()), *((one / steps).tolist() for one in figures), strict=True)


def _longest(trace: Trace, keys: list[Integers], kernel: Integers, seconds: Any) -> dict[tuple[int, ...], str]:
    """Return for each key the name of the kernel with most of its seconds."""
    found = sorted(_summed([*keys, kernel], kernel, seconds, 1), key=itemgetter(2))
    return {key[:-1]: trace.names[key[-1]] for key, _, _ in found}  # the longest comes last and stays


def _exposed(windows: Windows, spans: tuple[Floats, Floats], computing: tuple[Floats, Floats]) -> float:
    """Return the seconds of the spans in which nothing computes."""
    start, end = (np.concatenate([a, b]) for a, b in zip(spans, computing, strict=True))
    return covered(windows, start, end) - covered(windows, *computing)


# Sizes, floating-point operations and precision of operators, from the shapes that torch.profiler records.
#
# A matrix product of (m, k) and (k, n) counts 2*m*n*k. Attention counts its two matrix products, half of them if the
# operator is causal; a backward pass has five instead of two, since it computes the scores again (Dao,
# FlashAttention-2, arXiv 2307.08691, sections 2.3 and 3.1).

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


def work_of(name: str, shapes: Sequence[Any] | None) -> Work:
    """Return what one call of the operator `name` computes; `shapes` is an entry of `Trace.shapes`, or None."""
    dims = _parsed(shapes[0]) if shapes else []
    types = _parsed(shapes[1]) if shapes else []
    try:
        if name in _FIRST_MATRIX:
            return _product(dims, types, _FIRST_MATRIX[name])
        if name in CAUSAL_PLACE:
            return _attention(name, dims, types, _parsed(shapes[2]) if shapes else [])
    except (LookupError, TypeError, ValueError):
        pass  # shapes of another form than this operator's: it is then known by its name alone
    sizes = " ".join(str(one).replace("[", "(").replace("]", ")") for one in dims if one != [])
    return Work(name, sizes, None, None)


def _product(dims: Sequence[Any], types: Sequence[Any], place: int) -> Work:
    left, right = dims[place], dims[place + 1]
    *batch, m, k = left
    n = right[-1]
    if len(left) != len(right) or len(batch) > 1 or right[-2] != k:
        raise ValueError
    sizes = " x ".join([*(f"{size} of" for size in batch), f"({m}, {k})", f"({k}, {n})"]).replace("of x", "of")
    return Work("matrix product", sizes, 2.0 * math.prod(batch) * m * n * k, _precision(types, place))


def _attention(name: str, dims: Sequence[Any], types: Sequence[Any], concrete: Sequence[Any]) -> Work:
    is_backward = name.endswith("_backward")
    place = 1 if is_backward else 0
    (batch, heads, queries, width), (_, _, keys, _), _ = dims[place : place + 3]
    if name in _TOKENS_BEFORE_HEADS:
        (_, queries, heads, _), (_, keys, _, _) = dims[place : place + 2]
    flops = 2.0 * (5 if is_backward else 2) * batch * heads * queries * keys * width
    causal = concrete[CAUSAL_PLACE[name]] if len(concrete) > CAUSAL_PLACE[name] else ""
    share = {"True": 0.5, "False": 1.0}.get(causal)
    sizes = f"{batch} x {heads} heads, {queries} x {keys} tokens, width {width}{', causal' if share == 0.5 else ''}"
    family = f"attention {'backward' if is_backward else 'forward'}"
    return Work(family, sizes, None if share is None else share * flops, _precision(types, place))


def _precision(types: Sequence[Any], place: int) -> str | None:
    found = str(types[place]) if place < len(types) else ""
    return "fp8" if "Float8" in found else _PRECISIONS.get(found)


def _parsed(text: str) -> list[Any]:
    """Return the list whose text was kept; an empty one for anything else."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return found if isinstance(found, list) else []
