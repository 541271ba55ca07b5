"""The sampler: a thread of the launcher that reads GPUs and processors of its node HERTZ times a second into a file.

`beside` starts it before the ranks of a node and ends it after them. A vendor's library that raises or hangs changes
nothing but the energy of the result: the ranks wait for at most READY_SECONDS until it is ready, after an idle period
if there is a counter whose idle power can be measured, and the end of the job does not wait for a hanging call. What
cannot be read is written with its reason. The thread keeps to a fixed schedule: a late reading does not move the ones
after it.

The energy of the processors is that of the RAPL counters of Linux, read where they exist and may be read. Source:
Linux, Documentation/power/powercap/powercap.rst: `energy_uj` of each package zone `intel-rapl:N` (Intel, and AMD's EPYC
and Ryzen under the same name), which starts again at `max_energy_range_uj`. Only packages are counted: they contain the
cores; DRAM is a zone of its own and is left out. zeus.device.cpu reads the same files, but starts a process for each of
them to watch for the wrap, which the sampler sees for itself.

The file has lines of JSON and is readable as far as it goes if the sampler was killed. First line:
`energy_samples_version`, the node, what is sampled, the clock, and `reasons`. Each other line is a sample (`t` in
seconds of the clock, `cpu` in percent of all cores, `rapl` in uJ by package, `gpus` with the values of
gpu_reader.FIELDS or null for a GPU that is gone, `why` with new reasons), or `{"ready": t}` after the idle period.
"""

from __future__ import annotations

import json
import logging
import platform as python_platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from train.energy import amd, nvidia
from train.energy.gpu_reader import FIELDS, Gpu, GpuLostError, ReaderError, bus_ids_of_job
from train.job.job import Job, log_path
from train.job.processes import StopRequest, wait_until
from train.job.recorder import clock
from train.machine.gpu_state import sysroot
from utils.own_files import note

HERTZ = 12.5
"""A quarter above the 10 Hz that a result needs, so that late readings on a busy machine do not spoil it."""
IDLE_SECONDS = 2.0
"""Before the ranks start. Power that NVML averages is that of the last second."""
READY_SECONDS = 30.0
"""Longest wait for the libraries of a vendor to open and the idle period to pass."""
END_SECONDS = 5.0
"""Longest wait for the end of a reading."""
POWERCAP = "sys/class/powercap"
NO_RAPL = (
    "the kernel shows no RAPL zone in /sys/class/powercap (usual in a virtual machine and in containers; on a machine "
    "of your own: modprobe intel_rapl_common intel_rapl_msr)"
)
NO_PERMISSION = (
    "RAPL is there, but only root may read {}; as root: chmod -R a+r /sys/class/powercap/intel-rapl* (until the next "
    "boot)"
)
Header = Mapping[str, Any]
"""The first line of a file of samples."""
Sample = dict[str, Any]
"""One reading of all sources; see the first docstring."""
Opener = Callable[[list[str] | None, str, int], tuple[str, Sequence[Gpu]]]
OPENERS: dict[str, Opener] = {"nvd": nvidia.open_gpus, "amd": amd.open_gpus}


@dataclass(frozen=True)
class Package:
    """One processor package and its counter."""

    name: str
    path: Path
    wraps_uj: float
    """Value at which the counter starts again, microjoules."""

    def read_uj(self) -> float | None:
        """Return the counter in microjoules; None if it cannot be read this time."""
        try:
            return float(self.path.read_text())
        except (OSError, ValueError):
            return None


def packages() -> list[Package]:
    """Return the packages of this machine; raise ReaderError if there are none or they cannot be read."""
    found = []
    for zone in sorted(sysroot().glob(f"{POWERCAP}/intel-rapl:*")):
        if zone.name.count(":") != 1:
            continue  # a subzone: the cores or the memory of a package
        counter = zone / "energy_uj"
        try:
            name = (zone / "name").read_text().strip()
            wraps_uj = float((zone / "max_energy_range_uj").read_text())
            float(counter.read_text())
        except PermissionError as error:
            raise ReaderError(NO_PERMISSION.format(counter)) from error
        except (OSError, ValueError) as error:
            raise ReaderError(f"RAPL: {zone} cannot be read: {error}") from error
        # psys is the whole platform and would count the packages twice
        if name.startswith("package"):
            found.append(Package(name, counter, wraps_uj))
    if not found:
        raise ReaderError(NO_RAPL)
    return found


