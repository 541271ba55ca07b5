"""The sampler: a process beside the ranks of a node that reads GPUs and processors HERTZ times a second into a file.

train/energy/sampling.py starts and ends it. It prints `ready` when the ranks may start, after an idle period if there
is a counter whose idle power can be measured. It ends on SIGTERM. What cannot be read is written with its reason and
never ends the sampler. It keeps to a fixed schedule: a late reading does not move the ones after it.
"""

from __future__ import annotations

import argparse
import os
import platform as python_platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from train.energy import amd, bus_ids, nvidia, rapl
from train.energy.gpu_reader import Gpu, GpuLostError, ReaderError
from train.energy.sample_file import Writer
from train.job.step_clock import clock
from utils.arguments import Parser, from_one, run
from utils.settings.config import PLATFORMS

HERTZ = 12.5
"""A quarter above the 10 Hz that a result needs, so that late readings on a busy machine do not spoil it."""
IDLE_SECONDS = 2.0
"""Before the ranks start. Power that NVML averages is that of the last second."""
READY = b"ready\n"
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

    @property
    def has_energy(self) -> bool:
        """True if energy or power of anything can be read."""
        return bool(self.gpus or self.packages)


class Ticks:
    """Reader of one sample after the other; a GPU that is lost stays lost."""

    def __init__(self, sources: Sources, now: Callable[[], float]) -> None:
        self._sources, self._now = sources, now
        self._said: set[str] = set()
        self._lost: set[int] = set()
        psutil.cpu_percent()  # the first call has no earlier one to compare with

    def sample(self) -> dict[str, Any]:
        """Return one sample."""
        why: dict[str, str] = {}
        found: dict[str, Any] = {"t": round(self._now(), 6), "cpu": psutil.cpu_percent()}
        if self._sources.gpus:
            found["gpus"] = [self._read(index, gpu, why) for index, gpu in enumerate(self._sources.gpus)]
        if self._sources.packages:
            found["rapl"] = [package.read_uj() for package in self._sources.packages]
        new = {name: text for name, text in why.items() if name not in self._said}
        self._said |= new.keys()
        return found | ({"why": new} if new else {})

    def _read(self, index: int, gpu: Gpu, why: dict[str, str]) -> list[Any] | None:
        if index in self._lost:
            return None
        try:
            reading = gpu.read()
        except GpuLostError as error:
            self._lost.add(index)
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
    known: list[str] | None = None
    why = ""
    try:
        known = bus_ids.of_job(platform, os.environ)
    except (bus_ids.RuntimeUnknownError, ValueError) as error:
        why = str(error)
    return OPENERS[platform](known, gpus, why)


def header(options: argparse.Namespace, sources: Sources) -> dict[str, Any]:
    """Return the first line of the file."""
    try:
        zeus = version("zeus")
    except PackageNotFoundError:
        zeus = None
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
        if sources.has_energy:
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


if __name__ == "__main__":
    sys.exit(run(main))
