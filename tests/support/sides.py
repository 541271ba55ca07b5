"""Sides of a comparison for the tests: synthetic results with known speed, machine and loss."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from evaluate.checks.entries import Entry, check_result
from tests.support.example import example_result
from utils.models import NAMES, SIZES, get
from utils.results.performance import summarize

STEPS = 100
DEVICES = {
    "nvd": {"device_name": "NVIDIA H100 80GB HBM3", "total_memory_gb": 85.0, "gpu_cores": 16896},
    "amd": {"device_name": "AMD Instinct MI300X", "total_memory_gb": 206.0, "gpu_cores": 19456},
}

STACKS = {"nvd": "cuda", "amd": "rocm"}
FIRST_START = datetime(2026, 11, 21, tzinfo=timezone.utc)
START_UP_SECONDS = 20


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


def make_consistent(result: dict[str, Any], changes: Collection[str] = ()) -> None:
    """Set what follows from the other values of a result, except the `changes` that a test has made."""
    config = result["training_config"]
    tokens = config["global_batch_size"] * config["sequence_length"]
    result["performance_metrics"] |= summarize(result["step_times"], tokens, config["num_gpus"])
    if "gpu_info__device_count" not in changes:
        result["gpu_info"]["device_count"] = config["num_gpus"]
    if "learning_rates" not in changes:
        result["learning_rates"] = [schedule(step, config) for step in result["steps"]]
    if not {"provenance", "provenance__started_utc", "provenance__finished_utc"} & set(changes):
        lasted = sum(time for time in result["step_times"] if time > 0) + START_UP_SECONDS
        job = "".join(result[key] for key in ("framework", "model", "method", "label"))
        days = 0 if job == "megallamaequal" else crc32(job.encode()) % 3000  # each job on a day of its own
        started = FIRST_START + timedelta(days, hours=6 * (result["run"] - 1))
        times = {"started_utc": started, "finished_utc": started + timedelta(seconds=lasted)}
        result["provenance"] |= {key: time.isoformat(timespec="seconds") for key, time in times.items()}
    if result["model"] in NAMES and result["model_size"] in SIZES:
        spec = get(result["model"], result["model_size"])
        widths = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
        shape = {key: getattr(spec, key) for key in (*widths, "parameter_count", "vocab_size")}
        result["resolved_config"] |= {k: v for k, v in shape.items() if f"resolved_config__{k}" not in changes}
        if "memory_metrics__peak_memory_allocated_gb" not in changes:
            result["memory_metrics"]["peak_memory_allocated_gb"] = max(1.2, 6e-9 * spec.parameter_count)


def schedule(step: int, config: dict[str, Any]) -> float:
    """Return the learning rate of a step: warm-up over W steps to LR x W / (W + 1), then a cosine to the least rate."""
    peak, least, warm, last = (config[key] for key in ("lr", "min_lr", "warmup_iters", "max_steps"))
    if step <= warm:
        return float(peak * step / (warm + 1))
    return float(least + (peak - least) * (1 + math.cos(math.pi * (step - warm - 1) / (last - warm))) / 2)


def entry(result: dict[str, Any]) -> Entry:
    """Return the entry that loading a result gives."""
    name = f"train_{result['platform']}_{result['framework']}_{result['model']}_run{result['run']}.json"
    return Entry(Path(name), result, check_result(result))


def side(platform: str, seconds: float, runs: int = 5, **changes: Any) -> list[Entry]:
    """Return `runs` runs of one side."""
    return [entry(run(platform, number, seconds, **changes)) for number in range(1, runs + 1)]
