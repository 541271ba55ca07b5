"""The unified result of a training that only its log tells of: measured values from it, the rest null with a reason."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from utils import provenance, results
from utils.fingerprint import sha256_file, sha256_json
from utils.job import NO_ENERGY
from utils.log_result import NOT_IN_LOG, measured
from utils.logging import ASKED, RunLog
from utils.models import get as get_model
from utils.schema import KNOWN_FROM_A_LOG

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
        "schema_version": results.SCHEMA_VERSION,
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
    keys = results.SECTIONS["training_config"]
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
    own = provenance.describe(command, "", "")
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
    keys = results.SECTIONS[section]
    return dict.fromkeys(keys) | {"reasons": dict.fromkeys(keys, reason)}
