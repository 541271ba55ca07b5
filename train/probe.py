"""Measure the rate at which this device multiplies matrices, with torch alone, and write it to OUTPUT_DIR.

    python -m train.probe --platform cpu|nvd|amd [--seconds 10] [KEY=VALUE ...]

No training of the same precision can be faster on this device: evaluate/probe.py rejects a result above the rate, and
shows each result's share of it. The product of an (m, k) and a (k, n) matrix counts as 2 m n k floating-point
operations. Measure on the day of the runs and stop all other work before: a rate measured beside other work is invalid.
The file records power cap, clocks and temperatures. On the cpu platform the device is the whole machine, with all
threads that torch uses. With several GPUs, the first is measured. Exits 0; 1 if no rate could be measured or written, 2
for bad input.
"""

from __future__ import annotations

import argparse
import os
import platform as python_platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from train.job.job import utc_now
from train.machine import conditions
from train.preflight import job_checks
from utils.arguments import Parser, run
from utils.errors import ConfigError, ForeignFileError
from utils.hardware.detect import HardwareError, detect_platform, gpu_info
from utils.housekeeping import footprint
from utils.own_files import require_ours
from utils.results import probe_file, store
from utils.settings.config import PLATFORMS, folders, require_writable

SIZES = {"cpu": (512, 1024, 2048), "gpu": (4096, 8192, 16384)}
"""Edges of square matrices: large enough to fill the compute units, the largest to be limited by them alone."""
LLAMA_8B = (8192, 14336, 4096)
"""m, n, k of the widest linear layer of Llama 3.1 8B for 8,192 tokens, on GPUs."""
ROUND_SECONDS = 0.05
"""Duration of a round of products in a row, long enough that waiting for the device does not count."""
LEAST_ROUNDS = 4
DIGITS = 4
Multiply = Callable[[], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the file and print its rates."""
    options = _arguments(arguments)
    try:
        found = detect_platform({**os.environ, "PLATFORM": options.platform}, torch)
        output, _ = folders(found, arguments=options.settings)
        require_writable(output, "OUTPUT_DIR")
        path = output / probe_file.name(found, python_platform.node())
        require_ours(probe_file.is_probe, path)
        footprint.mark(output, footprint.OUTPUT)
        content = measure(found, options.seconds)
    except (ConfigError, HardwareError, ForeignFileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for precision, reason in content["reasons"].items():
        print(f"{precision}: not measured: {reason}", file=sys.stderr)
    if not content["rates"]:
        print("error: no rate could be measured", file=sys.stderr)
        return 1
    probe_file.parse(content, path)
    try:
        store.write_json(content, path, is_ours=probe_file.is_probe)
    except OSError as error:
        print(f"error: {path}: cannot be written: {error}; make room or name another OUTPUT_DIR", file=sys.stderr)
        return 1
    for precision, rate in content["rates"].items():
        print(
            f"{precision}: best {rate['best_tflops']:g}, sustained {rate['sustained_tflops']:g} TFLOP/s, spread "
            f"{rate['spread_percent']:g} % ({content['device_name']})"
        )
    print(path)
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m train.probe", description=__doc__.split("\n")[0])
    parser.add_argument("--platform", required=True, choices=PLATFORMS)
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=10.0,
        help="seconds for each precision (default: %(default)g)",
    )
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="e.g. OUTPUT_DIR=output")
    return parser.parse_intermixed_args(arguments)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"got {text}, wanted seconds above 0, up to 600")
    return value


def measure(platform: str, seconds: float) -> dict[str, Any]:
    """Return the content of the file, for every precision that the device has."""
    started, before = utc_now(), conditions.take_snapshot(platform)
    for line in job_checks.warnings(platform, before):
        print(f"warning: {line}", file=sys.stderr)
    device = torch.device("cpu" if platform == "cpu" else "cuda:0")
    rates: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for precision in probe_file.PRECISIONS:
        try:
            rates[precision] = _rate(platform, device, precision, seconds)
        except (RuntimeError, AttributeError) as error:  # device or torch does not support it
            reasons[precision] = str(error).strip().splitlines()[0][:200] or type(error).__name__
    info = gpu_info(platform, 1, torch)
    return {
        "probe_version": probe_file.VERSION,
        "platform": platform,
        "host": python_platform.node(),
        **{key: info[key] for key in ("device_name", "total_memory_gb", "gpu_cores", "driver_version")},
        **{key: info[key] for key in ("software_stack", "software_version", "pytorch_version")},
        "threads": torch.get_num_threads() if platform == "cpu" else None,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "started_utc": started,
        "finished_utc": utc_now(),
        "rates": rates,
        "conditions": conditions.section(before, conditions.take_snapshot(platform, is_before=False)),
        "reasons": reasons,
    }


def _rate(platform: str, device: torch.device, precision: str, seconds: float) -> dict[str, Any]:
    """Find the fastest shape in half of the time, and measure it in the other half."""
    shapes = [(edge, edge, edge) for edge in SIZES["cpu" if platform == "cpu" else "gpu"]]
    shapes += [] if platform == "cpu" else [LLAMA_8B]
    tried: dict[tuple[int, int, int], list[float]] = {}
    for shape in shapes:
        tried[shape] = _rounds(_multiplication(shape, device, precision), shape, device, seconds / 2 / len(shapes))
    fastest = max(tried, key=lambda shape: statistics.median(tried[shape]))
    held = _rounds(_multiplication(fastest, device, precision), fastest, device, seconds / 2)
    warm = held[len(held) // 2 :]
    mean = statistics.fmean(warm)
    return {
        "best_tflops": _short(max(rate for rounds in (held, *tried.values()) for rate in rounds)),
        "sustained_tflops": _short(mean),
        "spread_percent": round(100 * statistics.pstdev(warm) / mean, 2),
        "shape": list(fastest),
        "rounds": [_short(rate) for rate in held],
        "tried": [
            {"shape": list(shape), "tflops": [_short(rate) for rate in rounds]} for shape, rounds in tried.items()
        ],
    }


def _short(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}")


def _multiplication(shape: Sequence[int], device: torch.device, precision: str) -> Multiply:
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


def _rounds(multiply: Multiply, shape: Sequence[int], device: torch.device, seconds: float) -> list[float]:
    """Return the TFLOP/s of each round, at least LEAST_ROUNDS, after uncounted warm-up products."""
    flops = 2.0 * shape[0] * shape[1] * shape[2]
    _timed(multiply, 2, device)
    count = max(1, round(ROUND_SECONDS / _timed(multiply, 1, device)))
    found: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(found) < LEAST_ROUNDS or time.perf_counter() < deadline:
        found.append(count * flops / _timed(multiply, count, device) / 1e12)
    return found


def _timed(multiply: Multiply, count: int, device: torch.device) -> float:
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


if __name__ == "__main__":
    sys.exit(run(main))
