"""A matrix on a node other than 0: the same jobs in the same order as on node 0, which finalizes their results.

Each launcher waits for node 0's, so the nodes need no other agreement. A job that has an ok result is skipped on every
node, because all nodes use the same OUTPUT_DIR.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from train.job import processes
from train.runner import plan
from train.runner.run_job import run_launcher
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
            has_failed |= run_launcher(matrix, job, _print, stop) != 0
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


def _print(line: str) -> None:
    print(line, end="", file=sys.stderr, flush=True)
