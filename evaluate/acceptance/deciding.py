"""The decision on one job: PASS, FAIL or UNKNOWN, from the interval of its share of the baseline's tokens/s/GPU.

PASS: the whole 95 % interval of the share is at or above the least share. FAIL: the whole interval is below it, or a
run failed, or the job is missing. UNKNOWN: everything else, with the reason. An UNKNOWN is never a pass.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluate.acceptance.jobs import Job
from evaluate.fairness import evidence
from evaluate.metrics.partition import kind_of
from evaluate.metrics.published import PUBLISHED, Tuning, tuning
from evaluate.verdict import deciding, inference, steadiness, verdicts
from evaluate.verdict.pairs import Pair
from evaluate.verdict.sentences import NOT_COMPARABLE
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
    """One line of an acceptance test."""

    word: str
    reason: str
    name: str
    machine: str | None
    measured: Interval | None
    """tokens/s/GPU over the runs."""
    runs: int
    baseline: float | None
    """tokens/s/GPU."""
    source: str
    share: Interval | None
    """Percent of the baseline."""


def against_published(job: Job, least: float) -> Decision:
    """Return the decision on a job against the best published figure for its device and work."""
    if not job.counted:
        return _with_failures(_decision(job, UNKNOWN, "", None, PUBLISHED), job)
    tuned = tuning(job.counted)
    figure = tuned.published.tokens_per_second_per_gpu if tuned.published else None
    start = _decision(job, UNKNOWN, "", figure, str(tuned.published or PUBLISHED))
    if why := _why_no_figure(job.counted, tuned) or _why_not_whole(job) or _why_not_steady(job):
        return _with_failures(replace(start, reason=why), job)
    assert figure is not None
    logs = [run.log_throughput - math.log(figure) for run in _runs(job)]
    ends = [log + steadiness.shift_to_the_end(result) for log, result in zip(logs, job.counted, strict=True)]
    found = _decided(start, (_of_runs(logs, job), _of_runs(ends, job)), least, len(job.counted))
    return _with_failures(found, job)


def against_job(job: Job, baseline: Job, source: str, least: float) -> Decision:
    """Return the decision on a job against the same job of a baseline."""
    start = _decision(job, UNKNOWN, "", _rate(baseline), source)
    if differences := job.differences(baseline):
        reason = f"the baseline has no such job; its nearest differs: {'; '.join(differences)}"
        return _with_failures(replace(start, reason=reason, baseline=None), job)
    if not baseline.counted:
        reason = f"the baseline has no valid run of this job: {_why_not_counted(baseline)}"
        return _with_failures(replace(start, reason=reason), job)
    if not job.counted:
        return _with_failures(start, job)
    if same := _same_runs(job, baseline):
        return _with_failures(replace(start, reason=f"{same} of the baseline too, and no measurement of its own"), job)
    pair = _pair(job, baseline)
    (judged,) = verdicts.judge([pair], "machine")
    if judged.word == NOT_COMPARABLE or judged.estimate is None:
        reason = f"not comparable with the baseline: {'; '.join(judged.reasons)}"
        return _with_failures(replace(start, reason=reason), job)
    if judged.unproven:
        reason = f"not proven to be the baseline's work: {', '.join(judged.unproven)}"
        return _with_failures(replace(start, reason=reason), job)
    if why := _why_not_steady(job) or _why_not_steady(baseline, "the baseline's "):
        return _with_failures(replace(start, reason=why), job)
    shares = _estimated(judged.estimate), _estimated(_drifted(pair))
    return _with_failures(_decided(start, shares, least, min(judged.estimate.runs)), job)


def missing(baseline: Job, source: str) -> Decision:
    """Return the decision on a job of the baseline that nobody has measured."""
    reason = "the baseline has this job, and no result of it was given"
    return Decision(FAIL, reason, baseline.name, None, None, 0, _rate(baseline), source, None)


def without_counterpart(job: Job, source: str) -> Decision:
    """Return the decision on a job of which the baseline has neither framework nor model."""
    reason = f"the baseline has no job of {job.key.framework} {job.key.model} with METHOD={job.key.method}"
    return _with_failures(_decision(job, UNKNOWN, reason, None, source), job)


def _decided(start: Decision, shares: tuple[Interval, Interval], least: float, fewest: int) -> Decision:
    """Return the decision by the intervals of the share: of the runs, and of their ends where they drift."""
    share, ended = map(_in_percent, shares)
    found = replace(start, share=share)
    if share.low is None or share.high is None or ended.low is None or ended.high is None:
        return replace(found, reason="there is no interval, because a single run or equal runs have no spread")
    if fewest < inference.LEAST_RUNS:
        return replace(found, reason=f"got {fewest} runs on one side, wanted at least {inference.LEAST_RUNS}")
    if min(share.low, ended.low) >= least:
        return replace(found, word=PASS)
    if max(share.high, ended.high) < least:
        return replace(found, word=FAIL, reason=f"the whole interval is below {least:g} %")
    if share.low >= least or share.high < least:
        return replace(found, reason="step times drift, and at the level of their ends the share would be another")
    return replace(found, reason=f"the interval holds {least:g} %; more runs decide")


def _with_failures(found: Decision, job: Job) -> Decision:
    """Return the decision after the runs that do not count: a failed run is a FAIL, an invalid one forbids a PASS."""
    left = [entry for entry in job.entries if not entry.is_counted]
    failed = [entry for entry in left if entry.result["status"] != "ok"]
    if not left:
        return found
    shown = [f"run {one.result['run']} {_status(one.result)}: {one.why_not_counted}" for one in failed or left]
    more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
    others = f"; {found.reason}" if found.reason else ""
    word = FAIL if failed else UNKNOWN if found.word == PASS else found.word
    return replace(found, word=word, reason=f"{shown[0]}{more}{others}")


def _status(result: Result) -> str:
    return "is invalid" if result["status"] == "ok" else f"is not ok ({result['status']})"


def _why_not_counted(job: Job) -> str:
    first = job.entries[0]
    return f"run {first.result['run']} {_status(first.result)}: {first.why_not_counted}"


def _decision(job: Job, word: str, reason: str, baseline: float | None, source: str) -> Decision:
    return Decision(word, reason, job.name, job.machine, _measured(job), len(job.counted), baseline, source, None)


def _measured(job: Job) -> Interval | None:
    """Return tokens/s/GPU over the runs of a job; None if no run counts or one has no steady steps."""
    if not job.counted or deciding.without_steady_steps(_pair(job, job)):
        return None
    return _of_runs([run.log_throughput for run in _runs(job)], job)


def _rate(baseline: Job) -> float | None:
    found = _measured(baseline)
    return found.value if found else None


def _runs(job: Job) -> list[inference.Run]:
    return [deciding.run_of(result) for result in job.counted]


def _pair(job: Job, baseline: Job) -> Pair:
    """Return the pair of a comparison, with the baseline as `a`."""
    return Pair(
        *(job.key.model, job.key.framework, job.key.method, "the baseline", job.machine or "the job"),
        *(baseline.entries, job.entries),
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
    share, slack = evidence.outside(job.counted)
    if share is None:
        return "a run has no second timer of its steps"
    if share > max(evidence.SHARE_OUTSIDE, slack):
        return f"{share:.0%} of the training loop is in no step"
    item = deciding.planned(_pair(job, job))
    return f"{item.note}: {item.a}" if item.is_unproven else ""


def _why_not_steady(job: Job, whose: str = "") -> str:
    found = steadiness.unsteady([job.machine or "the baseline"], [job.counted]).without
    return f"no steady state in {whose}{steadiness.listed(found)}" if found else ""


def _same_runs(job: Job, baseline: Job) -> str:
    """Return in words the runs of a job that have the step times of a run of the baseline; empty without any."""
    known = {tuple(result["step_times"]) for result in baseline.counted}
    found = [str(result["run"]) for result in job.counted if tuple(result["step_times"]) in known]
    return f"run{'s' if len(found) > 1 else ''} {', '.join(found)} {'are' if len(found) > 1 else 'is'}" if found else ""


def _drifted(pair: Pair) -> inference.Estimate:
    """Return the estimate with each drifting run at the level on which its steps end."""
    a, b = (
        [
            replace(run, log_throughput=run.log_throughput + steadiness.shift_to_the_end(result))
            for run, result in zip(runs, side, strict=True)
        ]
        for runs, side in zip(deciding.runs_of(pair), pair.counted, strict=True)
    )
    return inference.estimate(a, b, deciding.selection_of(pair))


def _estimated(found: inference.Estimate) -> Interval:
    return Interval(found.ratio, found.low, found.high)


def _in_percent(share: Interval) -> Interval:
    low, high = (None if end is None else 100 * end for end in (share.low, share.high))
    return Interval(100 * share.value, low, high)


def _of_runs(logs: Sequence[float], job: Job) -> Interval:
    """Return the geometric mean of runs with its interval (Student's t, at the level of a comparison's interval).

    The level is divided by the number of choices by speed, as in `evaluate.verdict.inference`.
    """
    mean = statistics.fmean(logs)
    deviation = statistics.stdev(logs) if len(logs) > 1 else 0.0
    if deviation < inference.LEAST_SPREAD:
        return Interval(math.exp(mean))
    from scipy.special import stdtrit

    level = inference.INTERVAL_LEVEL / deciding.selection_of(replace(_pair(job, job), layouts=(1, job.layouts)))
    half = -float(stdtrit(len(logs) - 1, level / 2)) * deviation / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
