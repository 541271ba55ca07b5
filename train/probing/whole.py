"""A probe: everything that is measured, in order, each with its part of the time; its content as a file and as text."""

from __future__ import annotations

import os
import platform as python_platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tqdm import tqdm

from train.job.job import utc_now
from train.machine import conditions
from train.machine.planned_gpus import threads_of_a_rank
from train.probing import bandwidth, collectives, loading, rates
from train.probing.place import Place, first_gpu_or_cpu
from utils.hardware.detect import gpu_info
from utils.hardware.devices import Device, find_device
from utils.provenance.origin import speed_variables
from utils.results import probe_file
from utils.settings.config import RunConfig

BANDWIDTH, COLLECTIVES, LOADER = 0.3, 3.0, 0.2
"""Seconds of each part over the seconds of a precision's rate."""
LEAST_LOADER_SECONDS = 0.2
CAPS = ("power_cap_watts", "clock_limit_mhz", "max_sm_clock_mhz", "max_memory_clock_mhz", "performance_level")
"""Conditions that a result must share with a probe, by their names in the result's section."""
VERSIONS = ("driver_version", "software_version", "pytorch_version")
MOST_COLLECTIVES = 12
TOLERANCE = 1.02
"""A device may run this much above the clock of its datasheet."""
PEAKS = {"bf16": "dense_bf16_tflops", "fp8": "dense_fp8_tflops"}


def measure(platform: str, seconds: float, config: RunConfig, before: conditions.Snapshot) -> dict[str, Any]:
    """Return the content of the file: rates of every precision for `seconds` each, and the other parts in proportion.

    `before` is the state of the machine before the measurement. With several processes of torchrun, number 0 calls it.
    """
    started, device = utc_now(), first_gpu_or_cpu(platform)
    place = Place(device)
    found, reasons = _rates(device, seconds)
    moved, missing = bandwidth.measure(place, BANDWIDTH * seconds)
    reasons |= missing
    sent, loaded = _collectives(config, seconds, reasons), _loader(config, seconds, reasons)
    info = gpu_info(platform, 1, torch)
    section = conditions.section(before, conditions.take_snapshot(platform, is_before=False))
    threads = torch.get_num_threads() if platform == "cpu" else None
    content = {
        "probe_version": probe_file.VERSION,
        "platform": platform,
        "host": python_platform.node(),
        **{key: info[key] for key in ("device_name", "total_memory_gb", "gpu_cores", "driver_version")},
        **{key: info[key] for key in ("software_stack", "software_version", "pytorch_version")},
        "threads": threads,
        "environment": speed_variables(os.environ),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "started_utc": started,
        "rates": found,
        "bandwidth": moved,
        "collectives": sent,
        "loader_samples_per_second": loaded,
        "machine": {key: info[key] for key in VERSIONS}
        | {key: section[key] for key in (*CAPS, "cpu_governor")}
        | {"threads": threads},
        "conditions": section,
    }
    known = find_device(str(info["device_name"]), info["total_memory_gb"], info["gpu_cores"])  # type: ignore[arg-type]
    content["findings"] = impossible(content, known)
    return content | {"finished_utc": utc_now(), "reasons": reasons}