@dataclass
class Sources:
    """Everything that is read at each tick; a GPU that is lost stays lost."""

    gpus: Sequence[Gpu] = ()
    packages: Sequence[Package] = ()
    library: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why there are no `gpus` or no `rapl`."""
    _why: dict[str, str] = field(default_factory=dict)
    """The reasons that are written already; one under the number of a GPU is that of its loss."""

    def sample(self, time_seconds: float) -> Sample:
        """Return the sample at a time."""
        import psutil

        why: dict[str, str] = {}
        sample: Sample = {"t": round(time_seconds, 6), "cpu": psutil.cpu_percent()}
        if self.gpus:
            sample["gpus"] = [self._read(index, gpu, why) for index, gpu in enumerate(self.gpus)]
        if self.packages:
            sample["rapl"] = [package.read_uj() for package in self.packages]
        # a reason is written once, with the first sample that it is about
        new = {name: text for name, text in why.items() if name not in self._why}
        if new:
            self._why |= new
            sample["why"] = new
        return sample

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
    sources: Sources,
    take: Callable[[Sample], None],
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Take a sample HERTZ times a second until `is_over`; ticks that were missed are left out, not made up for."""
    started, number = now(), 0
    while not is_over():
        take(sources.sample(now()))
        # a schedule from the start on, so that delays do not add up
        number = max(number + 1, int((now() - started) * HERTZ))
        sleep(max(0.0, started + number / HERTZ - now()))


def open_sources(platform: str, gpus: int, environment: Mapping[str, str]) -> Sources:
    """Return what can be read for a job with `gpus` ranks on this node, with reasons for what cannot."""
    logging.getLogger("zeus").setLevel(logging.CRITICAL)  # what it lacks is told by the reasons
    sources = Sources()
    try:
        if platform in OPENERS:
            sources.library, sources.gpus = OPENERS[platform](*bus_ids_of_job(platform, environment), gpus)
        else:
            sources.reasons["gpus"] = "no GPU"
    except (ReaderError, ValueError) as error:  # ValueError: an address that is none
        sources.reasons["gpus"] = str(error)
    try:
        sources.packages = packages()
    except ReaderError as error:
        sources.reasons["rapl"] = str(error)
    return sources


def header(platform: str, node: int, sources: Sources) -> Header:
    """Return the first line of the file."""
    return {
        "platform": platform,
        "node": node,
        "host": python_platform.node(),
        "hertz": HERTZ,
        **clock(),
        "library": sources.library,
        "gpus": [asdict(gpu.facts) for gpu in sources.gpus],
        "packages": [{"name": package.name, "wraps_uj": package.wraps_uj} for package in sources.packages],
        "reasons": sources.reasons,
    }


@contextmanager
def beside(job: Job, environment: Mapping[str, str], stop: StopRequest) -> Iterator[None]:
    """Sample this node while the block runs; `environment` is that of the ranks, which decides their GPUs."""
    is_ready, is_over = threading.Event(), threading.Event()
    # a daemon: the launcher ends without it where a library hangs
    sampler = threading.Thread(target=_sample, args=(job, environment, is_ready, is_over), daemon=True)
    sampler.start()
    try:
        # the idle period before the ranks is part of it
        if not wait_until(is_ready.is_set, READY_SECONDS, stop) and not stop:
            print(f"{job.name}: the sampler of energy is not ready; the job goes on", file=sys.stderr)
        yield
    finally:
        is_over.set()
        sampler.join(END_SECONDS)


