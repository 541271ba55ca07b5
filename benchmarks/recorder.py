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
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from tqdm import tqdm

from benchmarks.measure import columns, machine
from train.job.recorder import CpuDevice, CudaDevice, Device, StepRecorder
from utils.arguments import Parser, from_one, run

STEP_SECONDS = 0.1
LIMIT_PERCENT = 0.1
OPTIONS: dict[str, dict[str, Any]] = {
    "--calls": {
        "type": from_one,
        "default": 20_000,
        "help": "end_step calls with nothing between (default: %(default)s)",
    },
    "--pairs": {"type": from_one, "default": 100, "help": "pairs of steps with and without it (default: %(default)s)"},
    "--work-ms": {"type": float, "default": 10, "help": "work of a step, ms (default: %(default)s)"},
    "--repetitions": {"type": from_one, "default": 11, "help": "of each figure (default: %(default)s)"},
}
LIMITED = ("alone", "behind work")
MICRO = 1e6
MATRIX_SIZE = 256

Row = tuple[str, str, list[float]]
"""Device, figure, and its microseconds in each repetition."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return 1 where a median is over the limit."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = Parser(OPTIONS, prog="python -m benchmarks.recorder", description=__doc__, formatter_class=kind)
    options = parser.parse_args(argv)
    if not options.work_ms > 0:
        parser.error("--work-ms must be above 0")
    with Path(os.devnull).open("w", encoding="utf8") as stream:
        rows = list(_measure("CPU", CpuDevice(), torch.tensor(6.0), stream, options))
        if torch.cuda.is_available():
            rows += _measure("GPU", CudaDevice(), torch.tensor(6.0, device="cuda"), stream, options)
    limit = STEP_SECONDS * LIMIT_PERCENT / 100 * MICRO
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    print(f"{machine('torch')}{gpu}; {options.repetitions} repetitions; microseconds a step")
    print(f"{'device':8}{'figure':20}{'median':>10}{'min':>10}{'max':>10}   share of a step of {STEP_SECONDS:g} s")
    for name, figure, values in rows:
        share = statistics.median(values) / MICRO / STEP_SECONDS * 100
        print(f"{name:8}{figure:20}{columns(values, 10, 1)}   {share:.4f} %")
    is_over = any(statistics.median(values) > limit for _, figure, values in rows if figure in LIMITED)
    print(f"{'over' if is_over else 'within'} the limit of {limit:.0f} microseconds ({LIMIT_PERCENT} %)")
    return int(is_over)


def alone(call: Callable[[], object], calls: int) -> float:
    """Return the mean microseconds of one call with nothing between the calls."""
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls * MICRO


def behind_work(
    call: Callable[[], object], other: Callable[[], object], pairs: int, work: Callable[[], None]
) -> tuple[list[float], list[float], list[float]]:
    """Return, of `pairs` of steps, the seconds of `call` and of `other`, each behind `work`, and the difference of the
    whole steps; the order in a pair alternates."""
    costs: dict[bool, list[float]] = {True: [], False: []}
    steps: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs):
        for is_first in (True, False) if pair % 2 else (False, True):
            started = time.perf_counter()
            work()
            worked = time.perf_counter()
            (call if is_first else other)()
            ended = time.perf_counter()
            costs[is_first].append(ended - worked)
            steps[is_first].append(ended - started)
    differences = [one - another for one, another in zip(steps[True], steps[False], strict=True)]
    return costs[True], costs[False], differences


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
    def step(steps: int) -> Callable[[], None]:
        recorder = StepRecorder(steps, device=device, stream=stream)
        recorder.start()
        return lambda: recorder.end_step(loss=scalar, grad_norm=scalar, learning_rate=1e-3)

    def batch() -> Callable[[], None]:
        return partial(next, StepRecorder(1, device=device).timed(itertools.repeat(None)))

    work = matrix_products(options.work_ms / 1000)
    alone(step(1000), 1000)  # whatever is touched for the first time
    figures: dict[str, list[float]] = {}
    for _ in tqdm(range(options.repetitions), name, disable=None):
        costs, _, differences = behind_work(step(options.pairs), lambda: None, options.pairs, work)
        timed, plain, _ = behind_work(batch(), partial(next, itertools.repeat(None)), options.pairs, work)
        for figure, microseconds in (
            ("alone", alone(step(options.calls), options.calls)),
            ("behind work", statistics.median(costs) * MICRO),
            ("difference", statistics.median(differences) * MICRO),
            ("batch alone", alone(batch(), options.calls)),
            ("batch behind work", (statistics.median(timed) - statistics.median(plain)) * MICRO),
        ):
            figures.setdefault(figure, []).append(microseconds)
    for figure, repeated in figures.items():
        yield name, figure, repeated


if __name__ == "__main__":
    sys.exit(run(main))
