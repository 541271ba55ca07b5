"""The time that the step recorder adds to a step: one `end_step` behind work.

Run it on a machine that does nothing else. Matrix products on the CPU leave the caches cold before each `end_step`, as
a training step does; its progress line is written to /dev/null. For each device (the CPU, and the GPU where torch sees
one) the median of `--pairs` steps is taken several times, and median, smallest and largest of these are printed.
Exits 1 above the limit, 0.1 % of a step of 100 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from benchmarks.measure import machine, spread
from train.job.recorder import CpuDevice, CudaDevice, Device, StepRecorder
from utils.arguments import Parser, from_one, run

LIMIT_MICROSECONDS = 100
MATRIX_SIZE = 256
OPTIONS: dict[str, dict[str, Any]] = {
    "--pairs": {"type": from_one, "default": 100, "help": "steps of work and end_step (default: %(default)s)"},
    "--work-ms": {"type": float, "default": 10, "help": "work of a step, ms (default: %(default)s)"},
    "--repetitions": {"type": from_one, "default": 11, "help": "of each figure (default: %(default)s)"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line for each device, and return 1 where a median is over the limit."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = Parser(OPTIONS, prog="python -m benchmarks.recorder", description=__doc__, formatter_class=kind)
    options = parser.parse_args(argv)
    if not options.work_ms > 0:
        parser.error("--work-ms must be above 0")
    devices: list[tuple[str, Device, torch.Tensor]] = [("CPU", CpuDevice(), torch.tensor(6.0))]
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        devices.append((name, CudaDevice(), torch.tensor(6.0, device="cuda")))
    print(f"{machine('torch')}; {options.repetitions} repetitions; the limit is {LIMIT_MICROSECONDS} microseconds")
    is_over = False
    for name, device, scalar in devices:
        medians = []
        # a terminal would be part of the time
        with Path(os.devnull).open("w", encoding="utf8") as stream:
            for _ in range(options.repetitions):
                medians.append(end_step_microseconds(device, scalar, stream, options.pairs, options.work_ms / 1000))
        print(f"{name}: {spread(medians, 1)} microseconds a step")
        is_over |= statistics.median(medians) > LIMIT_MICROSECONDS
    return int(is_over)


def end_step_microseconds(
    device: Device, scalar: torch.Tensor, stream: TextIO, steps: int, work_seconds: float
) -> float:
    """Return the median time of `end_step` in some steps, each behind work on the CPU."""
    recorder = StepRecorder(steps, device=device, stream=stream)
    recorder.start()
    matrix = torch.randn(MATRIX_SIZE, MATRIX_SIZE)
    costs = []
    for _ in range(steps):
        product = matrix
        begun = time.perf_counter()
        # memory traffic as in a step; without it the recorder's data would still be in the caches
        while time.perf_counter() - begun < work_seconds:
            product = torch.tanh(product @ matrix)
        worked = time.perf_counter()
        recorder.end_step(loss=scalar, grad_norm=scalar, learning_rate=1e-3)
        costs.append(time.perf_counter() - worked)
    return statistics.median(costs) * 1e6


if __name__ == "__main__":
    sys.exit(run(main))
