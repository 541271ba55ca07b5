"""Schema of a result: its sections and keys, the type of each, and the rules between them.

Standard library only, so that a result can be checked on any machine. A JSON-Schema package is not used for that
reason, and because half of the rules span several keys (equal lengths, a reason beside every null). A missing
measurement is `null`, with its reason in the `reasons` map of its section.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from utils.errors import quoted
from utils.models import TRAITS
from utils.settings import profiling
from utils.settings.keys import Number, in_results

SCHEMA_VERSION = 1
YEARS = range(2000, 2200)
"""Of every time on record; another is a slip or a machine whose clock was never set."""
STATUSES = ("ok", "oom", "failed", "timeout", "nan")

_FIRST_SETTINGS = (
    *("max_steps", "global_batch_size", "micro_batch_size", "sequence_length", "num_gpus", "gradient_accumulation"),
    *("tp", "pp", "cp", "dp", "precision", "seed", "lr", "min_lr", "warmup_iters", "weight_decay", "beta1", "beta2"),
    *("adam_eps", "clip_grad", "init", "init_std"),
)
"""Order of the settings in results since the first version; later settings follow."""
_SETTINGS: dict[str, type | tuple[type, ...]] = dict.fromkeys(_FIRST_SETTINGS, int) | {
    place.key: place.kind for place in in_results().values() if place.kind is not None
}
"""Requested in `training_config`, read back from the running framework in `resolved_config`."""
# One row per section: its required keys and the type of each. Every value of a section may be null with a reason,
# except those of `training_config`, which are settings and therefore known.
SECTIONS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "gpu_info": {
        "device_name": str,
        "device_count": int,
        "total_memory_gb": Number,
        "gpu_cores": int,
        "software_stack": str,
        "software_version": str,
        "pytorch_version": str,
        "driver_version": str,
    },
    "training_config": _SETTINGS | {"dataset": str},
    "resolved_config": _SETTINGS
    | {
        "parameter_count": int,
        "vocab_size": int,
        "num_layers": int,
        "hidden_size": int,
        "ffn_hidden_size": int,
        "num_attention_heads": int,
        "num_query_groups": int,
        "norm_eps": Number,
        "qkv_bias": bool,
        "rope_base": Number,
        "rope_scaling": dict,
        "sliding_window": int,
        "attention_backend": str,
        "layer_implementation": str,
        "optimizer": str,
        "distributed_optimizer": bool,
        "parameter_dtype": str,
        "gradient_reduce_dtype": str,
        "overlap_grad_reduce": bool,
        "overlap_param_gather": bool,
        "fused_ops": dict,
        "parameters_without_weight_decay": int,
        "dataloader_workers": int,
    },
    "performance_metrics": {
        "avg_step_time_seconds": Number,
        "min_step_time_seconds": Number,
        "max_step_time_seconds": Number,
        "std_step_time_seconds": Number,
        "tokens_per_second": Number,
        "tokens_per_second_per_gpu": Number,
        "steps_per_second": Number,
        "data_wait_fraction": Number,
        "warmup_steps_excluded": int,
    },
    "memory_metrics": {
        "avg_memory_allocated_gb": Number,
        "peak_memory_allocated_gb": Number,
        "peak_memory_reserved_gb": Number,
        "source": str,
    },
    "energy_metrics": {
        "joules": Number,
        "avg_watts": Number,
        "joules_per_token": Number,
        "source": str,
        "interval": str,
    },
    "fingerprint": {
        "dataset_bin_sha256": str,
        "dataset_idx_sha256": str,
        "tokenizer_sha256": str,
        "model_config_sha256": str,
        "token_stream_sha256": str,
        "token_stream_batches": int,
        "initial_weights_sha256": str,
        "epochs": Number,
    },
    "provenance": {
        "git_commit": str,
        "git_dirty": bool,
        "code_sha256": str,
        "image": str,
        "image_digest": str,
        "command": str,
        "host": str,
        "framework_versions": dict,
        "environment": dict,
        "started_utc": str,
        "finished_utc": str,
    },
}
STATES_OF_DEVICES = (
    *("sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "gpu_use_percent", "cpu_use_percent"),
)
"""In `energy_metrics` as mean and maximum over the steady steps."""
LISTS_OF_ORIGIN = {
    "hosts": "the name of each node, by its number",
    "environment_passed": "the names of the variables that the ranks were started with",
    "environment_withheld": "the names of the variables that were kept from the ranks",
}
"""Lists that `provenance` may hold. Results of earlier versions lack the last two."""
_TYPES: dict[type, Any] = {float: Number}
"""JSON has one kind of number, so that a float may be read as an int."""
OPTIONAL_KEYS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "provenance": {
        **dict.fromkeys(LISTS_OF_ORIGIN, list),
        "suite_version": str,
        "environment_removed": dict,  # set outside, and kept from the ranks, whose settings decide them
    },
    "fingerprint": {"licences": dict},  # of data set and tokenizer
    "resolved_config": {
        **dict.fromkeys(("attention_library", "float32_matmul_precision", "hf_kernels"), str),
        **dict.fromkeys(("routing", "router_dtype"), str),
        **{trait.key: _TYPES.get(trait.kind, trait.kind) for trait in TRAITS if not trait.is_always_recorded},
    },
    "energy_metrics": {
        "counter_joules": Number,
        "integrated_joules": Number,
        "method": str,
        "idle_watts": Number,
        "cpu_joules": Number,
        "gpu_count": int,
        "samples": int,
        "sample_hz": Number,
        **{f"{kind}_{name}": Number for name in STATES_OF_DEVICES for kind in ("mean", "max")},
        "throttled_percent": dict,
    },
}
"""Keys that a section may have (train/common/kernels.py, train/hf/resolved.py, train/energy/section.py). Earlier
results lack them."""
OPTIONAL_SECTIONS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "conditions": {
        "gpu_tool": str,
        "gpu_count": int,
        "power_cap_watts": Number,
        "default_power_cap_watts": Number,
        "max_power_cap_watts": Number,
        "max_sm_clock_mhz": Number,
        "max_memory_clock_mhz": Number,
        "clock_limit_mhz": Number,
        "default_clock_limit_mhz": Number,
        "performance_level": str,
        "persistence": str,
        "compute_mode": str,
        "ecc": str,
        "partition": str,
        "driver_version": str,
        "gpu_memory_used_gb": Number,
        "other_processes": int,
        "temperature_before_celsius": Number,
        "temperature_after_celsius": Number,
        "throttle_before": list,
        "throttle_after": list,
        "throttled_percent": dict,
        "busy_before_percent": Number,
        "numa_balancing": bool,
        "numa_nodes": int,
        "cpu_governor": str,
        "swap_used_gb": Number,
        "shared_memory_gb": Number,
        "open_files_limit": int,
        "locked_memory_gb": Number,
    },
    "experts": {
        "tokens": list,
        "fullest_share": list,
    },
    "repeats": {
        "runs": str,
        "least": int,
        "most": int,
        "target_percent": Number,
    },
}
"""`conditions` of train/machine/conditions.py, `experts` of a mixture of experts (train/job/recorder.py: tokens of each
expert, and of each step the share of the fullest one), and `repeats`, the setting RUNS (results/performance.py).
Results of earlier versions and those read from logs lack the sections; where one is present, it is complete."""
IDENTITY: dict[str, type | tuple[type, ...]] = {
    "platform": str,
    "framework": str,
    "model": str,
    "model_size": str,
    "method": str,
    "label": str,
    "run": int,
    "attempt": int,
    "identity_sha256": str,
}
SAMPLE_DIGITS = {"step_times": 6, "data_wait_seconds": 6, "loss_values": 9, "grad_norms": 9, "learning_rates": 9}
"""Significant digits of the raw samples. A float32 needs 9 to be read back exactly; parity to 1e-6 requires that."""
SAMPLES = ("steps", *SAMPLE_DIGITS)
SOURCES = ("recorder", "log", "earlier", "mlperf")
"""Allowed values of `source`; the default is `recorder`. A result read from a framework's log may leave out more, each
with its reason: values that no log contains (KNOWN_FROM_A_LOG must be known), and iterations whose printed time is not
their own (`excluded_steps`, reasons by step number). The same holds for an `earlier` format of this kind of suite
(evaluate/inputs/earlier.py) and for MLPerf (evaluate/inputs/mlperf_logs.py); these may also lack their losses."""
_SCALAR = (str, bool, int, float)
CONTENTS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "rope_scaling": (_SCALAR, "an object of texts, numbers and booleans"),
    "fused_ops": (_SCALAR, "an object of texts, numbers and booleans"),
    "framework_versions": (_SCALAR, "an object of texts"),
    "environment": (_SCALAR, "an object of texts"),
    "environment_removed": (str, "an object of texts"),
    "licences": (str, "texts or null by name"),
    "throttled_percent": (Number, "an object of numbers"),
    "tokens": (int, "a list of whole numbers"),
    "fullest_share": (Number, "a list of numbers"),
    "throttle_before": (str, "a list of texts"),
    "throttle_after": (str, "a list of texts"),
}
"""Values inside the nested objects and lists of a section: their types, and the words for them."""
LONGEST_NAME = 1000
"""Characters of an identity, a device or a host; a file name has 255 at most."""
KNOWN_FROM_A_LOG = ("global_batch_size", "sequence_length", "num_gpus")
"""Settings that are needed to derive the throughput from a log; an ok result also has `max_steps`."""
LARGEST_INTEGER = 2**63 - 1
"""JSON has no limit, but other readers of the file have this one; every count here is far below it."""
MEASURED_WHEN_OK = (
    ("performance_metrics", "avg_step_time_seconds"),
    ("performance_metrics", "tokens_per_second_per_gpu"),
    ("resolved_config", "parameter_count"),
    ("fingerprint", "token_stream_sha256"),
)


def unknown(section: str, reason: str) -> dict[str, Any]:
    """Return a section of which nothing is known, with one reason for every key."""
    keys = SECTIONS.get(section) or OPTIONAL_SECTIONS[section]
    return {**dict.fromkeys(keys), "reasons": dict.fromkeys(keys, reason)}


def with_later_settings(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with each setting that is newer than the result, at the value that was used then.

    A result that was extracted from a log of any origin (`source`) gets null and a reason instead, of a setting that a
    trainer reads back.
    """
    is_ours = result.get("source", "recorder") == "recorder"
    for place in in_results().values():
        if place.before is None or (place.kind is None and not is_ours):
            continue
        for name in ("training_config", *(("resolved_config",) if place.kind else ())):
            section = result.get(name)
            if not isinstance(section, dict) or place.key in section:
                continue
            reasons = section.get("reasons")
            if isinstance(reasons, dict) and reasons.keys() & {place.key, "*"}:
                continue
            before = place.before(section) if callable(place.before) else place.before
            section[place.key] = before if is_ours else None
            if not is_ours and isinstance(reasons, dict):
                reasons[place.key] = "the setting is newer than this result"
    return result


