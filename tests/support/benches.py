"""A whole matrix in this process whose job scripts are stand-ins that write results with a chosen speed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from toydata import write_toy_data

from example import example_result
from train import matrix, slurm
from train.job.job import set_aside
from train.runner import plan
from utils.results import store

FAILS = 0.0
"""Speed of a run whose launcher ends with exit code 1 and leaves no result."""
JOB = re.compile(r"train\.launch --platform cpu --framework (mega|hf) --model llama")
STEP = "[CPU] Step {}/30 | 0.500 s | avg 0.500 s | loss 7.0000 | 0.4 GB\n"


class Ran:
    """A process that has ended."""

    pid, args = 1, ()

    def __init__(self, code: int, said: str = "", take: Callable[[str], None] = lambda given: None) -> None:
        """`take` gets its input."""
        self.returncode, self.stdout, self._said, self._take = code, io.StringIO(said), said, take

    def __enter__(self) -> Ran:
        return self

    def __exit__(self, *error: Any) -> None:
        """Do nothing."""

    def poll(self) -> int:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        return self.returncode

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        self._take(given)
        return self._said, ""


class Bench:
    """A matrix of mega and hf llama, whose launchers write results with the tokens/s/GPU of each run."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, mega: Sequence[float], hf: Sequence[float]) -> None:
        self.output, self.speeds = folder / "output", {"mega": mega, "hf": hf}
        self.started: list[tuple[str, int]] = []
        self.rounds: list[list[tuple[str, int]]] = []
        """Jobs that were submitted to Slurm between two looks at its queue."""
        self.interrupted_run = 0
        self.on_start: Callable[[plan.Job], Any] = lambda job: None
        """Called as a job starts; a job for which it is true writes no result here."""
        self.said: tuple[str, ...] = ()
        """Lines of each launcher."""
        self.exit_codes: dict[str, int] = {}
        """Exit code of a step of the matrix by a word of its command."""
        self.has_slurm = True
        """False where the commands of Slurm on PATH are to be run."""
        self.phases: list[str] = []
        """The phase in status.json when each step or job started."""
        self.prefix = write_toy_data(folder / "data" / "text", documents=100)
        self._patch, self._popen = patch, subprocess.Popen
        self._where = (f"OUTPUT_DIR={self.output}", f"DATA_DIR={folder}/cache", f"DATASET={self.prefix}")
        self._settings: tuple[str, ...] = ()
        patch.setattr("train.job.job.sha256_code", lambda root: "c" * 64)  # read anew for each job

    def job(self, framework: str, run: int, *settings: str) -> plan.Job:
        """Return a job of the matrix."""
        return replace(next(job for job in self.jobs(*settings) if job.framework == framework), run=run)

    def jobs(self, *settings: str) -> tuple[plan.Job, ...]:
        """Return the jobs of the matrix that run in any case."""
        return plan.make("cpu", self.arguments(*settings)).jobs

    def arguments(self, *settings: str) -> tuple[str, ...]:
        """Return the settings of the matrix."""
        short = ("MODEL=llama", "FRAMEWORK=mega,hf", "RUNS=auto", "TRAIN_ITERS=10", "GBS=8", "MBS=2", "SL=128")
        return (*self._where, *short, "WARMUP_ITERS=2", "ALLOW_REPEAT=true", *settings)

    def train(self, *settings: str, interrupted_run: int = 0) -> list[tuple[str, int]]:
        """Run the matrix; return framework and run of the trainings that it started, in their order."""
        self.run(*settings, interrupted_run=interrupted_run)
        return self.started

    def run(self, *settings: str, module: ModuleType = matrix, interrupted_run: int = 0) -> tuple[int, str, str]:
        """Run a command over the matrix; return its exit code and what it printed on both streams."""
        self.started, self.interrupted_run, out, err = [], interrupted_run, io.StringIO(), io.StringIO()
        self._settings = tuple(one for one in settings if not one.startswith("-"))
        command = [module.__name__, "--platform", "cpu", *self.arguments(*settings)]
        with self._patch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", command)
            patch.setattr(subprocess, "Popen", self._start)
            code = module.main()
        return code, out.getvalue(), err.getvalue()

    def plan(self, *settings: str) -> tuple[str, list[str]]:
        """Return the plan, and the lines on jobs and time before it."""
        _, out, err = self.run("--dry-run", *settings)
        return out, [line for line in err.splitlines() if line.startswith(("plan: ", "time: "))]

    def submit(self, *options: str) -> tuple[int, str, str]:
        """Run the matrix on Slurm."""
        self.rounds = [[]]
        return self.run("RUNTIME=native", *options, module=slurm)

    def status(self) -> dict[str, Any]:
        return json.loads((self.output / "status.json").read_text())

    def write(self, job: plan.Job, **changes: Any) -> int:
        """Write the result of a job and return the exit code of its launcher."""
        rate = self.speeds[job.framework][job.run - 1]
        if rate == FAILS:
            return 1
        set_aside(job.result_path)
        digest = plan.data_digests(job.config)["llama"]
        changes |= {"framework": job.framework, "run": job.run, "identity_sha256": job.identity(digest)}
        changes |= {"training_config": job.config.asked(), "repeats": job.rule.as_dict()}
        store.write(example_result(**changes, performance_metrics__tokens_per_second_per_gpu=rate), job.result_path)
        return 0

    def _start(self, command: Any, *more: Any, **options: Any) -> Any:
        words = [str(word) for word in command]
        if words[0] == "sbatch" and self.has_slurm:
            return self._sbatch()
        if words[0] == "sinfo" and self.has_slurm:
            return Ran(0)
        if words[0] == "squeue" and self.has_slurm:
            numbers = words[words.index("--jobs") + 1].split(",") if "--jobs" in words else []
            if numbers and self.rounds[-1]:
                for framework, run in self.rounds[-1]:
                    self.write(self.job(framework, run, *self._settings, "LAUNCHER=slurm"))
                self.rounds.append([])
            return Ran(0, "".join(f"{number}|COMPLETED|None|n1\n" for number in numbers))
        is_job = JOB.search(" ".join(words))
        if not is_job and not any(name in " ".join(words) for name in ("data.prepare", "evaluate.")):
            return self._popen(command, *more, **options)
        if (self.output / "status.json").exists() and "phase" in (status := self.status()):
            self.phases.append(status["phase"])
        if not is_job:
            return Ran(next((code for word, code in self.exit_codes.items() if word in " ".join(words)), 0))
        framework, run = is_job[1], int(words[words.index("--run") + 1])
        self.started.append((framework, run))
        if len(self.started) == self.interrupted_run:
            os.kill(os.getpid(), signal.SIGTERM)
            return Ran(128 + signal.SIGTERM)
        job = self.job(framework, run, *self._settings)
        if not self.on_start(job):
            return Ran(self.write(job), "".join(self.said))
        return Ran(0)

    def _sbatch(self) -> Ran:
        def take(script: str) -> None:
            framework, run = re.search(r"train_cpu_(mega|hf)_llama_run(\d+)", script).groups()
            self.rounds[-1].append((framework, int(run)))

        return Ran(0, "7\n", take)


def rounds(first: int, last: int, *frameworks: str) -> list[tuple[str, int]]:
    """Return framework and run of the jobs of these rounds, in their order."""
    return [(framework, run) for run in range(first, last + 1) for framework in frameworks]