def _sample(job: Job, environment: Mapping[str, str], is_ready: threading.Event, is_over: threading.Event) -> None:
    platform, node = job.config.platform, job.config.node_rank
    try:
        sources = open_sources(platform, job.config.ranks_per_node, environment)
        with written(path_of(job, node), header(platform, node, sources)) as add:
            import psutil  # imported on use: the help needs no package

            psutil.cpu_percent()  # the first call has no earlier one to compare with
            # without a counter no idle power is measured, and the job need not wait
            if sources.gpus or sources.packages:
                idle_end = time.perf_counter() + IDLE_SECONDS
                sample_until(lambda: is_over.is_set() or time.perf_counter() >= idle_end, sources, add)
                add({"ready": time.perf_counter()})
            is_ready.set()
            sample_until(is_over.is_set, sources, add)
    except Exception as error:  # noqa: BLE001 - a job does not depend on its sampler
        print(f"{job.name}: the sampler of energy ended: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        is_ready.set()


# The file of the samples

SAMPLES_VERSION = 1


class SampleFileError(RuntimeError):
    """The samples of a node are missing or cannot be read; the message contains the reason."""


@dataclass
class NodeSamples:
    """The samples of one node."""

    header: Header
    samples: list[Sample] = field(default_factory=list)
    ready: float | None = None
    """End of the idle period, seconds of the clock; None if it was not reached."""
    why: dict[str, str] = field(default_factory=dict)
    """Reasons for missing values: `gpu.field`, `gpu` for one that is gone, or a name of the header's reasons."""

    @cached_property
    def times(self) -> list[float]:
        """The time of each sample."""
        return [float(sample["t"]) for sample in self.samples]

    def gpu(self, index: int, name: str) -> list[Any]:
        """Return a field of a GPU in each sample, None where it is missing."""
        place = FIELDS.index(name)
        values = []
        for sample in self.samples:
            readings = sample.get("gpus")
            reading = None if readings is None else readings[index]
            values.append(None if reading is None else reading[place])
        return values

    def rapl(self, index: int) -> list[float | None]:
        """Return the counter of a processor package in each sample, uJ."""
        return [sample["rapl"][index] if sample.get("rapl") else None for sample in self.samples]

    def name(self, index: int) -> str:
        """Return product and address of a GPU."""
        gpu = self.header["gpus"][index]
        return f"{gpu['name']} at {gpu['bus_id']}"

    def why_of(self, index: int, name: str) -> str:
        """Return the reason why a field of a GPU has no values."""
        reason = self.why.get(str(index)) or self.why.get(f"{index}.{name}") or "the device reports N/A"
        return f"{self.name(index)}: {reason}"


def path_of(job: Job, node: int) -> Path:
    """Return the path of the samples of a node, beside the node's log."""
    log = log_path(job, node)
    return log.with_name(f"{log.stem}.energy.jsonl")


@contextmanager
def written(path: Path, header: Header) -> Iterator[Callable[[Sample], None]]:
    """Make the file with its header and yield the function that adds a line, which is readable at once."""
    # line by line: a launcher that is killed leaves whole lines
    with path.open("w", encoding="utf8", buffering=1) as file:
        note(path, grows=True)

        def add(content: Sample) -> None:
            file.write(json.dumps(content, separators=(",", ":")) + "\n")

        add({"energy_samples_version": SAMPLES_VERSION, **header})
        yield add


def read_samples(path: Path) -> NodeSamples:
    """Return the samples of a file, without the end of one that is cut off; raise SampleFileError."""
    lines = _lines(path)
    header = next(lines, {})
    if header.get("energy_samples_version") != SAMPLES_VERSION:
        raise SampleFileError(f"{path.name} holds no samples of this version")
    node = NodeSamples(header, why=dict(header.get("reasons") or {}))
    for line in lines:
        if "ready" in line:
            node.ready = line["ready"]
        if "t" in line:
            node.samples.append(line)
        node.why |= line.get("why") or {}
    return node


def _lines(path: Path) -> Iterator[Sample]:
    try:
        with path.open(encoding="utf8") as file:
            for line in file:
                content = json.loads(line)
                if isinstance(content, dict):
                    yield content
    except FileNotFoundError as error:
        raise SampleFileError(f"the sampler left no samples: there is no {path.name}") from error
    except ValueError:
        pass  # the sampler was killed while it wrote: everything before is whole
    except OSError as error:
        raise SampleFileError(f"{path.name} cannot be read: {error}") from error
