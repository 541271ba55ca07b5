"""Checks before a matrix starts: missing scripts, a full disk, a model that does not fit into memory."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from train.job.reserve import RESERVE_BYTES
from train.preflight import forecast, job_checks
from train.runner.plan import Matrix, finished, notes, wrapper
from train.runner.view import duration
from utils.dataset.gpt_dataset import bytes_needed, data_prefix
from utils.dataset.indexed import bin_path
from utils.errors import ConfigError, DataError
from utils.settings.config import ROOT

OUTPUT_BYTES_PER_JOB = RESERVE_BYTES + (1 << 20)
"""A result and a log; 500 steps leave about 150 KB."""


def check(matrix: Matrix) -> None:
    """Raise ConfigError if the matrix cannot work; print the forecast of time and memory, and warnings, on stderr."""
    _check_wrappers(matrix)
    _check_space(matrix)
    if matrix.config.strict and matrix.config.launcher != "slurm":  # each Slurm job checks the node that it runs on
        job_checks.before(matrix.config)
    _print_forecast(matrix)


def _check_wrappers(matrix: Matrix) -> None:
    for name in sorted({wrapper(job) for job in matrix.jobs}):
        if not os.access(ROOT / name, os.X_OK):
            raise ConfigError(f"{name}: missing or not executable; restore it, `git checkout {name}`")


def _check_space(matrix: Matrix) -> None:
    config = matrix.config
    needs = {config.output_dir: ("OUTPUT_DIR", len(matrix.jobs) * OUTPUT_BYTES_PER_JOB)}
    data = _data_bytes(matrix)
    if data:
        needs[config.data_dir] = ("DATA_DIR", data)
    by_disk: dict[int, int] = {}
    for folder, (key, needed) in needs.items():
        there = _existing(folder)
        disk = there.stat().st_dev
        by_disk[disk] = by_disk.get(disk, 0) + needed
        free = shutil.disk_usage(there).free
        if free < by_disk[disk]:
            raise ConfigError(
                f"{key}={folder}: {free / 1e6:,.1f} MB are free, about {by_disk[disk] / 1e6:,.1f} MB are needed; "
                f"make room or name another {key}"
            )


def _data_bytes(matrix: Matrix) -> int:
    """Return the approximate size of the data that have to be prepared, as far as it is known."""
    config = matrix.config
    try:
        missing = {data_prefix(config, model): model for model in config.models}
    except DataError as error:
        raise ConfigError(str(error)) from error
    return sum(bytes_needed(config, model) or 0 for path, model in missing.items() if not bin_path(path).exists())


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _print_forecast(matrix: Matrix) -> None:
    for note in notes(matrix):
        print(f"note: {note}", file=sys.stderr)
    done = finished(matrix)
    left = [job for job in matrix.jobs if job.name not in done]
    jobs = "1 job" if len(matrix.jobs) == 1 else f"{len(matrix.jobs)} jobs"
    print(f"plan: {jobs}, {len(done)} with an ok result already", file=sys.stderr)
    seconds, how = forecast.matrix_seconds(left)
    if left:
        print(f"time: {'about ' + duration(seconds) if seconds is not None else 'unknown'} ({how})", file=sys.stderr)
    for line in forecast.memory_lines(left):
        print(line, file=sys.stderr)
