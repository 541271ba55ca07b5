"""The three sentences of an attribution: factors, arithmetic, losses."""

from __future__ import annotations

from evaluate.floor.losses import duration
from evaluate.floor.parts import Factor, SideWhy
from evaluate.verdict.ratios import times, with_interval, written

MOST_LOSSES = 2
"""Losses of a side in a sentence; compare.json has all."""


def sentences(a: SideWhy, b: SideWhy, ratio: Factor, hardware: Factor, framework: Factor) -> tuple[str, ...]:
    """Return the sentences of an attribution that is not refused."""
    shown = [with_interval(one.value, one.low, one.high) for one in (ratio, hardware, framework)]
    return (
        f"Of {shown[0]}, {shown[1]} is what the hardware's libraries deliver on these operators and {shown[2]} is the "
        "framework.",
        f"{_arithmetic(a)}; {_arithmetic(b)}; so {times(ratio.value)} = {written(hardware.value)[0]} x "
        f"{written(framework.value)[0]}.",
        f"{_losses(a)} {_losses(b)}",
    )


def _arithmetic(side: SideWhy) -> str:
    """Return floor and measured step of a side, with the sources."""
    return (
        f"a step of {side.name} takes {duration(side.step_seconds)} and at least {duration(side.floor_seconds)} "
        f"(+-{side.floor_spread_percent:.1f} %, {side.probe}), {side.step_seconds / side.floor_seconds:.2f} times its "
        "floor"
    )


def _losses(side: SideWhy) -> str:
    """Return the largest losses of a side."""
    if side.measured_by_kind is None:
        return f"{side.name} is {side.losses[0].words}."
    largest = [loss.words for loss in side.losses if loss.seconds > 0][:MOST_LOSSES]
    return f"{side.name} loses most here: {'; '.join(largest)}." if largest else f"{side.name} loses nothing."
