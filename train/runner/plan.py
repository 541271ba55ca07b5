"""The plan of a matrix: its jobs, their settings, data and existing results, and the text of --dry-run."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from train.job.job import Job
from train.job.outcome import largest_micro_batch
from train.machine import gpus
from train.machine.gpus import capacity_gb
from utils.dataset.manifest import idx_path, manifest_path, read as read_manifest
from utils.dataset.place import data_prefix
from utils.errors import ConfigError, DataError
from utils.frameworks import VENDOR_OF, can_train, counterpart, in_all
from utils.hardware.detect import visible_device, visible_gpus
from utils.memory.estimate import FRAMEWORKS, usable_gb
from utils.results import store
from utils.results.performance import RunsRule, rates
from utils.settings import layers
from utils.settings.config import ROOT, RunConfig, load, require_writable, values_of
from utils.settings.layers import Value


@dataclass(frozen=True)
class Matrix:
    """The jobs that run in any case in their order, the settings that they share, and the origin of each setting."""

    config: RunConfig
    jobs: tuple[Job, ...]
    values: dict[str, Value]
    arguments: tuple[str, ...]

    @property
    def rule(self) -> RunsRule:
        """The number of runs of each job."""
        return RunsRule.of(self.config.runs)

    @property
    def first_runs(self) -> list[Job]:
        """Run 1 of each job."""
        return [job for job in self.jobs if job.run == 1]

    @property
    def most_jobs(self) -> list[Job]:
        """Every job that may run, all runs of a job in a row."""
        return [replace(job, run=run) for job in self.first_runs for run in range(1, self.rule.most + 1)]


@dataclass(frozen=True)
class Outlook:
    """Jobs of a matrix as far as the results on disk decide them."""

    done: list[Job]
    """They have an ok result and are skipped."""
    left: list[Job]
    """They run in any case."""
    possible: list[Job]
    """They run if RUNS=auto does not know the mean well enough from the runs before them."""


def resolve(
    platform: str, arguments: Sequence[str], *, may_lack_gpus: bool = False
) -> tuple[RunConfig, dict[str, Value]]:
    """Return the checked settings, and text and origin of each; raise ConfigError or HardwareError.

    Both come from one reading of the files: they are the same whenever a file is edited. With `may_lack_gpus`,
    GPUS_PER_NODE may be the number of another machine if this one has no GPU.
    """
    values = values_of(platform, arguments)
    if values["METHOD"].text == "best":
        device = gpus.device(platform) if may_lack_gpus else visible_device(platform)
        values = values_of(platform, arguments, device=device)
    visible = visible_gpus(platform) if not may_lack_gpus else gpus.count(platform) or None
    return load(platform, visible, environ=layers.variable(values)), values


def matrices(platform: str, arguments: Sequence[str], *, is_dry_run: bool = False) -> list[Matrix]:
    """Return the matrices to run: METHOD=both means one of equal and one of best settings.

    Each has a label of its own, so that neither writes into the other's folder: without a LABEL the derived ones, else
    LABEL and `<LABEL>_best`. Raises ConfigError or HardwareError.
    """
    values = values_of(platform, arguments)
    if values["METHOD"].text != "both":
        return [make(platform, arguments, is_dry_run=is_dry_run)]
    best = ["METHOD=best"]
    label = values["LABEL"].text
    if label:
        best.append(f"LABEL={label}_best")
    return [make(platform, [*arguments, *more], is_dry_run=is_dry_run) for more in (["METHOD=equal"], best)]


def require_folders(matrices: Sequence[Matrix]) -> Path:
    """Make the folders of results and logs and return OUTPUT_DIR; raise ConfigError if one cannot be written."""
    output = matrices[0].config.output_dir
    for matrix in matrices:
        require_writable(matrix.config.results_dir, "OUTPUT_DIR")
    require_writable(output / "logs", "OUTPUT_DIR")
    return output


def make(platform: str, arguments: Sequence[str], *, is_dry_run: bool = False) -> Matrix:
    """Return the matrix that the settings select; raise ConfigError or HardwareError."""
    config, values = resolve(platform, arguments, may_lack_gpus=is_dry_run)
    sized: dict[tuple[str, str], RunConfig] = {}
    jobs = []
    for framework, model, run in config.jobs(RunsRule.of(config.runs).least):
        kind = framework, model
        if kind not in sized:
            sized[kind] = with_micro_batch(config, values, framework, model)
        jobs.append(Job(sized[kind], framework, model, run))
    return Matrix(config, tuple(jobs), values, tuple(arguments))


def with_micro_batch(config: RunConfig, values: Mapping[str, Value], framework: str, model: str) -> RunConfig:
    """Return the settings of one job; for MBS=auto with the largest micro batch that fits its device by the estimate.

    Raises ConfigError where the memory of the device is unknown, the framework has no formula, or not even 1 fits.
    """
    if values["MBS"].text != "auto":
        return config
    if framework not in FRAMEWORKS:
        raise ConfigError(f"MBS=auto: there is no formula for the memory of {framework} yet; set MBS to a number")
    capacity, source = capacity_gb(config)
    if capacity is None:
        raise ConfigError(f"MBS=auto: the memory of the device is unknown ({source}); set MBS to a number")
    share = config.global_batch_size // config.data_parallel_size
    # the search begins with one micro batch a step
    whole = replace(config, micro_batch_size=share, gradient_accumulation=1)
    size = largest_micro_batch(whole, framework, config.spec(model), usable_gb(capacity, config.platform))
    if size is None:
        raise ConfigError(
            f"MBS=auto: {framework} {model} does not fit {capacity:.1f} GB at MBS=1; see the table of --dry-run"
        )
    return replace(config, micro_batch_size=size, gradient_accumulation=share // size)


def environment(matrix: Matrix) -> dict[str, str]:
    """Return the environment of every process that the matrix starts: this one's, and the resolved settings."""
    return os.environ | layers.variable(matrix.values)


