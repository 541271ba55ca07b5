"""Real trainings of a framework at tiny size on the CPU: their results, and what a second framework's are held against.

`train` runs cases (`case`) in a process of the framework's own Python, by tests/workers/framework_worker.py. In fp32 a
correct pair of frameworks stays under 3e-7 in loss and 3e-6 in gradient norm over 20 steps, relative. In bf16 every
weight and activation is rounded by up to 2**-9 = 2e-3, in another order of operations on each side: over 10 steps a
correct pair stays under 3e-5 in loss and 9e-3 in gradient norm. The bounds are tighter than the weakest planted fault.
"""

from __future__ import annotations

import functools
import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from utils.frameworks import FRAMEWORKS

SETTINGS = (
    *("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=20", "LR=1e-3", "WARMUP_ITERS=2", "PRECISION=fp32"),
    "MODEL_SIZE=tiny",
)
BF16 = ("PRECISION=bf16", "TRAIN_ITERS=10")
"""Fewer steps, because a CPU is slow in bf16."""
LOSS_BOUND = 2e-6
GRAD_NORM_BOUND = 2e-4
BF16_LOSS_BAND = 8e-5
BF16_GRAD_NORM_BAND = 2e-2
OWN_PYTHON = tuple(name for name, one in FRAMEWORKS.items() if one.has_own_python)


@dataclass(frozen=True)
class Ran:
    """What came of one case."""

    codes: list[int]
    results: list[dict[str, Any]]
    notes: list[dict[str, Any]]
    """Notes of the plants, by rank."""
    printed: str
    """The end of what the first failed rank has printed, or rank 0."""

    @property
    def ok(self) -> dict[str, Any]:
        """Return the one result of a training that ended well."""
        assert set(self.codes) == {0}, self.printed
        (result,) = self.results
        assert result["status"] == "ok", result["reason"]
        return result

    @property
    def refused(self) -> str:
        """Return the reason of a job that did not run a single step."""
        assert all(self.codes)
        (result,) = self.results
        assert result["status"] == "failed" and result["steps"] == []
        return str(result["reason"])


@functools.cache
def python_of(framework: str) -> str:
    """Return the Python that has a framework, as the framework's script prints it; it makes an environment, once.

    The test is skipped with the reason of the script where that cannot be made.
    """
    if framework not in OWN_PYTHON:
        return sys.executable
    script = ROOT / "shell" / "inside" / "setup_framework.sh"
    ran = subprocess.run([script, framework], env=os.environ | {"PLATFORM": "cpu"}, capture_output=True, text=True)
    if ran.returncode:
        pytest.skip(f"{framework} cannot be installed here: {ran.stderr.strip().splitlines()[-1]}")
    return ran.stdout.strip()


def case(
    model: str, *settings: str, plants: tuple[tuple[Any, ...], ...] = (), spec: Any = None, ranks: int = 1
) -> dict[str, Any]:
    """Return one training: its model, settings, planted changes (tests/workers/plants.py), replaced fields, ranks."""
    return {"model": model, "settings": settings, "plants": plants, "spec": spec or {}, "ranks": ranks}


def train(
    framework: str,
    cases: dict[str, dict[str, Any]],
    folder: Path,
    prefix: Path,
    *,
    python: str | None = None,
    temporary: str | None = None,
) -> dict[str, Ran]:
    """Train the cases with a framework, in its Python or in another one; return what came of each by its name.

    `folder` gets results and caches; `temporary` is the folder for temporary files, by default that of this process.
    """
    worker = ROOT / "tests" / "workers" / "framework_worker.py"
    fixed = [*SETTINGS, f"DATASET={prefix}", f"DATA_DIR={folder / 'data'}"]
    sent = [one | {"name": name, "settings": [*fixed, *one["settings"]]} for name, one in cases.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if temporary is not None:
        environment |= {"TMPDIR": temporary}
    if framework in ("mega", "hf"):
        environment |= {"TORCHDYNAMO_DISABLE": "1"}  # a test that compiles says so itself
    ran = subprocess.run(
        [python or python_of(framework), str(worker), framework, str(folder)],
        cwd=ROOT,
        env=environment,
        input=json.dumps(sent),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    return {name: Ran(**one) for name, one in found.items()}


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def largest_difference(ours: list[float], theirs: list[float]) -> float:
    """Return the largest relative difference between two lists of one length."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def differences(ours: Ran, theirs: Ran) -> tuple[float, float]:
    """Return the largest relative differences of losses and gradient norms between two trainings."""
    keys = ("loss_values", "grad_norms")
    loss, norm = (largest_difference(ours.ok[key], theirs.ok[key]) for key in keys)
    return loss, norm


def assert_same_work(ours: Ran, theirs: Ran, bounds: tuple[float, float] = (LOSS_BOUND, GRAD_NORM_BOUND)) -> None:
    """Check that losses and gradient norms of two trainings agree at every step."""
    loss, norm = differences(ours, theirs)
    assert loss < bounds[0] and norm < bounds[1], (loss, norm)


def rule(step: int, peak: float = 1e-3, warmup: int = 2, total: int = 20) -> float:
    """Return the learning rate of a step, written down again: LR n / (W + 1), then a cosine that starts at the peak."""
    if step <= warmup:
        return peak * step / (warmup + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - 1 - warmup) / (total - warmup)))
