"""The time that the sampler of energy takes from a step: steps on all cores with it and without it, in turn.

The sampler is the real one, as a process of its own, and reads the stand-ins of tests/support/smi_libraries below the
real zeus, so that the time of the drivers is not in it. It is stopped (SIGSTOP) for the steps without it, so that each
pair has both kinds on one machine state; the order alternates. Two figures:

- cores: processor time of the sampler by second, in percent of one core and of the machine.
- step: median of the pairs' relative differences, with the 95 % interval of the median, in percent.

The limit is 0.5 % of a step, for the share of the machine. Exits 1 above it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import torch
from tqdm import tqdm

from benchmarks.recorder import matrix_products
from train.energy import sample_file
from utils.arguments import Parser, run
from utils.settings.config import ROOT

LIBRARIES = ROOT / "tests" / "support" / "smi_libraries"
LIMIT_PERCENT = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print both figures, and return 1 if the sampler takes more than the limit."""
    options = _arguments(argv)
    work = matrix_products(options.step_ms / 1000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "samples.jsonl")
        sampler = _start(options.gpus, path)
        try:
            differences, used = _measure(psutil.Process(sampler.pid), work, options)
        finally:
            sampler.send_signal(signal.SIGCONT)
            sampler.terminate()
            sampler.wait()
        samples = sample_file.read(path)
    if len(samples.header["gpus"]) != options.gpus:
        print(f"error: the sampler reads no GPU: {samples.why.get('gpus')}", file=sys.stderr)
        return 1
    low, high = _interval(differences)
    share = used / (os.cpu_count() or 1)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    )
    print(f"{options.gpus} GPUs, {options.pairs} pairs of {options.steps} steps of {options.step_ms:g} ms")
    print(f"cores: {used:.3f} % of one core, {share:.3f} % of the machine")
    print(f"step:  {statistics.median(differences):+.3f} % (95 %: {low:+.3f} to {high:+.3f})")
    print(f"{'over' if share > LIMIT_PERCENT else 'within'} the limit of {LIMIT_PERCENT:g} %")
    return int(share > LIMIT_PERCENT)


def _start(gpus: int, path: Path) -> subprocess.Popen[bytes]:
    boards = [{"bus_id": f"0000:{16 + number:02x}:00.0", "watts": 500.0} for number in range(gpus)]
    environment = {**os.environ, "CUDA_STAND_IN_BOARDS": json.dumps(boards)}
    environment["PYTHONPATH"] = os.pathsep.join([str(LIBRARIES), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "train.energy.sampler", "--platform", "nvd", "--gpus", str(gpus), "--node", "0"]
    sampler = subprocess.Popen([*command, "--output", str(path)], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    assert sampler.stdout is not None
    sampler.stdout.readline()
    return sampler


def _measure(
    sampler: psutil.Process, work: Callable[[], None], options: argparse.Namespace
) -> tuple[list[float], float]:
    """Return the relative differences of the pairs and the sampler's share of one core, both in percent."""
    differences, seconds, used = [], 0.0, 0.0
    for pair in tqdm(range(options.pairs), disable=None):
        lasted = {}
        for is_sampled in (True, False) if pair % 2 else (False, True):
            sampler.send_signal(signal.SIGCONT if is_sampled else signal.SIGSTOP)
            work()  # caches and clocks
            before, started = sum(sampler.cpu_times()[:2]), time.perf_counter()
            for _ in range(options.steps):
                work()
            lasted[is_sampled] = time.perf_counter() - started
            if is_sampled:
                seconds += lasted[True]
                used += sum(sampler.cpu_times()[:2]) - before
        differences.append(100 * (lasted[True] - lasted[False]) / lasted[False])
    return differences, 100 * used / seconds


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by order statistics (normal approximation of the binomial)."""
    ordered, half = sorted(values), 0.98 * len(values) ** 0.5
    middle = len(values) / 2
    return ordered[max(0, int(middle - half))], ordered[min(len(values) - 1, int(middle + half))]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.energy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=8, help="GPUs that are sampled (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of blocks of steps (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps of a block (default: %(default)s)")
    parser.add_argument("--step-ms", type=float, default=100, help="work of a step, ms (default: %(default)s)")
    options = parser.parse_args(argv)
    if min(options.gpus, options.pairs, options.steps) < 1 or not options.step_ms > 0:
        parser.error("every number must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(run(main))
