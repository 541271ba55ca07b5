"""Summary of a run from its raw step times, and the number of runs of a job. Standard library only.

RUNS=auto repeats a job until the 95 % interval of its mean tokens/s/GPU is TARGET wide to either side. The runs' own
summaries are used (`performance_metrics`), because training has no steady steps of a comparison yet.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_DATA_WAIT_FRACTION = 0.01
"""Above this share of a step the data loader limits the speed, and the result has a warning."""
KEYS = (
    "avg_step_time_seconds",
    "min_step_time_seconds",
    "max_step_time_seconds",
    "std_step_time_seconds",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "steps_per_second",
    "warmup_steps_excluded",
)
DATA_WAIT = "data: waiting for samples took"
"""First words of that warning."""


def warmup_steps(total_steps: int) -> int:
    """Return the number of first steps that the summary excludes: a tenth, at least 3, and never all of them.

    Iteration 1 compiles and allocates, and newer frameworks print iteration 2 as a mean of 1 and 2.
    """
    if total_steps == 0:
        return 0
    return min(max(3, total_steps // 10), total_steps - 1)


def summarize(step_times: Sequence[float], tokens_per_step: int, num_gpus: int) -> dict[str, float | int | None]:
    """Return the `performance_metrics` of a result: seconds, tokens/s over all GPUs and per GPU, steps/s.

    Throughput is the tokens of a step divided by the mean steady step time, which equals all steady tokens divided by
    all steady seconds. The standard deviation is that of a sample (n - 1), and None for a single steady step. Without a
    finished step every value is None; the caller adds the reason.
    """
    if not step_times:
        return dict.fromkeys(KEYS)
    excluded = warmup_steps(len(step_times))
    of_steps = summary_of(step_times[excluded:], tokens_per_step, num_gpus)
    return of_steps | {"warmup_steps_excluded": excluded}


def summary_of(steady: Sequence[float], tokens_per_step: int, num_gpus: int) -> dict[str, float | int | None]:
    """Return the figures of `summarize` for the seconds of steady steps, at least one."""
    average = statistics.fmean(steady)
    return {
        "avg_step_time_seconds": average,
        "min_step_time_seconds": min(steady),
        "max_step_time_seconds": max(steady),
        "std_step_time_seconds": statistics.stdev(steady) if len(steady) > 1 else None,
        "tokens_per_second": tokens_per_step / average,
        "tokens_per_second_per_gpu": tokens_per_step / average / num_gpus,
        "steps_per_second": 1 / average,
    }


def data_wait_fraction(step_times: Sequence[float], data_waits: Sequence[float | None]) -> float | None:
    """Return the share (0 to 1) of the steps' seconds spent waiting for samples; None if a step has no wait.

    Both lists hold only the steady steps, at least one. The waits are of the slowest rank of each step and the times of
    one rank. Their clocks differ slightly, so the share of a run that only waits is limited to 1.
    """
    # one unknown wait makes the share unknown, because a sum without it would be too small
    known = [wait for wait in data_waits if wait is not None]
    if len(known) < len(step_times):
        return None
    return min(1.0, sum(known) / sum(step_times))


def data_wait_warning(fraction: float | None) -> str | None:
    """Return the warning for a share above the limit; None up to the limit or if the share is unknown."""
    # unknown is no fault of the data loader: some frameworks cannot measure it
    if fraction is None or fraction <= MAX_DATA_WAIT_FRACTION:
        return None
    return (
        f"{DATA_WAIT} {100 * fraction:.3g} % of a step (limit {100 * MAX_DATA_WAIT_FRACTION:g} %); the speed is also "
        "that of the data loader: put DATA_DIR on a local disk and leave every rank a free core, then run again"
    )


LEAST_RUNS = 3
"""A verdict needs three runs a side. With two, Student's quantile is 12.7: their interval is too wide for any use."""
MOST_RUNS = 10
"""From 10 to 20 runs the half width shrinks by a third only, for twice the time."""
MOST_FAILED = 2
"""A second failed run is seldom bad luck: a job that runs out of memory does so each time."""
TARGET = 0.01
"""Relative half width: a third of the band of a verdict. Restarts of most systems of MLPerf Training v5.1 spread by
0.3 % or less, which three runs know within 0.75 %."""
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantile of Student's t for 1 to 9 degrees of freedom: NIST/SEMATECH e-Handbook of Statistical Methods,
section 1.3.6.7.2, "Critical Values of the Student's t Distribution"."""


def half_width(rates: Sequence[float]) -> float | None:
    """Return the relative half width of the 95 % interval of the mean of the rates, all above 0; 0.01 is +-1 %.

    The interval is that of the mean of logarithms, t s / sqrt(n) with the sample's standard deviation s (n - 1); its
    upper side, which is the longer one, is returned. None for a single run. Beyond MOST_RUNS runs the quantile of
    MOST_RUNS is used, so that the interval is slightly too wide. A rule that stops at a small spread stops too early at
    times: with RUNS=auto the interval covers the truth in 91 to 95 % (40,000 normal samples for each of nine spreads
    from 0.2 to 3 %), so that a comparison takes a wider one (evaluate/verdict).
    """
    count = len(rates)
    if count < 2:
        return None
    spread = statistics.stdev(math.log(rate) for rate in rates)
    return math.expm1(T_975[min(count, MOST_RUNS) - 2] * spread / math.sqrt(count))


def rates(results: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return tokens/s/GPU of the ok results, from their summaries; a result without a rate above 0 is left out."""
    rates = []
    for result in results:
        rate = result["performance_metrics"]["tokens_per_second_per_gpu"]
        if result["status"] == "ok" and rate is not None and rate > 0:
            rates.append(rate)
    return rates


