"""The scaling of a job between two numbers of GPUs: its throughput, that of each GPU, and the efficiency.

The global batch is the same on both (strong scaling), so the ratio of the job's throughput is that of the time for a
training. The ratio per GPU follows from it by the numbers of GPUs, and so does its interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evaluate.verdict.pairs import Pair
from evaluate.verdict.ratios import with_interval

Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class Scaling:
    """The throughput of side b over side a: of the whole job with its interval, and the two numbers of GPUs."""

    gpus: tuple[int, int]
    job: float
    interval: Interval

    @property
    def per_gpu(self) -> float:
        """tokens/s/GPU of b over that of a."""
        return self.job * self.gpus[0] / self.gpus[1]

    @property
    def per_gpu_interval(self) -> Interval:
        """95 % interval of `per_gpu`."""
        low, high = (None if end is None else end * self.gpus[0] / self.gpus[1] for end in self.interval)
        return low, high

    @property
    def efficiency(self) -> float:
        """tokens/s/GPU on the larger number of GPUs over that on the smaller one, 1.0 = no loss."""
        return self.per_gpu if self.gpus[1] >= self.gpus[0] else 1 / self.per_gpu

    @property
    def sentence(self) -> str:
        """The three figures in words."""
        (a, b), (few, many) = self.gpus, sorted(self.gpus)
        return (
            f"the job is {with_interval(self.job, *self.interval)} as fast on {b} GPUs as on {a}; "
            f"per GPU {with_interval(self.per_gpu, *self.per_gpu_interval)}; "
            f"scaling efficiency {self.efficiency:.1%} from {few} to {many} GPUs"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the entry `scaling` of a verdict in compare.json."""
        return {
            "gpus": list(self.gpus),
            "job_ratio": self.job,
            "job_interval": list(self.interval),
            "per_gpu_ratio": self.per_gpu,
            "per_gpu_interval": list(self.per_gpu_interval),
            "efficiency": self.efficiency,
        }


def scaling(pair: Pair, ratio: float, low: float | None, high: float | None) -> Scaling:
    """Return the scaling of a pair by nodes, whose ratio and interval are of the job's tokens/s."""
    a, b = (int(side[0].result["training_config"]["num_gpus"]) for side in (pair.a, pair.b))
    return Scaling((a, b), ratio, (low, high))
