"""Division of a pair's ratio into a factor of the hardware and a factor of the framework.

With equal tokens a step and equally many GPUs (otherwise per token, and per GPU where the verdict is per GPU):

    ratio     = step_a / step_b                               that of the verdict, with its interval
    hardware  = floor_a / floor_b                             what libraries and hardware deliver on these operators
    framework = (step_a / floor_a) / (step_b / floor_b) = ratio / hardware

Intervals (95 %), as half widths h of the logarithm:

    h(hardware)  = sqrt(s_a^2 + s_b^2)                        s: spread of the floor of each side
    h(framework) = sqrt(h(ratio)^2 + s_a^2 + s_b^2)

They assume that the errors of both probes and of the runs are independent of one another. What both probes have in
common, such as a systematic error of their method, cancels in the ratio of the floors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from evaluate.floor import words
from evaluate.floor.floors import Floor
from evaluate.floor.parts import Factor, PairWhy
from evaluate.floor.sides import Evidence, RefusedError, Side, side_of
from evaluate.verdict.inference import Estimate
from evaluate.verdict.pairs import Pair
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged

SAME_WORK_PERCENT = 1.0
"""Largest difference of the floating-point operations of a token between two sides with the same work."""

WIDEST = 50.0
"""Largest half width of a logarithm; such a factor is unknown."""


def why_of_pairs(judged: Sequence[Judged], evidence: Evidence) -> tuple[PairWhy | None, ...]:
    """Return the attribution of each pair; None for one without a probe by operator on either side."""
    return tuple(why_of_pair(one, evidence) if _has_probe(one.pair, evidence) else None for one in judged)


def why_of_pair(judged: Judged, evidence: Evidence) -> PairWhy:
    """Return the attribution of a pair, or the first reason why its ratio is not attributed."""
    found = judged.estimate
    if judged.word == NOT_COMPARABLE or found is None:
        return _refused(f"the pair is not comparable: {judged.reasons[0] if judged.reasons else 'reason unknown'}")
    sides: list[Side | None] = []
    reasons = []
    for place in (0, 1):
        try:
            sides.append(side_of(judged, place, evidence))
        except RefusedError as error:
            sides.append(None)
            reasons.append(str(error))
    a, b = sides
    if a is None or b is None:
        return _refused(reasons[0], a, b)
    if other := _other_work(a, b):
        return _refused(other, a, b)
    ratio = Factor(found.ratio, found.low, found.high)
    seconds = [_per_token(side, judged.pair) for side in (a, b)]
    hardware, framework = factors(found, a.floor, b.floor, *seconds)
    return PairWhy(
        a.why, b.why, "", ratio, hardware, framework, words.sentences(a.why, b.why, ratio, hardware, framework)
    )


def factors(found: Estimate, a: Floor, b: Floor, seconds_a: float, seconds_b: float) -> tuple[Factor, Factor]:
    """Return hardware and framework; `seconds_a` and `seconds_b` are the floors of equal work.

    The framework has no interval where the ratio has none. A half width of s percent of a floor is one of s / 100 in
    its logarithm.
    """
    value = seconds_a / seconds_b
    of_floors = min(math.hypot(a.spread_percent, b.spread_percent) / 100, WIDEST)
    hardware = Factor(value, value * math.exp(-of_floors), value * math.exp(of_floors))
    rest = found.ratio / value
    if found.low is None or found.high is None:
        return hardware, Factor(rest, None, None)
    both = math.hypot(math.log(found.high / found.low) / 2, of_floors)
    return hardware, Factor(rest, rest * math.exp(-both), rest * math.exp(both))


def _per_token(side: Side, pair: Pair) -> float:
    """Return the floor of a token: on one GPU, as the ratio of the verdict, or of a whole job."""
    return side.floor.seconds * (1 if pair.is_of_jobs else side.gpus) / side.tokens


def _other_work(a: Side, b: Side) -> str:
    """Return in what the work of both sides differs; empty if the floating-point operations of a token are equal."""
    flops = [side.floor.flops * side.gpus / side.tokens for side in (a, b)]
    if abs(flops[0] - flops[1]) * 100 <= SAME_WORK_PERCENT * max(flops):
        return ""
    shown = [f"{side.why.name} {one / 1e9:.4g}" for side, one in zip((a, b), flops, strict=True)]
    return f"the sides do different work: matrix products of a token in GFLOP: {' and '.join(shown)}"


def _has_probe(pair: Pair, evidence: Evidence) -> bool:
    return any(evidence.probes_of(entry.result) for entry in (*pair.a, *pair.b))


def _refused(reason: str, a: Side | None = None, b: Side | None = None) -> PairWhy:
    sentence = f"How much of the ratio is hardware is unknown: {reason}."
    sides = [None if side is None else side.why for side in (a, b)]
    return PairWhy(sides[0], sides[1], reason, None, None, None, (sentence,))
