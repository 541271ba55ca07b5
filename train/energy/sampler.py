"""The sampler: a process beside the ranks of a node that reads GPUs and processors HERTZ times a second into a file.

`beside` starts it before the ranks of a node and ends it after them. A sampler that cannot be started, does not become
ready or dies changes nothing but the energy of the result. It is left out of `processes.descendants`, so that a driver
that holds it in the kernel does not hold up the end of the job.

The process prints `ready` when the ranks may start, after an idle period if there is a counter whose idle power can be
measured. It ends on SIGTERM. What cannot be read is written with its reason and never ends the sampler. It keeps to a
fixed schedule: a late reading does not move the ones after it.
"""

from __future__ import annotations

import argparse
import os
import platform as python_platform
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from train.energy import amd, nvidia, rapl
from train.energy.gpu_reader import Gpu, GpuLostError, ReaderError, RuntimeUnknownError, bus_ids_of_job
from train.energy.sample_file import Writer, path_of
from train.job import processes
from train.job.job import Job
from train.job.recorder import clock
from utils.arguments import Parser, from_one, run
from utils.settings.config import PLATFORMS, ROOT

HERTZ = 12.5
"""A quarter above the 10 Hz that a result needs, so that late readings on a busy machine do not spoil it."""
IDLE_SECONDS = 2.0
"""Before the ranks start. Power that NVML averages is that of the last second."""
READY = b"ready\n"
READY_SECONDS = 30.0
"""Longest wait for the libraries of a vendor to open and the idle period to pass."""
END_SECONDS = 5.0
POLL_SECONDS = 0.1
Process = subprocess.Popen[bytes]
Opener = Callable[[list[str] | None, int, str], tuple[str, Sequence[Gpu]]]
OPENERS: dict[str, Opener] = {"nvd": nvidia.open_gpus, "amd": amd.open_gpus}


@dataclass
class Sources:
    """Everything that is read at each tick."""

    gpus: Sequence[Gpu] = ()
    packages: Sequence[rapl.Package] = ()
    library: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why there are no `gpus` or no `rapl`."""


class Ticks:
    """Reader of one sample after the other; a GPU that is lost stays lost."""

    def __init__(self, sources: Sources, now: Callable[[], float]) -> None:
        self._sources, self._now = sources, now
        self._why: dict[str, str] = {}
        """The reasons that are written already; one under the number of a GPU is that of its loss."""
        psutil.cpu_percent()  # the first call has no earlier one to compare with

    def sample(self) -> dict[str, Any]:
        """Return one sample."""
        why: dict[str, str] = {}
        found: dict[str, Any] = {"t": round(self._now(), 6), "cpu": psutil.cpu_percent()}
        if self._sources.gpus:
            found["gpus"] = [self._read(index, gpu, why) for index, gpu in enumerate(self._sources.gpus)]
        if self._sources.packages:
            found["rapl"] = [package.read_uj() for package in self._sources.packages]
        new = {name: text for name, text in why.items() if name not in self._why}
        self._why |= new
        return found | ({"why": new} if new else {})

    def _read(self, index: int, gpu: Gpu, why: dict[str, str]) -> list[Any] | None:
        if str(index) in self._why:
            return None
        try:
            reading = gpu.read()
        except GpuLostError as error:
            why[str(index)] = str(error)
            return None
        why |= {f"{index}.{name}": text for name, text in gpu.why.items()}
        return reading


def sample_until(
    is_over: Callable[[], bool],
    ticks: Ticks,
    take: Callable[[dict[str, Any], float], None],
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Take a sample HERTZ times a second until `is_over`; ticks that were missed are left out, not made up for."""
    started, number = now(), 0
    while not is_over():
        sample = ticks.sample()
        take(sample, sample["t"])
        number = max(number + 1, int((now() - started) * HERTZ))
        sleep(max(0.0, started + number / HERTZ - now()))


def open_sources(platform: str, gpus: int) -> Sources:
    """Return what can be read for a job with `gpus` ranks on this node, with reasons for what cannot."""
    found = Sources()
    if platform in OPENERS:
        try:
            found.library, found.gpus = _open_gpus(platform, gpus)
        except (ReaderError, ValueError) as error:  # ValueError: an address that is none
            found.reasons["gpus"] = str(error)
    else:
        found.reasons["gpus"] = "no GPU"
    try:
        found.packages = rapl.packages()
    except rapl.RaplError as error:
        found.reasons["rapl"] = str(error)
    return found


def _open_gpus(platform: str, gpus: int) -> tuple[str, Sequence[Gpu]]:
    try:
        return OPENERS[platform](bus_ids_of_job(platform, os.environ), gpus, "")
    except RuntimeUnknownError as error:
        return OPENERS[platform](None, gpus, str(error))


def header(options: argparse.Namespace, sources: Sources) -> dict[str, Any]:
    """Return the first line of the file."""
    zeus = None
    with suppress(PackageNotFoundError):
        zeus = version("zeus")
    return {
        "platform": options.platform,
        "node": options.node,
        "host": python_platform.node(),
        "hertz": HERTZ,
        **clock(),
        "zeus": zeus,
        "library": sources.library,
        "gpus": [asdict(gpu.facts) for gpu in sources.gpus],
        "packages": [{"name": one.name, "wraps_uj": one.wraps_uj} for one in sources.packages],
        "reasons": sources.reasons,
    }


def main() -> int:
    """Sample until SIGTERM; always 0, because a job does not depend on its sampler."""
    options = _arguments()
    ready = os.dup(sys.stdout.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # libraries of vendors print
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    sources = open_sources(options.platform, options.gpus)
    with closing(Writer(options.output, header(options, sources))) as file:
        ticks = Ticks(sources, time.perf_counter)
        if sources.gpus or sources.packages:
            idle_end = time.perf_counter() + IDLE_SECONDS
            sample_until(lambda: bool(ended) or time.perf_counter() >= idle_end, ticks, file.line)
            file.line({"ready": time.perf_counter()})
        os.write(ready, READY)
        sample_until(lambda: bool(ended), ticks, file.line)
    return 0


def _arguments() -> argparse.Namespace:
    parser = Parser(prog="python -m train.energy.sampler", description=__doc__)
    parser.add_argument("--platform", required=True, choices=PLATFORMS)
    parser.add_argument("--gpus", required=True, type=from_one, help="ranks of the job on this node")
    parser.add_argument("--node", required=True, type=int, help="number of this node, from 0")
    parser.add_argument("--output", required=True, type=Path, help="new file for the samples")
    return parser.parse_args()


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


def _start(job: Job, environment: Mapping[str, str]) -> Process | None:
    node = job.config.node_rank
    command = [
        *(sys.executable, "-m", "train.energy.sampler", "--platform", job.config.platform),
        *("--gpus", str(job.config.ranks_per_node), "--node", str(node), "--output", str(path_of(job, node))),
    ]
    try:
        sampler = subprocess.Popen(
            command,
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


if __name__ == "__main__":
    sys.exit(run(main))
