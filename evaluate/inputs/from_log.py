"""The unified result of a training that only its log tells of: measured values from it, the rest null with a reason."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from utils.logs.reader import ASKED, RunLog
from utils.models import get as get_model
from utils.provenance import origin
from utils.provenance.digests import sha256_file, sha256_json
from utils.results import store
from utils.results.performance import summarize, warmup_steps
from utils.results.schema import KNOWN_FROM_A_LOG, NO_ENERGY

PARAMETERS_RELATIVE = 0.02
"""A padded vocabulary changes the parameter count of a model by far less, another model by far more."""
UNKNOWN = "unknown"
_PLATFORM_OF = {"prim": "amd", "nemo": "nvd", "bridge": "nvd"}
_STACKS = {"amd": "rocm", "nvd": "cuda", "cpu": "cpu"}
_OF_LOG = {"max_steps": "total_steps", "num_gpus": "world_size"}
"""Facts whose name in a log's reading is another than in `training_config`."""


class MissingError(ValueError):
    """Neither the log nor the command line says something that a result needs."""


@dataclass(frozen=True)
class Said:
    """What is said of a run beside its log; None leaves it to the log."""

    model: str
    model_size: str = "full"
    platform: str | None = None
    method: str = UNKNOWN
    label: str = ""
    run: int = 1
    num_gpus: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    max_steps: int | None = None
    micro_batch_size: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    precision: str | None = None
    device_name: str | None = None

    def known(self) -> dict[str, int | None]:
        """Return what the reading of the log is checked against."""
        names = ("global_batch_size", "sequence_length", "micro_batch_size", "tp", "pp", "cp")
        known = {name: getattr(self, name) for name in names}
        return known | {_OF_LOG[name]: getattr(self, name) for name in _OF_LOG}


def build(run: RunLog, said: Said, paths: list[Path], command: str) -> dict[str, Any]:
    """Return the result of a run; raise MissingError for a size that nobody says."""
    config = training_config(run, said)
    tokens = config["global_batch_size"] * config["sequence_length"]
    logs = [{"name": path.name, "sha256": sha256_file(path)} for path in paths]
    result = {
        "schema_version": store.SCHEMA_VERSION,
        "framework": run.framework,
        "model": said.model,
        "model_size": said.model_size,
        "method": said.method,
        "label": said.label,
        "run": said.run,
        "attempt": 1,
        "identity_sha256": sha256_json({"logs": sorted(log["sha256"] for log in logs), "said": asdict(said)}),
        "training_config": config,
        "resolved_config": _resolved(run, config),
        "energy_metrics": _nothing("energy_metrics", NO_ENERGY),
        "fingerprint": _nothing("fingerprint", "the log does not say what was read"),
        **measured(run, tokens, config["num_gpus"]),
    }
    result["platform"], how = platform_of(run, said)
    result["gpu_info"] = _gpu_info(run, said, result["platform"], config["num_gpus"])
    result["provenance"] = _provenance(run, logs, command)
    result["warnings"] += [f"read from a log alone ({run.format})", *how]
    _check_model(result, said)
    return result


def training_config(run: RunLog, said: Said) -> dict[str, Any]:
    """Return the settings that were said or that the log says, DP and GA worked out where they follow."""
    keys = store.SECTIONS["training_config"]
    config: dict[str, Any] = {key: run.fact(_OF_LOG.get(key, key)) for key in keys}
    config |= {key: value for key, value in asdict(said).items() if key in config and value is not None}
    for key in KNOWN_FROM_A_LOG:
        if not config[key]:
            option = f"--{key.replace('_', '-')}"
            raise MissingError(f"{key.replace('_', ' ')}: neither the log nor the command line says it; add {option}")
    shares = [config[key] for key in ("tp", "pp", "cp")]
    if config["dp"] is None and None not in shares and config["num_gpus"] % math.prod(shares) == 0:
        config["dp"] = config["num_gpus"] // math.prod(shares)
    batch = (config["micro_batch_size"] or 0) * (config["dp"] or 0)
    if batch and config["global_batch_size"] % batch == 0:
        config["gradient_accumulation"] = config["global_batch_size"] // batch
    return config | {"reasons": {key: NOT_IN_LOG for key in keys if config[key] is None}}


def platform_of(run: RunLog, said: Said) -> tuple[str, list[str]]:
    """Return the platform and, where the log does not name it, a warning that says how it was told."""
    if said.platform:
        return said.platform, []
    if named := run.fact("platform"):
        return str(named), []
    if any("hip" in name or "rocm" in name for name in run.memory):
        return "amd", []
    if run.framework in _PLATFORM_OF:
        platform = _PLATFORM_OF[run.framework]
        return platform, [f"platform: {platform}, which {run.framework} is made for; the log does not name it"]
    return UNKNOWN, ["platform: the log does not name it; say it with --platform"]


def _resolved(run: RunLog, config: dict[str, Any]) -> dict[str, Any]:
    """Return what the log itself says of the settings that ran."""
    section = _nothing("resolved_config", NOT_IN_LOG)
    stated = {key: run.facts.get(_OF_LOG.get(key, key)) for key in section}
    stated |= {"vocab_size": run.facts.get("padded_vocab_size")}
    known = {key: fact.value for key, fact in stated.items() if fact and fact.where != ASKED and key in config}
    known |= {key: stated[key].value for key in ("vocab_size", "parameter_count") if stated[key]}  # type: ignore[union-attr]
    for key in known:
        del section["reasons"][key]
    return section | known


