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
    plans = _plan(pair.a), _plan(pair.b)
    of_runs = 1.0
    if any(plan.is_added for plan in plans):
        of_runs = inference.ADDED_SELECTION
    elif any(AUTO in plan.runs for plan in plans):
        of_runs = inference.AUTO_SELECTION
    return math.prod(pair.layouts) * of_runs


def planned(pair: Pair) -> Item:
    """Return the certificate item on the number of runs: all that were asked for are there, and no others."""
    plans = _plan(pair.a), _plan(pair.b)
    a, b = (plan.text for plan in plans)
    again = max(plan.attempts for plan in plans)
    if any(plan.is_incomplete for plan in plans):
        return Item(RUNS, UNKNOWN, a, b, "runs are missing, or their number was not fixed beforehand")
    if again:
        return Item(RUNS, UNKNOWN, a, b, f"most runs of a side were started again, up to {again} times")
    if any(plan.is_added for plan in plans):
        return Item(RUNS, ALLOWED, a, b, "runs were added to others, and count at a smaller level")
    return Item(RUNS, SAME if a == b else ALLOWED, a, b)


class _Plan(NamedTuple):
    """The setting RUNS of the runs of a side, and what there is of them."""

    runs: frozenset[str]
    present: int
    wanted: int
    is_added: bool
    attempts: int
    """Largest attempt, if most runs needed more than one; else 0."""

    @property
    def is_incomplete(self) -> bool:
        """True if runs are missing, or if it is not known how many were asked for."""
        return self.present < self.wanted or NOT_KNOWN in self.runs

    @property
    def text(self) -> str:
        """The runs that are there and those that were asked for: `3 of 3`."""
        return NOT_KNOWN if NOT_KNOWN in self.runs else f"{self.present} of {self.wanted}"


def _plan(side: Sequence[Entry]) -> _Plan:
    results = [entry.result for entry in side]
    runs = frozenset(str((result.get("repeats") or {}).get("runs") or NOT_KNOWN) for result in results)
    present = len({(job_of(result), result["run"]) for result in results})
    wanted = max(result["run"] for result in results)
    # runs of two values of RUNS were not planned together
    is_added = len(runs) > 1
    fixed = [int(number) for number in runs if number.isdecimal()]
    if fixed:
        # RUNS counts the runs of one job, and a side may have jobs on several machines
        jobs = {job_of(result) for result in results if machines(result)}
        wanted = max(fixed) * max(1, len(jobs))
        is_added = is_added or len(results) > wanted
    attempts = [result["attempt"] for result in results]
    repeated = [attempt for attempt in attempts if attempt > 1]
    # one repeated run may have met a fault; most of them may be a choice of the fast ones
    are_most_repeated = len(repeated) > len(attempts) / 2
    return _Plan(runs, present, wanted, is_added, max(repeated) if are_most_repeated else 0)


def decided(judged: Judged, found: inference.Estimate, p_value: float | None, comparisons: int) -> Judged:
    """Return a pair with the verdict that its estimate `found` and its adjusted p-value allow."""
    pair = judged.pair
    names = pair.a_name, pair.b_name
    word, reason = inference.decide(found, p_value, judged.band)
    # Holm's correction multiplied this pair's p-value by so much; at 1 it no longer shows, and all pairs count
    factor = float(comparisons)
    if p_value and found.p_value and p_value < 1:
        factor = p_value / found.p_value
    # a missing spread explains the word better than what follows from it
    reasons = [f"no interval: {names[side]}: {why}" for side, why in found.sides_without_spread]
    if not reasons and reason:
        reasons = [reason]
    would = None
    not_steady = _why_not_steady(judged, word, factor)
    if not_steady:
        word, reasons, would = inference.UNDECIDED, [not_steady], f"these runs again, {order.WOULD_DECIDE}"
    elif word == inference.UNDECIDED:
        seconds_a, seconds_b = map(wall_seconds, pair.counted)
        # more runs would be runs that were added to others
        selection = max(found.selection, math.prod(pair.layouts) * inference.ADDED_SELECTION)
        needed = inference.LEVEL / factor
        would = would_decide(replace(found, selection=selection), names, judged.band, needed, (seconds_a, seconds_b))
    return replace(judged, word=word, reasons=tuple(reasons), adjusted_p_value=p_value, would_decide=would)


def _why_not_steady(judged: Judged, word: str, factor: float) -> str:
    """Return why a verdict cannot stand on the runs' steady states; empty if it can."""
    without, drifting = order.unsteady(judged.pair.sides)
    if without:
        return f"no steady state in {order.listed(without)}"
    if not drifting or word == inference.UNDECIDED:
        return ""
    # a drifting run has no single level: the word must be the same at the end of the drift
    ended = estimate(judged.pair, at_the_end=True)
    p_value = None if ended.p_value is None else min(1.0, factor * ended.p_value)
    word_of_the_end, _ = inference.decide(ended, p_value, judged.band)
    if word_of_the_end == word:
        return ""
    ratio = with_interval(ended.ratio, ended.low, ended.high)
    return (
        f"not {word} for certain, because the step times drift in {order.listed(drifting)}: with each at "
        f"the level on which it ends, the ratio would be {ratio}"
    )


def runs_of(pair: Pair, *, at_the_end: bool = False) -> tuple[list[inference.Run], list[inference.Run]]:
    """Return the runs of both sides of a pair, which have steady steps."""
    a, b = ([run_of(result, pair.is_of_jobs, at_the_end) for result in side] for side in pair.counted)
    return a, b


def run_of(result: Result, is_of_job: bool = False, at_the_end: bool = False) -> inference.Run:
    """Return a run that has steady steps, with its throughput per GPU or that of the whole job.

    The throughput is that of all steady steps, or with `at_the_end` that of the level on which they end.
    """
    rate = tokens_per_second(result) if is_of_job else tokens_per_second_per_gpu(result)
    assert rate is not None
    shift = order.shift_to_the_end(result) if at_the_end else 0.0
    return inference.Run(machine_of(result), math.log(rate) + shift)
