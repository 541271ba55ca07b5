"""Start jobs through train.launch for the tests: real ones, and ones whose ranks are a stand-in."""

from __future__ import annotations

import io
import os
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

from train import launch as launcher, matrix
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
        (path,) = store.find([self.output])
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
        [*command, *SHORT, *where, *settings], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


def run(framework: str, model: str, folder: Path, prefix: Path, *settings: str) -> dict[str, Any]:
    """Run one job that must end well and return its result."""
    ran = launch(framework, model, folder, prefix, *settings)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    (result,) = results(folder).values()
    return result


def results(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the validated results in a folder and below it, without superseded ones, by their path."""
    return {path: store.read(path) for path in store.find([folder])} if folder.exists() else {}
