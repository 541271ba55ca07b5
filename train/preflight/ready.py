"""Checks that this machine's software can run a job: versions, what kernels that are compiled at run time need, driver.

torch.compile and Triton build kernels of mega and hf on a GPU in the first step. They need a C compiler, the headers of
Python, and a folder for their cache; without one of them a job would fail after minutes. A driver that is older than
the CUDA or ROCm that torch was built for needs is named in the plan.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform as python_platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from train.job.job import existing
from train.machine import gpus
from train.machine.gpu_state import GpuToolError
from utils.errors import ConfigError
from utils.frameworks import FRAMEWORKS, reads
from utils.settings.config import ROOT, RunConfig

SUPPORTED = {"torch": ">=2.9.0a0", "transformers": ">=5.17,<5.25"}
"""Versions that mega and hf accept and have trained with; all tests have run with those of cpu-requirements.txt."""
COMPILERS = ("gcc", "cc", "clang")
"""Names that Triton and torch look for where CC is not set (triton/runtime/build.py)."""

ANSWER = "reason: "
"""Beginning of the line with the answer; libraries print lines of their own."""
ANSWERED = "TPRIMAT_REASON_AGAINST_ENGINE"
"""Variable with the answer of a parent process, empty if nothing speaks against TransformerEngine."""
LEAST: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {
    # NVIDIA, CUDA Compatibility, "Minor Version Compatibility", table 1:
    # https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    "nvd": {(13,): (580,), (12,): (525,), (11,): (450,)},
    # AMD, "User and AMD GPU Driver (amdgpu) support matrix" (17 September 2025), the oldest driver of each release:
    # https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/user-kernel-space-compat-matrix.html
    # It had no row for ROCm 7.1 and later; drivers after 6.4 are numbered from 30.10 on.
    "amd": {(7, 0): (6, 2), (6, 4): (6, 1), (6, 3): (6, 1), (6, 2): (6, 0), (6, 1): (5, 7)},
}
"""Oldest driver by the beginning of the version of CUDA (major) or ROCm (major, minor)."""
STACKS = {"nvd": ("NVIDIA", "CUDA", "cuda"), "amd": ("amdgpu", "ROCm", "hip")}
"""Names of driver and software, and the attribute of torch.version."""
REMEDY = {
    "nvd": "install a newer driver, or put the image's /usr/local/cuda/compat first in LD_LIBRARY_PATH",
    "amd": "install a newer driver, or use an image of an older ROCm",
}


def require(config: RunConfig, framework: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError with one line for the first thing that a job of `framework` lacks on this machine."""
    packages = FRAMEWORKS[framework].built_from
    for name in packages:
        _require_version(name)
    if not packages or config.platform == "cpu":
        return  # another environment, or nothing is compiled at run time
    compiler = environ.get("CC")
    names = [compiler] if compiler else COMPILERS
    if not any(shutil.which(name, path=environ.get("PATH")) for name in names):
        looked = f"CC={compiler}" if compiler else ", ".join(COMPILERS)
        raise ConfigError(
            f"machine: no C compiler ({looked}) on PATH, which torch.compile needs; as root: apt-get install gcc"
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        raise ConfigError(
            f"machine: {header} is missing, which torch.compile needs; as root: apt-get install python3-dev"
        )
    # of compiled kernels, with the default of triton/knobs.py; torch's own is in TMPDIR
    folder = Path(environ.get("TRITON_CACHE_DIR") or Path("~/.triton/cache").expanduser())
    try:
        tempfile.TemporaryFile(dir=existing(folder)).close()
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(
            f"machine: {folder} cannot be written ({why}); set TRITON_CACHE_DIR to a folder that can"
        ) from error


def _require_version(name: str) -> None:
    from packaging.specifiers import SpecifierSet  # a plan imports this module and needs the standard library only

    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"{name}: not installed; run ./shell/setup.sh, or install it as the README describes"
        ) from error
    if not SpecifierSet(SUPPORTED[name]).contains(installed, prereleases=True):
        raise ConfigError(f"{name}: got version {installed}, wanted {SUPPORTED[name]}; install one of these versions")


def without_engine(config: RunConfig, framework: str) -> list[str]:
    """Return one line if a job on a GPU gets no TransformerEngine though LAYERS, which it reads, is not `local`."""
    if not reads(framework, "layers") or config.platform == "cpu" or config.layers == "local":
        return []
    reason = _reason_against_engine()
    if not reason:
        return []
    effect = "the job is refused" if config.layers == "te" else "the layers are torch's, on this side only"
    return [f"{framework}: LAYERS={config.layers}: {reason}: {effect}; LAYERS=local on both sides makes them equal"]


def _reason_against_engine() -> str:
    """Return the reason of train/mega/engine.py, empty if there is none.

    TransformerEngine is imported in a process of its own, because it loads the libraries of CUDA or ROCm. This takes
    about ten seconds, so the processes that this one starts find the answer in their environment.
    """
    if importlib.util.find_spec("transformer_engine") is None:
        return "TransformerEngine is not installed"
    if ANSWERED not in os.environ:
        os.environ[ANSWERED] = _imported_reason()
    return os.environ[ANSWERED]


def _imported_reason() -> str:
    # torch first, as in the ranks: it brings the libraries of CUDA that TransformerEngine then finds
    code = f"import torch; from train.mega import engine; print({ANSWER!r} + (engine.reason_against() or ''))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    for line in ran.stdout.splitlines():
        if line.startswith(ANSWER):
            return line.removeprefix(ANSWER)
    return f"TransformerEngine: its import ended with exit code {ran.returncode}"


def driver_line(platform: str) -> str | None:
    """Return one line on a driver that is too old for this torch or cannot be judged; None if it is new enough."""
    driver_name, stack, attribute = STACKS[platform]
    built_for = getattr(importlib.import_module("torch").version, attribute)
    if built_for is None:
        return None  # another torch; detection of the platform refuses it
    try:
        drivers = {gpu.driver_version for gpu in gpus.read(platform).gpus} - {None}
    except GpuToolError as error:
        return f"note: driver: version unknown ({error}); {stack} {built_for} is not held against it"
    least = None
    for start, oldest in LEAST[platform].items():
        if _numbers(built_for)[: len(start)] == start:
            least = oldest
    for driver in sorted(map(str, drivers)):
        if least is None:
            return f"note: driver: {driver_name} {driver} with {stack} {built_for}: no row in train/preflight/ready.py"
        if driver == python_platform.release():  # amd-smi's answer for the amdgpu of the kernel itself
            return f"note: driver: the amdgpu of kernel {driver} has no version to hold against {stack} {built_for}"
        if _numbers(driver) < least:
            wanted = ".".join(map(str, least))
            why = f"older than {wanted}, which {stack} {built_for} of this torch needs"
            return f"warning: driver: {driver_name} {driver} is {why}; {REMEDY[platform]}"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
