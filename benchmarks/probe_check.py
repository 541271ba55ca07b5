"""The probe's rates against an independent measurement of the same machine: NumPy's products, and STREAM in C.

    python -m benchmarks.probe_check [--rounds 15] [--edge 2048] [--limit 5] [--cpu-time]

Each pair does the same work, in turns, round after round, so that other work on the machine meets both alike; the
median of the ratios of all rounds is judged. A pause and one call that does not count precede each timed call, because
the threads of a library wait busily for a while after their work and take the cores from those of the other. Products
run with all threads of NumPy's BLAS and of torch. Triad is a loop in C, compiled by `cc` with OpenMP and the number of
threads that torch has, against what train/probing/bandwidth.py times. All memory is torch's: NumPy's own has larger
pages (madvise), which are faster. The copy is printed and not judged: compilers and libraries write it in several ways,
with and without the cache. With --cpu-time the processor's time of one thread counts (set OMP_NUM_THREADS=1), which
other work changes less.
Exits 0 if every ratio that is judged is within the limit, 1 otherwise, 2 if there is no compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from train.probing import bandwidth, rates
from train.probing.place import Place
from utils.arguments import Parser, from_one, run

STREAM = """
#include <stddef.h>
void copy(float *restrict a, const float *restrict b, const float *restrict c, size_t n, int threads) {
  #pragma omp parallel for num_threads(threads)
  for (size_t i = 0; i < n; i++) a[i] = b[i];
}
void triad(float *restrict a, const float *restrict b, const float *restrict c, size_t n, int threads) {
  #pragma omp parallel for num_threads(threads)
  for (size_t i = 0; i < n; i++) a[i] = b[i] + 3.0f * c[i];
}
"""
ARRAYS = {"copy": 2, "triad": 3}
NOT_JUDGED = "copy"
PAUSE_SECONDS = 0.1
"""Pause before each call: OpenBLAS's threads wait busily for about 2**26 cycles after their work (THREAD_TIMEOUT in its
Makefile.rule), and would take the cores from torch's threads."""
Call = Callable[[], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each pair in turns and print both medians with their ratio."""
    options = _arguments(arguments)
    if shutil.which("cc") is None:
        print("error: no C compiler `cc` is installed; install one", file=sys.stderr)
        return 2
    place = Place(torch.device("cpu"))
    is_good = True
    for name, ours, theirs, work, unit in _pairs(options.edge, place):
        times = _in_turns(ours, theirs, options.rounds, time.thread_time if options.cpu_time else time.perf_counter)
        probe, other = (work / statistics.median(one) for one in times)
        # of each round the ratio, because other work on the machine meets both calls of a round alike
        apart = 100 * abs(statistics.median(one / two for one, two in zip(*times, strict=True)) - 1)
        is_good = is_good and (apart <= options.limit or name == NOT_JUDGED)
        print(f"{name:14} probe {probe:8.4g} {unit}, independent {other:8.4g} {unit}, {apart:.1f} % apart", flush=True)
    return 0 if is_good else 1


def _pairs(edge: int, place: Place) -> Sequence[tuple[str, Call, Call, float, str]]:
    """Return name, the probe's own function, the independent one, and the work of a call in the unit."""
    product = rates.multiplication((edge, edge, edge), place.device, "fp32")
    left, right = (torch.randn(edge, edge).numpy() for _ in range(2))
    found: list[tuple[str, Call, Call, float, str]] = [
        ("product", product, lambda: left @ right.T, 2 * edge**3 / 1e12, "TFLOP/s")
    ]
    size = bandwidth.array_bytes(place)
    library = _compiled()
    for name, arrays in ARRAYS.items():
        ours, _ = bandwidth._case(name, place, size)
        found.append((name, ours, _loop(library, name, size), arrays * size / 1e9, "GB/s"))
    return found


def _compiled() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "stream.c", Path(folder) / "stream.so"
        source.write_text(STREAM)
        # without the last one, gcc makes memcpy of the copy, which may write past the cache
        flags = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-fno-tree-loop-distribute-patterns")
        subprocess.run(["cc", *flags, str(source), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))


def _loop(library: ctypes.CDLL, name: str, size: int) -> Call:
    arrays = [torch.full((size // 4,), 1.5) for _ in range(3)]
    pointers = [ctypes.c_void_p(one.data_ptr()) for one in arrays]
    function, count = getattr(library, name), ctypes.c_size_t(size // 4)

    def call(kept: list[Any] = arrays) -> None:
        function(*pointers, count, torch.get_num_threads())

    return call


def _in_turns(ours: Call, theirs: Call, rounds: int, clock: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Return the seconds of each call of both, which take turns; the first two of each do not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        pairs = list(zip((ours, theirs), times, strict=True))
        for function, seconds in pairs if number % 2 else pairs[::-1]:
            time.sleep(PAUSE_SECONDS)
            function()  # wakes its own threads
            start = clock()
            function()
            if number > 1:
                seconds.append(clock() - start)
    return times


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.probe_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=from_one, default=15, help="calls of each (default: %(default)s)")
    parser.add_argument("--edge", type=from_one, default=2048, help="edge of the matrices (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=5.0, help="most percent apart (default: %(default)s)")
    parser.add_argument("--cpu-time", action="store_true", help="count the processor's time of one thread")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run(main))
