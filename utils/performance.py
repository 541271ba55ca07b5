"""From raw step times to the summary of a run. Standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def warmup_steps(total_steps: int) -> int:
    """Return how many first steps the summary leaves out: a tenth, at least 3, and never all of them.

    Iteration 1 compiles and allocates, and newer frameworks print iteration 2 as a mean of 1 and 2.
    """
    return max(0, min(max(3, total_steps // 10), total_steps - 1))


def summarize(step_times: Sequence[float], tokens_per_step: int, num_gpus: int) -> dict[str, float | int | None]:
    """Return the `performance_metrics` of a result: seconds, tokens/s over all GPUs and per GPU, steps/s.

    Throughput is tokens of a step over the mean steady step time, which equals all steady tokens over all steady
    seconds. The standard deviation is that of a sample (n - 1), and None for a single steady step. Without a finished
    step every value is None; the caller says why.
    """
    excluded = warmup_steps(len(step_times))
    steady = list(step_times[excluded:])
    if not steady:
        keys = ("avg", "min", "max", "std")
        empty: dict[str, float | int | None] = {f"{key}_step_time_seconds": None for key in keys}
        rates = ("tokens_per_second", "tokens_per_second_per_gpu", "steps_per_second", "warmup_steps_excluded")
        return empty | dict.fromkeys(rates)
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