def _rates(device: torch.device, seconds: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the rates of every precision, and the reasons of those that the device lacks."""
    found: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    with _progress("matrix products", seconds * len(probe_file.PRECISIONS)) as advance:
        for precision in probe_file.PRECISIONS:
            try:
                found[precision] = rates.rate(device, precision, seconds)
            except (RuntimeError, AttributeError) as error:  # device or torch does not support it
                reasons[precision] = str(error).strip().splitlines()[0][:200] or type(error).__name__
            advance(seconds)
    return found, reasons


def _collectives(config: RunConfig, seconds: float, reasons: dict[str, str]) -> list[dict[str, Any]]:
    _, ranks = collectives.world()
    sizes = collectives.SIZES["cpu" if config.platform == "cpu" else "cuda"]
    try:
        with _progress("collectives", COLLECTIVES * seconds):
            if ranks > 1:
                return collectives.in_this_world(config.platform, sizes, COLLECTIVES * seconds)
            return collectives.on_this_machine(
                config.platform, config.ranks_per_node, sizes, COLLECTIVES * seconds, _threads(config)
            )
    except (collectives.CollectiveError, RuntimeError) as error:
        reasons["collectives"] = str(error).splitlines()[0][:200]
        return []


def _threads(config: RunConfig) -> int | None:
    """Return the threads of a rank on a CPU as train/launch.py sets them, None on a GPU."""
    if config.platform != "cpu":
        return None
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else threads_of_a_rank(config)


def _loader(config: RunConfig, seconds: float, reasons: dict[str, str]) -> float | None:
    try:
        found = loading.samples_per_second(config, config.models[0], max(LEAST_LOADER_SECONDS, LOADER * seconds))
        return rates.short(found)
    except loading.LoaderError as error:
        reasons["loader_samples_per_second"] = str(error)
        return None


@contextmanager
def _progress(what: str, seconds: float) -> Iterator[Callable[[float], None]]:
    """Show a bar of seconds on a terminal, else one line, on stderr; yield the function that advances the bar."""
    if not sys.stderr.isatty():
        print(f"{what}: about {seconds:.0f} s", file=sys.stderr)
        yield lambda _: None
        return
    with tqdm(total=round(seconds, 1), desc=what, unit="s", bar_format="{l_bar}{bar}| {n:.0f}/{total:.0f} s") as bar:

        def advance(taken: float) -> None:
            bar.update(min(taken, float(bar.total or 0) - bar.n))

        yield advance


def as_text(content: Mapping[str, Any]) -> str:
    """Return the lines of a probe's content (utils/results/probe_file.py)."""
    lines = [*_rate_lines(content), *_memory_lines(content), *_collective_lines(content)]
    return "\n".join([*lines, *(f"finding: {line}" for line in content["findings"])]) + "\n"


def impossible(content: Mapping[str, Any], device: Device | None) -> list[str]:
    """Return a sentence for each figure above the datasheet of a known device: such a measurement is wrong."""
    if device is None:
        return []
    found = []
    for precision, rate in content["rates"].items():
        peak = getattr(device, PEAKS[precision], None) if precision in PEAKS else None
        found.append((precision, rate["best_tflops"], peak, "TFLOP/s"))
    for name in ("copy", "triad"):
        if name in content["bandwidth"]:
            rate = content["bandwidth"][name]["gb_per_second"]
            found.append((name, rate, device.memory_bandwidth_gb_per_second, "GB/s"))
    return [
        f"impossible: {name}: {rate:g} {unit} are above the {limit:g} of the datasheet of {device.name}; measure again"
        for name, rate, limit, unit in found
        if limit and rate > TOLERANCE * limit
    ]


def _rate_lines(content: Mapping[str, Any]) -> Iterator[str]:
    for precision, rate in content["rates"].items():
        yield (
            f"{precision}: best {rate['best_tflops']:g}, sustained {rate['sustained_tflops']:g} TFLOP/s, spread "
            f"{rate['spread_percent']:g} % ({content['device_name']})"
        )


def _memory_lines(content: Mapping[str, Any]) -> Iterator[str]:
    for name, one in content["bandwidth"].items():
        yield (
            f"{name.replace('_', ' ')}: {one['gb_per_second']:g} GB/s, +-{one['spread_percent']:g} % "
            f"({one['gb']:g} GB a pass)"
        )
    if content["loader_samples_per_second"] is not None:
        yield f"data loader: {content['loader_samples_per_second']:,.0f} samples/s for one rank"


def _collective_lines(content: Mapping[str, Any]) -> Iterator[str]:
    rows: Sequence[Mapping[str, Any]] = content["collectives"]
    for one in rows[:MOST_COLLECTIVES]:
        where = f"{one['ranks']} ranks on {one['nodes']} node{'s' if one['nodes'] > 1 else ''}"
        yield (
            f"{one['name'].replace('_', '-')} of {one['bytes'] / 1e6:,.1f} MB, {where}: {_time(one['seconds'])}, bus "
            f"{one['bus_gb_per_second']:g} GB/s"
        )
    if len(rows) > MOST_COLLECTIVES:
        yield f"and {len(rows) - MOST_COLLECTIVES} other collectives"


def _time(seconds: float) -> str:
    return f"{seconds:.4g} s" if seconds >= 1 else f"{1e3 * seconds:.4g} ms"