def problems(result: Mapping[str, Any]) -> list[str]:
    """Return every violation of the schema in `result`, one line each; an empty list means that it is valid."""
    if result.get("schema_version") != SCHEMA_VERSION:
        return [f"schema_version: got {quoted(result.get('schema_version'))}, this version reads {SCHEMA_VERSION}"]
    status, reason, warnings = result.get("status"), result.get("reason"), result.get("warnings")
    source, waiting = result.get("source", "recorder"), _data_wait_fraction(result)
    rules = [
        ("status", status, status in STATUSES, f"allowed: {', '.join(STATUSES)}"),
        ("reason", reason, status != "ok" or reason is None, "an ok result has none"),
        ("reason", reason, status == "ok" or is_text(reason), "a result that is not ok says why"),
        *(
            (key, result.get(key), _is_instance(result.get(key), kind), f"wanted {_type_name(kind)}")
            for key, kind in IDENTITY.items()
        ),
        ("warnings", warnings, isinstance(warnings, list) and all(map(is_text, warnings)), "wanted a list of texts"),
        ("source", source, source in SOURCES, f"allowed: {', '.join(SOURCES)}"),
        (
            "performance_metrics.data_wait_fraction",
            waiting,
            not _is_instance(waiting, Number) or 0 <= waiting <= 1,
            "wanted 0 to 1",
        ),
    ]
    found = [f"{key}: got {quoted(value)}, {wanted}" for key, value, is_good, wanted in rules if not is_good]
    found += _long_names(result)
    is_foreign = source != "recorder"
    found += _excluded_problems(result, is_log=is_foreign, is_ok=status == "ok")
    for section, keys in SECTIONS.items():
        found += _section_problems(section, keys, result.get(section), is_ok=status == "ok", is_log=is_foreign)
    for section in OPTIONAL_SECTIONS.keys() & result.keys():
        found += _section_problems(section, OPTIONAL_SECTIONS[section], result[section], is_ok=True, is_log=False)
    return found + _sample_problems(result)