def notes(matrix: Matrix) -> list[str]:
    """Return notes on frameworks that another one replaces, on pairs that are left out, and on a recipe in use."""
    config = matrix.config
    asked = matrix.values["FRAMEWORK"].text
    lines = _counterparts(asked.split(","), config.platform)
    frameworks = in_all(config.platform) if asked == "all" else config.frameworks
    pairs = itertools.product(frameworks, config.models)
    without = [f"{framework} has none of {model}" for framework, model in pairs if not can_train(framework, model)]
    if without:
        lines.append(f"left out, because there is no recipe: {', '.join(without)}")
    # the overlay of a platform may be that of another GPU
    if config.method == "best":
        recipe = unfitting(config.platform, matrix.values["BEST_DEVICE"].text, ROOT)
        if recipe is not None:
            lines.append(recipe)
    return lines


def _counterparts(asked: Sequence[str], platform: str) -> list[str]:
    """Return a sentence for each requested framework whose counterpart runs instead."""
    vendors = {"nvd": "NVIDIA's own framework", "amd": "AMD's own framework"}
    lines = []
    for name in asked:
        other = counterpart(name, platform)
        if other is not None:
            own, theirs = vendors[platform], vendors[VENDOR_OF[name]]
            lines.append(f"FRAMEWORK={name}: is {theirs}; on this machine {other}, {own}, runs in its place")
    return lines


def unfitting(platform: str, device: str | None, root: Path) -> str | None:
    """Return a line if the recipe in use is that of another device; None if it is the device's own."""
    of = " and ".join(layers.RECIPE_OF.get(platform, ()))
    if not of or device in layers.devices(platform, root):
        return None
    if device is None or device == layers.AUTO:
        return f"METHOD=best: no known GPU is visible here, so the recipe is that of {of}; name yours with BEST_DEVICE"
    return f"METHOD=best: no recipe for {device} is known to be published, so that of {of} is used"


def command(matrix: Matrix, job: Job) -> list[str]:
    """Return the command that runs one job of the matrix, as its script does in an environment that is set up."""
    words = f"train.launch --platform {job.config.platform} --framework {job.framework} --model {job.model}".split()
    return [sys.executable, "-m", *words, "--run", str(job.run), *matrix.arguments]


def ok_result(job: Job, identity: str) -> dict[str, Any] | None:
    """Return the job's valid ok result of the same settings, data, code and machine; None if it has none."""
    try:
        result = store.read(job.result_path)
    except store.ResultError:
        return None
    return result if result["status"] == "ok" and result["identity_sha256"] == identity else None


def is_done(job: Job, identity: str) -> bool:
    """Return True if the job need not run: it has an ok result of the same work, and FORCE is not set."""
    return not job.config.force and ok_result(job, identity) is not None


