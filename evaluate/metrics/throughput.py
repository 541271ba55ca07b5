"""The throughput of a run over its steady steps, as every figure of a report uses it."""

from __future__ import annotations

import math

from evaluate.metrics.steady import step_times
from utils.results.schema import Result


def tokens_per_second(result: Result) -> float | None:
    """Return the tokens of the steady steps over their seconds, all GPUs together; None without steady steps."""
    times, config = step_times(result), result["training_config"]
    if not times:
        return None
    tokens: int = config["global_batch_size"] * config["sequence_length"]
    return tokens * len(times) / math.fsum(times)


def tokens_per_second_per_gpu(result: Result) -> float | None:
    """Return `tokens_per_second` over the number of GPUs (of ranks on a machine without GPUs)."""
    rate, gpus = tokens_per_second(result), result["training_config"]["num_gpus"]
    return rate / gpus if rate is not None and gpus else None
