"""Start jobs through train.launch for the tests: real ones, and ones whose ranks are a stand-in."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import socket
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT
from toydata import write_toy_data

from evaluate.inputs.discover import find
from train import launch as launcher, matrix
from utils.frameworks import FRAMEWORKS
from utils.results import store

SHORT = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2", "LR=1e-3", "CPU_RANKS=1")
SUPPORT = Path(__file__).parent
H100 = SimpleNamespace(total_memory=85.0e9, multi_processor_count=132, major=9, minor=0, gcnArchName="")
"""Properties of the GPU that torch sees."""
STAND_IN = """#!/bin/sh
case " $* " in *" train.train_"*) exec {python} {ranks} "$@" ;; esac
exec {python} "$@"
"""
"""A Python that runs the stand-in where a trainer would start."""
AS_STAND_IN = "import sys; sys.executable = sys.argv.pop(1); from train import launch; sys.exit(launch.main())"
RANKS = """
import os, signal, subprocess, sys, time
from pathlib import Path
output, data = Path({output!r}), Path({data!r})
reserve = next(output.rglob(".train_*.json.reserve"))
path = reserve.with_name(reserve.name[1:].removesuffix(".reserve"))
attempt = int(sys.argv[sys.argv.index("--attempt") + 1])


def step(number, total=6, stream=sys.stdout):
    print(f"[CPU] Step {{number}}/{{total}} | 0.174 s | avg 0.174 s | loss 7.2500 | 0.4 GB", file=stream, flush=True)


def result(**changes):
    from example import example_result
    from utils.results import store

    _, platform, framework, *_ = path.name.split("_")
    told = {{"platform": platform, "framework": framework, "label": path.parent.name * (path.parent != output)}}
    store.write(example_result(attempt=attempt, **told, **changes), path)


