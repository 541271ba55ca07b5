"""Benchmark of reading a log on one core: MB per second of CPU time, and peak memory.

    python -m benchmarks.extract [--megabytes 500] [--repetitions 5]

It writes three logs in Primus's format: `usual` has an iteration line (printed twice) in every 200 lines, the rest is
output of other ranks; `talk` has one in 10,000 lines; `iterations` has iteration lines only. Every run is a process of
its own and reads the file from the page cache. CPU time is less affected by a shared machine than wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from utils.arguments import Parser, from_one, run
from utils.logs.reader import read_log

KINDS = {"usual": 200, "talk": 10_000, "iterations": 1}
MEMORY_MB = (10, 100)
"""Sizes of the smaller logs, which show whether memory grows with the size."""
PREFIX = "[20260511 02:18:01][rank-{rank}/8][DEBUG]    [---------------{file}] : "
TALK = (
    "fetching micro batch {n} of the global batch took 0.{n:06d} ms, queue depth 2, no rank is waiting",
    "NCCL INFO Channel {n:02d}/0 : 7[7] -> 0[0] via P2P/IPC/read, comm 0x55d0c8a1f{n:03d} nranks 8 busId c000",
    "overlap: bucket {n} of 128 is ready, 40000000 elements, data parallel group of 8 ranks",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    options = _arguments(argv)
    if options.run:
        _run(options.run)
        return 0
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; runs of each: ", end="")
    print(options.repetitions)
    print(f"{'log':12}{'MB':>6}{'iterations':>12}{'MB/s median':>13}{'min':>8}{'max':>8}{'peak MB':>9}")
    with tempfile.TemporaryDirectory(prefix="tprimat-extract-") as folder:
        path = Path(folder) / "big.log"
        for kind, every in KINDS.items():
            sizes = (*MEMORY_MB, options.megabytes) if kind == "usual" else (MEMORY_MB[1],)
            for megabytes in sizes:
                _write(path, every, megabytes * 1_000_000)
                runs = [_measure(path) for _ in range(options.repetitions)]
                speeds = [path.stat().st_size / 1e6 / run["seconds"] for run in runs]
                figures = f"{statistics.median(speeds):13.0f}{min(speeds):8.0f}{max(speeds):8.0f}"
                peak = max(run["peak_mb"] for run in runs)
                print(f"{kind:12}{megabytes:6}{runs[0]['steps']:12}{figures}{peak:9.0f}", flush=True)
    return 0


def _write(path: Path, every: int, size: int) -> None:
    written = 0
    with path.open("w", encoding="utf8") as file:
        for line in _lines(every):
            written += file.write(line)
            if written >= size:
                return


def _lines(every: int) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        for count in range(1, every):
            talk = TALK[count % len(TALK)].format(n=count % 1000)
            yield PREFIX.format(rank=count % 8, file="utils.py:101") + talk + "\n"
        line = _iteration(number)
        yield line
        yield line


def _iteration(number: int) -> str:
    seconds = 1 + number % 7 / 8
    return (
        PREFIX.format(rank=7, file="utils.py:425")
        + f"[2026-05-11 02:18:01.107542] iteration {number:8d}/99999999 | consumed samples: {32 * number:12d} | "
        f"elapsed time per iteration (ms): {1000 * seconds:.1f}/1400.0 | throughput per GPU (TFLOP/s/GPU): 447.1/447.1 "
        f" | tokens per GPU (tokens/s/GPU): {32768 / seconds:.1f}/25000.0 | learning rate: 9.755283E-06 | "
        "global batch size:    32 | lm loss: 1.178471E+01 | loss scale: 1.0 | grad norm: 3.811 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 | "
        "hip mem usage/free/total/usage_ratio: 94.71GB/193.27GB/287.98GB/32.89%\n"
    )


def _measure(path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.extract", "--run", str(path)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def _run(path: Path) -> None:
    started = time.process_time()
    run = read_log([path])
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak, "steps": len(run.steps)}))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.extract", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--megabytes", type=from_one, default=500, help="size of the largest log (default: %(default)s)"
    )
    parser.add_argument("--repetitions", type=from_one, default=5, help="runs of each (default: %(default)s)")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run(main))
