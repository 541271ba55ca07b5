"""The result of a training of which only a log exists: measured values from the log, the rest null with a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluate.inputs.partly_known import UNKNOWN, filled
from utils.frameworks import VENDOR_OF
from utils.logs.lines import RunLog
from utils.logs.reader import ASKED
from utils.models import get as get_model
from utils.provenance import origin
from utils.provenance.digests import sha256_file, sha256_json
from utils.results import schema
from utils.results.performance import summarize
from utils.results.schema import KNOWN_FROM_A_LOG, NO_ENERGY, SECTIONS
from utils.settings.keys import NO_RECIPE

PARAMETERS_RELATIVE = 0.02
"""A padded vocabulary changes the parameter count by far less than this, another model by far more."""
_STACKS = {"amd": "rocm", "nvd": "cuda", "cpu": "cpu"}
OF_LOG = {"max_steps": "total_steps", "num_gpus": "world_size", "vocab_size": "padded_vocab_size"}
"""Keys of `training_config` and `resolved_config` whose facts have another name in a RunLog."""


NOT_IN_LOG = "the log does not say it"
FEW_STEPS = 3
"""Up to this count all steps belong to the warm-up that a summary excludes (utils/results/performance.py)."""


SIZES = ("global_batch_size", "sequence_length", "micro_batch_size", "tp", "pp", "cp", "ep", "max_steps", "num_gpus")
SAID = ("model", "model_size", "platform", "method", "label", "run", *SIZES, "precision", "device_name")
"""Names of the facts that the user may give on a run. The log must not contradict the sizes."""
Given = Mapping[str, Any]
"""The given facts by SAID; None means that the log has to contain the fact."""


class MissingError(ValueError):
    """A value that a result needs is neither in the log nor on the command line."""


def build(run: RunLog, given: Given, paths: list[Path], command: str) -> dict[str, Any]:
    """Return the result of a run; raise MissingError for a size that is neither in the log nor given."""
    config = _training_config(run, given)
    tokens = config["global_batch_size"] * config["sequence_length"]
    logs = [{"name": path.name, "sha256": sha256_file(path)} for path in paths]
    result = {
        "schema_version": schema.SCHEMA_VERSION,
        "framework": run.framework,
        "model": given["model"],
        "model_size": given["model_size"],
        "method": given["method"],
        "label": given["label"],
        "run": given["run"],
        "attempt": 1,
        "identity_sha256": sha256_json({"logs": sorted(log["sha256"] for log in logs), "said": dict(given)}),
        "training_config": config,
        "resolved_config": _resolved(run),
        "energy_metrics": filled("energy_metrics", {}, NO_ENERGY),
        "fingerprint": filled("fingerprint", {}, "the log does not say what was read"),
        **_measured(run, tokens, config["num_gpus"]),
    }
    result["platform"], how = _platform(run, given)
    result["gpu_info"] = _gpu_info(run, given, result["platform"], config["num_gpus"])
    result["provenance"] = _provenance(run, logs, command)
    result["warnings"] += [f"read from a log alone ({run.format})", *how]
    _check_model(result, given)
    return result


def _training_config(run: RunLog, given: Given) -> dict[str, Any]:
    """Return the settings that were given or are in the log; DP and GA are computed if they follow from others."""
    config: dict[str, Any] = {key: run.fact(OF_LOG.get(key, key)) for key in SECTIONS["training_config"]}
    config |= {key: value for key, value in given.items() if key in config and value is not None}
    for key in KNOWN_FROM_A_LOG:
        if not config[key]:
            option = f"--{key.replace('_', '-')}"
            raise MissingError(f"{key.replace('_', ' ')}: neither in the log nor on the command line; add {option}")
    shares = [config[key] for key in ("tp", "pp", "cp")]
    if config["dp"] is None and None not in shares and config["num_gpus"] % math.prod(shares) == 0:
        config["dp"] = config["num_gpus"] // math.prod(shares)
    batch = (config["micro_batch_size"] or 0) * (config["dp"] or 0)
    if batch and config["global_batch_size"] % batch == 0:
        config["gradient_accumulation"] = config["global_batch_size"] // batch
    return filled("training_config", _with_recipe(config), NOT_IN_LOG)


def _platform(run: RunLog, given: Given) -> tuple[str, list[str]]:
    """Return the platform, and a warning with the way it was inferred if the log does not name it."""
    stated = given["platform"] or run.fact("platform")
    if stated:
        return str(stated), []
    # these names of memory are those of ROCm's tools
    if any("hip" in name or "rocm" in name for name in run.memory):
        return "amd", []
    if run.framework in VENDOR_OF:
        platform = VENDOR_OF[run.framework]
        return platform, [f"platform: {platform}, which {run.framework} is made for; the log does not name it"]
    return UNKNOWN, ["platform: the log does not name it; say it with --platform"]


def _resolved(run: RunLog) -> dict[str, Any]:
    """Return the settings that ran, as far as the log itself records them."""
    known = {}
    for key in SECTIONS["resolved_config"]:
        fact = run.facts.get(OF_LOG.get(key, key))
        # what the log only repeats from the command line proves nothing about the run
        if fact and fact.where != ASKED:
            known[key] = fact.value
    return filled("resolved_config", _with_recipe(known), NOT_IN_LOG)


def _with_recipe(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the fp8 recipe where the precision says that there is none."""
    if config.get("precision") in ("bf16", "fp32"):
        return config | {"fp8_recipe": NO_RECIPE}
    return config


