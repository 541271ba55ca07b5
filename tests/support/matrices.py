"""Start real matrices through the scripts for the tests, follow them, and find every process that they started."""

from __future__ import annotations

import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.support.launching import ROOT, results
from tests.support.setups import heed_signals

LIMIT_SECONDS = 600
"""For a whole matrix on a busy machine; no test measures time with it."""
SHORT = ("GBS=4", "MBS=1", "SL=64", "TRAIN_ITERS=30", "WARMUP_ITERS=2", "LR=1e-3", "CPU_RANKS=2", "RUNS=1")
FAULTS = ROOT / "tests" / "shell" / "faults"
MARK = "TPRIMAT_TEST_MATRIX"


class RunningMatrix:
    """`shell/train.sh` over mega and hf llama, 30 short steps on two ranks each, in a session of its own."""

    def __init__(
        self,
        output: Path,
        prefix: Path,
        *settings: str,
        fault: str = "",
        script: str = "train.sh",
        root: Path = ROOT,
    ) -> None:
        self.output = output
        self._mark = uuid.uuid4().hex
        self.said_path = output.parent / f"said_{self._mark}.txt"
        where = (f"OUTPUT_DIR={output}", f"DATA_DIR={prefix.parent / 'cache'}", f"DATASET={prefix}")
        environment = {
            **os.environ,
            MARK: self._mark,
            "PLATFORM": "cpu",
            "PYTHONPATH": str(FAULTS),
            "TPRIMAT_TEST_FAULT": fault,
            "TPRIMAT_ENV_NAMES": f"{MARK},TPRIMAT_TEST_FAULT",
        }
        with self.said_path.open("w") as said:
            self.process = subprocess.Popen(
                [root / "shell" / script, *SHORT, "MODEL=llama", "FRAMEWORK=mega,hf", *where, *settings],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heed_signals,
            )

    @property
    def said(self) -> str:
        """Everything printed so far."""
        return self.said_path.read_text()

    def wait(self) -> int:
        """Return the exit code."""
        return self.process.wait(LIMIT_SECONDS)

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Return the value of the condition once it is true; fail if the matrix ends before."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (found := condition()):
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.05)
        return found

    def wait_for_step(self, framework: str, step: int, run: int = 1) -> None:
        """Wait until a job has finished a step."""
        name = f"logs/*train_cpu_{framework}_llama_run{run}_attempt*.log"
        self.wait_for(
            lambda: any(
                int(number) >= step
                for log in self.output.glob(name)
                for number in re.findall(r"Step (\d+)/", log.read_text())
            )
        )

    def processes(self) -> list[psutil.Process]:
        """Every living process that has inherited the mark, wherever it went."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found

    def process_of(self, module: str, rank: int | None = None) -> psutil.Process:
        """The process that runs a module, of a rank where one is given; waits for it."""

        def find() -> psutil.Process | None:
            for process in self.processes():
                with suppress(psutil.Error):
                    is_module = module in process.cmdline()[1:4]  # `python [-u] -m module`
                    if is_module and (rank is None or process.environ().get("RANK") == str(rank)):
                        return process
            return None

        return self.wait_for(find)

    def end_all(self, word: str = "") -> None:
        """Kill the processes with this word in their command; without one all, after a test that failed."""
        for process in self.processes():
            with suppress(psutil.Error):
                if not word or word in process.cmdline():
                    process.kill()

    def result(self, framework: str, run: int = 1) -> dict[str, Any]:
        """The validated result of a job."""
        return results(self.output)[self.output / f"train_cpu_{framework}_llama_run{run}.json"]


def wait_until_gone(matrix: RunningMatrix, seconds: float = 30.0) -> list[str]:
    """Return the processes that are still there after the time in which all must have ended."""
    deadline = time.monotonic() + seconds
    while (left := matrix.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [str(process) for process in left]
