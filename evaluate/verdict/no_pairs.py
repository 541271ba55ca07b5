"""The reason why results make no pair: one side only, or two that differ in more than the property that is compared."""

from __future__ import annotations

from collections.abc import Sequence

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import grouped
from evaluate.verdict.pairs import BY, PROPERTIES, SHARED


def reason(entries: Sequence[Entry], by: str) -> str:
    """Return why the entries make no pair by a property, in one clause; empty if there is nothing to say."""
    sides = grouped((entry.result for entry in entries), BY[by])
    if len(sides) < 2:
        what = "number of GPUs" if by == "nodes" else by
        return "".join(f"all results have one {what}: {name}" for name in sides)
    (a, left), (b, right) = sorted(sides.items())[:2]
    for name in ("model", "method", *(SHARED[by] or ("framework",))):
        ours, theirs = ({PROPERTIES[name](result) for result in side} for side in (left, right))
        if ours.isdisjoint(theirs):
            shown = f"{' or '.join(sorted(ours))} against {' or '.join(sorted(theirs))}"
            line = f"{a} and {b} differ in {name} too ({shown})"
            is_unnamed = name == "platform" and "unknown" in ours | theirs
            return line + (": extract the log again with --platform" if is_unnamed else "")
    return ""