def _gpu_info(run: RunLog, given: Given, platform: str, num_gpus: int) -> dict[str, Any]:
    total = run.memory.get("device total (hip)") or run.memory.get("device total (rocm-smi)")
    known = {
        "device_name": given["device_name"],
        "device_count": num_gpus,
        "total_memory_gb": round(total.gb, 3) if total else None,
        "software_stack": _STACKS.get(platform),
    }
    return filled("gpu_info", known, NOT_IN_LOG)


def _provenance(run: RunLog, logs: list[dict[str, str]], command: str) -> dict[str, Any]:
    """Return the host and the digests of the logs, and the code that read them; not the machine that read them."""
    own = origin.describe(command, "", "")
    known = {key: own[key] for key in ("git_commit", "git_dirty", "code_sha256", "command")}
    return filled("provenance", known | {"host": run.fact("host")}, NOT_IN_LOG) | {"logs": logs}


def _check_model(result: dict[str, Any], given: Given) -> None:
    """Set a result to failed if its log counts the parameters of another model than the given one."""
    counted = result["resolved_config"]["parameter_count"]
    wanted = get_model(given["model"], given["model_size"]).parameter_count
    if counted is None or abs(counted - wanted) <= PARAMETERS_RELATIVE * wanted:
        return
    text = f"the log counts {counted} parameters, and {given['model']} {given['model_size']} has {wanted}"
    result["reason"] = f"{result['reason']}; {text}" if result["reason"] else text
    result["status"] = "failed" if result["status"] == "ok" else result["status"]


def _measured(run: RunLog, tokens_per_step: int, num_gpus: int) -> dict[str, Any]:
    """Return source, status, reason, warnings, samples, `performance_metrics` and `memory_metrics` of a result.

    `tokens_per_step` is GBS x SL. The samples are the iterations whose time is known; `excluded_steps` lists the other
    printed iterations with the reason why each is left out.
    """
    samples = run.samples()
    warnings = list(run.notes)
    count = len(samples["steps"])
    # no step at all is the reason of a failed result instead
    if 0 < count <= FEW_STEPS:
        warnings.append(f"only {count} steps with a time: their speed is that of a warm-up")
    return {
        "source": "log",
        "status": run.status,
        "reason": run.reason,
        "warnings": warnings,
        "excluded_steps": {str(number): why for number, why in run.excluded.items()},
        **samples,
        "performance_metrics": _performance(run, tokens_per_step, num_gpus),
        "memory_metrics": _memory(run),
    }


def _memory(run: RunLog) -> dict[str, Any]:
    """Return `memory_metrics`, with the values as the log prints them under `as_logged`.

    The peak is that of the framework (`max allocated`). Memory that a driver counts as used also holds other
    processes, caches and communication buffers, and is not taken for the peak.
    """
    allocated, reserved = run.memory.get("max allocated"), run.memory.get("max reserved")
    printed = {name: memory.printed for name, memory in run.memory.items()}
    used = [text for name, text in printed.items() if name.startswith("device used")]
    why = f"the log has the memory in use on the whole device only ({', '.join(used)})" if used else NOT_IN_LOG
    known: dict[str, Any] = {}
    sources = []
    for key, memory in (("peak_memory_allocated_gb", allocated), ("peak_memory_reserved_gb", reserved)):
        if memory:
            known[key] = memory.gb
            sources.append(f"{memory.meaning}: {memory.printed} ({memory.where})")
    if sources:
        known["source"] = "the framework's log, " + ", ".join(sources)
    section = filled("memory_metrics", known, why)
    section["reasons"]["avg_memory_allocated_gb"] = NOT_IN_LOG
    return section | {"as_logged": printed}


def _performance(run: RunLog, tokens_per_step: int, num_gpus: int) -> dict[str, Any]:
    times = list(filter(None, run.samples()["step_times"]))
    why = "one steady step has no spread" if times else "the log has no step with a time"
    section = filled("performance_metrics", summarize(times, tokens_per_step, num_gpus), why)
    section["reasons"]["data_wait_fraction"] = "the log does not tell how long it waits for samples"
    return section
