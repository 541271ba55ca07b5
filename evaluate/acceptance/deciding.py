"""The decision on one job: PASS, FAIL or UNKNOWN, from the interval of its share of the baseline's tokens/s/GPU.

PASS: the whole 95 % interval of the share is at or above the least share. FAIL: the whole interval is below it, or a
run failed, or the job is missing. UNKNOWN: everything else, with the reason. An UNKNOWN is never a pass.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from evaluate.acceptance.jobs import Job
from evaluate.checks.entries import Entry
from evaluate.fairness import items
from evaluate.metrics.defaults import PUBLISHED
from evaluate.metrics.intervals import half_interval
from evaluate.metrics.partition import kind_of
from evaluate.metrics.published import Tuning, tuning
from evaluate.verdict import deciding, inference, order, verdicts
from evaluate.verdict.pairs import Pair
from evaluate.verdict.sentences import NOT_COMPARABLE
from evaluate.verdict.side_names import log_rates
from utils.results.schema import Result

PASS, FAIL, UNKNOWN = "PASS", "FAIL", "UNKNOWN"
READ_BACK = ("parameter_count", "precision", "sequence_length", "global_batch_size", "num_gpus")
"""Keys of `resolved_config` that must be known where no second result proves the work."""


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; None for its ends where the runs give none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Decision:
    """One line of an acceptance test, with the keys of acceptance.json."""

    decision: str
    reason: str
    job: str
    machine: str | None
    tokens_per_second_per_gpu: Interval | None
    """Over the runs; None if nothing was measured."""
    runs: int
    baseline_tokens_per_second_per_gpu: float | None
    baseline_source: str
    share_percent: Interval | None
    """Percent of the baseline."""


class _Outcome(NamedTuple):
    """The word that the runs that count allow, with its reason."""

    reason: str
    word: str = UNKNOWN
    share: Interval | None = None


def against_published(job: Job, least: float) -> Decision:
    """Return the decision on a job against the best published figure for its device and work."""
    if not job.counted:
        return _decision(job, None, PUBLISHED, _Outcome(""))
    tuned = tuning(job.counted)
    figure = tuned.published.tokens_per_second_per_gpu if tuned.published else None
    outcome = _Outcome(_why_no_figure(job.counted, tuned) or _why_not_whole(job) or _why_not_steady(job))
    if figure is not None and not outcome.reason:
        logs = [rate - math.log(figure) for rate in log_rates(job.entries)]
        ends = [rate + order.shift_to_the_end(run) for rate, run in zip(logs, job.counted, strict=True)]
        outcome = _judged(_mean(logs, job, 100), _mean(ends, job, 100), least, len(logs))
    return _decision(job, figure, tuned.basis or PUBLISHED, outcome)


def against_job(job: Job, baseline: Job, source: str, least: float, empty: str = UNKNOWN) -> Decision:
    """Return the decision on a job against the same job of a baseline; `empty` is the word if it has no valid run."""
    figure = None if job.differences(baseline) else _rate(baseline)
    return _decision(job, figure, source, _compared(job, baseline, least, empty))


def missing(baseline: Job, source: str) -> Decision:
    """Return the decision on a job of the baseline that nobody has measured."""
    reason = "the baseline has this job, and no result of it was given"
    return Decision(FAIL, reason, baseline.name, None, None, 0, _rate(baseline), source, None)


def without_counterpart(job: Job, source: str) -> Decision:
    """Return the decision on a job of which the baseline has neither framework nor model."""
    reason = f"the baseline has no job of {job.key.framework} {job.key.model} with METHOD={job.key.method}"
    return _decision(job, None, source, _Outcome(reason))


def _compared(job: Job, baseline: Job, least: float, empty: str) -> _Outcome:
    """Return the outcome by the verdict of evaluate/verdict on the job and its counterpart."""
    differences = job.differences(baseline)
    if differences:
        return _Outcome(f"the baseline has no such job; its nearest differs: {'; '.join(differences)}")
    if not baseline.counted:
        why = _why_not_counted(baseline.entries[0])
        return _Outcome(f"the baseline has no valid run of this job: {why}", empty)
    if not job.counted:
        return _Outcome("")
    known = {tuple(result["step_times"]) for result in baseline.counted}
    copies = [str(result["run"]) for result in job.counted if tuple(result["step_times"]) in known]
    if copies:
        runs = f"runs {', '.join(copies)} are" if len(copies) > 1 else f"run {copies[0]} is"
        return _Outcome(f"{runs} of the baseline too, and no measurement of its own")
    pair = _pair(job, baseline)
    (judged,) = verdicts.judge([pair], "machine")
    if judged.word == NOT_COMPARABLE or judged.estimate is None:
        return _Outcome(f"not comparable with the baseline: {'; '.join(judged.reasons)}")
    if judged.unproven:
        return _Outcome(f"not proven to be the baseline's work: {', '.join(judged.unproven)}")
    not_steady = _why_not_steady(job) or _why_not_steady(baseline, "the baseline's ")
    if not_steady:
        return _Outcome(not_steady)
    # a drifting run must pass at the level on which it ends too
    share, ended = _percent(judged.estimate), _percent(deciding.estimate(pair, at_the_end=True))
    return _judged(share, ended, least, min(judged.estimate.runs))


def _judged(share: Interval, ended: Interval, least: float, fewest: int) -> _Outcome:
    """Return the outcome by the intervals of the share: of the runs, and of their ends where they drift."""
    if share.low is None or share.high is None or ended.low is None or ended.high is None:
        reason = "there is no interval, because a single run or equal runs have no spread"
    elif fewest < inference.LEAST_RUNS:
        reason = f"got {fewest} runs on one side, wanted at least {inference.LEAST_RUNS}"
    elif min(share.low, ended.low) >= least:
        return _Outcome("", PASS, share)
    elif max(share.high, ended.high) < least:
        return _Outcome(f"the whole interval is below {least:g} %", FAIL, share)
    # the runs decide, and the level of their ends decides otherwise
    elif share.low >= least or share.high < least:
        reason = "step times drift, and at the level of their ends the share would be another"
    else:
        reason = f"the interval holds {least:g} %; more runs decide"
    return _Outcome(reason, UNKNOWN, share)


def _decision(job: Job, baseline: float | None, source: str, found: _Outcome) -> Decision:
    """Return the decision on a job. A failed run makes it a FAIL, and a run that a rule rejects forbids a PASS."""
    word, reason = found.word, found.reason
    left_out = [entry for entry in job.entries if not entry.is_counted]
    failed = [entry for entry in left_out if entry.result["status"] != "ok"]
    if failed:
        word = FAIL
    # an invalid run may be the one that would not have passed
    elif left_out and word == PASS:
        word = UNKNOWN
    if left_out:
        first = _why_not_counted((failed or left_out)[0])
        more = len(failed or left_out) - 1
        if more:
            first += f" (and {more} more)"
        reason = f"{first}; {reason}" if reason else first
    logs = log_rates(job.entries)
    measured = _mean(logs, job) if _are_complete(logs, job) else None
    return Decision(word, reason, job.name, job.machine, measured, len(job.counted), baseline, source, found.share)


def _are_complete(logs: Sequence[float], job: Job) -> bool:
    """Return whether a job has counted runs, and each of them steady steps."""
    return bool(logs) and len(logs) == len(job.counted)


def _why_not_counted(entry: Entry) -> str:
    result = entry.result
    status = "is invalid" if result["status"] == "ok" else f"is not ok ({result['status']})"
    return f"run {result['run']} {status}: {entry.why_not_counted}"


def _rate(baseline: Job) -> float | None:
    logs = log_rates(baseline.entries)
    return math.exp(statistics.fmean(logs)) if _are_complete(logs, baseline) else None


def _pair(job: Job, baseline: Job) -> Pair:
    """Return the pair of a comparison, with the baseline as `a`."""
    return Pair(
        job.key.model,
        job.key.framework,
        job.key.method,
        a_name="the baseline",
        b_name=job.machine or "the job",
        a=baseline.entries,
        b=job.entries,
        layouts=(baseline.layouts, job.layouts),
    )


def _why_no_figure(side: Sequence[Result], found: Tuning) -> str:
    """Return why no published figure can be used; empty if one can."""
    if any(not kind_of(result).is_whole for result in side):
        return "published figures are of whole devices, and this is a part of one"
    if found.share.value is None:
        return found.share.how
    if any(result.get("source", "recorder") != "recorder" for result in side):
        return "results that were read from a log do not prove their model and data"
    unread = [key for key in READ_BACK if any(result["resolved_config"].get(key) is None for result in side)]
    return f"not read back from the framework: {', '.join(unread)}" if unread else ""


def _why_not_whole(job: Job) -> str:
    """Return why the runs of a job may not be all of it, or their steps not all of their time; empty if they are."""
    share, slack = items.outside(job.counted)
    if share is None:
        return "a run has no second timer of its steps"
    if share > max(items.SHARE_OUTSIDE, slack):
        return f"{share:.0%} of the training loop is in no step"
    item = deciding.planned(_pair(job, job))
    return f"{item.note}: {item.a}" if item.is_unproven else ""


def _why_not_steady(job: Job, whose: str = "") -> str:
    without, _ = order.unsteady([(job.machine or "the baseline", job.counted)])
    return f"no steady state in {whose}{order.listed(without)}" if without else ""


def _percent(found: inference.Estimate) -> Interval:
    low, high = (None if end is None else 100 * end for end in (found.low, found.high))
    return Interval(100 * found.ratio, low, high)


def _mean(logs: Sequence[float], job: Job, unit: float = 1.0) -> Interval:
    """Return the geometric mean of runs times `unit`, with its interval at the level of a comparison's interval.

    The level is divided by the number of choices by speed, as in `evaluate.verdict.inference`.
    """
    mean = statistics.fmean(logs)
    # copies of one run have no spread either
    if len(logs) < 2 or statistics.stdev(logs) < inference.LEAST_SPREAD:
        return Interval(unit * math.exp(mean))
    # a pair with itself has every choice twice, so that the layouts of one side are enough
    selection = deciding.selection_of(replace(_pair(job, job), layouts=(1, job.layouts)))
    half = half_interval([logs], inference.INTERVAL_LEVEL / selection)
    return Interval(unit * math.exp(mean), unit * math.exp(mean - half), unit * math.exp(mean + half))
