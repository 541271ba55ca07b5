"""Names that the earlier formats use: our key, then the names under which its value is found, in order.

A value of another type ("N/A" for a number) is unknown. No other names are tried. `named_in` finds the models that a
text names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from utils import frameworks
from utils.models import NAMES
from utils.results.schema import SECTIONS

TIMES = ("raw_step_times", "step_times")
SAMPLES = {
    "loss_values": ("loss_values", "raw_loss_values", "raw_losses", "losses"),
    "grad_norms": (),
    "learning_rates": ("learning_rates", "raw_learning_rates"),
    "data_wait_seconds": (),
}
CONFIG = {
    "max_steps": ("max_steps", "train_iters", "num_steps"),
    "global_batch_size": ("global_batch_size", "gbs"),
    "micro_batch_size": ("micro_batch_size", "mbs"),
    "sequence_length": ("sequence_length", "seq_length", "seq_len"),
    "num_gpus": ("num_gpus", "world_size"),
    "gradient_accumulation": ("gradient_accumulation", "gradient_accumulation_steps", "grad_accum_steps"),
    "tp": ("tp", "tensor_parallel_size", "tensor_model_parallel_size"),
    "pp": ("pp", "pipeline_parallel_size", "pipeline_model_parallel_size"),
    "cp": ("cp", "context_parallel_size"),
    "dp": ("dp", "data_parallel_size"),
    "precision": ("precision", "dtype"),
    "seed": ("seed",),
    "lr": ("lr", "learning_rate"),
    "min_lr": ("min_lr", "min_learning_rate"),
    "warmup_iters": ("warmup_iters", "warmup_steps", "lr_warmup_iters"),
    "weight_decay": ("weight_decay",),
    "beta1": ("beta1", "adam_beta1"),
    "beta2": ("beta2", "adam_beta2"),
    "adam_eps": ("adam_eps",),
    "clip_grad": ("clip_grad", "gradient_clip_val"),
    "dataset": ("dataset",),
}
GPU_INFO = {
    "device_name": ("device_name", "name"),
    "device_count": ("device_count", "num_gpus"),
    "total_memory_gb": ("total_memory_gb", "memory_gb"),
    "gpu_cores": ("gpu_cores",),
    "software_stack": ("software_stack",),
    "software_version": ("software_version", "cuda_version", "rocm_version"),
    "pytorch_version": ("pytorch_version", "torch_version"),
    "driver_version": ("driver_version",),
}
MEMORY = {
    "avg_memory_allocated_gb": ("avg_memory_allocated_gb",),
    "peak_memory_allocated_gb": ("peak_memory_allocated_gb", "max_memory_allocated_gb"),
    "peak_memory_reserved_gb": ("peak_memory_reserved_gb", "max_memory_reserved_gb"),
}
SUMMARY = {
    "avg_step_time_seconds": ("avg_step_time_seconds", "average_step_time_seconds", "avg_step_time"),
    "steps_per_second": ("steps_per_second",),
    "tokens_per_second": ("tokens_per_second", "throughput_tokens_per_second"),
    "tokens_per_second_per_gpu": ("tokens_per_second_per_gpu",),
}
MFU_CLAIMS = ("mfu", "mfu_percent", "model_flops_utilization", "model_flops_utilization_percent")
TFLOPS_CLAIMS = ("tflops_per_gpu", "tflops_per_second_per_gpu", "model_tflops_per_gpu", "achieved_tflops_per_gpu")
"""Keys of a utilisation (as a share or in %) and of model TFLOP/s in `performance_metrics`."""
PLATFORMS = {"cuda": "nvd", "nvidia": "nvd", "nvd": "nvd", "rocm": "amd", "hip": "amd", "amd": "amd", "cpu": "cpu"}
FRAMEWORKS = {
    name: framework.name for framework in frameworks.FRAMEWORKS.values() for name in framework.other_names
} | {name: name for name in frameworks.FRAMEWORKS}
PRECISIONS = {"bfloat16": "bf16", "bf16-mixed": "bf16", "float16": "fp16", "fp16-mixed": "fp16", "float32": "fp32"}
UNKNOWN = "unknown"
"""Name of a model, a framework or a method that nothing names."""
LARGEST_NUMBER = 1e30
"""Far above every quantity of a result, and far below the largest float."""


def is_number(value: Any) -> bool:
    """Return whether a value is a number, not a boolean, that arithmetic can handle."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


def first(content: Mapping[str, Any], alternatives: Sequence[str]) -> Any:
    """Return the value under the first of these names that exists; None if none does."""
    return next((content[name] for name in alternatives if name in content), None)


def picked(given: Any, table: Mapping[str, Sequence[str]], section: str) -> dict[str, Any]:
    """Return the values of an earlier section that have our types, by our keys."""
    found = {}
    for key, alternatives in table.items() if isinstance(given, dict) else ():
        value, kind = first(given, alternatives), SECTIONS[section][key]
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, kind) and (kind is str or is_number(value)):
            found[key] = value
    return found


def text(value: Any) -> str | None:
    """Return a text that is not empty, otherwise None."""
    return value if isinstance(value, str) and value else None


def framework(given: Any) -> str:
    """Return our name of a framework; `unknown` if none is given."""
    name = text(given)
    return FRAMEWORKS.get(name.lower(), name) if name else UNKNOWN


def model(given: Any, named: str | None) -> str:
    """Return our name of the model in the file or the file name; the name itself if it is none of our models."""
    name = text(given) or text(named) or UNKNOWN
    ours = named_in(name)
    return ours[0] if len(ours) == 1 else name


def precision(given: Any) -> str | None:
    """Return our name of a precision."""
    name = text(given)
    return PRECISIONS.get(name.lower(), name.lower()) if name else None


# Sections of a result whose values are only partly known.


def filled(name: str, known: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return the section `name` with the known values; every other key is null and has `reason`."""
    values = {key: known.get(key) for key in SECTIONS[name]}
    return values | {"reasons": {key: reason for key, value in values.items() if value is None}}


def named_in(text: str) -> list[str]:
    """Return the models whose names occur in `text`, without a name that is a part of another one that occurs.

    The mixture of experts has the name of its release too, Qwen3-30B-A3B.
    """
    text = re.sub("qwen3[-_]?30b[-_]?a3b", "qwen3moe", text.lower())
    found = [name for name in NAMES if name in text]
    return [name for name in found if not any(name != other and name in other for other in found)]