@dataclass(frozen=True)
class Decision:
    """The decision on another run of a job, and its reason in words."""

    goes_on: bool
    why: str


@dataclass(frozen=True)
class RunsRule:
    """The setting RUNS: a number, or auto."""

    least: int
    most: int
    target: float | None
    """Relative half width at which no further run follows; None for a number."""

    @classmethod
    def of(cls, runs: int | None) -> RunsRule:
        """Return the rule of a number of runs, or of None, which means auto."""
        return cls(LEAST_RUNS, MOST_RUNS, TARGET) if runs is None else cls(runs, runs, None)

    @property
    def is_fixed(self) -> bool:
        """True for a number of runs that depends on no result."""
        return self.target is None

    def decide(self, rates: Sequence[float], failed: int = 0) -> Decision:
        """Return what follows after the runs so far: tokens/s/GPU of those that are ok, and the number of the others.

        A failed run does not count, and another one replaces it, but after MOST_FAILED of them auto ends.
        """
        known, width = _known(rates, failed), half_width(rates)
        tried = len(rates) + failed
        if self.target is None:
            return Decision(tried < self.least, known)
        # the failed runs come first: where a job cannot run, no width is worth waiting for
        if failed >= MOST_FAILED:
            return Decision(False, f"{known}; no further one, because {failed} failed")
        if tried >= self.most:
            return Decision(False, f"{known}; {self.most} runs are the most")
        if len(rates) < self.least:
            return Decision(True, f"{known}; {self.least} are the least")
        if width is not None and width <= self.target:
            return Decision(False, known)
        return Decision(True, f"{known}, {_percent(self.target)} wanted")

    def text(self) -> str:
        """Return the rule in words."""
        if self.target is None:
            return f"RUNS={self.least}"
        return (
            f"RUNS=auto: {self.least} to {self.most} runs of each job, until its mean tokens/s/GPU is known within "
            f"{_percent(self.target)} (95 %)"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the section `repeats` of a result."""
        section: dict[str, Any] = {"runs": "auto", "least": self.least, "most": self.most}
        if self.target is not None:
            return section | {"target_percent": 100 * self.target}
        reasons = {"target_percent": "RUNS is a number"}
        return section | {"runs": str(self.least), "target_percent": None, "reasons": reasons}


def _known(rates: Sequence[float], failed: int) -> str:
    width = half_width(rates)
    text = "1 run" if len(rates) == 1 else f"{len(rates)} runs"
    if failed:
        text += f" and {failed} failed"
    if width is not None:
        text += f", mean known within {_percent(width)} (95 %)"
    return text


def _percent(share: float) -> str:
    return f"+-{100 * share:.2g} %"
