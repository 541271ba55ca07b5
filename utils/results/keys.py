"""Every key of a result, declared once: its type, its unit, and what becomes of it.

The schema (schema.py), the published JSON Schema, the ranges of the rules (evaluate/checks/limits.py), the columns of
tables (evaluate/frames) and the certificate of a comparison (evaluate/fairness) take what they need from this table. A
new key of a result is a row here. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from utils.settings.keys import ANY, COUNT, SHARE, InResults, Number, Part as SettingPart, Range, in_results

Kind = type | tuple[type, ...]
Part = SettingPart | Literal["trait", "data"]
"""Part of a certificate in which both sides are compared; `trait` has those that only some models have."""
Fate = Literal["identity", "judged", "shown", "raw"]
IDENTITY: Fate = "identity"
"""Says which run the result is of."""
JUDGED: Fate = "judged"
"""A rule, the certificate or the verdict reads it."""
SHOWN: Fate = "shown"
"""A report, the history or another command shows it, and nothing depends on it."""
RAW: Fate = "raw"
"""Only the file and the table for pandas have it. Such a key needs a reason: it costs every result."""

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
    """What the values inside an object or a list have to be; each may be null where `is_complete` is False."""

    kind: Kind
    words: str
    """The whole value in words, for messages."""
    is_complete: bool = False
    """True for a list that has at least one entry and no null."""


@dataclass(frozen=True)
class ResultKey:
    """One key of a section of a result."""

    kind: Kind
    fate: Fate
    unit: str = ""
    limits: Range = ANY
    """Range of its numbers; no training has one outside of it."""
    name: str = ""
    """Name in the certificate of a comparison."""
    part: Part | None = None
    reason: str = ""
    """Reason why the key is recorded although nothing judges or shows it."""
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
STATE_OF_DEVICES = "the state of the devices explains the power that was measured with it"


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


def _of_setting(place: InResults) -> ResultKey:
    """Return the row of a setting, which `training_config` and `resolved_config` have."""
    kind = str if place.kind is None else place.kind
    return ResultKey(kind, JUDGED, limits=place.limits, name=place.name, part=place.part)


def _settings() -> dict[str, ResultKey]:
    """Return the settings that trainers read back, in the order of results, which began with FIRST_SETTINGS."""
    rows = {place.key: _of_setting(place) for place in in_results().values() if place.kind is not None}
    rows["num_gpus"] = ResultKey(int, JUDGED, limits=COUNT, name="number of GPUs", part="layout")
    ordered = {key: rows.pop(key) for key in FIRST_SETTINGS}
    return ordered | rows


IDENTITY_KEYS: dict[str, ResultKey] = {
    "platform": ResultKey(str, IDENTITY),
    "framework": ResultKey(str, IDENTITY),
    "model": ResultKey(str, IDENTITY),
    "model_size": ResultKey(str, IDENTITY),
    "method": ResultKey(str, IDENTITY),
    "label": ResultKey(str, IDENTITY),
    "run": ResultKey(int, IDENTITY, limits=COUNT),
    "attempt": ResultKey(int, IDENTITY, limits=COUNT),
    "identity_sha256": ResultKey(str, IDENTITY),
}
SAMPLE_KEYS: dict[str, ResultKey] = {
    "steps": ResultKey(int, JUDGED),
    "step_times": ResultKey(Number, JUDGED, "seconds", SECONDS, digits=6),
    "data_wait_seconds": ResultKey(Number, JUDGED, "seconds", (-1e7, 1e7), digits=6),
    "loss_values": ResultKey(Number, JUDGED, "nats per token", (-1e12, 1e12), digits=9),
    "grad_norms": ResultKey(Number, JUDGED, digits=9),
    "learning_rates": ResultKey(Number, JUDGED, limits=(-1e3, 1e3), digits=9),
}
"""Raw samples: a list each, of equal length, with one entry a step. A float32 needs 9 digits to be read back exactly,
and parity to 1e-6 requires that."""
# Values of a section may be null with a reason, except those of `training_config`, which are settings and so known.
KEYS: dict[str, dict[str, ResultKey]] = {
    "gpu_info": {
        "device_name": ResultKey(str, JUDGED),
        "device_count": ResultKey(int, JUDGED, limits=NUMBER),
        "total_memory_gb": ResultKey(Number, JUDGED, "GB", NUMBER),
        "gpu_cores": ResultKey(int, JUDGED, limits=NUMBER),
        "software_stack": ResultKey(str, JUDGED),
        "software_version": ResultKey(str, SHOWN),
        "pytorch_version": ResultKey(str, SHOWN),
        "driver_version": ResultKey(str, SHOWN),
    },
    "training_config": _settings() | {"dataset": ResultKey(str, JUDGED)},
    "resolved_config": _settings()
    | {
        "parameter_count": ResultKey(int, JUDGED, limits=(1, 1e18), name="number of parameters", part="model"),
        "vocab_size": ResultKey(int, JUDGED, limits=COUNT, name="vocabulary", part="model"),
        "num_layers": ResultKey(int, JUDGED, limits=COUNT, name="layers", part="model"),
        "hidden_size": ResultKey(int, JUDGED, limits=COUNT, name="hidden size", part="model"),
        "ffn_hidden_size": ResultKey(int, JUDGED, limits=COUNT, name="feed-forward size", part="model"),
        "num_attention_heads": ResultKey(int, JUDGED, limits=COUNT, name="attention heads", part="model"),
        "num_query_groups": ResultKey(int, JUDGED, limits=COUNT, name="query groups", part="model"),
        "norm_eps": ResultKey(Number, JUDGED, limits=SHARE, name="norm epsilon", part="model"),
        "qkv_bias": ResultKey(bool, JUDGED, name="QKV bias", part="model"),
        "rope_base": ResultKey(Number, JUDGED, limits=(1e-9, 1e18), name="rotary base", part="model"),
        "rope_scaling": ResultKey(dict, JUDGED, name="rotary scaling", part="model", contents=SCALARS),
        "sliding_window": ResultKey(int, JUDGED, "tokens", name="attention window", part="model"),
        "attention_backend": ResultKey(str, JUDGED, name="attention", part="means"),
        "layer_implementation": ResultKey(str, JUDGED, name="layers by", part="means"),
        "optimizer": ResultKey(str, JUDGED, name="optimizer class", part="means"),
        "distributed_optimizer": ResultKey(bool, JUDGED, name="distributed optimizer", part="means"),
        "parameter_dtype": ResultKey(str, JUDGED, name="parameter type", part="means"),
        "gradient_reduce_dtype": ResultKey(str, JUDGED, name="type of reduced gradients", part="means"),
        "overlap_grad_reduce": ResultKey(bool, JUDGED, name="overlap of gradient reduction", part="means"),
        "overlap_param_gather": ResultKey(bool, JUDGED, name="overlap of parameter gather", part="means"),
        "fused_ops": ResultKey(dict, JUDGED, name="fused operations", part="means", contents=SCALARS),
        "parameters_without_weight_decay": ResultKey(
            int, JUDGED, limits=RATE, name="parameters without weight decay", part="work"
        ),
        "dataloader_workers": ResultKey(int, JUDGED, limits=NUMBER, name="loader workers", part="means"),
        "attention_library": ResultKey(str, JUDGED, is_optional=True),
        "float32_matmul_precision": ResultKey(str, JUDGED, is_optional=True),
        "hf_kernels": ResultKey(str, JUDGED, is_optional=True),
        "num_experts": ResultKey(int, JUDGED, limits=NUMBER, name="experts of a layer", part="trait", is_optional=True),
        "experts_per_token": ResultKey(
            int, JUDGED, limits=NUMBER, name="experts of a token", part="trait", is_optional=True
        ),
        "shared_expert_size": ResultKey(int, JUDGED, name="size of a shared expert", part="trait", is_optional=True),
        "routing": ResultKey(str, JUDGED, name="routing", part="trait", is_optional=True),
        "router_dtype": ResultKey(str, JUDGED, name="precision of the router", part="trait", is_optional=True),
        "router_auxiliary_loss": ResultKey(
            Number, JUDGED, name="auxiliary loss of the router", part="trait", is_optional=True
        ),
        "token_dropping": ResultKey(bool, JUDGED, name="tokens dropped", part="trait", is_optional=True),
        "tie_word_embeddings": ResultKey(
            bool, JUDGED, name="embedding shared with the output layer", part="trait", is_optional=True
        ),
        "query_key_norm": ResultKey(bool, JUDGED, name="norm of queries and keys", part="trait", is_optional=True),
    },
    "performance_metrics": {
        "avg_step_time_seconds": ResultKey(Number, JUDGED, "seconds", SECONDS),
        "min_step_time_seconds": ResultKey(Number, JUDGED, "seconds", SECONDS),
        "max_step_time_seconds": ResultKey(Number, JUDGED, "seconds", SECONDS),
        "std_step_time_seconds": ResultKey(Number, JUDGED, "seconds", SECONDS),
        "tokens_per_second": ResultKey(Number, JUDGED, "tokens/s", RATE),
        "tokens_per_second_per_gpu": ResultKey(Number, JUDGED, "tokens/s", RATE),
        "steps_per_second": ResultKey(Number, JUDGED, "steps/s", RATE),
        "data_wait_fraction": ResultKey(Number, JUDGED, "share of a step"),
        "warmup_steps_excluded": ResultKey(int, JUDGED, limits=NUMBER),
        # null where the lines of a log were not seen as they came
        "loop_seconds": ResultKey(Number, JUDGED, "seconds", is_optional=True, needs_reason=False),
    },
    "memory_metrics": {
        "avg_memory_allocated_gb": ResultKey(Number, JUDGED, "GB", NUMBER),
        "peak_memory_allocated_gb": ResultKey(Number, JUDGED, "GB", NUMBER),
        "peak_memory_reserved_gb": ResultKey(Number, JUDGED, "GB", NUMBER),
        "source": ResultKey(str, SHOWN),
    },
    "energy_metrics": {
        "joules": ResultKey(Number, JUDGED, "joules"),
        "avg_watts": ResultKey(Number, JUDGED, "watts"),
        "joules_per_token": ResultKey(Number, JUDGED, "joules"),
        "source": ResultKey(str, SHOWN),
        "interval": ResultKey(str, RAW, reason="it says which steps the energy is of"),
        "counter_joules": ResultKey(Number, JUDGED, "joules", is_optional=True),
        "integrated_joules": ResultKey(Number, JUDGED, "joules", is_optional=True),
        "method": ResultKey(str, SHOWN, is_optional=True),
        "idle_watts": ResultKey(
            Number, RAW, "watts", reason="a reader may subtract it; the suite never does", is_optional=True
        ),
        "cpu_joules": ResultKey(
            Number, RAW, "joules", reason="the energy of the processors beside that of the GPUs", is_optional=True
        ),
        "gpu_count": ResultKey(int, JUDGED, limits=NUMBER, is_optional=True),
        "samples": ResultKey(
            int, RAW, limits=NUMBER, reason="how much the mean and the maximum rest on", is_optional=True
        ),
        "sample_hz": ResultKey(Number, JUDGED, "Hz", NUMBER, is_optional=True),
        "mean_sm_clock_mhz": ResultKey(Number, RAW, "MHz", reason=STATE_OF_DEVICES, is_optional=True),
        "max_sm_clock_mhz": ResultKey(Number, RAW, "MHz", reason=STATE_OF_DEVICES, is_optional=True),
        "mean_memory_clock_mhz": ResultKey(Number, RAW, "MHz", reason=STATE_OF_DEVICES, is_optional=True),
        "max_memory_clock_mhz": ResultKey(Number, RAW, "MHz", reason=STATE_OF_DEVICES, is_optional=True),
        "mean_temperature_celsius": ResultKey(Number, RAW, "Celsius", reason=STATE_OF_DEVICES, is_optional=True),
        "max_temperature_celsius": ResultKey(Number, RAW, "Celsius", reason=STATE_OF_DEVICES, is_optional=True),
        "mean_gpu_use_percent": ResultKey(Number, RAW, "%", reason=STATE_OF_DEVICES, is_optional=True),
        "max_gpu_use_percent": ResultKey(Number, RAW, "%", reason=STATE_OF_DEVICES, is_optional=True),
        "mean_cpu_use_percent": ResultKey(Number, RAW, "%", reason=STATE_OF_DEVICES, is_optional=True),
        "max_cpu_use_percent": ResultKey(Number, RAW, "%", reason=STATE_OF_DEVICES, is_optional=True),
        "throttled_percent": ResultKey(dict, JUDGED, "%", contents=PERCENT_BY_NAME, is_optional=True),
    },
    "fingerprint": {
        "dataset_bin_sha256": ResultKey(str, JUDGED, name="data", part="data"),
        "dataset_idx_sha256": ResultKey(str, JUDGED, name="index of the data", part="data"),
        "tokenizer_sha256": ResultKey(str, JUDGED, name="tokenizer", part="data"),
        "model_config_sha256": ResultKey(str, JUDGED, name="model configuration", part="data"),
        "token_stream_sha256": ResultKey(str, JUDGED, name="tokens of the first batches in order", part="data"),
        "token_stream_batches": ResultKey(int, SHOWN, limits=NUMBER),
        "initial_weights_sha256": ResultKey(str, JUDGED, name="initial weights", part="data"),
        "epochs": ResultKey(Number, JUDGED, limits=NUMBER, name="passes over the data", part="data"),
        "licences": ResultKey(dict, SHOWN, contents=Contents(str, "texts or null by name"), is_optional=True),
    },
    "provenance": {
        "git_commit": ResultKey(str, SHOWN),
        "git_dirty": ResultKey(bool, SHOWN),
        "code_sha256": ResultKey(str, JUDGED),
        "image": ResultKey(str, SHOWN),
        "image_digest": ResultKey(str, JUDGED),
        "command": ResultKey(str, SHOWN),
        "host": ResultKey(str, JUDGED),
        "framework_versions": ResultKey(dict, JUDGED, contents=TEXTS_BY_NAME),
        "environment": ResultKey(dict, JUDGED, contents=TEXTS_BY_NAME),
        "started_utc": ResultKey(str, JUDGED, UTC),
        "finished_utc": ResultKey(str, JUDGED, UTC),
        "hosts": ResultKey(
            list,
            JUDGED,
            contents=Contents(str, "the name of each node, by its number", is_complete=True),
            is_optional=True,
        ),
        "environment_passed": ResultKey(
            list,
            RAW,
            reason="it shows that a variable was not there, which `environment` cannot",
            contents=Contents(str, "the names of the variables that the ranks were started with", is_complete=True),
            is_optional=True,
        ),
        "environment_withheld": ResultKey(
            list,
            RAW,
            reason="it explains why a variable that was set outside had no effect",
            contents=Contents(str, "the names of the variables that were kept from the ranks", is_complete=True),
            is_optional=True,
        ),
        "suite_version": ResultKey(str, SHOWN, is_optional=True),
        "environment_removed": ResultKey(
            dict,
            RAW,
            reason="values of variables that were kept from the ranks, whose settings decide them",
            contents=Contents(str, "an object of texts"),
            is_optional=True,
        ),
    },
    "conditions": {
        "gpu_tool": ResultKey(str, RAW, reason="it says which tool the other conditions are from"),
        "gpu_count": ResultKey(int, JUDGED, limits=NUMBER),
        "power_cap_watts": ResultKey(Number, JUDGED, "watts", NUMBER),
        "default_power_cap_watts": ResultKey(Number, JUDGED, "watts", NUMBER),
        "max_power_cap_watts": ResultKey(Number, JUDGED, "watts", NUMBER),
        "max_sm_clock_mhz": ResultKey(Number, JUDGED, "MHz", NUMBER),
        "max_memory_clock_mhz": ResultKey(Number, SHOWN, "MHz", NUMBER),
        "clock_limit_mhz": ResultKey(Number, JUDGED, "MHz", NUMBER),
        "default_clock_limit_mhz": ResultKey(Number, JUDGED, "MHz", NUMBER),
        "performance_level": ResultKey(str, JUDGED),
        "persistence": ResultKey(str, JUDGED),
        "compute_mode": ResultKey(str, JUDGED),
        "ecc": ResultKey(str, JUDGED),
        "partition": ResultKey(str, JUDGED),
        "driver_version": ResultKey(str, SHOWN),
        "gpu_memory_used_gb": ResultKey(Number, RAW, "GB", RATE, reason=FOR_A_PERSON),
        "other_processes": ResultKey(int, JUDGED, limits=NUMBER),
        "temperature_before_celsius": ResultKey(Number, RAW, "Celsius", CELSIUS, reason=FOR_A_PERSON),
        "temperature_after_celsius": ResultKey(Number, RAW, "Celsius", CELSIUS, reason=FOR_A_PERSON),
        "throttle_before": ResultKey(list, RAW, reason=FOR_A_PERSON, contents=TEXTS),
        "throttle_after": ResultKey(list, JUDGED, contents=TEXTS),
        "throttled_percent": ResultKey(dict, JUDGED, "%", contents=PERCENT_BY_NAME),
        "busy_before_percent": ResultKey(Number, JUDGED, "%", NUMBER),
        "numa_balancing": ResultKey(bool, JUDGED),
        "numa_nodes": ResultKey(int, JUDGED, limits=NUMBER),
        "cpu_governor": ResultKey(str, JUDGED),
        "swap_used_gb": ResultKey(Number, RAW, "GB", RATE, reason=FOR_A_PERSON),
        "shared_memory_gb": ResultKey(Number, RAW, "GB", RATE, reason=FOR_A_PERSON),
        "open_files_limit": ResultKey(int, RAW, reason=FOR_A_PERSON),
        "locked_memory_gb": ResultKey(Number, RAW, "GB", RATE, reason=FOR_A_PERSON),
    },
    "experts": {
        "tokens": ResultKey(list, JUDGED, limits=RATE, contents=Contents(int, "a list of whole numbers")),
        "fullest_share": ResultKey(list, JUDGED, limits=SHARE, contents=Contents(Number, "a list of numbers")),
    },
    "repeats": {
        "runs": ResultKey(str, JUDGED),
        "least": ResultKey(int, RAW, reason="the rule by which RUNS=auto ended, as it was then"),
        "most": ResultKey(int, RAW, reason="the rule by which RUNS=auto ended, as it was then"),
        "target_percent": ResultKey(Number, RAW, "%", reason="the rule by which RUNS=auto ended, as it was then"),
    },
}
SECTIONS_OF_SOME = ("conditions", "experts", "repeats")
"""`conditions` of train/machine/conditions.py, `experts` of a mixture of experts (train/job/recorder.py: tokens of each
expert, and of each step the share of the fullest one), and `repeats`, the setting RUNS (performance.py). Results of
earlier versions and those read from logs lack the sections; where one is present, it is complete."""


def names_of(part: Part) -> dict[str, str]:
    """Return the names of one part of a certificate by their keys: settings in the order of their table come first."""
    of_settings = {place.key: place.name for place in in_results().values() if place.part == part}
    rows = KEYS["resolved_config"] | KEYS["fingerprint"]
    return of_settings | {key: row.name for key, row in rows.items() if row.part == part}
