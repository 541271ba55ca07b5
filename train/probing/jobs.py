"""The jobs whose operators are measured: each is rehearsed by `train.rehearse` in a process without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.machine.capacity import threads_of_a_rank
from utils.errors import ConfigError
from utils.settings.config import ROOT, RunConfig

FRAMEWORKS = ("mega", "hf")
"""Frameworks that a rehearsal knows (train/rehearse.py)."""
OF_THE_OPTIONS = ("FRAMEWORK", "MODEL", "GPUS_PER_NODE", "CPU_RANKS", "MBS")
"""Settings that the command of a rehearsal gets from here."""
Step = Callable[[str, str], RunConfig]


class RehearsalError(RuntimeError):
    """A job could not be rehearsed; the message is the last line of the rehearsal."""


@dataclass(frozen=True)
class Rehearsed:
    """Operators and collectives of a step of one rank of a job; the rows are those of the rehearsal's JSON."""

    framework: str
    model: str
    model_size: str
    settings: dict[str, Any]
    operators: list[dict[str, Any]]
    collectives: list[dict[str, Any]]
    ranks: int
    threads: int | None
    """Threads of a rank on a CPU."""


def pairs_of(
    config: RunConfig, frameworks: Sequence[str] | None, models: Sequence[str] | None
) -> list[tuple[str, str]]:
    """Return framework and model of each job: the named ones, else those of the settings that a rehearsal knows."""
    chosen = frameworks or [one for one in config.frameworks if one in FRAMEWORKS]
    return [(framework, model) for model in models or config.models for framework in chosen]


def threads_of(config: RunConfig, cores: int | None = None) -> int | None:
    """Return the threads of a rank on a CPU as train/launch.py sets them, None on a GPU."""
    if config.platform != "cpu":
        return None
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    return threads_of_a_rank(config, cores)


def rehearse(
    jobs: Sequence[tuple[RunConfig, str, str]], settings: Sequence[str]
) -> tuple[list[Rehearsed], dict[str, str]]:
    """Return the jobs (settings, framework, model) that could be rehearsed, and the reasons of the others by name.

    They run side by side, as many as there are cores. Raises ConfigError for settings that a rehearsal refuses.
    """
    with ThreadPoolExecutor(max(1, min(len(jobs), os.cpu_count() or 1))) as pool:
        waiting = [pool.submit(_rehearsed, config, framework, model, settings) for config, framework, model in jobs]
    found, reasons = [], {}
    for (_, framework, model), one in zip(jobs, waiting, strict=True):
        try:
            found.append(one.result())
        except RehearsalError as error:
            reasons[f"{framework} {model}"] = f"not rehearsed: {error}"
    return found, reasons


def _rehearsed(config: RunConfig, framework: str, model: str, settings: Sequence[str]) -> Rehearsed:
    kept = [one for one in settings if one.partition("=")[0] not in OF_THE_OPTIONS]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rehearsal.json"
        command = [sys.executable, "-W", "ignore", "-m", "train.rehearse", "--platform", config.platform]
        command += ["--gpus", str(config.ranks_per_node), "--framework", framework, "--model", model]
        command += ["--output", str(output), *kept, f"MBS={config.micro_batch_size}"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode:
            said = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1].removeprefix("error: ")
            raise ConfigError(said) if ran.returncode == 2 else RehearsalError(said)
        content = json.loads(output.read_text(encoding="utf8"))
    return Rehearsed(
        framework=framework,
        model=model,
        model_size=content["model_size"],
        settings=content["settings"],
        operators=content["operators"],
        collectives=content["collectives"],
        ranks=config.num_gpus,
        threads=threads_of(config),
    )
