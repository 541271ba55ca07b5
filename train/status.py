"""Print how far a matrix is that runs elsewhere: another terminal, another machine with the same folder, or Slurm.

    python -m train.status [OUTPUT_DIR]

Reads OUTPUT_DIR/status.json (of a label: OUTPUT_DIR/<label>). Standard library only. Exits 0; 1 if the matrix failed,
was interrupted, has a failed job, or has not written the file for STALE_SECONDS; 2 if there is no such file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from train.runner.state import DONE, FAILED, INTERRUPTED, NAME, RUNNING, SKIPPED, STATUS_EVERY_SECONDS
from train.runner.view import duration, times
from utils import redact
from utils.arguments import Parser, first_line, refusing, run
from utils.errors import ConfigError, in_one_line
from utils.input_files import InputFileError, json_of
from utils.results.schema import time_of

OPTIONS: dict[str, dict[str, Any]] = {
    "folder": {
        "nargs": "?",
        "type": Path,
        "default": Path("output"),
        "help": "OUTPUT_DIR of the matrix (default: %(default)s)",
    }
}
Status = dict[str, Any]
"""The content of a status.json, or of one of its jobs."""
# a network file system may show a file half a minute late
STALE_SECONDS = 60 * STATUS_EVERY_SECONDS
COLUMNS = "{:>3}  {:24}  {:8}  {:>11}  {:>9}  {:>8}  {:>8}"
HEADER = COLUMNS.format("job", "", "state", "step", "step (s)", "loss", "took")


def lines(status: Status, now: datetime) -> Iterator[str]:
    """Yield the lines about the content of a status.json."""
    done, total, failed = status["jobs_done"], status["jobs_total"], status["jobs_failed"]
    phase = "" if status["phase"] == DONE else f" in phase {status['phase']}"
    yield f"{status['state']}{phase}: {done} of {total} jobs, {failed} failed"
    if status["state"] == RUNNING:
        least, most = status["remaining_seconds"], status["most_remaining_seconds"]
        yield times(status["elapsed_seconds"], None if least is None else (least, most))
    else:
        yield f"{duration(status['elapsed_seconds'])} elapsed"
    yield f"process {status['process_id']} on {status['host']}, started {status['started_utc']}"
    if is_stale(status, now):
        age = duration(_age_seconds(status, now))
        yield f"warning: not updated for {age}: the process was killed, or its machine cannot write here"
    if status["pause"]:
        yield f"waits: {status['pause']}"
    yield HEADER
    for job in status["jobs"]:
        yield from _of_job(job)
    for warning in status["warnings"]:
        yield f"warning: {warning}"
    if status["report"]:
        yield f"report: {status['report']}"


def _age_seconds(status: Status, now: datetime) -> float:
    return (now - time_of(status["updated_utc"])).total_seconds()


def is_stale(status: Status, now: datetime) -> bool:
    """Return whether a running matrix has not written its file for STALE_SECONDS."""
    return status["state"] == RUNNING and _age_seconds(status, now) > STALE_SECONDS


def _of_job(job: Status) -> Iterator[str]:
    seconds, loss = job["step_time_seconds"], job["loss"]
    line = COLUMNS.format(
        job["number"],
        f"{job['framework']} {job['model']} run {job['run']}",
        job["state"],
        f"{job['step']}/{job['total_steps']}" if job["step"] else "-",
        "-" if seconds is None else f"{seconds:.3f}",
        "-" if loss is None else f"{loss:.4f}",
        duration(job["elapsed_seconds"]),
    )
    if job["state"] == RUNNING and job["remaining_seconds"] is not None:
        line += f", about {duration(job['remaining_seconds'])} left"
    yield line
    if job["reason"] and job["state"] != SKIPPED:
        yield f"     {job['reason'].strip().splitlines()[0]}"


@refusing((ConfigError,))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(OPTIONS, prog="python -m train.status", description=first_line(__doc__))
    path = parser.parse_args(arguments).folder / NAME
    now = datetime.now(timezone.utc)
    try:
        status = json_of(path)
        shown = list(lines(status, now))
    except InputFileError as error:
        raise ConfigError(f"{path}: {error}; name the OUTPUT_DIR of a matrix, or OUTPUT_DIR/<label>") from error
    # any JSON may lie under this name
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is not the status of a matrix, or is damaged; name another OUTPUT_DIR") from error
    for line in shown:
        print(in_one_line(redact.text(line)))
    is_bad = status["state"] in (FAILED, INTERRUPTED) or status["jobs_failed"] > 0 or is_stale(status, now)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(run(main))
