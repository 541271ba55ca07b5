"""Ranges of the numbers in a result: outside them a number is none of a training, and other rules cannot use it.

The limits are far from anything that exists, so that no honest result comes near them. They keep sizes of 0 out of
divisions, counts of 1e15 out of loops, and values such as 1e-310 J out of quotients that would be infinite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from utils.errors import quoted
from utils.results.schema import Result

Range = tuple[float, float]
COUNT: Range = (1, 1e9)
NUMBER: Range = (0, 1e9)
SPLIT: Range = (1, 4096)
"""Tensor, pipeline and context parallel sizes: no model has as many layers or heads."""
SHARE: Range = (0, 1)
SECONDS: Range = (0, 1e7)
"""A step of 1e7 seconds takes 116 days."""
RATE: Range = (0, 1e18)
ANY: Range = (-1e18, 1e18)
"""Of every number without a range of its own, whose sign other rules judge with their own words; arithmetic beyond it
overflows."""
_SETTINGS: dict[str, Range] = {
    **dict.fromkeys(("max_steps", "global_batch_size", "micro_batch_size", "sequence_length"), COUNT),
    **dict.fromkeys(("num_gpus", "gradient_accumulation", "dp"), COUNT),
    **dict.fromkeys(("tp", "pp", "cp"), SPLIT),
    **dict.fromkeys(("lr", "min_lr", "adam_eps", "init_std"), (0, 1e3)),
    **dict.fromkeys(("beta1", "beta2"), SHARE),
    "clip_grad": (-1, 1e18),
    "warmup_iters": NUMBER,
}
_SECTIONS: dict[str, dict[str, Range]] = {
    "gpu_info": dict.fromkeys(("device_count", "total_memory_gb", "gpu_cores"), NUMBER),
    "training_config": _SETTINGS,
    "resolved_config": _SETTINGS
    | {
        "parameter_count": (1, 1e18),
        **dict.fromkeys(("vocab_size", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"), COUNT),
        "num_query_groups": COUNT,
        "norm_eps": SHARE,
        "rope_base": (1e-9, 1e18),
        "parameters_without_weight_decay": RATE,
        "dataloader_workers": NUMBER,
    },
    "performance_metrics": {
        **dict.fromkeys((f"{name}_step_time_seconds" for name in ("avg", "min", "max", "std")), SECONDS),
        **dict.fromkeys(("tokens_per_second", "tokens_per_second_per_gpu", "steps_per_second"), RATE),
        "warmup_steps_excluded": NUMBER,
    },
    "memory_metrics": dict.fromkeys(
        ("avg_memory_allocated_gb", "peak_memory_allocated_gb", "peak_memory_reserved_gb"), NUMBER
    ),
    "energy_metrics": dict.fromkeys(("gpu_count", "samples", "sample_hz"), NUMBER),
    "fingerprint": dict.fromkeys(("token_stream_batches", "epochs"), NUMBER),
    "conditions": {
        **dict.fromkeys(("gpu_count", "other_processes", "numa_nodes", "busy_before_percent"), NUMBER),
        **dict.fromkeys((f"{name}power_cap_watts" for name in ("", "default_", "max_")), NUMBER),
        **dict.fromkeys(("max_sm_clock_mhz", "max_memory_clock_mhz"), NUMBER),
        **dict.fromkeys(("clock_limit_mhz", "default_clock_limit_mhz"), NUMBER),
        **dict.fromkeys(("gpu_memory_used_gb", "swap_used_gb", "shared_memory_gb", "locked_memory_gb"), RATE),
        **dict.fromkeys((f"temperature_{name}_celsius" for name in ("before", "after")), (-300, 1e4)),
    },
}
RANGES: dict[str, Range] = {
    **dict.fromkeys(("run", "attempt"), COUNT),
    "step_times": SECONDS,
    "data_wait_seconds": (-1e7, 1e7),
    "loss_values": (-1e12, 1e12),
    "learning_rates": (-1e3, 1e3),
} | {f"{section}.{key}": limits for section, ranges in _SECTIONS.items() for key, limits in ranges.items()}
LEAST = 1e-12
"""Below it, and above 0, a loss is no cross entropy, and energy and power are none; their inverse would be infinite."""
STAGES_WITHOUT_LAYERS = 2
"""Pipeline stages that may hold the embedding and the output alone."""


def out_of_range(result: Result) -> Iterator[str]:
    """Yield a line for each number of a result, which satisfies the schema, that no training has."""
    for key, value in _numbers(result):
        low, high = RANGES.get(key, ANY)
        if not low <= value <= high:
            yield f"{key}: got {quoted(value)}, wanted a number from {low:g} to {high:g}"
        elif 0 < value < LEAST and key.startswith(("loss_values", "energy_metrics")):
            yield f"{key}: got {value:g}, wanted {LEAST:g} or more"
    stages, layers = result["training_config"]["pp"], result["resolved_config"]["num_layers"]
    if None not in (stages, layers) and stages > layers + STAGES_WITHOUT_LAYERS:
        yield f"training_config.pp: got {stages} pipeline stages for {layers} layers, wanted a layer or more in each"


def _numbers(value: Any, where: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in a result with its place; of a list, the least and the largest."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        numbers = [one for one in value if isinstance(one, (int, float))]
        ends = (min(numbers), max(numbers)) if numbers else ()
        others = value if len(numbers) < len(value) else []
        for inner in (*ends, *(one for one in others if isinstance(one, (dict, list)))):
            yield from _numbers(inner, where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield where, value
