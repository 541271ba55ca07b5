"""The time that the step recorder adds to a step: `end_step` alone, behind work, and a loop with it less one without.

Run it on a machine that does nothing else. Five figures in microseconds for each device (the CPU, and the GPU where
torch sees one), each several times over; the table shows their median, smallest and largest:

- alone: one `end_step` with nothing between the calls, its progress line written to /dev/null; mean of many calls.
- behind work: one `end_step` after matrix products on the CPU, which leave the caches cold, as a training step does;
  median of many. It is several times the first, and the honest one.
- difference: work with `end_step` behind it, less the same work without, in pairs whose order alternates; median of
  the pairs. It holds everything, and the noise of the machine, which is often larger.
- batch alone, batch behind work: the same two for one micro batch taken through `timed` from a loader that costs
  nothing, the second less one taken from that loader directly. A step takes as many as its gradient accumulation.

The first three are all that the recorder does at a boundary, on either side of its clock; the last two stand inside the
step. The limit, 0.1 % of a step of 100 ms, is for the medians of the first two. Exits 1 above it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import torch
from tqdm import tqdm

from train.job.recorder import CpuDevice, CudaDevice, Device, StepRecorder
from utils.arguments import Parser, run

STEP_SECONDS = 0.1
LIMIT_PERCENT = 0.1
LIMITED = ("alone", "behind work")
MICRO = 1e6
MATRIX_SIZE = 256

Row = tuple[str, str, list[float]]
"""Device, figure, and its microseconds in each repetition."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return 1 where a median is over the limit."""
    options = _arguments(argv)
    with Path(os.devnull).open("w", encoding="utf8") as stream:
        rows = list(_measure("CPU", CpuDevice(), torch.tensor(6.0), stream, options))
        if torch.cuda.is_available():
            rows += _measure("GPU", CudaDevice(), torch.tensor(6.0, device="cuda"), stream, options)
    limit = STEP_SECONDS * LIMIT_PERCENT / 100 * MICRO
    print(f"{_machine()}; {options.repetitions} repetitions; microseconds a step")
    print(f"{'device':8}{'figure':20}{'median':>10}{'min':>10}{'max':>10}   share of a step of {STEP_SECONDS:g} s")
    for name, figure, values in rows:
        median = statistics.median(values)
        share = median / MICRO / STEP_SECONDS * 100
        print(f"{name:8}{figure:20}{median:10.1f}{min(values):10.1f}{max(values):10.1f}   {share:.4f} %")
    is_over = any(statistics.median(values) > limit for _, figure, values in rows if figure in LIMITED)
    print(f"{'over' if is_over else 'within'} the limit of {limit:.0f} microseconds ({LIMIT_PERCENT} %)")
    return int(is_over)


def alone(device: Device, scalar: torch.Tensor, stream: TextIO, calls: int) -> float:
    """Return the mean microseconds of one `end_step`; `scalar` is its loss and gradient norm, where they would be."""
    recorder = StepRecorder(calls, device=device, stream=stream)
    recorder.start()
    started = time.perf_counter()
    for _ in range(calls):
        recorder.end_step(loss=scalar, grad_norm=scalar, learning_rate=1e-3)
    return (time.perf_counter() - started) / calls * MICRO


def behind_work(
    device: Device, scalar: torch.Tensor, stream: TextIO, pairs: int, work: Callable[[], None]
) -> tuple[float, float]:
    """Return the figures "behind work" and "difference" in microseconds, from `pairs` of steps with and without."""
    recorder = StepRecorder(pairs, device=device, stream=stream)
    recorder.start()
    costs, differences = [], []
    for pair in range(pairs):
        seconds = {}
        for is_recorded in (True, False) if pair % 2 else (False, True):
            started = time.perf_counter()
            work()
            worked = time.perf_counter()
            if is_recorded:
                recorder.end_step(loss=scalar, grad_norm=scalar, learning_rate=1e-3)
                costs.append(time.perf_counter() - worked)
            seconds[is_recorded] = time.perf_counter() - started
        differences.append(seconds[True] - seconds[False])
    return statistics.median(costs) * MICRO, statistics.median(differences) * MICRO


def batch_alone(device: Device, calls: int) -> float:
    """Return the mean microseconds of one micro batch through `timed`."""
    batches = StepRecorder(1, device=device).timed(itertools.repeat(None))
    started = time.perf_counter()
    for _ in range(calls):
        next(batches)
    return (time.perf_counter() - started) / calls * MICRO


def batch_behind_work(device: Device, pairs: int, work: Callable[[], None]) -> float:
    """Return the microseconds that `timed` adds to one micro batch behind `work`: median with it less that without."""
    plain: Iterator[None] = itertools.repeat(None)
    loaders = {True: StepRecorder(1, device=device).timed(plain), False: plain}
    costs: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs):
        for is_timed in (True, False) if pair % 2 else (False, True):
            work()
            worked = time.perf_counter()
            next(loaders[is_timed])
            costs[is_timed].append(time.perf_counter() - worked)
    return (statistics.median(costs[True]) - statistics.median(costs[False])) * MICRO


def matrix_products(seconds: float) -> Callable[[], None]:
    """Return a function that does the same products on the CPU each time, which takes about `seconds`."""
    matrix = torch.randn(MATRIX_SIZE, MATRIX_SIZE)

    def multiply(count: int) -> None:
        product = matrix
        for _ in range(count):
            product = torch.tanh(product @ matrix)

    trial, durations = 10, []
    for _ in range(5):
        started = time.perf_counter()
        multiply(trial)
        durations.append((time.perf_counter() - started) / trial)
    count = max(1, round(seconds / statistics.median(durations)))
    return lambda: multiply(count)


def _measure(
    name: str, device: Device, scalar: torch.Tensor, stream: TextIO, options: argparse.Namespace
) -> Iterator[Row]:
    work = matrix_products(options.work_ms / 1000)
    alone(device, scalar, stream, 1000)  # whatever is touched for the first time
    names = (*LIMITED, "difference", "batch alone", "batch behind work")
    figures: dict[str, list[float]] = {figure: [] for figure in names}
    for _ in tqdm(range(options.repetitions), name, disable=None):
        values = (
            alone(device, scalar, stream, options.calls),
            *behind_work(device, scalar, stream, options.pairs, work),
            batch_alone(device, options.calls),
            batch_behind_work(device, options.pairs, work),
        )
        for figure, value in zip(figures, values, strict=True):
            figures[figure].append(value)
    for figure, repeated in figures.items():
        yield name, figure, repeated


def _machine() -> str:
    names = [platform.machine(), f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    names.append(f"torch {torch.__version__}")
    if torch.cuda.is_available():
        names.append(torch.cuda.get_device_name())
    return ", ".join(names)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.recorder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--calls", type=int, default=20_000, help="end_step calls with nothing between (default: %(default)s)"
    )
    parser.add_argument(
        "--pairs", type=int, default=100, help="pairs of steps with and without it (default: %(default)s)"
    )
    parser.add_argument("--work-ms", type=float, default=10, help="work of a step, ms (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=11, help="of each figure (default: %(default)s)")
    options = parser.parse_args(argv)
    if min(options.calls, options.pairs, options.repetitions) < 1 or not options.work_ms > 0:
        parser.error("every number must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(run(main))
