"""A matrix on a node other than 0: the same jobs in the same order as on node 0, which finalizes their results.

Each launcher waits for node 0's, so the nodes need no other agreement. A job that has an ok result is skipped on every
node, because all nodes use the same OUTPUT_DIR.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from train.job import processes
from train.job.child import Child
from train.job.supervise import GRACE_SECONDS
from train.runner import plan
from train.runner.run_job import LAUNCHER_GRACE_SECONDS, POLL_SECONDS
from utils.errors import DataError
from utils.settings.config import RunConfig

DATA_POLL_SECONDS = 5.0


def run(matrices: Sequence[plan.Matrix], stop: processes.StopRequest) -> int:
    """Run this node's part of every job; return 0, 128 + signal, or 1 if a launcher here has failed.

    Raises DataError if node 0 has not prepared the data within START_TIMEOUT_SECONDS.
    """
    processes.adopt_orphans()
    has_failed = False
    for matrix in matrices:
        _wait_for_data(matrix.config, stop)
        for number, job in enumerate(matrix.jobs, 1):
            if stop:
                break
            print(f"--- node {matrix.config.node_rank}, job {number} of {len(matrix.jobs)}: {job.name}", flush=True)
            has_failed |= _run_job(plan.command(matrix, job), plan.environment(matrix), stop) != 0
    return stop.exit_code(otherwise=int(has_failed))


def _wait_for_data(config: RunConfig, stop: processes.StopRequest) -> None:
    deadline = time.monotonic() + config.start_timeout_seconds
    while not stop:
        try:
            plan.data_digests(config)
            return
        except DataError:
            if time.monotonic() > deadline:
                raise
        time.sleep(DATA_POLL_SECONDS)


def _run_job(command: Sequence[str], environment: Mapping[str, str], stop: processes.StopRequest) -> int:
    child = Child(command, lambda line: print(line, end="", file=sys.stderr, flush=True), environment)
    asked_at = None
    while not child.has_ended():
        if stop.signal is not None and asked_at is None:
            child.process.send_signal(stop.signal)
            asked_at = time.monotonic()
        if asked_at is not None and time.monotonic() - asked_at > LAUNCHER_GRACE_SECONDS:
            break
        time.sleep(POLL_SECONDS)
    return child.close(GRACE_SECONDS)