def outlook(matrix: Matrix) -> Outlook:
    """Return what the results on disk leave to do."""
    digests = {model: _known_digest(matrix.config, model) for model in matrix.config.models}
    ahead = Outlook([], [], [])
    for first in matrix.first_runs:
        _add_runs(ahead, first, None if matrix.config.force else digests[first.model])
    return ahead


def _add_runs(ahead: Outlook, first: Job, digest: str | None) -> None:
    """Add the runs of one job; without the digest of its data no result counts."""
    results: list[dict[str, Any]] = []
    for run in range(1, first.rule.most + 1):
        job = replace(first, run=run)
        is_next = len(results) == run - 1
        # the rule sees only runs without a gap before them, as it did when they were decided
        if run > first.rule.least and is_next and not first.rule.decide(rates(results)).goes_on:
            break
        result = None if digest is None else ok_result(job, job.identity(digest))
        if result is not None:
            results.append(result)
            ahead.done.append(job)
        elif run <= first.rule.least or is_next:
            ahead.left.append(job)
        else:
            ahead.possible.append(job)


def data_digests(config: RunConfig) -> dict[str, str]:
    """Return the SHA-256 of the data of each model after checking them; raise DataError."""
    # it needs numpy, and a plan is made before any package is there
    from utils.dataset.gpt_dataset import check_epochs, describe

    prefixes = {model: data_prefix(config, model) for model in config.models}
    manifests = {prefix: describe(prefix, config.data_dir, config=config) for prefix in set(prefixes.values())}
    for manifest in manifests.values():
        check_epochs(config, manifest["tokens"])
    return {model: str(manifests[prefix]["bin_sha256"]) for model, prefix in prefixes.items()}


def _known_digest(config: RunConfig, model: str) -> str | None:
    """Return the SHA-256 of sound data, None for missing or damaged data, which the data step makes or reports.

    Without numpy, that is before the packages are installed, it is the one that the manifest records.
    """
    try:
        prefix = data_prefix(config, model)
        if not idx_path(prefix).exists():
            return None
        if importlib.util.find_spec("numpy") is None:
            manifest = manifest_path(prefix)
            return str(read_manifest(manifest)["bin_sha256"]) if manifest.exists() else None
        from utils.dataset.gpt_dataset import describe

        return str(describe(prefix, config.data_dir, is_recorded=False, config=config)["bin_sha256"])
    except DataError:
        return None


def text(matrix: Matrix) -> str:
    """Return the plan for --dry-run: every job with its command, then every setting with its origin."""
    config = matrix.config
    ahead = outlook(matrix)
    kinds = [job.kind for job in matrix.first_runs]
    jobs = [*ahead.done, *ahead.left]
    # a stable sort: the second one keeps this order among equal runs
    jobs.sort(key=lambda job: (kinds.index(job.kind), job.run))
    if config.order == "interleaved":
        jobs.sort(key=lambda job: job.run)
    lines = [f"jobs, in this order ({config.order}):"]
    for number, job in enumerate(jobs, 1):
        action = "has an ok result, is skipped" if job in ahead.done else "runs"
        script = f"train/train_{config.platform}_{job.framework}_{job.model}.sh"
        shown = shlex.join([script, "--run", str(job.run), *matrix.arguments])
        lines += [f"{number:>4}  {action}: {shown}", f"      result: {job.result_path}"]
    if ahead.possible:
        lines.append(f"      then at most {len(ahead.possible)} more, by {matrix.rule.text()}")
    lines += ["", "settings, and the origin of each:"]
    width = max(len(key) for key in matrix.values)
    for key, value in matrix.values.items():
        lines.append(f"  {key:{width}}  {value.text or '(empty)'}  ({value.origin})")
    devices = f"{config.num_gpus} {'ranks' if config.platform == 'cpu' else 'GPUs'}"
    # with MBS=auto each job has its own
    accumulations = sorted({job.config.gradient_accumulation for job in matrix.jobs})
    all_tokens = config.train_iterations * config.tokens_per_step
    lines += [
        "",
        f"derived: {devices}, DP {config.data_parallel_size}, GA {' or '.join(map(str, accumulations))}, "
        f"{config.tokens_per_step:,} tokens per step, {all_tokens:,} in all",
    ]
    return "\n".join(lines)
