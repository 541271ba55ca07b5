"""Reasons that weaken a verdict: slow-downs, other work, failed runs, unknown conditions.

The remarks of a verdict, such as steps that are cut, stand beside these lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluate.checks.entries import Entry
from evaluate.fairness.items import ALLOWED, UNKNOWN, Item
from evaluate.fairness.ranking import other_unknown
from evaluate.verdict.sentences import MOST_NAMED, NOT_COMPARABLE, Judged
from evaluate.verdict.steadiness import listed

EVENTS = ("slowing down", "other work")
"""Items on what happened during a run; they weaken a verdict even if both sides show the same."""
CALM = ("no", "none", "not at the end", "no GPU")
"""Their values if nothing happened."""
HELD_BACK = ("power cap", "clocks", "NUMA balancing")
"""Items with a note if both sides were held back alike."""
MOST_REASONS = 3


def weaknesses(judged: Judged) -> list[str]:
    """Return one line for each observation that weakens a verdict; the headline has what is not proven of the work."""
    lines: list[str] = []
    pair = judged.pair
    for name, side in ((pair.b_name, pair.b), (pair.a_name, pair.a)):
        lines += _not_counted(name, side)
    if judged.word == NOT_COMPARABLE or judged.estimate is None:
        return lines
    items = judged.certificate or ()
    lines += _conditions(items, pair.a_name, pair.b_name)
    if unknown := other_unknown(items, judged.unproven):
        lines.append(f"unknown, and may differ: {listed(unknown, MOST_NAMED)}")
    return lines


def _not_counted(name: str, side: Sequence[Entry]) -> Iterator[str]:
    failed = [entry for entry in side if not entry.is_counted]
    if not failed or len(failed) == len(side):
        return  # a side without any valid result is a reason of the verdict
    reasons = list(dict.fromkeys(entry.why_not_counted or str(entry.result["status"]) for entry in failed))
    more = f"; and {len(reasons) - MOST_REASONS} more reasons" if len(reasons) > MOST_REASONS else ""
    verb = "does" if len(failed) == 1 else "do"
    yield f"{name}: {len(failed)} of {len(side)} runs {verb} not count: {'; '.join(reasons[:MOST_REASONS])}{more}"


def _conditions(items: Sequence[Item], a_name: str, b_name: str) -> Iterator[str]:
    for item in items:
        if item.state == UNKNOWN:
            continue
        if item.name in EVENTS and not {item.a, item.b} <= set(CALM):
            yield f"{item.name}: {_of_sides(item, a_name, b_name)}"
        elif item.name in HELD_BACK and item.state == ALLOWED and item.note:
            yield f"{item.note}: {_of_sides(item, a_name, b_name)}"


def _of_sides(item: Item, a_name: str, b_name: str) -> str:
    return f"{item.a}, on both sides" if item.a == item.b else f"{b_name}: {item.b}; {a_name}: {item.a}"
