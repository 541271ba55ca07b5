"""The runs of each job of a matrix: after each run, the decision whether another one follows.

The rule is in utils/results/precision.py. A matrix begins with the least number of runs; its list of jobs grows by one
run at a time, or loses runs that are not needed any more. The same results give the same list, so an interrupted matrix
continues with the right number of runs, and every node of a job finds the same runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from train.runner.state import WAITING, JobState, MatrixState
from utils.results.precision import rates


def follow_up(state: MatrixState, ended: JobState, say: Callable[[str], None]) -> None:
    """Add the next run of the job that has ended, or drop the runs that it does not need, and say why.

    Nothing changes while runs wait that take place in any case. With ORDER=interleaved the next run is the last of the
    list, else it follows the one that has ended.
    """
    job, runs = ended.job, state.runs_of(ended.job)
    waiting = [one for one in runs if one.state == WAITING]
    good = rates(one.result for one in runs if one.is_good and one.result is not None)
    decision = job.rule.decide(good, sum(one.is_done for one in runs) - len(good))
    if not decision.goes_on:
        state.jobs = [one for one in state.jobs if one.job.kind != job.kind or one.is_done]
        state.ended[job.kind] = decision.why
        if waiting:
            say(f"    {' '.join(job.kind)}: {decision.why}")
    elif not waiting:
        index = len(state.jobs) if job.config.order == "interleaved" else state.jobs.index(ended) + 1
        state.jobs.insert(index, JobState(0, replace(job, run=runs[-1].job.run + 1)))
        say(f"    {' '.join(job.kind)}: {decision.why}: another run follows")
    state.number()


def show_ends(state: MatrixState, say: Callable[[str], None]) -> None:
    """Say for each job of several runs how many it got and how well they know its mean."""
    for kind, why in state.ended.items():
        if len([one for one in state.jobs if one.job.kind == kind]) > 1:
            say(f"runs: {' '.join(kind)}: {why}")
