"""The reason why results make no pair: one side only, or two that differ in more than the property that is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import machine_of
from evaluate.metrics.partition import kind_of
from evaluate.verdict.pairs import BY
from utils.results.schema import Result

NOT_NAMED = "unknown"
_SHARED: dict[str, Callable[[Result], str]] = {
    "model": lambda result: str(result["model"]),
    "method": lambda result: str(result["method"]),
    "platform": lambda result: str(result["platform"]),
    "framework": lambda result: str(result["framework"]),
    "device": lambda result: str(kind_of(result).name or NOT_NAMED),
    "machine": machine_of,
}
"""Properties that both sides of a pair may have to share, and the function that reads each from a result."""
_OF = {
    **dict.fromkeys(("platform", "device"), ("model", "method", "framework")),
    "framework": ("model", "method", "platform", "device", "machine"),
    "machine": ("model", "method", "platform", "framework", "device"),
    "nodes": ("model", "method", "platform", "framework", "device"),
    "label": ("model", "method", "platform", "framework"),
}
"""Those that count for each property of a comparison (evaluate/verdict/pairs.py)."""


def reason(entries: Sequence[Entry], by: str) -> str:
    """Return why the entries make no pair by a property, in one clause; empty if there is nothing to say."""
    sides: dict[str, list[Result]] = {}
    for entry in entries:
        sides.setdefault(BY[by](entry.result), []).append(entry.result)
    if len(sides) < 2:
        what = "number of GPUs" if by == "nodes" else by
        return "".join(f"all results have one {what}: {name}" for name in sides)
    (a, left), (b, right) = sorted(sides.items())[:2]
    for name in _OF[by]:
        ours, theirs = ({_SHARED[name](result) for result in side} for side in (left, right))
        if ours.isdisjoint(theirs):
            line = f"{a} and {b} differ in {name} too ({_words(ours)} against {_words(theirs)})"
            is_unnamed = name == "platform" and NOT_NAMED in ours | theirs
            return line + (": extract the log again with --platform" if is_unnamed else "")
    return ""


def _words(values: set[str]) -> str:
    return " or ".join(sorted(values))
