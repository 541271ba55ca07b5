"""The GPUs of this machine, by the tool of their vendor, and what a plan must know of them and of a CPU: no GPU is
started.

Standard library only: a plan is made before torch is installed. Where torch is installed, it selects the GPUs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from train.machine import amd_smi, nvidia_smi
from train.machine.gpu_state import GpuReading, GpuState, GpuToolError
from utils.hardware import detect
from utils.hardware.devices import BYTES_PER_GB, find_device, short_name
from utils.settings.config import RunConfig

READERS = {
    "nvd": (nvidia_smi.TOOL, nvidia_smi.states, nvidia_smi.processes),
    "amd": (amd_smi.TOOL, amd_smi.states, amd_smi.processes),
}
"""Tool of the vendor by platform, and the functions that read GPUs and processes with it."""
VISIBLE = {
    "nvd": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}
"""Variables by level: one level counts within what the one before shows, and in a level the first that is set counts.

Sources: torch/cuda/__init__.py of torch 2.13, _parse_visible_devices (HIP's before CUDA's, both within ROCR's); ROCm
7.1.1, "ROCm environment variables", GPU isolation (HIP reads either); CUDA Programming Guide, CUDA_VISIBLE_DEVICES.
"""


def installed(platform: str) -> str | None:
    """Return the tool of the platform if it is on PATH."""
    tool = READERS[platform][0]
    return tool if shutil.which(tool) else None


def read(platform: str) -> GpuReading:
    """Return the reading of the tool of `nvd` or `amd`; raise GpuToolError if it is missing or does not answer."""
    tool, states, processes = READERS[platform]
    gpus = states()
    try:
        return GpuReading(tool, gpus, tuple(processes(gpus)))
    except GpuToolError as error:
        return GpuReading(tool, gpus, None, str(error))


def visible(reading: GpuReading, platform: str, environ: Mapping[str, str]) -> tuple[GpuState, ...]:
    """Return the GPUs that a job started with `environ` may use, selected by number or by the beginning of the UUID.

    As in CUDA and HIP the first number that no GPU has ends a list. An empty list hides all GPUs, as does a GPU that
    is named twice. A variable that names something unknown here (a MIG slice, a UUID of AMD) restricts nothing.
    """
    chosen = reading.gpus
    for level in VISIBLE[platform]:
        for name in level:
            if name in environ:
                chosen = _selected(environ[name], chosen)
                break
    return chosen


def _selected(wanted: str, gpus: Sequence[GpuState]) -> tuple[GpuState, ...]:
    chosen: list[GpuState] = []
    for part in wanted.split(","):
        word = part.strip()
        if re.fullmatch(r"[+-]?\d*", word):
            # CUDA takes what stands before the first bad number
            if not word.isdecimal() or int(word) >= len(gpus):
                break
            named = gpus[int(word)]
        else:
            matching = [gpu for gpu in gpus if (gpu.identifier or "").startswith(word)]
            if not matching:
                return tuple(gpus)
            named = matching[0]
        if named in chosen:
            return ()
        chosen.append(named)
    return tuple(chosen)


def has_torch() -> bool:
    """Return True if torch is installed for this Python."""
    return importlib.util.find_spec("torch") is not None


def count(platform: str) -> int | None:
    """Return the number of visible GPUs, 0 where neither torch nor a tool can tell; None on the cpu platform."""
    # torch is what the job itself will see
    if platform == "cpu" or has_torch():
        return detect.visible_gpus(platform)
    return len(_listed(platform))


def device(platform: str) -> str | None:
    """Return the short name (B200) of the visible GPUs; None on the cpu platform and for unknown ones."""
    if platform == "cpu" or has_torch():
        return detect.visible_device(platform)
    names = set()
    for gpu in _listed(platform):
        known = find_device(gpu.name or "", gpu.memory_total_gb)
        names.add(short_name(known) if known else None)
    return names.pop() if len(names) == 1 else None


def _listed(platform: str) -> tuple[GpuState, ...]:
    try:
        return visible(read(platform), platform, os.environ)
    except GpuToolError:
        return ()


def capacity_gb(config: RunConfig) -> tuple[float | None, str]:
    """Return the memory of one device (on a CPU: of one rank), GB (1e9 bytes), and its source; None if unknown.

    What the driver reserves is left out: torch does not see it either.
    """
    if config.launcher == "slurm":
        return None, "Slurm selects the nodes"
    if config.platform == "cpu":
        return cpu_capacity_gb(config.ranks_per_node)
    try:
        gpus = visible(read(config.platform), config.platform, os.environ)
    except GpuToolError as error:
        return None, str(error)
    sizes = []
    for gpu in gpus:
        if gpu.memory_total_gb is not None:
            sizes.append(gpu.memory_total_gb - (gpu.memory_reserved_gb or 0.0))
    names = [gpu.name for gpu in gpus if gpu.name]
    return min(sizes, default=None), names[0] if names else config.platform


def threads_of_a_rank(config: RunConfig) -> int:
    """Return the threads of one rank if the user sets none: its share of the cores."""
    return max(1, (os.cpu_count() or 1) // config.ranks_per_node)


def cpu_capacity_gb(ranks: int, root: Path = Path("/")) -> tuple[float, str]:
    """Return the memory that one of `ranks` ranks may use on this machine, GB (1e9 bytes), and the name of the limit.

    The ranks share the physical memory, or the smallest limit of their control groups (v2 `memory.max`, v1
    `memory.limit_in_bytes`). RLIMIT_AS applies to each process by itself, and to address space, which is larger than
    the resident set. Memory of other processes is not subtracted. `root` is the parent of /proc and /sys (for tests).
    """
    limits = {"physical memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")} | _cgroup_limits(root)
    source = min(limits, key=limits.__getitem__)
    share = limits[source] / ranks
    # a process may map more than it keeps in memory, so a limit above the share says nothing
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY and address_space < share:
        return address_space / BYTES_PER_GB, "RLIMIT_AS of each process"
    return share / BYTES_PER_GB, f"{source} / {ranks} ranks" if ranks > 1 else source


def _cgroup_limits(root: Path) -> dict[str, int]:
    """Return the limits of this process's memory control group and its parents, by file; a container may hide some."""
    listing = root / "proc" / "self" / "cgroup"
    if not listing.exists():
        return {}
    limits: dict[str, int] = {}
    for line in listing.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files = _up_the_tree(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            files = _up_the_tree(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
        else:
            continue
        for file in files:
            text = file.read_text().strip()
            if text != "max":
                limits[str(file)] = int(text)
    return limits


def _up_the_tree(mount: Path, path: str, name: str) -> list[Path]:
    """Return the files of a group and its parents; a container may hide where in the tree it is."""
    inside = PurePosixPath(path.lstrip("/"))
    folders = [mount]
    if ".." not in inside.parts:
        folders = [mount / inside, *(mount / above for above in inside.parents)]
    return [folder / name for folder in folders if (folder / name).exists()]
