"""Values of a synthetic result that follow from its other values, so that its evidence agrees with itself."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import datetime, timedelta, timezone
from typing import Any
from zlib import crc32

from utils.models import NAMES, SIZES, get
from utils.results.performance import summarize

FIRST_START = datetime(2026, 11, 21, tzinfo=timezone.utc)
START_UP_SECONDS = 20


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
