"""The number of runs of a job, and how well they know its mean throughput. Standard library only.

RUNS=auto repeats a job until the 95 % interval of its mean tokens/s/GPU is TARGET wide to either side. The runs' own
summaries are used (`performance_metrics`), because training has no steady steps of a comparison yet.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    good = (result["performance_metrics"] for result in results if result["status"] == "ok")
    return [rate for summary in good if (rate := summary["tokens_per_second_per_gpu"]) is not None and rate > 0]


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
        known = _known(rates, failed)
        tried, width = len(rates) + failed, half_width(rates)
        if self.target is None:
            return Decision(tried < self.least, known)
        if failed >= MOST_FAILED:
            return Decision(False, f"{known}; no further one, because {failed} failed")
        if tried >= self.most:
            return Decision(False, f"{known}; {self.most} runs are the most")
        if len(rates) < self.least:
            return Decision(True, f"{known}; {self.least} are the least")
        is_known = width is not None and width <= self.target
        return Decision(not is_known, known if is_known else f"{known}, {_percent(self.target)} wanted")

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
        limits = {"least": self.least, "most": self.most}
        if self.target is None:
            reasons = {"target_percent": "RUNS is a number"}
            return {"runs": str(self.least)} | limits | {"target_percent": None, "reasons": reasons}
        return {"runs": "auto"} | limits | {"target_percent": 100 * self.target}


def _known(rates: Sequence[float], failed: int) -> str:
    count, width = len(rates), half_width(rates)
    text = f"{count} run{'' if count == 1 else 's'}"
    if failed:
        text += f" and {failed} failed"
    return text if width is None else f"{text}, mean known within {_percent(width)} (95 %)"


def _percent(share: float) -> str:
    return f"+-{100 * share:.2g} %"
