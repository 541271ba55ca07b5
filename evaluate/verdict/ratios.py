"""A ratio as text, in one form everywhere, `1.10x (1.08 to 1.12)`, and the ratio of two numbers of GPUs.

`with_interval` writes a ratio with its 95 % interval, or a ratio alone. Brackets hold 95 % intervals only. All numbers
of one text have equally many decimals, and rounding keeps order, so that a rounded ratio never lies outside its rounded
interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SIGNIFICANT = 3
MOST_DECIMALS = 6
Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class Scaling:
    """The throughput of side b over side a on two numbers of GPUs: of the job, of each GPU, and the efficiency.

    The global batch is the same on both (strong scaling), so the ratio of the job's throughput is that of the time for
    a training. The ratio per GPU follows from it by the numbers of GPUs, and so does its interval.
    """

    gpus: tuple[int, int]
    job_ratio: float
    job_interval: Interval
    per_gpu_ratio: float
    per_gpu_interval: Interval
    efficiency: float
    """tokens/s/GPU on the larger number of GPUs over that on the smaller one, 1.0 = no loss."""

    @property
    def sentence(self) -> str:
        """The three figures in words."""
        (a, b), (few, many) = self.gpus, sorted(self.gpus)
        return (
            f"the job is {with_interval(self.job_ratio, *self.job_interval)} as fast on {b} GPUs as on {a}; "
            f"per GPU {with_interval(self.per_gpu_ratio, *self.per_gpu_interval)}; "
            f"scaling efficiency {self.efficiency:.1%} from {few} to {many} GPUs"
        )


def scaling(a: int, b: int, ratio: float, interval: Interval) -> Scaling:
    """Return the scaling from `a` to `b` GPUs, from the ratio of the throughput of the jobs."""
    # tokens/s of b's job over b GPUs, against a's over a GPUs
    per_gpu = ratio * a / b
    low, high = (None if end is None else end * a / b for end in interval)
    return Scaling((a, b), ratio, interval, per_gpu, (low, high), per_gpu if b >= a else 1 / per_gpu)


def with_interval(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Return a ratio with its 95 % interval in brackets; alone, `1.10x`, if there is no interval."""
    if low is None or high is None:
        return f"{written(ratio)[0]}x"
    shown = written(ratio, low, high)
    return f"{shown[0]}x ({shown[1]} to {shown[2]})"


def written(*values: float) -> tuple[str, ...]:
    """Return a ratio, or a ratio with the ends of its interval, as numbers with equally many decimals.

    The first value has at least three significant digits. A narrow interval adds up to two decimals, until half of its
    width is at least one unit of the last place.
    """
    return tuple(_rounded(value, _decimals(values)) for value in values)


def _decimals(values: tuple[float, ...]) -> int:
    first = abs(values[0])
    if not 0 < first < math.inf:
        return SIGNIFICANT - 1
    # 1.10 has two decimals, 0.110 three
    least = max(0, SIGNIFICANT - 1 - math.floor(math.log10(first)))
    half = (max(values) - min(values)) / 2
    # a narrow interval would round to its own middle
    if 0 < half < math.inf:
        least = min(max(least, math.ceil(-math.log10(half))), least + 2)
    return min(least, MOST_DECIMALS)


def _rounded(value: float, decimals: int) -> str:
    """Return a number with `decimals`; a very large one, or one that would print as 0, in powers of ten."""
    if not math.isfinite(value) or abs(value) >= 1e6 or 0 < abs(value) < 0.5 * 10.0**-MOST_DECIMALS:
        return f"{value:.{SIGNIFICANT}g}"
    return f"{value:.{decimals}f}"
