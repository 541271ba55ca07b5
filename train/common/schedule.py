"""The learning-rate rule of every framework here, for those that take a function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class WarmupCosine:
    """The rule as the factor of torch's LambdaLR: step n from 1, W warm-up steps.

    n <= W: n / (W + 1); then a cosine from 1 to `floor` over the remaining steps, the same as megatron-core's scheduler
    and NeMo's CosineAnnealing.
    """

    warmup_iterations: int
    train_iterations: int
    floor: float
    """MIN_LR / LR."""

    def __call__(self, steps_done: int) -> float:
        """Return the factor of the step that follows `steps_done` finished ones."""
        if steps_done < self.warmup_iterations:
            return (steps_done + 1) / (self.warmup_iterations + 1)
        progress = (steps_done - self.warmup_iterations) / (self.train_iterations - self.warmup_iterations)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))
