"""Every key of a result, declared once: its type, its unit, and what becomes of it.

A key is of the identity (IDENTITY_KEYS), or it is judged: a rule, the certificate or the verdict reads it. Those that
are only shown have `is_shown`, and those that nothing reads have the `reason` for which they are recorded all the same.

The schema (schema.py), the published JSON Schema, the ranges of the rules (evaluate/checks/limits.py), the columns of
tables (evaluate/frames) and the certificate of a comparison (evaluate/fairness) take what they need from this table. A
new key of a result is a row here. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from utils.models import TRAITS
from utils.settings.keys import ANY, COUNT, SHARE, Number, Part as SettingPart, Range, in_results

Kind = type | tuple[type, ...]
Part = SettingPart | Literal["trait", "data"]
"""Part of a certificate in which both sides are compared; `trait` has those that only some models have."""
NUMBER: Range = (0, 1e9)
SECONDS: Range = (0, 1e7)
"""A step of 1e7 seconds takes 116 days."""
RATE: Range = (0, 1e18)
CELSIUS: Range = (-300, 1e4)
UTC = "UTC"
"""Unit of a time on record."""
_SCALAR = (str, bool, int, float)


@dataclass(frozen=True)
class Contents:
    """Rule for the values inside an object or a list; each may be null where `is_complete` is False."""

    kind: Kind
    words: str
    """The whole value in words, for messages."""
    is_complete: bool = False
    """True for a list that has at least one entry and no null."""


@dataclass(frozen=True)
class ResultKey:
    """One key of a result."""

    kind: Kind
    unit: str = ""
    limits: Range = ANY
    """Range of its numbers; no training has one outside of it."""
    name: str = ""
    """Name in the certificate of a comparison."""
    part: Part | None = None
    is_shown: bool = False
    """True if a report, the history or another command shows it, and nothing depends on it."""
    reason: str = ""
    """Reason why the key is recorded although nothing judges or shows it: only the file and the table for pandas have
    it."""
    contents: Contents | None = None
    """Rule for the values inside of an object or a list."""
    is_optional: bool = False
    """True if a valid result may lack the key. Earlier results lack keys that came later."""
    needs_reason: bool = True
    """False if the value may be null without a reason."""
    digits: int | None = None
    """Significant digits that are kept of each number in a list of raw samples."""


SCALARS = Contents(_SCALAR, "an object of texts, numbers and booleans")
TEXTS_BY_NAME = Contents(_SCALAR, "an object of texts")
PERCENT_BY_NAME = Contents(Number, "an object of numbers")
TEXTS = Contents(str, "a list of texts")
FOR_A_PERSON = "a person who looks for the cause of a slow run reads it"
FIRST_SETTINGS = (
    "max_steps",
    "global_batch_size",
    "micro_batch_size",
    "sequence_length",
    "num_gpus",
    "gradient_accumulation",
    "tp",
    "pp",
    "cp",
    "dp",
    "precision",
    "seed",
    "lr",
    "min_lr",
    "warmup_iters",
    "weight_decay",
    "beta1",
    "beta2",
    "adam_eps",
    "clip_grad",
    "init",
    "init_std",
)
"""Order of the settings in results since the first version; later settings follow."""


def _states_of_devices() -> dict[str, ResultKey]:
    """Return the rows of mean and maximum of each state over the steady steps."""
    units = {
        "sm_clock_mhz": "MHz",
        "memory_clock_mhz": "MHz",
        "temperature_celsius": "Celsius",
        "gpu_use_percent": "%",
        "cpu_use_percent": "%",
    }
    reason = "the state of the devices explains the power that was measured with it"
    rows = {}
    for state, unit in units.items():
        for kind in ("mean", "max"):
            rows[f"{kind}_{state}"] = ResultKey(Number, unit, reason=reason, is_optional=True)
    return rows


def _settings() -> dict[str, ResultKey]:
    """Return the settings that trainers read back, in the order of results, which began with FIRST_SETTINGS."""
    rows = {}
    for place in in_results().values():
        if place.kind is not None:
            rows[place.key] = ResultKey(place.kind, limits=place.limits, name=place.name, part=place.part)
    rows["num_gpus"] = ResultKey(int, limits=COUNT, name="number of GPUs", part="layout")
    ordered = {key: rows.pop(key) for key in FIRST_SETTINGS}
    return ordered | rows


def _traits() -> dict[str, ResultKey]:
    """Return the rows of the traits that `resolved_config` has only of a model with them."""
    rows = {}
    for trait in TRAITS:
        if trait.is_always_recorded:
            continue
        # JSON has one kind of number, so that a float may be read as an int
        kind = Number if trait.kind is float else trait.kind
        limits = NUMBER if trait.kind is int else ANY
        rows[trait.key] = ResultKey(kind, limits=limits, name=trait.name, part="trait", is_optional=True)
    return rows


IDENTITY_KEYS: dict[str, ResultKey] = {
    "platform": ResultKey(str),
    "framework": ResultKey(str),
    "model": ResultKey(str),
    "model_size": ResultKey(str),
    "method": ResultKey(str),
    "label": ResultKey(str),
    "run": ResultKey(int, limits=COUNT),
    "attempt": ResultKey(int, limits=COUNT),
    "identity_sha256": ResultKey(str),
}
SAMPLE_KEYS: dict[str, ResultKey] = {
    "steps": ResultKey(int),
    "step_times": ResultKey(Number, "seconds", SECONDS, digits=6),
    "data_wait_seconds": ResultKey(Number, "seconds", (-1e7, 1e7), digits=6),
    "loss_values": ResultKey(Number, "nats per token", (-1e12, 1e12), digits=9),
    "grad_norms": ResultKey(Number, digits=9),
    "learning_rates": ResultKey(Number, limits=(-1e3, 1e3), digits=9),
}
"""Raw samples: a list each, of equal length, with one entry a step. A float32 needs 9 digits to be read back exactly,
and parity to 1e-6 requires that."""
# Values of a section may be null with a reason, except those of `training_config`, which are settings and so known.
KEYS: dict[str, dict[str, ResultKey]] = {
    "gpu_info": {
        "device_name": ResultKey(str),
        "device_count": ResultKey(int, limits=NUMBER),
        "total_memory_gb": ResultKey(Number, "GB", NUMBER),
        "gpu_cores": ResultKey(int, limits=NUMBER),
        "software_stack": ResultKey(str),
        "software_version": ResultKey(str, is_shown=True),
        "pytorch_version": ResultKey(str, is_shown=True),
        "driver_version": ResultKey(str, is_shown=True),
    },
    "training_config": _settings() | {"dataset": ResultKey(str)},
    # what ran, read back from the built objects
    "resolved_config": _settings()
    | {
        "parameter_count": ResultKey(int, limits=(1, 1e18), name="number of parameters", part="model"),
        "vocab_size": ResultKey(int, limits=COUNT, name="vocabulary", part="model"),
        "num_layers": ResultKey(int, limits=COUNT, name="layers", part="model"),
        "hidden_size": ResultKey(int, limits=COUNT, name="hidden size", part="model"),
        "ffn_hidden_size": ResultKey(int, limits=COUNT, name="feed-forward size", part="model"),
        "num_attention_heads": ResultKey(int, limits=COUNT, name="attention heads", part="model"),
        "num_query_groups": ResultKey(int, limits=COUNT, name="query groups", part="model"),
        "norm_eps": ResultKey(Number, limits=SHARE, name="norm epsilon", part="model"),
        "qkv_bias": ResultKey(bool, name="QKV bias", part="model"),
        "rope_base": ResultKey(Number, limits=(1e-9, 1e18), name="rotary base", part="model"),
        "rope_scaling": ResultKey(dict, name="rotary scaling", part="model", contents=SCALARS),
        "sliding_window": ResultKey(int, "tokens", name="attention window", part="model"),
        "attention_backend": ResultKey(str, name="attention", part="means"),
        "layer_implementation": ResultKey(str, name="layers by", part="means"),
        "optimizer": ResultKey(str, name="optimizer class", part="means"),
        "distributed_optimizer": ResultKey(bool, name="distributed optimizer", part="means"),
        "parameter_dtype": ResultKey(str, name="parameter type", part="means"),
        "gradient_reduce_dtype": ResultKey(str, name="type of reduced gradients", part="means"),
        "overlap_grad_reduce": ResultKey(bool, name="overlap of gradient reduction", part="means"),
        "overlap_param_gather": ResultKey(bool, name="overlap of parameter gather", part="means"),
        "fused_ops": ResultKey(dict, name="fused operations", part="means", contents=SCALARS),
        "parameters_without_weight_decay": ResultKey(
            int, limits=RATE, name="parameters without weight decay", part="work"
        ),
        "dataloader_workers": ResultKey(int, limits=NUMBER, name="loader workers", part="means"),
        "attention_library": ResultKey(str, is_optional=True),
        "float32_matmul_precision": ResultKey(str, is_optional=True),
        "hf_kernels": ResultKey(str, is_optional=True),
        "routing": ResultKey(str, name="routing", part="trait", is_optional=True),
        "router_dtype": ResultKey(str, name="precision of the router", part="trait", is_optional=True),
    }
    | _traits(),
    "performance_metrics": {
        "avg_step_time_seconds": ResultKey(Number, "seconds", SECONDS),
        "min_step_time_seconds": ResultKey(Number, "seconds", SECONDS),
        "max_step_time_seconds": ResultKey(Number, "seconds", SECONDS),
        "std_step_time_seconds": ResultKey(Number, "seconds", SECONDS),
        "tokens_per_second": ResultKey(Number, "tokens/s", RATE),
        "tokens_per_second_per_gpu": ResultKey(Number, "tokens/s", RATE),
        "steps_per_second": ResultKey(Number, "steps/s", RATE),
        "data_wait_fraction": ResultKey(Number, "share of a step"),
        "warmup_steps_excluded": ResultKey(int, limits=NUMBER),
        # null where the lines of a log were not seen as they came
        "loop_seconds": ResultKey(Number, "seconds", is_optional=True, needs_reason=False),
    },
    "memory_metrics": {
        "avg_memory_allocated_gb": ResultKey(Number, "GB", NUMBER),
        "peak_memory_allocated_gb": ResultKey(Number, "GB", NUMBER),
        "peak_memory_reserved_gb": ResultKey(Number, "GB", NUMBER),
        "source": ResultKey(str, is_shown=True),
    },
    "energy_metrics": {
        "joules": ResultKey(Number, "joules"),
        "avg_watts": ResultKey(Number, "watts"),
        "joules_per_token": ResultKey(Number, "joules"),
        "source": ResultKey(str, is_shown=True),
        "interval": ResultKey(str, reason="it says which steps the energy is of"),
        "counter_joules": ResultKey(Number, "joules", is_optional=True),
        "integrated_joules": ResultKey(Number, "joules", is_optional=True),
        "method": ResultKey(str, is_shown=True, is_optional=True),
        "idle_watts": ResultKey(
            Number, "watts", reason="a reader may subtract it; the suite never does", is_optional=True
        ),
        "cpu_joules": ResultKey(
            Number, "joules", reason="the energy of the processors beside that of the GPUs", is_optional=True
        ),
        "gpu_count": ResultKey(int, limits=NUMBER, is_optional=True),
        "samples": ResultKey(int, limits=NUMBER, reason="how much the mean and the maximum rest on", is_optional=True),
        "sample_hz": ResultKey(Number, "Hz", NUMBER, is_optional=True),
        "throttled_percent": ResultKey(dict, "%", contents=PERCENT_BY_NAME, is_optional=True),
    }
    | _states_of_devices(),
    "fingerprint": {
        "dataset_bin_sha256": ResultKey(str, name="data", part="data"),
        "dataset_idx_sha256": ResultKey(str, name="index of the data", part="data"),
        "tokenizer_sha256": ResultKey(str, name="tokenizer", part="data"),
        "model_config_sha256": ResultKey(str, name="model configuration", part="data"),
        "token_stream_sha256": ResultKey(str, name="tokens of the first batches in order", part="data"),
        "token_stream_batches": ResultKey(int, is_shown=True, limits=NUMBER),
        "initial_weights_sha256": ResultKey(str, name="initial weights", part="data"),
        "epochs": ResultKey(Number, limits=NUMBER, name="passes over the data", part="data"),
        "licences": ResultKey(dict, is_shown=True, contents=Contents(str, "texts or null by name"), is_optional=True),
    },
    # where and from what the result came
    "provenance": {
        "git_commit": ResultKey(str, is_shown=True),
        "git_dirty": ResultKey(bool, is_shown=True),
        "code_sha256": ResultKey(str),
        "image": ResultKey(str, is_shown=True),
        "image_digest": ResultKey(str),
        "command": ResultKey(str, is_shown=True),
        "host": ResultKey(str),
        "framework_versions": ResultKey(dict, contents=TEXTS_BY_NAME),
        "environment": ResultKey(dict, contents=TEXTS_BY_NAME),
        "started_utc": ResultKey(str, UTC),
        "finished_utc": ResultKey(str, UTC),
        "hosts": ResultKey(
            list,
            contents=Contents(str, "the name of each node, by its number", is_complete=True),
            is_optional=True,
        ),
        "environment_passed": ResultKey(
            list,
            reason="it shows that a variable was not there, which `environment` cannot",
            contents=Contents(str, "the names of the variables that the ranks were started with", is_complete=True),
            is_optional=True,
        ),
        "environment_withheld": ResultKey(
            list,
            reason="it explains why a variable that was set outside had no effect",
            contents=Contents(str, "the names of the variables that were kept from the ranks", is_complete=True),
            is_optional=True,
        ),
        "suite_version": ResultKey(str, is_shown=True, is_optional=True),
        "environment_removed": ResultKey(
            dict,
            reason="values of variables that were kept from the ranks, whose settings decide them",
            contents=Contents(str, "an object of texts"),
            is_optional=True,
        ),
    },
    "conditions": {
        "gpu_tool": ResultKey(str, reason="it says which tool the other conditions are from"),
        "gpu_count": ResultKey(int, limits=NUMBER),
        "power_cap_watts": ResultKey(Number, "watts", NUMBER),
        "default_power_cap_watts": ResultKey(Number, "watts", NUMBER),
        "max_power_cap_watts": ResultKey(Number, "watts", NUMBER),
        "max_sm_clock_mhz": ResultKey(Number, "MHz", NUMBER),
        "max_memory_clock_mhz": ResultKey(Number, "MHz", NUMBER, is_shown=True),
        "clock_limit_mhz": ResultKey(Number, "MHz", NUMBER),
        "default_clock_limit_mhz": ResultKey(Number, "MHz", NUMBER),
        "performance_level": ResultKey(str),
        "persistence": ResultKey(str),
        "compute_mode": ResultKey(str),
        "ecc": ResultKey(str),
        "partition": ResultKey(str),
        "driver_version": ResultKey(str, is_shown=True),
        "gpu_memory_used_gb": ResultKey(Number, "GB", RATE, reason=FOR_A_PERSON),
        "other_processes": ResultKey(int, limits=NUMBER),
        "temperature_before_celsius": ResultKey(Number, "Celsius", CELSIUS, reason=FOR_A_PERSON),
        "temperature_after_celsius": ResultKey(Number, "Celsius", CELSIUS, reason=FOR_A_PERSON),
        "throttle_before": ResultKey(list, reason=FOR_A_PERSON, contents=TEXTS),
        "throttle_after": ResultKey(list, contents=TEXTS),
        "throttled_percent": ResultKey(dict, "%", contents=PERCENT_BY_NAME),
        "busy_before_percent": ResultKey(Number, "%", NUMBER),
        "numa_balancing": ResultKey(bool),
        "numa_nodes": ResultKey(int, limits=NUMBER),
        "cpu_governor": ResultKey(str),
        "swap_used_gb": ResultKey(Number, "GB", RATE, reason=FOR_A_PERSON),
        "shared_memory_gb": ResultKey(Number, "GB", RATE, reason=FOR_A_PERSON),
        "open_files_limit": ResultKey(int, reason=FOR_A_PERSON),
        "locked_memory_gb": ResultKey(Number, "GB", RATE, reason=FOR_A_PERSON),
    },
    # of a mixture of experts alone
    "experts": {
        "tokens": ResultKey(list, limits=RATE, contents=Contents(int, "a list of whole numbers")),
        "fullest_share": ResultKey(list, limits=SHARE, contents=Contents(Number, "a list of numbers")),
    },
    "repeats": {
        "runs": ResultKey(str),
        "least": ResultKey(int, reason="the rule by which RUNS=auto ended, as it was then"),
        "most": ResultKey(int, reason="the rule by which RUNS=auto ended, as it was then"),
        "target_percent": ResultKey(Number, "%", reason="the rule by which RUNS=auto ended, as it was then"),
    },
}
SECTIONS_OF_SOME = ("conditions", "experts", "repeats")
"""`conditions` of train/machine/conditions.py, `experts` of a mixture of experts (train/job/recorder.py: tokens of each
expert, and of each step the share of the fullest one), and `repeats`, the setting RUNS (performance.py). Results of
earlier versions and those read from logs lack the sections; where one is present, it is complete."""


def names_of(part: Part) -> dict[str, str]:
    """Return the names of one part of a certificate by their keys: settings in the order of their table come first."""
    # a setting is in `resolved_config` too, and keeps its place here
    of_settings = {place.key: place.name for place in in_results().values() if place.part == part}
    rows = KEYS["resolved_config"] | KEYS["fingerprint"]
    return of_settings | {key: row.name for key, row in rows.items() if row.part == part}
