"""A valid result for the tests to bend: made by hand, with round numbers whose consequences are easy to work out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

_CONFIG = {
    "max_steps": 10,
    "global_batch_size": 64,
    "micro_batch_size": 8,
    "sequence_length": 128,
    "num_gpus": 1,
    "gradient_accumulation": 8,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 1,
    "dp": 1,
    "precision": "fp32",
    "fp8_recipe": "none",
    "seed": 42,
    "lr": 1e-3,
    "min_lr": 0.0,
    "warmup_iters": 2,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "adam_eps": 1e-8,
    "clip_grad": 1.0,
    "init": "equal",
    "init_std": 0.02,
    "optimizer_state": "fp32",
    "gradient_dtype": "fp32",
    "recompute": "none",
}
_RESULT: dict[str, Any] = {
    "schema_version": 1,
    "status": "ok",
    "reason": None,
    "warnings": [],
    "platform": "cpu",
    "framework": "mega",
    "model": "llama",
    "model_size": "tiny",
    "method": "equal",
    "label": "",
    "run": 1,
    "attempt": 1,
    "identity_sha256": "1" * 64,
    "gpu_info": {
        "device_name": "Example CPU",
        "device_count": 1,
        "total_memory_gb": 24.0,
        "gpu_cores": None,
        "software_stack": "cpu",
        "software_version": None,
        "pytorch_version": "2.13.0",
        "driver_version": None,
        "reasons": {"gpu_cores": "no GPU", "software_version": "no GPU", "driver_version": "no GPU"},
    },
    "training_config": {**_CONFIG, "dataset": "synth", "layers": "auto", "profile": "none", "routing": "learned"},
    "resolved_config": {
        **_CONFIG,
        "parameter_count": 1_901_696,
        "vocab_size": 4096,
        "num_layers": 4,
        "hidden_size": 128,
        "ffn_hidden_size": 448,
        "num_attention_heads": 8,
        "num_query_groups": 2,
        "norm_eps": 1e-5,
        "qkv_bias": False,
        "rope_base": 500000.0,
        "rope_scaling": {"factor": 8.0},
        "sliding_window": None,
        "attention_backend": "torch_sdpa",
        "layer_implementation": "local",
        "optimizer": "AdamW",
        "distributed_optimizer": True,
        "parameter_dtype": "float32",
        "gradient_reduce_dtype": "float32",
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "fused_ops": {},
        "parameters_without_weight_decay": 1152,
        "dataloader_workers": 0,
        "reasons": {"sliding_window": "this model attends to every earlier token"},
    },
    # 7 steady steps of 0.5 s, 64 * 128 = 8192 tokens each
    "performance_metrics": {
        "avg_step_time_seconds": 0.5,
        "min_step_time_seconds": 0.5,
        "max_step_time_seconds": 0.5,
        "std_step_time_seconds": 0.0,
        "tokens_per_second": 16384.0,
        "tokens_per_second_per_gpu": 16384.0,
        "steps_per_second": 2.0,
        "data_wait_fraction": 0.0,
        "warmup_steps_excluded": 3,
    },
    "memory_metrics": {
        "avg_memory_allocated_gb": 1.1,
        "peak_memory_allocated_gb": 1.2,
        "peak_memory_reserved_gb": None,
        "source": "resident set of the process",
        "reasons": {"peak_memory_reserved_gb": "no caching allocator on a CPU"},
    },
    "energy_metrics": {
        "joules": None,
        "avg_watts": None,
        "joules_per_token": None,
        "source": None,
        "interval": None,
        "reasons": dict.fromkeys(("joules", "avg_watts", "joules_per_token", "source", "interval"), "not measured"),
    },
    "steps": list(range(1, 11)),
    "step_times": [2.0, 0.6, 0.55] + [0.5] * 7,
    "data_wait_seconds": [0.0] * 10,  # a share of 0 whatever step times a test gives
    "loss_values": [8.3, 8.2, 8.0, 7.8, 7.6, 7.4, 7.2, 7.1, 7.0, 6.9],
    "grad_norms": [2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1],
    # warm-up of 2 steps, then 5e-4 x (1 + cos(pi k / 8)), k = 0 to 7
    "learning_rates": [
        *(0.000333333333, 0.000666666667, 0.001, 0.000961939766, 0.000853553391),
        *(0.000691341716, 0.0005, 0.000308658284, 0.000146446609, 3.80602337e-05),
    ],
    "fingerprint": {
        "dataset_bin_sha256": "a" * 64,
        "dataset_idx_sha256": "b" * 64,
        "tokenizer_sha256": "c" * 64,
        "model_config_sha256": "d" * 64,
        "token_stream_sha256": "e" * 64,
        "token_stream_batches": 2,
        "initial_weights_sha256": "f" * 64,
        "epochs": 0.9,
    },
    "provenance": {
        "git_commit": "0" * 40,
        "git_dirty": False,
        "code_sha256": "9" * 64,
        "image": None,
        "image_digest": None,
        "command": "train/train_cpu_mega_llama.sh",
        "host": "example",
        "framework_versions": {"torch": "2.13.0"},
        "environment": {},
        "started_utc": "2026-11-21T00:00:00+00:00",
        "finished_utc": "2026-11-21T00:00:10+00:00",
        "reasons": {"image": "no container", "image_digest": "no container"},
    },
}


def example_result(**changes: Any) -> dict[str, Any]:
    """Return a fresh valid result with the changes of `put`."""
    return put(copy.deepcopy(_RESULT), changes)


def put(result: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Replace keys of a result, in place; `section__key` reaches into a section."""
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            result[section][key] = value
        else:
            result[section] = value
    return result