def _excluded_problems(result: Mapping[str, Any], *, is_log: bool, is_ok: bool) -> list[str]:
    excluded, steps = result.get("excluded_steps", {}), result.get("steps")
    texts = isinstance(excluded, dict) and all(map(is_text, excluded.values()))
    if not texts or not all(str(key).isdecimal() and len(str(key)) < 19 for key in excluded):
        return [f"excluded_steps: got {quoted(excluded)}, wanted texts by step number"]
    if not is_log and set(excluded.values()) - {profiling.PROFILED}:
        return ["excluded_steps: the recorder measures every step that is not profiled; wanted no other reason"]
    known = {step for step in steps if isinstance(step, int)} if isinstance(steps, list) else set()
    twice = [key for key in excluded if int(key) in known]
    found = [f"excluded_steps: {key} stands among the steps as well" for key in twice]
    text = _section(result, "training_config").get("profile")
    if text is None and is_log:
        return found  # a log does not hold the setting
    return found + _profile_problems(text, excluded, known, is_ok=is_ok)


def _profile_problems(text: Any, excluded: Mapping[str, str], known: set[int], *, is_ok: bool) -> list[str]:
    """Check that exactly the steps of `training_config.profile` are excluded as profiled, as far as the run came."""
    try:
        profile = None if text is None else profiling.parse(text)
    except ValueError:
        form = f"{profiling.NO_PROFILE}, or a text such as steps 11-13 of rank 0"
        return [f"training_config.profile: got {quoted(text)}, wanted {form}"]
    marked = sorted(int(key) for key, reason in excluded.items() if reason == profiling.PROFILED)
    steps = range(0) if profile is None else profile.steps
    if not is_ok:  # it may have ended before or in the profile
        last = max((*known, *map(int, excluded)), default=0)
        steps = range(steps.start, min(steps.stop, last + 1))
    if len(marked) == len(steps) and all(step in steps for step in marked):
        return []
    shown = f"{marked[0]} to {marked[-1]}" if marked else "none"
    return [f"excluded_steps: got {shown} as profiled, wanted the steps of training_config.profile: {text or 'none'}"]


