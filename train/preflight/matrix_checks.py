"""Checks before a matrix starts: missing scripts, a full disk, a model that does not fit into memory.

The forecast of time comes from earlier results on this machine, else from the peak of its GPUs; that of memory from a
formula.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from train.job.job import RESERVE_BYTES, Job, existing
from train.job.outcome import advice
from train.machine import gpus
from train.machine.gpus import capacity_gb
from train.preflight import job_checks, ready
from train.preflight.fit import LAYERS, host_memory_lines, refusal
from train.runner.plan import Matrix, notes, outlook
from train.runner.state import NAME, is_status
from train.runner.view import duration, is_matrix_log
from utils.dataset.manifest import bin_path
from utils.dataset.place import HUB_DATASETS, data_prefix, is_pair, text_paths, tokens_needed
from utils.errors import ConfigError
from utils.frameworks import reads
from utils.hardware.devices import named
from utils.memory.estimate import FRAMEWORKS, estimate
from utils.own_files import require_ours
from utils.results import store
from utils.results.schema import time_of
from utils.settings.config import RunConfig

OUTPUT_BYTES_PER_JOB = RESERVE_BYTES + (1 << 20)
"""A result and a log; 500 steps leave about 150 KB."""
SAME_WORK = (
    "max_steps",
    "global_batch_size",
    "micro_batch_size",
    "sequence_length",
    "num_gpus",
    "tp",
    "pp",
    "ep",
    "precision",
)
"""Settings that decide how long a job takes."""
SYNTH_BYTES_PER_TOKEN = 16
"""Text, ids and indices of synthetic data: 10.7 measured at 245,761 tokens."""
SYNTH_TOKENS_PER_DOCUMENT = 500
"""Documents of data/synth.py have 50 to 500 words."""
TEXT_BYTES_PER_DOCUMENT = {"c4": 2_271, "bc": 66}
"""Means of the data sets' cards, other columns included: 828,589,180,707 B of 364,868,892 pages, and 4,853,859,824 B of
74,004,228 rows."""
TEXT_BYTES_PER_TOKEN = (3.0, 5.5)
"""Minimum and maximum for English with vocabularies of 32,000 to 152,000 entries; about 4.4 measured with 40,000."""
ID_BYTES = 4
PACKED_RATIO = {".gz": 4, ".zst": 4, ".parquet": 4}
"""Upper bound of unpacked over packed size, by file ending; C4's shards unpack to 2.5 times their size."""
SHARE_OF_PEAK = 0.5
"""Share of the dense peak at which the time of a job is forecast; the forecast names it."""
FOUR_BITS = ("nvfp4", "mxfp4")


def check(matrix: Matrix) -> None:
    """Print the forecast of time and memory, and warnings, on stderr.

    Raises ConfigError or DataError if the matrix cannot work, and ForeignFileError if a file of a user has the name of
    an output.
    """
    output = matrix.config.output_dir
    require_ours(store.is_result, *(job.result_path for job in matrix.most_jobs))
    require_ours(is_status, output / NAME)
    require_ours(is_matrix_log, output / "logs" / "matrix.log")
    _check_space(matrix)
    if matrix.config.strict and matrix.config.launcher != "slurm":  # each Slurm job checks the node that it runs on
        job_checks.before(matrix.config)
    _print_forecast(matrix)


def _check_space(matrix: Matrix) -> None:
    config = matrix.config
    needs = {config.output_dir: ("OUTPUT_DIR", len(matrix.most_jobs) * OUTPUT_BYTES_PER_JOB)}
    missing = {data_prefix(config, model): model for model in config.models}
    data = sum(bytes_needed(config, model) or 0 for path, model in missing.items() if not bin_path(path).exists())
    if data:  # about; as far as it is known
        needs[config.data_dir] = ("DATA_DIR", data)
    by_disk: dict[int, int] = {}
    for folder, (key, needed) in needs.items():
        there = existing(folder)
        disk = there.stat().st_dev
        by_disk[disk] = by_disk.get(disk, 0) + needed
        if (
            not there.is_dir() or not os.statvfs(there).f_blocks or not os.access(there, os.W_OK)
        ):  # /proc and /sys have no space
            raise ConfigError(f"{key}={folder}: cannot be written; use a folder on a disk, e.g. {key}=output")
        free = shutil.disk_usage(there).free
        if free < by_disk[disk]:
            raise ConfigError(
                f"{key}={folder}: {free / 1e6:,.1f} MB are free, about {by_disk[disk] / 1e6:,.1f} MB are needed; "
                f"make room or name another {key}"
            )


