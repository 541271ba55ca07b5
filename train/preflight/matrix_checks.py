"""Checks before a matrix starts: missing scripts, a full disk, a model that does not fit into memory.

The forecast of time comes from earlier results on this machine, else from the peak of its GPUs; that of memory from a
formula.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections import Counter
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
"""The reserve, and 1 MiB for a result and its log; 500 steps leave about 150 KB."""
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
    # a name of the suite may be that of a file of the user, which would be replaced
    require_ours(store.is_result, *(job.result_path for job in matrix.most_jobs))
    require_ours(is_status, output / NAME)
    require_ours(is_matrix_log, output / "logs" / "matrix.log")
    _check_space(matrix)
    if matrix.config.strict and matrix.config.launcher != "slurm":  # each Slurm job checks the node that it runs on
        job_checks.before(matrix.config)
    _print_forecast(matrix)


def _check_space(matrix: Matrix) -> None:
    config = matrix.config
    needs = {"OUTPUT_DIR": (config.output_dir, len(matrix.most_jobs) * OUTPUT_BYTES_PER_JOB)}
    # models with one tokenizer share their data, which count once
    models = {data_prefix(config, model): model for model in config.models}
    data_bytes = 0
    for prefix, model in models.items():
        if not bin_path(prefix).exists():
            # an unknown size counts as 0
            data_bytes += bytes_needed(config, model) or 0
    if data_bytes:
        needs["DATA_DIR"] = config.data_dir, data_bytes
    by_disk: Counter[int] = Counter()
    for key, (folder, needed) in needs.items():
        nearest = existing(folder)
        disk = nearest.stat().st_dev
        # OUTPUT_DIR and DATA_DIR may share a disk
        by_disk[disk] += needed
        has_blocks = bool(os.statvfs(nearest).f_blocks)  # /proc and /sys have none
        if not nearest.is_dir() or not has_blocks or not os.access(nearest, os.W_OK):
            raise ConfigError(f"{key}={folder}: cannot be written; use a folder on a disk, e.g. {key}=output")
        free = shutil.disk_usage(nearest).free
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
    if is_pair(config.dataset):
        return 0
    if config.dataset not in HUB_DATASETS:
        text = 0.0
        for path in text_paths(config.dataset):
            text += path.stat().st_size * PACKED_RATIO.get(path.suffix, 1)
    elif not config.samples:
        text = tokens_needed(config) * TEXT_BYTES_PER_TOKEN[1]
    elif config.dataset in TEXT_BYTES_PER_DOCUMENT:
        text = config.samples * TEXT_BYTES_PER_DOCUMENT[config.dataset]
    else:
        return None
    # the parts and the pair, whose ids are most where a token has the fewest bytes
    return int(text + 2 * text / TEXT_BYTES_PER_TOKEN[0] * ID_BYTES)


def _print_forecast(matrix: Matrix) -> None:
    for note in notes(matrix):
        print(f"note: {note}", file=sys.stderr)
    ahead = outlook(matrix)
    least = len(ahead.done) + len(ahead.left)
    line = f"plan: {least}"
    if ahead.possible:
        line += f" to {least + len(ahead.possible)}"
    line += f" job{'' if line == 'plan: 1' else 's'}, {len(ahead.done)} with an ok result already"
    if not matrix.rule.is_fixed:
        line += f"; {matrix.rule.text()}"
    print(line, file=sys.stderr)
    if ahead.left:
        seconds, how = matrix_seconds(ahead.left, ahead.possible)
        print(f"time: {_expected(seconds)} ({how})", file=sys.stderr)
    for line in (*memory_lines(ahead.left), *_machine_lines(matrix, ahead.left)):
        print(line, file=sys.stderr)


def _machine_lines(matrix: Matrix, jobs: Sequence[Job]) -> Iterator[str]:
    """Yield lines on memory of the host, driver and TransformerEngine, as far as this is the machine of the jobs."""
    platform = matrix.config.platform
    is_here = matrix.config.launcher != "slurm" and bool(gpus.count(platform))
    yield from host_memory_lines(jobs, is_here=is_here)
    if is_here and gpus.has_torch():
        of_driver = ready.driver_line(platform)
        if of_driver:
            yield of_driver
        refused = (line for job in jobs for line in ready.without_engine(job.config, job.framework))
        for line in dict.fromkeys(refused):
            yield f"warning: {line}"


def _expected(seconds: tuple[float, float] | None) -> str:
    if seconds is None:
        return "unknown"
    least, most = duration(seconds[0]), duration(seconds[1])
    return f"about {least}" if least == most else f"at least {least}, at most {most}"


def matrix_seconds(jobs: Sequence[Job], possible: Sequence[Job] = ()) -> tuple[tuple[float, float] | None, str]:
    """Return the least and the most seconds expected of one job or more, or None if unknown, and the basis of this.

    The least is that of `jobs`, the most that of `possible` jobs too; cooldown is included. Jobs of a kind that this
    machine has not run yet are assumed to take the average of the others.
    """
    config = jobs[0].config
    earlier = _earlier(config.output_dir)
    measured: dict[tuple[str, str], float] = {}
    count = 0
    for job in jobs:
        work = _work(job.framework, job.model, job.config.model_size, job.config.asked())
        if work in earlier:
            measured[job.kind] = earlier[work]
            count += 1
    if measured:
        # of each job, so that a kind with more runs weighs more
        average = sum(measured.get(job.kind, 0.0) for job in jobs) / count
        how = f"from earlier results on this machine, jobs measured: {count} of {len(jobs)}"
        expected = {job.kind: measured.get(job.kind) or average for job in (*jobs, *possible)}
    else:
        tflops, how = _share_of_peak(config)
        if tflops is None:
            return None, how
        rate = config.num_gpus * tflops * 1e12
        expected = {}
        for job in (*jobs, *possible):
            flops = config.train_iterations * config.tokens_per_step * job.spec.flops_per_token(config.sequence_length)
            expected[job.kind] = flops / rate
    cooldown = config.cooldown_seconds
    # there is no pause before the first job
    least = sum(expected[job.kind] + cooldown for job in jobs) - cooldown
    more = sum(expected[job.kind] + cooldown for job in possible)
    return (least, least + more), how


def _share_of_peak(config: RunConfig) -> tuple[float | None, str]:
    """Return SHARE_OF_PEAK of the device's dense peak, TFLOP/s, in words; None with the reason where it is unknown.

    The formula counts every framework's work alike; start and compilation are not in it.
    """
    no_result = "no earlier result of these jobs on this machine"
    if config.platform == "cpu":
        return None, f"{no_result}, and a CPU has no peak here"
    if config.launcher == "slurm":
        return None, f"{no_result}, and Slurm selects the nodes"
    short = gpus.device(config.platform)
    device = named(short) if short else None
    if device is None:
        return None, f"{no_result}, and its GPUs are missing, different or not in utils/hardware/devices.py"
    precision = config.precision
    if precision == "fp8" and config.fp8_recipe in FOUR_BITS:
        precision = "fp4"
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
    if not jobs:
        return
    capacity, source = capacity_gb(jobs[0].config)
    for job in {job.kind: job for job in jobs}.values():
        name = f"memory: {job.framework} {job.model}"
        if job.framework not in FRAMEWORKS:
            yield f"{name} unknown (no formula for this framework yet)"
            continue
        needed = estimate(job.config, job.framework, job.spec).total_gb
        problem = refusal(job, capacity)
        if capacity is None:
            line = f"{name} about {needed:.1f} GB, of an unknown amount"
        elif problem or needed > capacity:
            line = f"warning: {name}: {problem or advice(job, capacity)}"
        else:
            line = f"{name} about {needed:.1f} GB of {capacity:.1f} GB"
        line += f" ({source})"
        if reads(job.framework, "layers") and job.config.platform != "cpu":
            line += f"; {LAYERS}"
        yield line
