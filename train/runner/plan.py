"""The plan of a matrix: its jobs, their settings, data and existing results, and the text of --dry-run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from train.job.job import Job
from utils.dataset.gpt_dataset import check_epochs, data_prefix, describe
from utils.errors import DataError
from utils.hardware.detect import visible_gpus
from utils.results import store
from utils.settings import layers
from utils.settings.combinations import counterparts
from utils.settings.config import ROOT, RunConfig, load, values_of
from utils.settings.layers import Value


@dataclass(frozen=True)
class Matrix:
    """All jobs in their order, the settings that they share, and the origin of each setting."""

    config: RunConfig
    jobs: tuple[Job, ...]
    values: dict[str, Value]
    arguments: tuple[str, ...]


def by_method(platform: str, arguments: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the arguments of each matrix to run: METHOD=both means one of equal and one of best settings.

    Each has a label of its own, so that neither writes into the other's folder: without a LABEL the derived ones, else
    LABEL and `<LABEL>_best`. Raises ConfigError.
    """
    values = values_of(platform, arguments)
    if values["METHOD"].text != "both":
        return [tuple(arguments)]
    label = values["LABEL"].text
    best = ("METHOD=best", f"LABEL={label}_best") if label else ("METHOD=best",)
    return [(*arguments, "METHOD=equal"), (*arguments, *best)]


def resolve(platform: str, arguments: Sequence[str]) -> tuple[RunConfig, dict[str, Value]]:
    """Return the checked settings, and text and origin of each; raise ConfigError or HardwareError.

    The files are read once: both are the same whenever a file is edited.
    """
    values = values_of(platform, arguments)
    return load(platform, visible_gpus(platform), environ=layers.variable(values)), values


def make(platform: str, arguments: Sequence[str]) -> Matrix:
    """Return the matrix that the settings select; raise ConfigError or HardwareError."""
    config, values = resolve(platform, arguments)
    jobs = tuple(Job(config, framework, model, run) for framework, model, run in config.jobs())
    return Matrix(config, jobs, values, tuple(arguments))


def environment(matrix: Matrix) -> dict[str, str]:
    """Return the environment of every process that the matrix starts: this one's, and the resolved settings."""
    return os.environ | layers.variable(matrix.values)


def notes(matrix: Matrix) -> list[str]:
    """Return a note for each framework that another one replaces on this platform."""
    return counterparts(tuple(matrix.values["FRAMEWORK"].text.split(",")), matrix.config.platform)


def wrapper(job: Job) -> str:
    """Return the script that runs a job, relative to the checkout."""
    return f"train/train_{job.config.platform}_{job.framework}_{job.model}.sh"


def command(matrix: Matrix, job: Job) -> list[str]:
    """Return the command that runs one job of the matrix by itself."""
    return [str(ROOT / wrapper(job)), "--run", str(job.run), *matrix.arguments]


def has_result(job: Job, identity: str) -> bool:
    """Return True if the job has a valid ok result of the same settings, data, code and machine."""
    try:
        result = store.read(job.result_path)
    except store.ResultError:
        return False
    return bool(result["status"] == "ok" and result["identity_sha256"] == identity)


def finished(matrix: Matrix) -> set[str]:
    """Return the names of the jobs that have a result already and will be skipped."""
    if matrix.config.force:
        return set()
    digests = {model: _known_digest(matrix.config, model) for model in matrix.config.models}
    return {job.name for job in matrix.jobs if (digest := digests[job.model]) and has_result(job, job.identity(digest))}


def data_digests(config: RunConfig) -> dict[str, str]:
    """Return the SHA-256 of the data of each model after checking them; raise DataError."""
    prefixes = {model: data_prefix(config, model) for model in config.models}
    manifests = {prefix: describe(prefix, config.data_dir) for prefix in set(prefixes.values())}
    for manifest in manifests.values():
        check_epochs(config, manifest["tokens"])
    return {model: str(manifests[prefix]["bin_sha256"]) for model, prefix in prefixes.items()}


def _known_digest(config: RunConfig, model: str) -> str | None:
    """Return the SHA-256 of sound data, None for missing or damaged data, which the data step makes or reports."""
    try:
        return str(describe(data_prefix(config, model), config.data_dir, is_recorded=False)["bin_sha256"])
    except DataError:
        return None


def text(matrix: Matrix) -> str:
    """Return the plan for --dry-run: every job with its command, then every setting with its origin."""
    done = finished(matrix)
    lines = [f"jobs, in this order ({matrix.config.order}):"]
    for number, job in enumerate(matrix.jobs, 1):
        action = "has an ok result, is skipped" if job.name in done else "runs"
        shown = shlex.join([wrapper(job), "--run", str(job.run), *matrix.arguments])
        lines += [f"{number:>4}  {action}: {shown}", f"      result: {job.result_path}"]
    width = max(len(key) for key in matrix.values)
    config = matrix.config
    lines += ["", "settings, and the origin of each:"]
    lines += [f"  {key:{width}}  {value.text or '(empty)'}  ({value.origin})" for key, value in matrix.values.items()]
    lines += [
        "",
        f"derived: {config.num_gpus} {'ranks' if config.platform == 'cpu' else 'GPUs'}, "
        f"DP {config.data_parallel_size}, GA {config.gradient_accumulation}, "
        f"{config.tokens_per_step:,} tokens per step, {config.train_iterations * config.tokens_per_step:,} in all",
    ]
    return "\n".join(lines)
