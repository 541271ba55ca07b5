"""Summary of a run from its raw step times. Standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MAX_DATA_WAIT_FRACTION = 0.01
"""Above this share of a step the data loader limits the speed, and the result has a warning."""
KEYS = (
    *("avg_step_time_seconds", "min_step_time_seconds", "max_step_time_seconds", "std_step_time_seconds"),
    *("tokens_per_second", "tokens_per_second_per_gpu", "steps_per_second", "warmup_steps_excluded"),
)
DATA_WAIT = "data: waiting for samples took"
"""First words of that warning."""


def warmup_steps(total_steps: int) -> int:
    """Return the number of first steps that the summary excludes: a tenth, at least 3, and never all of them.

    Iteration 1 compiles and allocates, and newer frameworks print iteration 2 as a mean of 1 and 2.
    """
    return max(0, min(max(3, total_steps // 10), total_steps - 1))


def summarize(step_times: Sequence[float], tokens_per_step: int, num_gpus: int) -> dict[str, float | int | None]:
    """Return the `performance_metrics` of a result: seconds, tokens/s over all GPUs and per GPU, steps/s.

    Throughput is the tokens of a step divided by the mean steady step time, which equals all steady tokens divided by
    all steady seconds. The standard deviation is that of a sample (n - 1), and None for a single steady step. Without a
    finished step every value is None; the caller adds the reason.
    """
    excluded = warmup_steps(len(step_times))
    steady = list(step_times[excluded:])
    if not steady:
        return dict.fromkeys(KEYS)
    average = statistics.fmean(steady)
    return {
        "avg_step_time_seconds": average,
        "min_step_time_seconds": min(steady),
        "max_step_time_seconds": max(steady),
        "std_step_time_seconds": statistics.stdev(steady) if len(steady) > 1 else None,
        "tokens_per_second": tokens_per_step / average,
        "tokens_per_second_per_gpu": tokens_per_step / average / num_gpus,
        "steps_per_second": 1 / average,
        "warmup_steps_excluded": excluded,
    }


def data_wait_fraction(step_times: Sequence[float], data_waits: Sequence[float | None]) -> float | None:
    """Return the share (0 to 1) of the steps' seconds spent waiting for samples; None if a step has no wait.

    Both lists hold only the steady steps, at least one. The waits are of the slowest rank of each step and the times of
    one rank. Their clocks differ slightly, so the share of a run that only waits is limited to 1.
    """
    known = [wait for wait in data_waits if wait is not None]
    if len(known) < len(step_times):
        return None
    return min(1.0, sum(known) / sum(step_times))


def data_wait_warning(fraction: float | None) -> str | None:
    """Return the warning for a share above the limit; None up to the limit or if the share is unknown."""
    if fraction is None or fraction <= MAX_DATA_WAIT_FRACTION:
        return None
    return (
        f"{DATA_WAIT} {100 * fraction:.3g} % of a step (limit {100 * MAX_DATA_WAIT_FRACTION:g} %); the speed is also "
        "that of the data loader: put DATA_DIR on a local disk and leave every rank a free core, then run again"
    )
