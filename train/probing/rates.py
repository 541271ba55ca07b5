"""Rates of a device: matrix products and attention in TFLOP/s, memory bandwidth in GB/s.

A call is timed by torch.utils.benchmark, which waits for the device around each block of calls. A block is long enough
that this wait is at most 1e-4 of it (torch/utils/benchmark/utils/timer.py, blocked_autorange). Of matrix products, the
fastest shape is held for half of the time.

Bytes are counted as STREAM counts them: a copy a[i] = b[i] moves two arrays, a triad a[i] = b[i] + q c[i] three; what a
cache reads before it writes is not counted. Each array has at least four times the size of the last-level cache.
Source: McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", IEEE TCCA Newsletter,
December 1995, and the run rules of https://www.cs.virginia.edu/stream/.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.benchmark import Timer

LEAST_BLOCKS = 6
DIGITS = 4


def measured(function: Callable[[], Any], seconds: float) -> list[float]:
    """Return the seconds of a call in each block, LEAST_BLOCKS or more, after some that do not count."""
    timer = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
    times: list[float] = []
    # quartiles of fewer blocks have no meaning
    while len(times) < LEAST_BLOCKS:
        times += timer.blocked_autorange(min_run_time=seconds).times
    return times


def spread_percent(times: Sequence[float]) -> float:
    """Return half of the range of the middle half of the times, in percent of their median."""
    low, middle, high = statistics.quantiles(times)
    return round(50 * (high - low) / middle, 2)


def short(value: float) -> float:
    """Return a number with DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


SIZES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192, 16384)}
"""Edges of square matrices: large enough to fill the compute units, the largest to be limited by them alone."""
LLAMA_8B = (8192, 14336, 4096)
"""m, n, k of the widest linear layer of Llama 3.1 8B for 8,192 tokens, on GPUs."""
ATTENTION = {"cpu": (1, 8, 512, 64), "cuda": (1, 32, 8192, 128)}
"""Batch, heads, tokens and width of the attention that is measured: on a GPU that of Llama 3.1 8B at 8,192 tokens."""


def rate(device: torch.device, precision: str, seconds: float) -> dict[str, Any]:
    """Return the rates of a precision: find the fastest shape in half of the time, measure it in the other half.

    Raises RuntimeError or AttributeError where device or torch do not support the precision.
    """
    shapes = [(edge, edge, edge) for edge in SIZES[device.type]]
    if device.type == "cuda":
        shapes.append(LLAMA_8B)
    tried = {shape: rounds(device, precision, shape, seconds / 2 / len(shapes)) for shape in shapes}
    fastest = max(tried, key=lambda shape: statistics.median(tried[shape]))
    held = rounds(device, precision, fastest, seconds / 2)
    # clocks fall while a device warms up, so only the second half is its sustained rate
    warm = held[len(held) // 2 :]
    mean = statistics.fmean(warm)
    best = max(max(blocks) for blocks in [held, *tried.values()])
    return {
        "best_tflops": short(best),
        "sustained_tflops": short(mean),
        "spread_percent": round(100 * statistics.pstdev(warm) / mean, 2),
        "shape": list(fastest),
        "rounds": [short(rate) for rate in held],
        "tried": [{"shape": list(shape), "tflops": [short(rate) for rate in found]} for shape, found in tried.items()],
    }


def rounds(device: torch.device, precision: str, shape: Sequence[int], seconds: float) -> list[float]:
    """Return the TFLOP/s of each block of products of the shape m, n, k."""
    m, n, k = shape
    return [2e-12 * m * n * k / time for time in measured(multiplication(shape, device, precision), seconds)]


def multiplication(shape: Sequence[int], device: torch.device, precision: str) -> Callable[[], torch.Tensor]:
    """Return a function that multiplies two random matrices, which are made once, in the library's fastest layout."""
    m, n, k = shape
    left, right = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    if precision != "fp8":
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
        a, b = left.to(dtype), right.to(dtype).t()
        return lambda: a @ b
    if device.type == "cpu":
        raise NotImplementedError("a CPU has no fp8 matrix multiply here")
    is_cdna3 = getattr(torch.cuda.get_device_properties(device), "gcnArchName", "").startswith("gfx94")
    kind = torch.float8_e4m3fnuz if is_cdna3 else torch.float8_e4m3fn  # fnuz on CDNA 3, OCP on all others
    scale = torch.ones((), device=device)
    a, b = left.to(kind), right.to(kind).t()
    return lambda: torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def attention(device: torch.device, seconds: float) -> dict[str, Any]:
    """Return the rate of causal attention in bf16, forward; it counts half of its two products."""
    batch, heads, tokens, width = shape = ATTENTION[device.type]
    query, key, value = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    times = measured(lambda: scaled_dot_product_attention(query, key, value, is_causal=True), seconds)
    # two products of 2 x tokens^2 x width, of which a causal mask needs half
    flops = 2.0 * batch * heads * tokens * tokens * width
    rate = flops / statistics.median(times) / 1e12
    return {"tflops": short(rate), "spread_percent": spread_percent(times), "shape": list(shape)}


COPY, TRIAD, HOST_TO_DEVICE = "copy", "triad", "host_to_device"
ARRAYS = {COPY: 2, TRIAD: 3, HOST_TO_DEVICE: 1}
"""Arrays that each of them moves."""
BYTES = {"cpu": 4 * 2**30, "cuda": 2**30}
"""Four times the largest last-level cache: 1 GiB of two AMD EPYC 9755, 256 MiB of CDNA 3 and 4 ("Infinity Cache", AMD
CDNA 3 white paper, 2023; the L2 of NVIDIA's GPUs is smaller)."""
HOST_BYTES = 2**28
SCALAR = 3.0


def bandwidth(device: torch.device, name: str, seconds: float) -> dict[str, float]:
    """Return gb_per_second, its spread_percent, and the bytes of one pass in GB; raise RuntimeError if impossible."""
    run, size = _case(device, name)
    times, moved = measured(run, seconds), ARRAYS[name] * size
    return {
        "gb_per_second": short(moved / statistics.median(times) / 1e9),
        "spread_percent": spread_percent(times),
        "gb": short(moved / 1e9),
    }


def array_bytes(device: torch.device) -> int:
    """Return the size of one array: BYTES, and three of them within half of the free memory."""
    is_cpu = device.type == "cpu"
    free = psutil.virtual_memory().available if is_cpu else torch.cuda.mem_get_info(device)[0]
    return int(min(BYTES[device.type], free / 6)) // 8 * 8


def _case(device: torch.device, name: str) -> tuple[Callable[[], Any], int]:
    """Return what is timed, and the bytes of one array."""
    if name == HOST_TO_DEVICE:
        if device.type == "cpu":
            raise NotImplementedError("the device of the cpu platform is the host")
        # a copy from memory that may be paged out goes through a buffer of the driver
        source = torch.ones(HOST_BYTES // 4).pin_memory()
        target = torch.empty_like(source, device=device)
        return lambda: target.copy_(source, non_blocking=True), HOST_BYTES
    size = array_bytes(device)
    a, b, c = (torch.full((size // 4,), 1.5, device=device) for _ in range(3))
    if name == COPY:
        return lambda: a.copy_(b), size
    return lambda: torch.add(b, c, alpha=SCALAR, out=a), size