def _section_problems(section: str, keys: Mapping[str, Any], value: Any, *, is_ok: bool, is_log: bool) -> list[str]:
    if not isinstance(value, dict):
        return [f"{section}: got {type(value).__name__}, wanted an object"]
    reasons = value.get("reasons", {})
    if not isinstance(reasons, dict) or not all(map(is_text, reasons.values())):
        return [f"{section}.reasons: got {quoted(reasons)}, wanted texts by key"]
    found = []
    optional = {key: kind for key, kind in OPTIONAL_KEYS.get(section, {}).items() if key in value}
    for key, kind in (dict(keys) | optional).items():
        if value.get(key) is None:
            must_be_known = section == "performance_metrics" or not is_log
            if (section, key) in MEASURED_WHEN_OK and is_ok and must_be_known:
                found.append(f"{section}.{key}: missing in a result that says ok")
            elif section == "training_config" and (
                not is_log or key in KNOWN_FROM_A_LOG or (is_ok and key == "max_steps")
            ):
                found.append(f"{section}.{key}: missing; a setting is always known")
            elif key not in reasons and (is_ok or "*" not in reasons):
                found.append(f"{section}.{key}: missing without a reason")
        elif not _is_instance(value[key], kind):
            found.append(f"{section}.{key}: got {quoted(value[key])}, wanted {_type_name(kind)}")
        elif contents := _content_problem(key, value[key]):
            found.append(f"{section}.{key}: got {quoted(value[key])}, wanted {contents}")
    return found


