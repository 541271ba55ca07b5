"""Pretraining with Primus, AMD's framework, in its own checkout and by its own launcher.

Started by train/launch.py. `python -m train.train_prim --check [KEY=VALUE ...]` starts nothing and prints every
difference between the YAML that AMD ships for a model and ours. It needs neither torch nor a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train.machine import gpus
from train.machine.gpu_command import table
from train.prim import install as prim_install, yaml_config as prim_config
from train.prim.install import DEFAULT_GPU, Primus
from utils.arguments import Parser, refusing
from utils.errors import ConfigError, DataError
from utils.hardware.detect import HardwareError
from utils.models import MODELS
from utils.settings.config import RunConfig, load, values_of

CHECK = """Every difference between the YAML that AMD ships for a model and the one that this suite renders.

Both are resolved first: the presets of the installed version, with the overrides of the file on top.
"""
OPTIONS: dict[str, dict[str, Any]] = {
    "--gpu": {"default": DEFAULT_GPU, "help": "GPU whose YAML is compared (default: %(default)s)"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE"},
}
ASSUMED_GPUS = 8
"""GPUs assumed on a machine without any; AMD's YAMLs are for a node of eight."""
ABSENT = "-"
SHIPPED_ONLY = "AMD's YAML leaves it at the preset, or sets it back"


def main() -> int:
    """Run one job, or with --check the comparison of YAMLs."""
    if "--check" in sys.argv[1:]:
        return check([argument for argument in sys.argv[1:] if argument != "--check"])
    from train.prim import training  # which needs torch

    return training.main()


@refusing((ConfigError, DataError, HardwareError))
def check(arguments: Sequence[str]) -> int:
    """Print the differences of each model in MODEL; return 0, or 2 for bad input."""
    options = Parser(OPTIONS, prog="python -m train.train_prim --check", description=CHECK).parse_args(arguments)
    primus = prim_install.find()
    config = _config(options.settings)
    for model in config.models:
        shipped = primus.shipped_path(model, config.precision, options.gpu)
        _print(model, shipped, primus, differences(primus, config, model, shipped))
    return 0


def differences(primus: Primus, config: RunConfig, model: str, shipped: Path) -> list[tuple[str, str, str, str]]:
    """Return key, their value, ours and the reason of each difference, sorted by key.

    Raises ConfigError where this version lacks a key that is needed.
    """
    defaults = primus.defaults(model)
    theirs = defaults | primus.shipped(shipped)
    name = f"check_{model}"
    # the same rendering as of a job, so that what is printed is what would run
    document, _ = prim_config.render(primus, config, model, shipped, config.output_dir / "logs" / name, name)
    ours = defaults | document["modules"]["pre_trainer"]["overrides"]
    why = prim_config.reasons()
    rows = []
    for key in sorted(ours):
        if key not in theirs or theirs[key] != ours[key]:
            rows.append((key, _shown(theirs, key), _shown(ours, key), why.get(key, SHIPPED_ONLY)))
    return rows


def _config(settings: Sequence[str]) -> RunConfig:
    asked = [*settings, "FRAMEWORK=prim"]
    visible = gpus.count("amd")  # 0 also without torch: the check is for any machine
    if not visible and values_of("amd", asked)["GPUS_PER_NODE"].text == "auto":
        print(f"no GPU is visible: assuming {ASSUMED_GPUS} (GPUS_PER_NODE={ASSUMED_GPUS})", file=sys.stderr)
        asked.append(f"GPUS_PER_NODE={ASSUMED_GPUS}")
    return load("amd", visible or None, arguments=asked)


def _shown(values: Mapping[str, Any], key: str) -> str:
    """Return a value as YAML writes it."""
    if key not in values:
        return ABSENT
    value = values[key]
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _print(model: str, shipped: Path, primus: Primus, found: Sequence[tuple[str, str, str, str]]) -> None:
    print(f"{model}: {shipped.relative_to(primus.root)} and ours differ in {len(found)} keys")
    if not MODELS[model].is_own_primus_preset:
        print("  Primus ships nothing for this model: ours is made from this file of a model of the same shape")
    for line in table([("key", "theirs", "ours", "why"), *found]):
        print(f"  {line}")
    print()


if __name__ == "__main__":
    sys.exit(main())
