"""Sides of a comparison for the tests: synthetic results with known speed, machine and loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from agreeing import make_consistent

from evaluate.checks.entries import Entry, check_result
from example import example_result

STEPS = 100
DEVICES = {
    "nvd": {"device_name": "NVIDIA H100 80GB HBM3", "total_memory_gb": 85.0, "gpu_cores": 16896},
    "amd": {"device_name": "AMD Instinct MI300X", "total_memory_gb": 206.0, "gpu_cores": 19456},
}

STACKS = {"nvd": "cuda", "amd": "rocm"}


def run(
    platform: str = "nvd", number: int = 1, seconds: float = 1.0, host: str | None = None, **changes: Any
) -> dict[str, Any]:
    """Return an ok result: `seconds` a step with 0.2 % of noise, losses from 8 to 3; `section__key` is replaced.

    Its evidence agrees with itself after the changes: start and end with the step times (the runs of a side follow one
    another), learning rates with the schedule, the shape with the name of the model, memory with the weights.
    """
    random = np.random.default_rng([number, sum(map(ord, platform)), round(1e6 * seconds)])
    result = example_result(platform=platform, run=number)
    config = {
        "max_steps": STEPS,
        "num_gpus": 8,
        "global_batch_size": 64,
        "micro_batch_size": 1,
        "dp": 8,
        "precision": "bf16",
    }
    for section in ("training_config", "resolved_config"):
        result[section] |= config
    result["gpu_info"] |= DEVICES[platform] | {"device_count": 8, "software_stack": STACKS[platform]}
    result["provenance"]["host"] = host or f"{platform}-1"
    result["steps"] = list(range(1, STEPS + 1))
    effect = 1 + random.normal(0, 0.002)
    result["step_times"] = [round(float(seconds * effect * (1 + random.normal(0, 0.002))), 6) for _ in range(STEPS)]
    result["loss_values"] = [float(3 + 5 * 0.95**step + 1e-4 * random.normal()) for step in range(STEPS)]
    result["loss_values"][0] = 8.0
    result["grad_norms"] = [float(1 + 2 * 0.95**step + 0.01 * random.uniform()) for step in range(STEPS)]
    result["data_wait_seconds"] = [0.0] * STEPS
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            result[section][key] = value
        else:
            result[section] = value
    make_consistent(result, changes)
    return result


def entry(result: dict[str, Any]) -> Entry:
    """Return the entry that loading a result gives."""
    name = f"train_{result['platform']}_{result['framework']}_{result['model']}_run{result['run']}.json"
    return Entry(Path(name), result, check_result(result))


def side(platform: str, seconds: float, runs: int = 5, **changes: Any) -> list[Entry]:
    """Return `runs` runs of one side."""
    return [entry(run(platform, number, seconds, **changes)) for number in range(1, runs + 1)]