"""


@dataclass(frozen=True)
class Ended:
    """The end of a launcher."""

    code: int
    out: str
    err: str
    output: Path

    @property
    def result(self) -> dict[str, Any]:
        """The only result, valid."""
        (path,) = find([self.output])
        return store.read(path)


class Launcher:
    """`train.launch` in this process over a toy data set, with a stand-in for the ranks.

    The stand-in is Python code with `step(number)`, which prints a step, `result(**changes)`, which writes an example
    result, and the paths `output`, `path` (of the result) and `data`.

    The machine is an empty folder, so that what else runs here changes nothing.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.output, self.prefix = folder / "output", write_toy_data(folder / "data" / "text", documents=100)
        self._folder, self._patch = folder, patch
        self.compiler = sys.executable  # PATH may hold the tools of a made-up machine only
        patch.setenv("PYTHONPATH", f"{ROOT}:{SUPPORT}")
        if "TPRIMAT_SYSROOT" not in os.environ:
            patch.setenv("TPRIMAT_SYSROOT", str(folder))

    def command(
        self, *settings: str, platform: str = "cpu", framework: str = "mega", model: str = "llama"
    ) -> list[str]:
        """Return the arguments of a short job."""
        where = (f"OUTPUT_DIR={self.output}", f"DATA_DIR={self._folder / 'cache'}", f"DATASET={self.prefix}")
        named = ["--platform", platform, "--framework", framework, "--model", model]
        tiny = ("MODEL_SIZE=tiny", "RUNTIME=native")
        return [*named, *SHORT, *tiny, *where, *settings]

    def stand_in(self, ranks: str) -> Path:
        """Write the stand-in of the ranks and return the Python that runs it."""
        script, python = self._folder / "ranks.py", self._folder / "python"
        script.write_text(RANKS.format(output=str(self.output), data=str(self.prefix.parent)) + ranks)
        python.write_text(STAND_IN.format(python=sys.executable, ranks=script))
        python.chmod(0o755)
        return python

    def run(
        self, *settings: str, ranks: str = "", platform: str = "cpu", framework: str = "mega", model: str = "llama"
    ) -> Ended:
        """Run the job to its end; on a GPU platform torch sees one GPU."""
        arguments = self.command(*settings, platform=platform, framework=framework, model=model)
        return self._call(launcher, arguments, self.stand_in(ranks))

    def plan(self, *settings: str, platform: str = "nvd", gpus: int = 1) -> Ended:
        """Return the plan of a matrix for a machine where torch sees this number of GPUs."""
        where = (f"OUTPUT_DIR={self.output}", f"DATA_DIR={self._folder / 'cache'}", "DATASET=synth")
        return self._call(matrix, ["--platform", platform, "--dry-run", *where, *settings], gpus=gpus)

    def _call(self, module: Any, arguments: list[str], python: Path | None = None, gpus: int = 1) -> Ended:
        out, err = io.StringIO(), io.StringIO()
        with self._patch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "executable", str(python or sys.executable))
            patch.setattr(sys, "argv", [module.__name__, *arguments])
            of_torch = {"device_count": gpus, "is_available": gpus > 0, "get_device_name": "NVIDIA H100 80GB HBM3"}
            for name, value in (of_torch | {"get_device_properties": H100}).items():
                patch.setattr(f"torch.cuda.{name}", lambda *index, value=value: value)
            patch.setenv("CC", self.compiler)
            code = module.main()
        return Ended(code, out.getvalue(), err.getvalue(), self.output)

    def start(self, *settings: str, ranks: str = "", **options: Any) -> subprocess.Popen[str]:
        """Start the job in a process of its own; its output is in a pipe."""
        python = self.stand_in(ranks)
        return subprocess.Popen(
            [sys.executable, "-c", AS_STAND_IN, str(python), *self.command(*settings)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )


def launch(framework: str, model: str, folder: Path, prefix: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Run one job of six short steps; results go to `folder`, data caches beside the data."""
    where = (f"OUTPUT_DIR={folder}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
    command = [sys.executable, "-m", "train.launch", "--platform", "cpu", "--framework", framework, "--model", model]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *SHORT, *where, *settings], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )


def run(framework: str, model: str, folder: Path, prefix: Path, *settings: str) -> dict[str, Any]:
    """Run one job that must end well and return its result."""
    ran = launch(framework, model, folder, prefix, *settings)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    (result,) = results(folder).values()
    return result


def results(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the validated results in a folder and below it, without superseded ones, by their path."""
    return {path: store.read(path) for path in find([folder])} if folder.exists() else {}


# Real trainings of a framework at tiny size on the CPU: their results, and what a second framework's are held against.

STEPS = 12
SETTINGS = (
    *("GBS=8", "MBS=2", "SL=128", f"TRAIN_ITERS={STEPS}", "LR=1e-3", "WARMUP_ITERS=2", "PRECISION=fp32"),
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
) -> dict[str, Ran]:
    """Train the cases with a framework, in its Python or in another one; return what came of each by its name.

    `folder` gets results and caches.
    """
    worker = ROOT / "tests" / "workers" / "framework_worker.py"
    fixed = [*SETTINGS, f"DATASET={prefix}", f"DATA_DIR={folder / 'data'}"]
    sent = [one | {"name": name, "settings": [*fixed, *one["settings"]]} for name, one in cases.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if framework in ("mega", "hf"):
        environment |= {"TORCHDYNAMO_DISABLE": "1"}  # a test that compiles says so itself
    ran = subprocess.run(
        [python or python_of(framework), str(worker), framework, str(folder)],
        cwd=ROOT,
        env=environment,
        input=json.dumps(sent),
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    return {name: Ran(**one) for name, one in found.items()}


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def differences(ours: Ran, theirs: Ran) -> tuple[float, float]:
    """Return the largest relative differences of losses and gradient norms between two trainings."""
    loss, norm = (
        max(abs(a - b) / abs(b) for a, b in zip(ours.ok[key], theirs.ok[key], strict=True))
        for key in ("loss_values", "grad_norms")
    )
    return loss, norm


def assert_same_work(ours: Ran, theirs: Ran, bounds: tuple[float, float] = (LOSS_BOUND, GRAD_NORM_BOUND)) -> None:
    """Check that losses and gradient norms of two trainings agree at every step."""
    loss, norm = differences(ours, theirs)
    assert loss < bounds[0] and norm < bounds[1], (loss, norm)


def rule(step: int, peak: float = 1e-3, warmup: int = 2, total: int = STEPS) -> float:
    """Return the learning rate of a step, written down again: LR n / (W + 1), then a cosine that starts at the peak."""
    if step <= warmup:
        return peak * step / (warmup + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - 1 - warmup) / (total - warmup)))
