"""Matrix-multiply rates of a device: square matrices of several sizes, the fastest one held for half of the time.

Also the median of samples with its 95 % interval by order statistics, which assumes no distribution.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

SIZES = {"cpu": (512, 1024, 2048), "gpu": (4096, 8192, 16384)}
"""Edges of square matrices: large enough to fill the compute units, the largest to be limited by them alone."""
LLAMA_8B = (8192, 14336, 4096)
"""m, n, k of the widest linear layer of Llama 3.1 8B for 8,192 tokens, on GPUs."""
ROUND_SECONDS = 0.05
"""Duration of a round of products in a row, long enough that waiting for the device does not count."""
LEAST_ROUNDS = 4
DIGITS = 4
Multiply = Callable[[], Any]
CONFIDENCE_PERCENT = 95
LEAST_SAMPLES = 6
"""Fewest samples whose range is a 95 % interval of the median: 1 - 2 / 2**6 = 96.9 %; of five it is 93.8 %."""


def rate(device: torch.device, precision: str, seconds: float) -> dict[str, Any]:
    """Return the rates of a precision: find the fastest shape in half of the time, measure it in the other half.

    Raises RuntimeError or AttributeError where device or torch do not support the precision.
    """
    shapes = [(edge, edge, edge) for edge in SIZES["cpu" if device.type == "cpu" else "gpu"]]
    shapes += [] if device.type == "cpu" else [LLAMA_8B]
    tried: dict[tuple[int, int, int], list[float]] = {}
    for shape in shapes:
        tried[shape] = rounds(multiplication(shape, device, precision), shape, device, seconds / 2 / len(shapes))
    fastest = max(tried, key=lambda shape: statistics.median(tried[shape]))
    held = rounds(multiplication(fastest, device, precision), fastest, device, seconds / 2)
    warm = held[len(held) // 2 :]
    mean = statistics.fmean(warm)
    return {
        "best_tflops": short(max(rate for found in (held, *tried.values()) for rate in found)),
        "sustained_tflops": short(mean),
        "spread_percent": round(100 * statistics.pstdev(warm) / mean, 2),
        "shape": list(fastest),
        "rounds": [short(rate) for rate in held],
        "tried": [{"shape": list(shape), "tflops": [short(rate) for rate in found]} for shape, found in tried.items()],
    }


def short(value: float) -> float:
    """Return a number with DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


def multiplication(shape: Sequence[int], device: torch.device, precision: str) -> Multiply:
    """Return a function that multiplies two random matrices, which are made once, in the library's fastest layout."""
    m, n, k = shape
    left, right = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    if precision == "fp8":
        kind = _fp8_type(device)
        one = torch.ones((), device=device)
        a, b = left.to(kind), right.to(kind).t()
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    a, b = left.to(dtype), right.to(dtype).t()
    return lambda: a @ b


def _fp8_type(device: torch.device) -> torch.dtype:
    """Return the fp8 type of the device: fnuz on CDNA 3 (gfx94x), OCP on all others."""
    if device.type == "cpu":
        raise NotImplementedError("a CPU has no fp8 matrix multiply here")
    name = getattr(torch.cuda.get_device_properties(device), "gcnArchName", "")
    return torch.float8_e4m3fnuz if name.startswith("gfx94") else torch.float8_e4m3fn


def rounds(multiply: Multiply, shape: Sequence[int], device: torch.device, seconds: float) -> list[float]:
    """Return the TFLOP/s of each round, at least LEAST_ROUNDS, after uncounted warm-up products."""
    flops = 2.0 * shape[0] * shape[1] * shape[2]
    timed(multiply, 2, device)
    count = max(1, round(ROUND_SECONDS / timed(multiply, 1, device)))
    found: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(found) < LEAST_ROUNDS or time.perf_counter() < deadline:
        found.append(count * flops / timed(multiply, count, device) / 1e12)
    return found


def timed(multiply: Multiply, count: int, device: torch.device) -> float:
    """Return the seconds that `count` products take, until the device has finished."""
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        multiply()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Median:
    """Median of seconds, and the interval that holds the true median with at least 95 %."""

    seconds: float
    low: float
    high: float

    @property
    def spread_percent(self) -> float:
        """Half width of the interval in percent of the median."""
        return 100 * (self.high - self.low) / 2 / self.seconds


def median(samples: Sequence[float]) -> Median:
    """Return the median of at least one sample; of fewer than LEAST_SAMPLES the interval is the range.

    The number of samples below the true median is binomial with p = 1/2, so the k-th smallest and k-th largest sample
    enclose it with probability 1 - 2 P(B < k). Source: David and Nagaraja, Order Statistics, 3rd edition, 2003, 7.1;
    for measured times Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, theorem 2.1.
    """
    ordered = sorted(samples)
    k = order(len(ordered))
    return Median(statistics.median(ordered), ordered[k - 1], ordered[-k])


def order(count: int) -> int:
    """Return the largest k, from 1, whose interval between k-th smallest and k-th largest sample has 95 %."""
    below, cases, k = 0, 1, 0  # of 2**count equally likely cases, those with fewer than k + 1 samples below the median
    while True:
        below += cases
        if 200 * below > (100 - CONFIDENCE_PERCENT) * 2**count or k + 1 > count // 2:
            return max(1, k)
        cases = cases * (count - k) // (k + 1)
        k += 1