def bytes_needed(config: RunConfig, model: str) -> int | None:
    """Return the approximate peak size in DATA_DIR while the data of `model` are made; None if it is unknown.

    At the peak DATA_DIR holds the cleaned text, the encoder's parts and the pair itself. Downloads are in the cache of
    huggingface_hub and are not counted. A ready pair needs no space.
    """
    if config.dataset == "synth":
        tokens = config.samples * SYNTH_TOKENS_PER_DOCUMENT if config.samples else tokens_needed(config)
        return tokens * SYNTH_BYTES_PER_TOKEN
    if config.dataset in HUB_DATASETS:
        of_one = TEXT_BYTES_PER_DOCUMENT.get(config.dataset)
        of_samples = config.samples * of_one if config.samples and of_one else None
        text = of_samples if config.samples else tokens_needed(config) * TEXT_BYTES_PER_TOKEN[1]
    elif is_pair(config.dataset):
        return 0
    else:
        text = sum(path.stat().st_size * PACKED_RATIO.get(path.suffix, 1) for path in text_paths(config.dataset))
    return None if text is None else int(text + 2 * text / TEXT_BYTES_PER_TOKEN[0] * ID_BYTES)


def _print_forecast(matrix: Matrix) -> None:
    for note in notes(matrix):
        print(f"note: {note}", file=sys.stderr)
    ahead = outlook(matrix)
    least = len(ahead.done) + len(ahead.left)
    most = least + len(ahead.possible)
    jobs = f"{least} to {most} jobs" if ahead.possible else f"{least} job{'' if least == 1 else 's'}"
    rule = "" if matrix.rule.is_fixed else f"; {matrix.rule.text()}"
    print(f"plan: {jobs}, {len(ahead.done)} with an ok result already{rule}", file=sys.stderr)
    seconds, how = matrix_seconds(ahead.left, ahead.possible)
    if ahead.left:
        print(f"time: {_expected(seconds)} ({how})", file=sys.stderr)
    for line in (*memory_lines(ahead.left), *_machine_lines(matrix, ahead.left)):
        print(line, file=sys.stderr)


def _machine_lines(matrix: Matrix, jobs: Sequence[Job]) -> Iterator[str]:
    """Yield lines on memory of the host, driver and TransformerEngine, as far as this is the machine of the jobs."""
    platform = matrix.config.platform
    is_here = matrix.config.launcher != "slurm" and bool(gpus.count(platform))
    yield from host_memory_lines(jobs, is_here=is_here)
    if is_here and gpus.has_torch():
        if of_driver := ready.driver_line(platform):
            yield of_driver
        refused = (line for job in jobs for line in ready.without_engine(job.config, job.framework))
        yield from dict.fromkeys(f"warning: {line}" for line in refused)


def _expected(seconds: tuple[float, float] | None) -> str:
    if seconds is None:
        return "unknown"
    least, most = map(duration, seconds)
    return f"about {least}" if least == most else f"at least {least}, at most {most}"


