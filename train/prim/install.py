"""The installed Primus: its folder, the keys of its preset files, and the YAML that AMD ships for a model.

The launcher is the one that the checkout has, with its command and the variables that it prints: releases from v25.9 to
v26.6 have examples/run_pretrain.sh. The release of pull request 999 (AMD-AGI/Primus) removes it in favour of
`primus-cli direct`, which ROCm/MAD uses from rocm/primus:v26.7 on (ROCm/MAD, pull request 255).

Everything else is read from the files of the release, so this module has no list of keys of a version. Presets are
merged as Primus merges them: `extends` first, in its order, then the file (primus/core/config/yaml_loader.py, v25.10).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from utils.errors import ConfigError
from utils.models import MODELS
from utils.provenance import origin

RUN_PRETRAIN = "examples/run_pretrain.sh"
PRIMUS_CLI = "primus-cli"
DEFAULT_ROOT = Path("/workspace/Primus")
"""Location in AMD's image rocm/primus."""
MODULE_PRESET = "pre_trainer.yaml"
DEFAULT_GPU = "MI300X"
TOOL_TIMEOUT_SECONDS = 60
VERSIONS_PROGRAM = """
import importlib.metadata, json, platform
names = ("torch", "transformer-engine", "primus-turbo", "amd-aiter", "flash-attn", "triton", "numpy")
found = {"python": platform.python_version()}
for name in names:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
"""Run by the Python of Primus, which may be another than ours."""
_NO_PRIMUS = (
    f"FRAMEWORK=prim PRIMUS_PATH={{root}}: no Primus there ({RUN_PRETRAIN} or {PRIMUS_CLI}, and primus/configs); run "
    "inside AMD's image rocm/primus, or set PRIMUS_PATH to a checkout of AMD-AGI/Primus with its submodules"
)
_ENVIRONMENT_VALUE = re.compile(r"\$\{(?P<name>[^:{}]+)(?::(?P<default>[^}]*))?\}")
_FLOAT = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
ENVIRONMENT_FILES = "runner/helpers/envs"
"""Folder of the files of one GPU model each (`MI300X.sh`) that `primus-cli direct` reads."""
SYSTEM_SETTINGS = "runner/.primus.yaml"
_PRINTED_VARIABLE = (
    # examples/run_pretrain.sh, LOG_INFO
    re.compile(r"^\[NODE-\d+\(.*?\)\] \[INFO\] (?P<name>[A-Z][A-Z0-9_]+): (?P<value>\S*)$"),
    # runner/lib/common.sh, log_exported_vars; runner/helpers/execute_hooks.sh
    re.compile(
        r"^(?:\[[\d :-]+\] )?\[NODE-\d+\(.*?\)\] \[INFO\] (?: +|\[Hooks\] exported env from hook: )"
        r"(?P<name>[A-Z][A-Z0-9_]+)=(?P<value>\S*)$"
    ),
)
_UNSET = "<unset>"


@dataclass(frozen=True)
class Primus:
    """An installed Primus."""

    root: Path
    launcher: str
    """RUN_PRETRAIN or PRIMUS_CLI, a path inside the root."""

    @property
    def is_cli(self) -> bool:
        """True for `primus-cli direct`, False for examples/run_pretrain.sh."""
        return self.launcher == PRIMUS_CLI

    def command(self, experiment: Path, train_log: Path) -> list[str]:
        """Return the command of one training, to be started in the root.

        examples/run_pretrain.sh takes both files from its environment (`variables`). `primus-cli direct` gets the
        release's own settings file by name, because it would otherwise prefer ~/.primus.yaml.
        """
        if not self.is_cli:
            return ["bash", RUN_PRETRAIN]
        command = ["bash", PRIMUS_CLI, "direct"]
        settings = self.root / SYSTEM_SETTINGS
        if settings.is_file():
            command += ["--config", str(settings)]
        command += ["--log_file", str(train_log)]
        return [*command, "--", "train", "pretrain", "--config", str(experiment)]

    def variables(self, experiment: Path, train_log: Path, gpu: str) -> dict[str, str]:
        """Return the environment variables by which the launcher gets its files and the model of the GPU."""
        if self.is_cli:
            return {"PRIMUS_GPU_MODEL": gpu}
        return {"EXP": str(experiment), "TRAIN_LOG": str(train_log)}

    def defaults(self, model: str) -> dict[str, Any]:
        """Return every key that a YAML for this model may override, with its default.

        Raises ConfigError where a preset is missing.
        """
        presets = self.root / "primus" / "configs"
        of_model = _preset(presets / "models" / "megatron" / f"{MODELS[model].primus_preset}.yaml")
        return _preset(presets / "modules" / "megatron" / MODULE_PRESET) | of_model

    def shipped_path(self, model: str, precision: str, gpu: str) -> Path:
        """Return the YAML that AMD ships for a model on a GPU (`MI300X`), or else on DEFAULT_GPU.

        v25.10 has one file for all precisions, later releases have one each. Raises ConfigError where there is none.
        """
        folder = self.root / "examples" / "megatron" / "configs"
        preset = MODELS[model].primus_preset
        kind = "FP8" if precision == "fp8" else "BF16"
        names = [f"{preset}-{kind}-pretrain.yaml", f"{preset}-pretrain.yaml"]
        for owner in (gpu, DEFAULT_GPU):
            for name in names:
                path = folder / owner / name
                if path.is_file():
                    return path
        raise ConfigError(
            f"PRIMUS_PATH={self.root}: {folder} has no {' and no '.join(names)} for {gpu} or {DEFAULT_GPU}; take a "
            "Primus that has this model (docs/frameworks.md)"
        )

    def shipped(self, path: Path) -> dict[str, Any]:
        """Return the overrides of a shipped YAML, with `${VARIABLE:default}` resolved to the default."""
        content = _load(path)
        try:
            overrides = content["modules"]["pre_trainer"]["overrides"]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path}: no modules.pre_trainer.overrides in it; take v25.10 or later") from error
        return {key: _resolved(value) for key, value in overrides.items()}

    def versions(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return commits of Primus and its Megatron, with `+` where tracked files were changed, and package versions.

        The versions are those of the Python of Primus.
        """
        known = {}
        for name, folder in (("primus", self.root), ("megatron-lm", self.root / "third_party" / "Megatron-LM")):
            commit, is_changed = origin.commit(folder, {})
            if commit is not None:
                known[name] = f"{commit}+" if is_changed else commit
        # the Python that Primus finds on its PATH, which need not be ours
        command = ["python3", "-c", VERSIONS_PROGRAM]
        with suppress(OSError, subprocess.SubprocessError, yaml.YAMLError):
            ran = subprocess.run(
                command, cwd=self.root, env=dict(environ), check=True, capture_output=True, timeout=TOOL_TIMEOUT_SECONDS
            )
            known |= yaml.safe_load(ran.stdout)
        return known


