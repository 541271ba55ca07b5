"""Forecast of a matrix: its time, from earlier results on this machine, and its memory, by formula."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from train.job.job import Job
from train.job.oom import advice
from utils.hardware.detect import gpu_info
from utils.memory.estimate import FRAMEWORKS, cpu_capacity_gb, estimate
from utils.results import store

SAME_WORK = (
    "max_steps",
    "global_batch_size",
    "micro_batch_size",
    "sequence_length",
    "num_gpus",
    "tp",
    "pp",
    "precision",
)
"""Settings that decide how long a job takes."""


def matrix_seconds(jobs: Sequence[Job]) -> tuple[float | None, str]:
    """Return the expected seconds of all jobs, cooldown included, or None if unknown, and the basis of the forecast.

    Jobs of a kind that this machine has not run yet are assumed to take the average of the others.
    """
    if not jobs:
        return None, "nothing to do"
    earlier = list(_earlier(jobs[0].config.output_dir))
    known = [_seconds_of(job, earlier) for job in jobs]
    measured = [seconds for seconds in known if seconds is not None]
    if not measured:
        return None, "no earlier result of these jobs on this machine"
    average = sum(measured) / len(measured)
    total = sum(average if seconds is None else seconds for seconds in known)
    total += jobs[0].config.cooldown_seconds * (len(jobs) - 1)
    return total, f"from earlier results on this machine, jobs measured: {len(measured)} of {len(jobs)}"


def _earlier(output_dir: Path) -> Iterable[dict[str, Any]]:
    """Yield the readable ok results of this machine, including superseded ones."""
    if not output_dir.is_dir():
        return
    for path in sorted(output_dir.rglob("train_*.json")):
        try:
            result = store.read(path)
        except store.ResultError:
            continue  # the validation at the end reports it
        if result["status"] == "ok" and result["provenance"]["host"] == platform.node():
            yield result


def _seconds_of(job: Job, earlier: Iterable[dict[str, Any]]) -> float | None:
    """Return the duration of the most recent run of the job, from start to end."""
    asked = job.config.asked()
    wanted = [job.framework, job.model, job.config.model_size, *(asked[key] for key in SAME_WORK)]
    spans = []
    for result in earlier:
        config, provenance = result["training_config"], result["provenance"]
        found = [result["framework"], result["model"], result["model_size"], *(config[key] for key in SAME_WORK)]
        if found == wanted:
            start, end = (datetime.fromisoformat(provenance[key]) for key in ("started_utc", "finished_utc"))
            spans.append((end, (end - start).total_seconds()))
    return max(spans)[1] if spans else None


def memory_lines(jobs: Sequence[Job]) -> list[str]:
    """Return a line for each framework and model: its memory on one device, as a warning if the device has less."""
    if not jobs:
        return []
    capacity, source = _capacity_gb(jobs[0])
    lines = []
    for job in {(job.framework, job.model): job for job in jobs}.values():
        if job.framework not in FRAMEWORKS:
            lines.append(f"memory: {job.framework} {job.model} unknown (no formula for this framework yet)")
            continue
        needed = estimate(job.config, job.framework, job.spec).total_gb
        line = f"memory: {job.framework} {job.model} about {needed:.1f} GB"
        if capacity is None:
            lines.append(f"{line}, of an unknown amount ({source})")
        elif needed <= capacity:
            lines.append(f"{line} of {capacity:.1f} GB ({source})")
        else:
            advised = advice(job.config, job.framework, job.spec, capacity)
            lines.append(f"warning: memory: {job.framework} {job.model}: {advised} ({source})")
    return lines


def _capacity_gb(job: Job) -> tuple[float | None, str]:
    """Return the memory of one device (on a CPU: of one rank) and its source; None if unknown."""
    if job.config.launcher == "slurm":
        return None, "Slurm selects the nodes"
    if job.config.platform == "cpu":
        return cpu_capacity_gb(job.config.ranks_per_node)
    info = gpu_info(job.config.platform, job.config.num_gpus)
    total = info["total_memory_gb"]
    return (float(total) if isinstance(total, (int, float)) else None), str(info["device_name"])
