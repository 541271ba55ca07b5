"""Trains a few steps through the trainers' own functions with other loader workers and a slower data set; prints JSON.

Run by test_loading.py: `python -m tests.workers.loading_worker FRAMEWORK PREFIX SCRATCH`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import get_worker_info

from tests.workers.parity_worker import SETTINGS
from train.common import loading
from train.common.trainer import print_end
from train.common.weights import EqualWeights
from train.job.job import Job
from train.job.recorder import StepRecorder
from train.job.report import JobReport
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.settings.config import load

SLEEP_SECONDS = 0.05
CASES: dict[str, tuple[int, Callable[[int], bool]]] = {
    "alone": (0, lambda index: False),
    "alone_slow": (0, lambda index: True),
    "workers": (2, lambda index: index // 2 % 2 == 0),  # every second micro batch, so one of the two is always late
}
"""Loader workers, and which samples take SLEEP_SECONDS longer than they need to."""
STEPS = 5
PR_GET_PDEATHSIG = 2
"""From <linux/prctl.h>."""


class Slow:
    """A data set on a slow disk."""

    def __init__(self, dataset: Any, is_slow: Callable[[int], bool]) -> None:
        self.config = dataset.config
        self._dataset = dataset
        self._is_slow = is_slow

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            number = ctypes.c_int()
            ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number))
            if number.value != signal.SIGKILL:
                raise RuntimeError("this loader worker would outlive its rank")
        if self._is_slow(index):
            time.sleep(SLEEP_SECONDS)
        return self._dataset[index]


class Watch:
    """What the model gets: the rows of tokens in their order, and how many loader workers live at each micro batch."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.rows: list[list[int]] = []
        self.workers: list[int] = []
        model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: torch.nn.Module, args: Any, keywords: Any) -> None:
        self.rows += (keywords["input_ids"] if "input_ids" in keywords else args[0]).tolist()
        self.workers.append(len(multiprocessing.active_children()))


def train(framework: str, job: Job, dataset: Any, recorder: StepRecorder) -> Watch:
    """Train all steps and return what the model saw."""
    trainer = importlib.import_module(f"train.train_{framework}")
    training = trainer.build(job.config, job.spec, EqualWeights(job.spec, 42, 0.02), dataset)
    watch = Watch(training.model)
    trainer.run(*((job.config, training) if framework == "mega" else (training,)), recorder)
    return watch


def digest(rows: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def main() -> None:
    """Train every case and print what came of it."""
    framework, prefix, scratch = sys.argv[1:]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    settings = [*SETTINGS, f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}", f"TRAIN_ITERS={STEPS}"]
    config = load("cpu", arguments=settings, environ={})
    trainer = importlib.import_module(f"train.train_{framework}")  # first: train_mega sends megatron-core to the CPU
    getattr(trainer, "initialize_parallel" if framework == "mega" else "initialize")(config)
    dataset = build_train_dataset(config, Path(prefix), describe(Path(prefix)))
    said: dict[str, Any] = {"in_order": digest([dataset[i]["tokens"].tolist() for i in range(config.training_samples)])}
    for name, (workers, is_slow) in CASES.items():
        loading.CPU_WORKERS = workers
        job = Job(config, framework, "llama")
        report = JobReport(job, "1" * 64, "a command")
        report.recorder = StepRecorder(STEPS, stream=io.StringIO())
        watch = train(framework, job, Slow(dataset, is_slow), report.recorder)
        result, printed = report.result("ok", None), io.StringIO()
        with contextlib.redirect_stdout(printed):
            print_end(job, report)
        said[name] = {
            "tokens": digest(watch.rows),
            "workers": watch.workers,
            "waits": result["data_wait_seconds"],
            "losses": result["loss_values"],
            "step_times": result["step_times"],
            "fraction": result["performance_metrics"]["data_wait_fraction"],
            "warnings": result["warnings"],
            "printed": printed.getvalue(),
        }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