def _gpu_info(run: RunLog, said: Said, platform: str, num_gpus: int) -> dict[str, Any]:
    section = _nothing("gpu_info", NOT_IN_LOG)
    total = run.memory.get("device total (hip)") or run.memory.get("device total (rocm-smi)")
    known = {
        "device_name": said.device_name,
        "device_count": num_gpus,
        "total_memory_gb": round(total.gb, 3) if total else None,
        "software_stack": _STACKS.get(platform),
    }
    for key, value in known.items():
        if value is not None:
            section[key] = value
            del section["reasons"][key]
    return section


def _provenance(run: RunLog, logs: list[dict[str, str]], command: str) -> dict[str, Any]:
    """Return whose log it is, and which code of ours read it; the machine that reads it is not told."""
    section = _nothing("provenance", NOT_IN_LOG)
    own = origin.describe(command, "", "")
    known = {key: own[key] for key in ("git_commit", "git_dirty", "code_sha256", "command")}
    known["host"] = run.fact("host")
    for key, value in known.items():
        if value is not None:
            section[key] = value
            del section["reasons"][key]
    return section | {"logs": logs}


def _check_model(result: dict[str, Any], said: Said) -> None:
    """Fail a result whose log counts the parameters of another model than was said."""
    counted = result["resolved_config"]["parameter_count"]
    wanted = get_model(said.model, said.model_size).parameter_count
    if counted is None or abs(counted - wanted) <= PARAMETERS_RELATIVE * wanted:
        return
    text = f"the log counts {counted} parameters, and {said.model} {said.model_size} has {wanted}"
    result["reason"] = f"{result['reason']}; {text}" if result["reason"] else text
    result["status"] = "failed" if result["status"] == "ok" else result["status"]


def _nothing(section: str, reason: str) -> dict[str, Any]:
    keys = store.SECTIONS[section]
    return dict.fromkeys(keys) | {"reasons": dict.fromkeys(keys, reason)}


NOT_IN_LOG = "the log does not say it"
NO_DATA_WAIT = "the log does not tell how long it waits for samples"
ONE_STEADY_STEP = "one steady step has no spread"
FEW_STEPS = 3
"""Up to here all steps are of the warm-up that a summary leaves out where it can (utils/results/performance.py)."""
NO_TIMED_STEP = "the log has no step with a time"
DEVICE_USED = "device used"


def measured(run: RunLog, tokens_per_step: int, num_gpus: int) -> dict[str, Any]:
    """Return source, status, reason, warnings, samples, `performance_metrics` and `memory_metrics` of a result.

    `tokens_per_step` are GBS x SL. The samples are the iterations whose time is known; `excluded_steps` says which
    others were printed and why they are left out.
    """
    timed = [step for step in run.steps if step.step_time_seconds is not None]
    return {
        "source": "log",
        "status": run.status,
        "reason": run.reason,
        "warnings": [*run.notes, *_few_steps(len(timed))],
        "excluded_steps": {str(number): why for number, why in run.excluded.items()},
        "steps": [step.number for step in timed],
        "step_times": [step.step_time_seconds for step in timed],
        "data_wait_seconds": [None] * len(timed),
        "loss_values": [step.loss for step in timed],
        "grad_norms": [step.grad_norm for step in timed],
        "learning_rates": [step.learning_rate for step in timed],
        "performance_metrics": _performance(run, tokens_per_step, num_gpus),
        "memory_metrics": memory(run),
    }


def memory(run: RunLog) -> dict[str, Any]:
    """Return `memory_metrics`; what the log says in its own words is under `as_logged`.

    The peak is the framework's own (`max allocated`). What a driver counts as used holds other processes, caches and
    communication buffers as well, and is not taken for it.
    """
    allocated, reserved = run.memory.get("max allocated"), run.memory.get("max reserved")
    used = [one.printed for name, one in run.memory.items() if name.startswith(DEVICE_USED)]
    why = f"the log has the memory in use on the whole device only ({', '.join(used)})" if used else NOT_IN_LOG
    reasons = {"avg_memory_allocated_gb": NOT_IN_LOG}
    reasons |= {} if allocated else {"peak_memory_allocated_gb": why}
    reasons |= {} if reserved else {"peak_memory_reserved_gb": why}
    sources = [f"{one.meaning}: {one.printed} ({one.where})" for one in (allocated, reserved) if one]
    reasons |= {} if sources else {"source": why}
    return {
        "avg_memory_allocated_gb": None,
        "peak_memory_allocated_gb": allocated.gb if allocated else None,
        "peak_memory_reserved_gb": reserved.gb if reserved else None,
        "source": "the framework's log, " + ", ".join(sources) if sources else None,
        "as_logged": {name: one.printed for name, one in run.memory.items()},
        "reasons": reasons,
    }


def _few_steps(count: int) -> list[str]:
    return [f"only {count} steps with a time: their speed is that of a warm-up"] if 0 < count <= FEW_STEPS else []


def _performance(run: RunLog, tokens_per_step: int, num_gpus: int) -> dict[str, Any]:
    times = [step.step_time_seconds for step in run.steps if step.step_time_seconds]
    summary = summarize(times, tokens_per_step, num_gpus)
    excluded = warmup_steps(len(times))
    why = NO_TIMED_STEP if not times else ONE_STEADY_STEP if len(times) - excluded == 1 else NOT_IN_LOG
    reasons = {key: why for key, value in summary.items() if value is None}
    return summary | {"data_wait_fraction": None, "reasons": reasons | {"data_wait_fraction": NO_DATA_WAIT}}
