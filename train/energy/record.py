"""The launcher's last word on energy: samples of all nodes and steps of the result become `energy_metrics`."""

from __future__ import annotations

import sys
from typing import Any

from train.energy import section
from train.energy.sample_file import SampleFileError, path_of, read
from train.job import step_clock
from train.job.job import Job
from utils.results import store

NO_STEP_TIMES = "the times at which the steps ended are not known"


def record(job: Job) -> None:
    """Put the energy into the result of a job that has ended, and take the times of its steps out.

    If the result cannot be read or written again, it keeps its numbers, and a warning on stderr reports that.
    """
    if not job.result_path.exists():
        return
    try:
        result = store.read(job.result_path)
        result["energy_metrics"] = metrics(job, result)
        store.write(result, job.result_path)
    except (OSError, store.ResultError) as error:
        print(f"warning: {job.result_path.name}: the energy of the job is not in it: {error}", file=sys.stderr)


def metrics(job: Job, result: dict[str, Any]) -> dict[str, Any]:
    """Return the section of a result."""
    clock = result["energy_metrics"].get(step_clock.KEY)
    if result["status"] != "ok":
        return section.unknown(f"not measured: the job ended as {result['status']}")
    if clock is None:
        return section.unknown(NO_STEP_TIMES)
    paths = (path_of(job, node) for node in range(job.config.nodes))
    try:
        return section.of_job((read(path) for path in paths), result, clock)
    except SampleFileError as error:
        return section.unknown(str(error))