def find(environ: Mapping[str, str] = os.environ) -> Primus:
    """Return the Primus at PRIMUS_PATH (default: its place in AMD's image); raise ConfigError where there is none."""
    root = Path(environ.get("PRIMUS_PATH") or DEFAULT_ROOT)
    # the older launcher is taken where both are there
    names = [name for name in (RUN_PRETRAIN, PRIMUS_CLI) if (root / name).is_file()]
    if not names or not (root / "primus" / "configs").is_dir():
        raise ConfigError(_NO_PRIMUS.format(root=root))
    return Primus(root.absolute(), names[0])


def gpu_folder(device_name: str | None) -> str:
    """Return the folder of shipped YAMLs for a device name as torch reports it; MI300X without one.

    AMD ships no YAMLs for the MI350X: it takes those of the MI355X (Primus v26.5.1, docs, training-recipes.md).
    """
    match = re.search(r"MI\d+X", device_name or "")
    gpu = match[0] if match else DEFAULT_GPU
    return "MI355X" if gpu == "MI350X" else gpu


def _preset(path: Path) -> dict[str, Any]:
    content = _load(path)
    if "bases" in content:
        raise ConfigError(f"{path}: a preset of a Primus before v25.10; take v25.10 or later")
    merged: dict[str, Any] = {}
    for name in content.pop("extends", []):
        merged |= _preset(path.parent / name)
    return merged | {key: _resolved(value) for key, value in content.items()}


def _load(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: cannot be read: {reason}; PRIMUS_PATH names a damaged or foreign Primus") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: got {type(content).__name__}, wanted keys and values; reinstall Primus")
    return content


def _resolved(value: Any) -> Any:
    """Return `${VARIABLE:default}` with the variable unset; numeric text becomes a number, as in Primus."""
    if not isinstance(value, str) or not _ENVIRONMENT_VALUE.search(value):
        return value
    text = _ENVIRONMENT_VALUE.sub(lambda match: match["default"] or "", value)
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def printed_variable(line: str) -> tuple[str, str] | None:
    """Return name and value of a variable that a launcher prints after setting it; None for other lines.

    The line is without colours and newline (train/prim/arguments.py, `plain`).
    """
    for pattern in _PRINTED_VARIABLE:
        match = pattern.match(line)
        if match is not None:
            return None if match["value"] == _UNSET else (match["name"], match["value"])
    return None
