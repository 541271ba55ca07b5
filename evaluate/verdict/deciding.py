"""The step from the runs of a pair to its word: the estimate, the verdict on it, and what would decide it otherwise.

The word stands only if each run has a steady state (evaluate/verdict/order.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import job_of, machine_of, machines
from evaluate.fairness.certificate import RUNS
from evaluate.fairness.items import ALLOWED, NOT_KNOWN, SAME, UNKNOWN, Item
from evaluate.metrics.steady import tokens_per_second, tokens_per_second_per_gpu
from evaluate.verdict import inference, order
from evaluate.verdict.more_runs import wall_seconds, would_decide
from evaluate.verdict.pairs import Pair
from evaluate.verdict.ratios import with_interval
from evaluate.verdict.sentences import Judged
from utils.results.schema import Result

AUTO = "auto"
"""Value of `repeats.runs` in a result whose number of runs followed from their spread."""


def estimate(pair: Pair, *, at_the_end: bool = False) -> inference.Estimate:
    """Return the ratio of a comparable pair, of which every run has steady steps; `at_the_end` takes each drifting run
    at the level on which its steps end."""
    return inference.estimate(*runs_of(pair, at_the_end=at_the_end), selection_of(pair))


def selection_of(pair: Pair) -> float:
    """Return the number of choices by speed behind a pair: layouts tried on each side, runs of RUNS=auto, and runs that
    were added to others."""
    plans = [_plan(side) for side in (pair.a, pair.b)]
    is_auto, is_added = any(AUTO in plan.runs for plan in plans), any(plan.is_added for plan in plans)
    of_runs = inference.ADDED_SELECTION if is_added else inference.AUTO_SELECTION if is_auto else 1.0
    return math.prod(pair.layouts) * of_runs


def planned(pair: Pair) -> Item:
    """Return the certificate item on the number of runs: all that were asked for are there, and no others."""
    plans = [_plan(side) for side in (pair.a, pair.b)]
    a, b = (NOT_KNOWN if NOT_KNOWN in plan.runs else f"{plan.present} of {plan.wanted}" for plan in plans)
    again = max(plan.attempts for plan in plans)
    states = (
        (
            any(plan.present < plan.wanted or NOT_KNOWN in plan.runs for plan in plans),
            UNKNOWN,
            "runs are missing, or their number was not fixed beforehand",
        ),
        (again, UNKNOWN, f"most runs of a side were started again, up to {again} times"),
        (any(plan.is_added for plan in plans), ALLOWED, "runs were added to others, and count at a smaller level"),
        (a != b, ALLOWED, ""),
        (True, SAME, ""),
    )
    return next(Item(RUNS, state, a, b, note) for applies, state, note in states if applies)


class _Plan(NamedTuple):
    """The setting RUNS of the runs of a side, and what there is of them."""

    runs: frozenset[str]
    present: int
    wanted: int
    is_added: bool
    attempts: int
    """Largest attempt, if most runs needed more than one; else 0."""


def _plan(side: Sequence[Entry]) -> _Plan:
    results = [entry.result for entry in side]
    runs = frozenset(str((one.get("repeats") or {}).get("runs") or NOT_KNOWN) for one in results)
    present = len({(job_of(one), one["run"]) for one in results})
    places = {job_of(one) for one in results if machines(one)}
    fixed = [int(number) for number in runs if number.isdecimal()]
    wanted = max(fixed) * max(1, len(places)) if fixed else max(one["run"] for one in results)
    attempts = [one["attempt"] for one in results]
    is_again = sum(number > 1 for number in attempts) > len(attempts) / 2
    is_added = len(runs) > 1 or bool(fixed and len(results) > wanted)
    return _Plan(runs, present, wanted, is_added, max(attempts) if is_again else 0)


def decided(judged: Judged, found: inference.Estimate, p_value: float | None, comparisons: int) -> Judged:
    """Return a pair with the verdict that its estimate `found` and its adjusted p-value allow."""
    pair = judged.pair
    word, reason = inference.decide(found, p_value, judged.band)
    factor = p_value / found.p_value if p_value and found.p_value and p_value < 1 else float(comparisons)
    names, clause = (pair.a_name, pair.b_name), None
    reasons = [f"no interval: {names[place]}: {why}" for place, why in found.sides_without_spread] or [reason]
    if why := _why_not_steady(judged, word, factor):
        word, reasons, clause = inference.UNDECIDED, [why], f"these runs again, {order.WOULD_DECIDE}"
    elif word == inference.UNDECIDED:
        a, b = map(wall_seconds, pair.counted)
        added = replace(found, selection=max(found.selection, math.prod(pair.layouts) * inference.ADDED_SELECTION))
        clause = would_decide(added, names, judged.band, inference.LEVEL / factor, (a, b))
    return replace(
        judged,
        word=word,
        reasons=tuple(filter(None, reasons)),
        adjusted_p_value=p_value,
        would_decide=clause,
    )


def _why_not_steady(judged: Judged, word: str, factor: float) -> str:
    """Return why a verdict cannot stand on the runs' steady states; empty if it can."""
    without, drifting = order.unsteady(judged.pair.sides)
    if without:
        return f"no steady state in {order.listed(without)}"
    if not drifting or word == inference.UNDECIDED:
        return ""
    ended = estimate(judged.pair, at_the_end=True)
    p_value = None if ended.p_value is None else min(1.0, factor * ended.p_value)
    if inference.decide(ended, p_value, judged.band)[0] == word:
        return ""
    return (
        f"not {word} for certain, because the step times drift in {order.listed(drifting)}: with each at "
        f"the level on which it ends, the ratio would be {with_interval(ended.ratio, ended.low, ended.high)}"
    )


def runs_of(pair: Pair, *, at_the_end: bool = False) -> tuple[list[inference.Run], list[inference.Run]]:
    """Return the runs of both sides of a pair, which have steady steps."""
    a, b = ([run_of(result, pair.is_of_jobs, at_the_end) for result in side] for side in pair.counted)
    return a, b


def run_of(result: Result, is_of_job: bool = False, at_the_end: bool = False) -> inference.Run:
    """Return a run that has steady steps, with the throughput of its GPUs or of the whole job, over its steady steps or
    at the level on which they end."""
    rate = tokens_per_second(result) if is_of_job else tokens_per_second_per_gpu(result)
    assert rate is not None
    shift = order.shift_to_the_end(result) if at_the_end else 0.0
    return inference.Run(machine_of(result), math.log(rate) + shift)
