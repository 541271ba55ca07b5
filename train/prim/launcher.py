"""The launchers of Primus: which one a checkout has, its command, and the variables that it prints.

Releases from v25.9 to v26.6 have examples/run_pretrain.sh. The release of pull request 999 (AMD-AGI/Primus) removes it
in favour of `primus-cli direct`, which ROCm/MAD uses from rocm/primus:v26.7 on (ROCm/MAD, pull request 255).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RUN_PRETRAIN = "examples/run_pretrain.sh"
PRIMUS_CLI = "primus-cli"
ENVIRONMENT_FILES = "runner/helpers/envs"
"""Folder of the files of one GPU model each (`MI300X.sh`) that `primus-cli direct` reads."""
SYSTEM_SETTINGS = "runner/.primus.yaml"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
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
class Launcher:
    """The launcher of a checkout."""

    name: str
    """RUN_PRETRAIN or PRIMUS_CLI, a path inside the checkout."""
    root: Path

    @property
    def is_cli(self) -> bool:
        """True for `primus-cli direct`, False for examples/run_pretrain.sh."""
        return self.name == PRIMUS_CLI

    def command(self, experiment: Path, train_log: Path) -> list[str]:
        """Return the command of one training, to be started in the root of the checkout.

        examples/run_pretrain.sh takes both files from its environment (`variables`). `primus-cli direct` gets the
        release's own settings file by name, because it would otherwise prefer ~/.primus.yaml.
        """
        if not self.is_cli:
            return ["bash", RUN_PRETRAIN]
        settings = self.root / SYSTEM_SETTINGS
        config = ["--config", str(settings)] if settings.is_file() else []
        return [
            *("bash", PRIMUS_CLI, "direct", *config, "--log_file", str(train_log)),
            *("--", "train", "pretrain", "--config", str(experiment)),
        ]

    def variables(self, experiment: Path, train_log: Path, gpu: str) -> dict[str, str]:
        """Return the environment variables by which the launcher gets its files and the model of the GPU."""
        if self.is_cli:
            return {"PRIMUS_GPU_MODEL": gpu}
        return {"EXP": str(experiment), "TRAIN_LOG": str(train_log)}

    def missing_environment_file(self, gpu: str) -> Path | None:
        """Return the file of a GPU model that `primus-cli direct` wants and the release lacks; None if there is none.

        Without that file the launcher only warns, and on gfx950 the training becomes NaN (AMD-AGI/Primus issue 1178).
        """
        path = self.root / ENVIRONMENT_FILES / f"{gpu}.sh"
        return path if self.is_cli and not path.is_file() else None


def launcher_of(root: Path) -> Launcher | None:
    """Return the launcher of a checkout; None if it has none. The older one is taken where both are there."""
    return next((Launcher(name, root) for name in (RUN_PRETRAIN, PRIMUS_CLI) if (root / name).is_file()), None)


def printed_variable(line: str) -> tuple[str, str] | None:
    """Return name and value of a variable that a launcher prints after setting it; None for other lines."""
    text = _ANSI.sub("", line).rstrip()
    for pattern in _PRINTED_VARIABLE:
        if match := pattern.match(text):
            return None if match["value"] == _UNSET else (match["name"], match["value"])
    return None
