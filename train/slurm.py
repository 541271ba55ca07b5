"""Train every job of the matrix on a Slurm cluster: submit one Slurm job each, follow them, collect the results.

Run it on a login node. OUTPUT_DIR, DATA_DIR and this checkout must be the same folders on the nodes. The data are
prepared here first, because nodes often have no internet access. Jobs with an ok result are skipped and jobs in the
queue are followed, so the same command continues where it stopped. Ctrl-C cancels what has not ended.
More: docs/clusters.md

Usage:   ./shell/run_slurm.sh [--dry-run] [--no-wait] [--requeue] [KEY=VALUE ...]
         --dry-run prints the script of each job and submits nothing; --no-wait submits and exits, and the same command
         follows the jobs later; --requeue lets Slurm start a job again after its node has failed
Reads:   config.env and its overlays, the environment, secrets.env; SLURM_*, RUNTIME
Writes:  DATA_DIR, OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/, OUTPUT_DIR/status.json
Exits:   0 every job has a valid ok result, 2 bad input, 128 + signal interrupted, 1 otherwise
Example: ./shell/run_slurm.sh PLATFORM=nvd NNODES=4 GPUS_PER_NODE=8 SLURM_PARTITION=gpu SLURM_ACCOUNT=mine

Jobs run one after another, because traffic of a neighbour on the network or the file system would be in every
measurement.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from train.cluster import follow as slurm_queue, script as slurm_script
from train.job import processes
from train.job.job import utc_now
from train.job.outcome import Attempt, stamp
from train.matrix import run_all, validate, view_of
from train.preflight import matrix_checks as preflight
from train.runner import plan
from train.runner.run_job import conclude, follow_up, show_ends
from train.runner.state import (
    CHECKS,
    FINISHED,
    SKIPPED,
    SUBMITTED,
    TRAINING,
    WAITING,
    JobState,
    StatusFile,
)
from train.runner.view import View
from utils import redact
from utils.arguments import Parser, first_line, refusing, run
from utils.errors import ConfigError, DataError
from utils.hardware.detect import HardwareError
from utils.housekeeping import footprint
from utils.settings.config import PLATFORMS

OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "choices": PLATFORMS},
    "--dry-run": {"action": "store_true", "help": "print the script of each job and submit nothing"},
    "--no-wait": {"action": "store_true", "help": "submit the jobs and exit; without it they are followed"},
    "--requeue": {"action": "store_true", "help": "let Slurm restart a job whose node has failed"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE"},
}
NOT_FOLLOWED = "submitted; the same command without --no-wait follows the jobs, `scancel <number>` cancels one"
SUBMITS_MORE = "when they have ended, it submits the further runs that RUNS=auto decides"


@refusing((ConfigError, DataError, HardwareError), failed=(slurm_queue.SlurmError,))
def main() -> int:
    """Run the matrix that the command line selects; with METHOD=both the matrices of both methods in turn."""
    options = Parser(OPTIONS, prog="python -m train.slurm", description=first_line(__doc__)).parse_args()
    settings = [*options.settings, "LAUNCHER=slurm"]
    matrices = plan.matrices(options.platform, settings, is_dry_run=options.dry_run)
    for matrix in matrices:
        os.environ["TPRIMAT_MACHINE"] = slurm_script.machine(matrix.config)
        preflight.check(matrix)
        if options.dry_run:
            for job in matrix.jobs:
                print(redact.text(slurm_script.render(matrix, job, is_requeued=options.requeue)))
    for line in slurm_script.environment().warnings("the jobs"):
        print(f"warning: {line}", file=sys.stderr)
    if options.dry_run:
        return 0
    with footprint.lock(plan.require_folders(matrices)), processes.stop_request() as stop:
        run_one = partial(_run, options=options, stop=stop)
        end = SUBMITTED if options.no_wait else FINISHED
        return run_all(matrices, run_one, stop, is_compared=not options.no_wait, end=end)


def _run(
    matrix: plan.Matrix, status: StatusFile, options: argparse.Namespace, stop: processes.StopRequest
) -> tuple[int, bool]:
    os.environ["TPRIMAT_MACHINE"] = slurm_script.machine(matrix.config)
    state = status.matrix
    status.enter(CHECKS)
    digests = plan.data_digests(matrix.config)
    status.enter(TRAINING)
    with view_of(state, matrix.config.output_dir) as view:
        while (waiting := [job for job in state.jobs if job.state == WAITING]) and not stop:
            jobs = _submit(matrix, waiting, digests, view, is_requeued=options.requeue)
            if options.no_wait and jobs:
                break
            slurm_queue.follow(jobs, view, status, stop)
            for one in {} if stop else {job.job.kind: job for job in waiting}.values():
                follow_up(state, one, view.print)
        if options.no_wait:
            view.print(NOT_FOLLOWED if matrix.rule.is_fixed else f"{NOT_FOLLOWED}; {SUBMITS_MORE}")
            return 0, True
        show_ends(state, view.log if matrix.rule.is_fixed else view.print)
    return validate(status, stop), True


def _submit(
    matrix: plan.Matrix,
    waiting: Sequence[JobState],
    digests: Mapping[str, str],
    view: View,
    *,
    is_requeued: bool,
) -> list[slurm_queue.SlurmJob]:
    """Submit every job that has no ok result and is not in the queue; each waits for the one before it."""
    queued = slurm_queue.queued([slurm_script.job_name(one.job) for one in waiting])
    jobs: list[slurm_queue.SlurmJob] = []
    for one in waiting:
        job = one.job
        identity = job.identity(digests[job.model])
        if plan.is_done(job, identity):
            one.started = time.monotonic()
            conclude(one, SKIPPED)
            view.print(f"{one.title}: has an ok result already; FORCE=1 runs it again")
            continue
        number = queued.get(slurm_script.job_name(job))
        how = "is in the queue already, as" if number else "submitted as"
        if number is None:
            script = slurm_script.render(matrix, job, is_requeued=is_requeued)
            number = slurm_queue.submit(script, after=jobs[-1].number if jobs else None)
        view.print(f"{one.title}: {how} Slurm job {number}")
        attempt = Attempt(job, identity, shlex.join(plan.command(matrix, job)), utc_now())
        jobs.append(slurm_queue.SlurmJob(number, one, attempt, stamp(job.result_path)))
    return jobs


if __name__ == "__main__":
    sys.exit(run(main))
