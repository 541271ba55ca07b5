"""Ranges of the numbers in a result: outside them a number is none of a training, and other rules cannot use it.

The limits are far from anything that exists, so that no honest result comes near them. They keep sizes of 0 out of
divisions, counts of 1e15 out of loops, and values such as 1e-310 J out of quotients that would be infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from utils.errors import quoted
from utils.results.schema import Result

Range = tuple[float, float]
COUNT: Range = (1, 1e9)
NUMBER: Range = (0, 1e9)
SPLIT: Range = (1, 4096)
"""Tensor, pipeline and context parallel sizes: no model has as many layers or heads."""
SHARE: Range = (0, 1)
SETTING: Range = (0, 1e3)
SECONDS: Range = (0, 1e7)
"""A step of 1e7 seconds takes 116 days."""
RATE: Range = (0, 1e18)
GIGABYTES: Range = (0, 1e9)
ENERGY: Range = (-1e18, 1e18)
_SETTINGS: dict[str, Range] = {
    **dict.fromkeys(("max_steps", "global_batch_size", "micro_batch_size", "sequence_length"), COUNT),
    **dict.fromkeys(("num_gpus", "gradient_accumulation", "dp"), COUNT),
    **dict.fromkeys(("tp", "pp", "cp"), SPLIT),
    **dict.fromkeys(("lr", "min_lr", "adam_eps", "init_std"), SETTING),
    **dict.fromkeys(("beta1", "beta2"), SHARE),
    "clip_grad": (-1, 1e18),
    "warmup_iters": NUMBER,
}
SECTIONS: dict[str, dict[str, Range]] = {
    "gpu_info": {"device_count": NUMBER, "total_memory_gb": GIGABYTES, "gpu_cores": NUMBER},
    "training_config": _SETTINGS,
    "resolved_config": _SETTINGS
    | {
        "parameter_count": (1, 1e18),
        **dict.fromkeys(("vocab_size", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"), COUNT),
        "num_query_groups": COUNT,
        "norm_eps": SHARE,
        "rope_base": (1e-9, 1e18),
        "parameters_without_weight_decay": (0, 1e18),
        "dataloader_workers": NUMBER,
    },
    "performance_metrics": {
        **dict.fromkeys((f"{name}_step_time_seconds" for name in ("avg", "min", "max", "std")), SECONDS),
        **dict.fromkeys(("tokens_per_second", "tokens_per_second_per_gpu", "steps_per_second"), RATE),
        "warmup_steps_excluded": NUMBER,
    },
    "memory_metrics": dict.fromkeys(
        ("avg_memory_allocated_gb", "peak_memory_allocated_gb", "peak_memory_reserved_gb"), GIGABYTES
    ),
    "energy_metrics": {
        **dict.fromkeys(("joules", "avg_watts", "joules_per_token", "counter_joules", "integrated_joules"), ENERGY),
        **dict.fromkeys(("idle_watts", "cpu_joules"), ENERGY),
        **dict.fromkeys(("gpu_count", "samples", "sample_hz"), NUMBER),
    },
    "fingerprint": {"token_stream_batches": NUMBER, "epochs": NUMBER},
    "conditions": {
        **dict.fromkeys(("gpu_count", "other_processes", "numa_nodes", "busy_before_percent"), NUMBER),
        **dict.fromkeys((f"{name}power_cap_watts" for name in ("", "default_", "max_")), NUMBER),
        **dict.fromkeys(("max_sm_clock_mhz", "max_memory_clock_mhz"), NUMBER),
        **dict.fromkeys(("clock_limit_mhz", "default_clock_limit_mhz"), NUMBER),
        **dict.fromkeys(("gpu_memory_used_gb", "swap_used_gb", "shared_memory_gb", "locked_memory_gb"), RATE),
        **dict.fromkeys((f"temperature_{name}_celsius" for name in ("before", "after")), (-300, 1e4)),
    },
}
SAMPLES: dict[str, Range] = {
    "step_times": SECONDS,
    "data_wait_seconds": (-1e7, 1e7),
    "loss_values": (-1e12, 1e12),
    "grad_norms": (-1e18, 1e18),
    "learning_rates": (-1e3, 1e3),
}
"""The sign of waits, losses, norms, rates and energy is judged by other rules, with their own words."""
LEAST = 1e-12
"""Below it, and above 0, a loss is no cross entropy, and energy and power are none; their inverse would be infinite."""
STAGES_WITHOUT_LAYERS = 2
"""Pipeline stages that may hold the embedding and the output alone."""


def out_of_range(result: Result) -> list[str]:
    """Return a line for each number of a result, which satisfies the schema, that no training has."""
    lines = [*_of(result, {"run": COUNT, "attempt": COUNT})]
    for section, ranges in SECTIONS.items():
        if isinstance(result.get(section), Mapping):
            lines += _of(result[section], ranges, f"{section}.")
    for key, (low, high) in SAMPLES.items():
        known = [value for value in result[key] if value is not None]
        lines += [_line(key, value, low, high) for value in _ends(known) if not low <= value <= high]
    return [*lines, *_tiny(result), *_stages(result)]


def _tiny(result: Result) -> Iterator[str]:
    """Yield a line for each loss or energy so small that it is none; other rules judge zero and less."""
    losses = [loss for loss in result["loss_values"] if loss is not None and 0 < loss < LEAST]
    energy = {f"energy_metrics.{key}": result["energy_metrics"].get(key) for key in SECTIONS["energy_metrics"]}
    for key, value in ({"loss_values": min(losses, default=None)} | energy).items():
        if value is not None and 0 < value < LEAST:
            yield f"{key}: got {value:g}, wanted {LEAST:g} or more"


def _of(section: Mapping[str, Any], ranges: Mapping[str, Range], where: str = "") -> Iterator[str]:
    for key, (low, high) in ranges.items():
        value = section.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not low <= value <= high:
            yield _line(f"{where}{key}", value, low, high)


def _ends(values: list[float]) -> list[float]:
    return list(dict.fromkeys((min(values), max(values)))) if values else []


def _stages(result: Result) -> list[str]:
    stages, layers = result["training_config"]["pp"], result["resolved_config"]["num_layers"]
    if stages is None or layers is None or stages <= layers + STAGES_WITHOUT_LAYERS:
        return []
    return [f"training_config.pp: got {stages} pipeline stages for {layers} layers, wanted a layer or more in each"]


def _line(key: str, value: float, low: float, high: float) -> str:
    return f"{key}: got {quoted(value)}, wanted a number from {low:g} to {high:g}"