def matrix_seconds(jobs: Sequence[Job], possible: Sequence[Job] = ()) -> tuple[tuple[float, float] | None, str]:
    """Return the least and the most seconds expected, or None if unknown, and the basis of the forecast.

    The least is that of `jobs`, the most that of `possible` jobs too; cooldown is included. Jobs of a kind that this
    machine has not run yet are assumed to take the average of the others.
    """
    if not jobs:
        return None, "nothing to do"
    config = jobs[0].config
    earlier = _earlier(config.output_dir)
    seconds_of = {
        job.kind: earlier.get(_work(job.framework, job.model, job.config.model_size, job.config.asked()))
        for job in jobs
    }
    measured = [seconds for job in jobs if (seconds := seconds_of[job.kind]) is not None]
    if measured:
        average = sum(measured) / len(measured)
        how = f"from earlier results on this machine, jobs measured: {len(measured)} of {len(jobs)}"
        expected = {job.kind: seconds_of.get(job.kind) or average for job in (*jobs, *possible)}
    else:
        tflops, how = _share_of_peak(config)
        if tflops is None:
            return None, how
        tokens, devices = config.train_iterations * config.tokens_per_step, config.num_gpus
        flops = {job.kind: job.spec.flops_per_token(config.sequence_length) for job in (*jobs, *possible)}
        expected = {kind: tokens * each / (devices * tflops * 1e12) for kind, each in flops.items()}
    least, more = (sum(expected[job.kind] + config.cooldown_seconds for job in some) for some in (jobs, possible))
    least -= config.cooldown_seconds
    return (least, least + more), how


def _share_of_peak(config: RunConfig) -> tuple[float | None, str]:
    """Return SHARE_OF_PEAK of the device's dense peak, TFLOP/s, in words; None with the reason where it is unknown.

    The formula counts every framework's work alike; start and compilation are not in it.
    """
    no_result = "no earlier result of these jobs on this machine"
    if config.platform == "cpu" or config.launcher == "slurm":
        why = "a CPU has no peak here" if config.platform == "cpu" else "Slurm selects the nodes"
        return None, f"{no_result}, and {why}"
    short = gpus.device(config.platform)
    device = named(short) if short else None
    if device is None:
        return None, f"{no_result}, and its GPUs are missing, different or not in utils/hardware/devices.py"
    precision = "fp4" if config.precision == "fp8" and config.fp8_recipe in FOUR_BITS else config.precision
    peak: float | None = getattr(device, f"dense_{precision}_tflops", None)
    if peak is None:
        return None, f"{no_result}, and no dense {precision} peak of {device.name} is kept"
    share = f"{100 * SHARE_OF_PEAK:.0f} % of the {peak:g} TFLOP/s of {device.name} ({precision}, dense)"
    return SHARE_OF_PEAK * peak, f"if the steps reach {share}; starts of the jobs not counted; {no_result}"


def _earlier(output_dir: Path) -> dict[tuple[Any, ...], float]:
    """Return the seconds from start to end of the most recent ok run of each work here, including superseded ones."""
    spans: dict[tuple[Any, ...], tuple[datetime, float]] = {}
    for path in sorted(output_dir.rglob("train_*.json")):
        try:
            result = store.read(path)
            start, end = (time_of(result["provenance"][key]) for key in ("started_utc", "finished_utc"))
        except ValueError:
            continue  # the validation at the end reports it
        if result["status"] == "ok" and result["provenance"]["host"] == platform.node():
            work = _work(result["framework"], result["model"], result["model_size"], result["training_config"])
            span = end, (end - start).total_seconds()
            spans[work] = max(span, spans.get(work, span))
    return {work: seconds for work, (_, seconds) in spans.items()}


def _work(framework: str, model: str, model_size: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what decides how long a job takes on one machine."""
    return framework, model, model_size, *(settings[key] for key in SAME_WORK)


def memory_lines(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield a line for each framework and model: its memory on one device, as a warning if the device has less."""
    capacity, source = capacity_gb(jobs[0].config) if jobs else (None, "")
    for job in {job.kind: job for job in jobs}.values():
        name = f"memory: {job.framework} {job.model}"
        if job.framework not in FRAMEWORKS:
            yield f"{name} unknown (no formula for this framework yet)"
            continue
        needed = estimate(job.config, job.framework, job.spec).total_gb
        if capacity is None:
            line = f"{name} about {needed:.1f} GB, of an unknown amount"
        elif why := refusal(job, capacity) or (advice(job, capacity) if needed > capacity else None):
            line = f"warning: {name}: {why}"
        else:
            line = f"{name} about {needed:.1f} GB of {capacity:.1f} GB"
        layers = f"; {LAYERS}" if reads(job.framework, "layers") and job.config.platform != "cpu" else ""
        yield f"{line} ({source}){layers}"