def time_of(text: object) -> datetime:
    """Return a time on record in UTC, which a text without a zone is in; raise ValueError if it is no time of YEARS."""
    found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    if found.year not in YEARS:
        raise ValueError(f"the year {found.year}")
    return found.astimezone(timezone.utc) if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _long_names(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each name that is too long for a table."""
    names = {
        **{key: result.get(key) for key in IDENTITY},
        **{f"gpu_info.{key}": value for key, value in _section(result, "gpu_info").items()},
        "provenance.host": _section(result, "provenance").get("host"),
    }
    return [
        f"{key}: got a text of {len(name):,} characters, wanted at most {LONGEST_NAME:,}"
        for key, name in names.items()
        if isinstance(name, str) and len(name) > LONGEST_NAME
    ]


def _content_problem(key: str, value: Any) -> str | None:
    """Return what the values of a nested object or list have to be, where they are not."""
    if key in LISTS_OF_ORIGIN:
        return None if value and all(map(is_text, value)) else LISTS_OF_ORIGIN[key]
    if key not in CONTENTS:
        return None
    kind, wanted = CONTENTS[key]
    inner = value.values() if isinstance(value, dict) else value
    return None if all(one is None or _is_instance(one, kind) for one in inner) else wanted


def _sample_problems(result: Mapping[str, Any]) -> list[str]:
    lists: dict[str, Any] = {key: result.get(key) for key in SAMPLES}
    wrong = [key for key, values in lists.items() if not isinstance(values, list)]
    if wrong:
        return [f"{key}: got {quoted(lists[key])}, wanted a list" for key in wrong]
    lengths = {key: len(values) for key, values in lists.items()}
    found = [f"samples: lists of unequal length {lengths}"] if len(set(lengths.values())) != 1 else []
    steps = lists["steps"]
    if not all(_is_instance(step, int) and step >= 1 for step in steps) or sorted(set(steps)) != steps:
        found.append("steps: wanted rising step numbers from 1, each once")
    is_ok, source = result.get("status") == "ok", result.get("source")
    may_be_null = {
        "data_wait_seconds": _data_wait_fraction(result) is None,  # the framework cannot measure it
        # of a run that is not ok: not finite, or not on the rank that failed
        "loss_values": not is_ok or source in ("earlier", "mlperf"),
        "grad_norms": not is_ok or source in SOURCES[1:],  # not every framework prints them
        "learning_rates": source in SOURCES[1:],
    }
    for key in SAMPLE_DIGITS:
        allowed_null = may_be_null.get(key, False)
        if set(map(type, lists[key])) <= {float} and all(map(math.isfinite, lists[key])):
            continue  # nearly every list, checked in a tenth of the time
        wrong = [one for one in lists[key] if not (allowed_null if one is None else _is_instance(one, Number))]
        if wrong:
            found.append(f"{key}: got {quoted(wrong[0])}, wanted finite numbers{' or null' * allowed_null}")
    return found


def _data_wait_fraction(result: Mapping[str, Any]) -> Any:
    return _section(result, "performance_metrics").get("data_wait_fraction")


def _section(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section of a result; an empty one in place of anything but an object."""
    section = result.get(name)
    return section if isinstance(section, dict) else {}


def is_text(value: Any) -> bool:
    """Check for a text that is not empty."""
    return isinstance(value, str) and value != ""


def _is_instance(value: Any, kind: type | tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return kind is bool or (isinstance(kind, tuple) and bool in kind)
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return False
    return isinstance(value, kind) and not (isinstance(value, float) and not math.isfinite(value))


def _type_name(kind: type | tuple[type, ...]) -> str:
    return "finite number" if kind == Number else str(getattr(kind, "__name__", kind))


Result = Mapping[str, Any]

NO_ENERGY = "not measured: no sampler of power ran beside this job"
ENERGY_RELATIVE = 0.05
"""Largest difference of two sources of one energy. Beyond it, one counts something else, such as one die of two."""
LEAST_HERTZ = 10.0
"""Samples a second of power, below which no energy is given."""

SLOWDOWNS = frozenset(
    (
        *("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
        *("prochot", "socket_thermal", "vr_thermal", "hbm_thermal", "throttled"),
    )
)
"""Throttle reasons that a healthy, cooled GPU never reports. A reached power cap is not among them: a fully loaded GPU
runs at its cap. First row NVIDIA's (NVML, nvmlClocksEventReasons), second AMD's (amd-smi metric)."""
