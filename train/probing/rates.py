"""Rates of a device in TFLOP/s: matrix products, of which the fastest shape is held for half of the time, attention."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from train.probing.timing import measured, short, spread_percent

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
    shapes = [(edge, edge, edge) for edge in SIZES[device.type]] + [LLAMA_8B] * (device.type == "cuda")
    tried = {shape: rounds(device, precision, shape, seconds / 2 / len(shapes)) for shape in shapes}
    fastest = max(tried, key=lambda shape: statistics.median(tried[shape]))
    held = rounds(device, precision, fastest, seconds / 2)
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
    one = torch.ones((), device=device)
    a, b = left.to(kind), right.to(kind).t()
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def attention(device: torch.device, seconds: float) -> dict[str, Any]:
    """Return the rate of causal attention in bf16, forward; it counts half of its two products."""
    batch, heads, tokens, width = shape = ATTENTION[device.type]
    query, key, value = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    times = measured(lambda: scaled_dot_product_attention(query, key, value, is_causal=True), seconds)
    flops = 2.0 * batch * heads * tokens * tokens * width
    rate = flops / statistics.median(times) / 1e12
    return {"tflops": short(rate), "spread_percent": spread_percent(times), "shape": list(shape)}
