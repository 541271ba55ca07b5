"""Memory capacity: the largest model that fits a device, and the largest micro batch that would fit a measured run.

The micro batch is an estimate from one measured peak. The sizes of weights, gradients and optimizer states come from
utils/memory/estimate.py; the rest of the peak is taken to grow with the micro batch. The formula has not been confirmed
on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from evaluate.metrics.figures import Figure, unknown
from utils.hardware.devices import Device
from utils.memory.estimate import FRAMEWORKS, estimate, usable_gb
from utils.models import ModelSpec, UnknownModelError, get
from utils.results.schema import Result
from utils.settings.config import RunConfig, load

BYTES_A_PARAMETER = {"bf16 training": 18, "fp8 training": 19, "bf16 weights": 2, "fp8 weights": 1}
"""Training: 2 for the bf16 weight, 4 each for gradient, master weight and Adam's two states (Rajbhandari et al.,
arXiv 1910.02054, section 3.1, with fp32 gradients), 1 more for an fp8 copy. Activations come on top."""
MODELS, SEQUENCES = "1e9 parameters", "sequences"
CONFIG = {
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "sequence_length": "sequence_length",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_parallel_size": "ep",
    "data_parallel_size": "dp",
    "gradient_accumulation": "gradient_accumulation",
    "num_gpus": "num_gpus",
    "precision": "precision",
    "optimizer_state": "optimizer_state",
    "gradient_dtype": "gradient_dtype",
    "recompute": "recompute",
}
"""Fields of RunConfig that the memory of a rank depends on, with their keys in results."""


def capacity(device: Device | None, name: str | None = None) -> dict[str, Figure]:
    """Return the largest model, in 1e9 parameters, whose weights (and optimizer states) alone fit one device.

    Unknown, with the reason, if the device is not known (`name` is its own name) or has no fp8.
    """
    sizes = {}
    for use, size in BYTES_A_PARAMETER.items():
        if device is None:
            why = f"{name or 'the device'} is not known here, so its memory for a model is not"
            sizes[use] = unknown(MODELS, why)
        elif device.dense_fp8_tflops is None and "fp8" in use:
            sizes[use] = unknown(MODELS, f"{device.name} has no fp8")
        else:
            how = f"{device.memory_gb:.4g} GB / {size} bytes a parameter"
            sizes[use] = Figure(device.memory_gb / size, MODELS, how)
    return sizes


def micro_batch_that_would_fit(result: Result) -> Figure:
    """Return the largest micro batch that probably fits: at least the one that ran, at most all sequences of a rank."""
    peak, total = result["memory_metrics"]["peak_memory_allocated_gb"], result["gpu_info"]["total_memory_gb"]
    config = result["training_config"]
    missing = [name for name in CONFIG.values() if config.get(name) is None]
    if not total:
        missing.insert(0, "memory of the device")
    if peak is None:
        missing.insert(0, "peak memory")
    if missing:
        return unknown(SEQUENCES, f"not in the result: {', '.join(missing)}")
    if result["framework"] not in FRAMEWORKS:
        return unknown(SEQUENCES, f"the memory of {result['framework']}'s states has no formula yet")
    try:
        fixed = _states_gb(result)
    except UnknownModelError as error:
        return unknown(SEQUENCES, str(error))
    # weights may be sharded or paged in a way that the formula does not know
    if peak <= fixed:
        return unknown(
            SEQUENCES,
            f"the peak of {peak:.3g} GB is not above the {fixed:.3g} GB that weights and states should take, "
            "so one run does not tell what a sequence takes",
        )
    ranks = config["num_gpus"] if result["platform"] == "cpu" else 1  # all ranks of a CPU share its memory
    usable = usable_gb(total, result["platform"]) / ranks
    ran, sequences = config["micro_batch_size"], config["global_batch_size"] // config["dp"]
    of_a_sequence = (peak - fixed) / ran
    # what ran did fit, whatever the formula says
    fitting = ran
    for size in _divisors(sequences):
        if size * of_a_sequence <= usable - fixed:
            fitting = max(fitting, size)
    how = (
        f"estimate from one run: ({usable:.4g} of {total / ranks:.4g} GB - {fixed:.3g} GB of weights, gradients and "
        f"{config['precision']} states) / {of_a_sequence:.3g} GB a sequence, "
        f"a divisor of the {sequences} sequences of a rank"
    )
    return Figure(float(fitting), SEQUENCES, how)


def _divisors(number: int) -> Iterator[int]:
    """Yield the divisors of a number, in the time that its square root takes."""
    for small in range(1, math.isqrt(number) + 1):
        if number % small == 0:
            yield small
            yield number // small


def _states_gb(result: Result) -> float:
    """Return the GB that do not grow with the micro batch: weights, gradients, optimizer, and on a CPU the process."""
    asked: dict[str, Any] = {name: result["training_config"][key] for name, key in CONFIG.items()}
    config = replace(_any_config(), platform=result["platform"], **asked)
    found = estimate(config, result["framework"], spec_of(result))
    return found.weights_gb + found.gradients_gb + found.optimizer_gb + (found.process_gb or 0.0)


def spec_of(result: Result) -> ModelSpec:
    """Return the model that ran; raise UnknownModelError."""
    layers = result["resolved_config"].get("num_layers")
    if layers:
        # MODEL_SIZE=proxy has any number of layers
        return get(result["model"], result["model_size"], proxy_layers=layers)
    return get(result["model"], result["model_size"])


@cache
def _any_config() -> RunConfig:
    """Return a valid configuration for `replace`; none of its values is used."""
    return load("cpu", environ={})
