"""The sampler as the launcher sees it: started before the ranks of a node, ended after them, never in their way.

A sampler that cannot be started, does not become ready or dies changes nothing but the energy of the result. It is left
out of `processes.descendants`, so that a driver that holds it in the kernel does not hold up the end of the job.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from train.energy import rapl
from train.energy.sample_file import path_of
from train.job import processes
from train.job.job import Job
from utils.settings.config import ROOT

READY_SECONDS = 30.0
"""Longest wait for the libraries of a vendor to open and the idle period to pass."""
END_SECONDS = 5.0
POLL_SECONDS = 0.1
Process = subprocess.Popen[bytes]


@contextmanager
def beside(job: Job, environment: Mapping[str, str], stop: processes.StopRequest) -> Iterator[None]:
    """Sample this node while the block runs; `environment` is that of the ranks, which decides their GPUs."""
    sampler = _start(job, environment)
    try:
        if sampler is not None and _has_idle_period(job.config.platform) and not _wait(sampler, stop):
            print(f"{job.name}: the sampler of energy is not ready; the job goes on", file=sys.stderr)
        yield
    finally:
        if sampler is not None:
            _end(sampler)


def _has_idle_period(platform: str) -> bool:
    """Return whether idle power can be measured, for which the ranks wait; without a counter they start at once."""
    if platform != "cpu":
        return True
    try:
        return bool(rapl.packages())
    except rapl.RaplError:
        return False


def command(job: Job) -> list[str]:
    """Return the command of the sampler of this node."""
    node = job.config.node_rank
    return [
        *(sys.executable, "-m", "train.energy.sampler", "--platform", job.config.platform),
        *("--gpus", str(job.config.ranks_per_node), "--node", str(node), "--output", str(path_of(job, node))),
    ]


def _start(job: Job, environment: Mapping[str, str]) -> Process | None:
    try:
        sampler = subprocess.Popen(
            command(job),
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=processes.tied(),
        )
    except OSError as error:
        print(f"{job.name}: no sampler of energy: {error}", file=sys.stderr)
        return None
    processes.APART.add(sampler.pid)
    return sampler


def _wait(sampler: Process, stop: processes.StopRequest) -> bool:
    """Wait until the sampler is ready, it has ended, time is up or the job is to stop; return whether it is ready."""
    assert sampler.stdout is not None
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and not stop:
        if select.select([sampler.stdout], [], [], POLL_SECONDS)[0]:
            return bool(os.read(sampler.stdout.fileno(), 1 << 12))  # nothing: it has ended
    return bool(stop)


def _end(sampler: Process) -> None:
    """End the sampler; one that the kernel does not let go is left to itself."""
    for end in (sampler.terminate, sampler.kill):
        end()
        with suppress(subprocess.TimeoutExpired):
            sampler.wait(END_SECONDS)
            break
    processes.APART.discard(sampler.pid)
    if sampler.stdout is not None:
        sampler.stdout.close()
