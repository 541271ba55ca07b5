"""The content of a probe's file, measured in order, each part with its share of the time, and its text for a person."""

from __future__ import annotations

import os
import platform as python_platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from train.job.job import utc_now
from train.machine import conditions
from train.machine.gpus import threads_of_a_rank
from train.probing import collectives, rates
from utils.hardware.detect import gpu_info
from utils.hardware.devices import Device, find_device
from utils.provenance.origin import speed_variables
from utils.results import probe_file
from utils.settings.config import RunConfig

BANDWIDTH, COLLECTIVES, ATTENTION = 0.3, 3.0, 0.3
"""Seconds of each part over the seconds of a precision's rate."""


def measure(platform: str, seconds: float, config: RunConfig, before: conditions.Snapshot) -> dict[str, Any]:
    """Return the content of the file: rates of every precision for `seconds` each, and the other parts in proportion.

    `before` is the state of the machine before the measurement. With several processes of torchrun, number 0 calls it.
    """
    started, device = utc_now(), torch.device("cpu" if platform == "cpu" else "cuda:0")
    reasons: dict[str, str] = {}

    def part(name: str, share: float, function: Callable[[], Any]) -> dict[str, Any]:
        """Return a measurement by its name; an empty map, and the reason among `reasons`, if it cannot be made."""
        print(f"{name}: about {share * seconds:.0f} s", file=sys.stderr, flush=True)
        try:
            return {name: function()}
        except (RuntimeError, AttributeError) as error:  # device or torch does not support it
            reasons[name] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            return {}
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()

    products: dict[str, Any] = {}
    for name in probe_file.PRECISIONS:
        products |= part(name, 1, lambda name=name: rates.rate(device, name, seconds))  # type: ignore[misc]
    moved: dict[str, Any] = {}
    for name in rates.ARRAYS:
        moved |= part(name, BANDWIDTH, lambda name=name: rates.bandwidth(device, name, BANDWIDTH * seconds))  # type: ignore[misc]
    scores = part("attention", ATTENTION, lambda: rates.attention(device, ATTENTION * seconds))
    sent = part("collectives", COLLECTIVES, lambda: _rows(config, COLLECTIVES * seconds))
    info = gpu_info(platform, 1, torch)
    known = find_device(str(info["device_name"]), info["total_memory_gb"], info["gpu_cores"])
    content = {
        "probe_version": probe_file.VERSION,
        "platform": platform,
        "host": python_platform.node(),
        **{key: info[key] for key in ("device_name", "total_memory_gb", "gpu_cores", "driver_version")},
        **{key: info[key] for key in ("software_stack", "software_version", "pytorch_version")},
        "threads": torch.get_num_threads() if platform == "cpu" else None,
        "environment": speed_variables(os.environ),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "started_utc": started,
        "rates": products,
        "attention": scores.get("attention"),
        "bandwidth": moved,
        "collectives": sent.get("collectives", []),
        "conditions": conditions.section(before, conditions.take_snapshot(platform, is_before=False)),
    }
    findings = impossible(content, known)
    return content | {"findings": findings, "finished_utc": utc_now(), "reasons": reasons}


def _rows(config: RunConfig, seconds: float) -> list[dict[str, Any]]:
    """Return the rows between the ranks of torchrun, or of a job's ranks on this machine with a job's threads."""
    if collectives.world()[1] > 1:
        return collectives.in_this_world(config.platform, seconds)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(asked) if asked.isdecimal() and int(asked) else threads_of_a_rank(config)
    return collectives.on_this_machine(
        config.platform, config.ranks_per_node, seconds, threads if config.platform == "cpu" else None
    )


MOST_COLLECTIVES = 12
TOLERANCE = 1.02
"""A device may run this much above the clock of its datasheet."""


def as_text(content: Mapping[str, Any]) -> str:
    """Return the lines of a probe's content (utils/results/probe_file.py)."""
    lines = [*_rates(content), *_collectives(content)]
    return "\n".join([*lines, *(f"finding: {line}" for line in content["findings"])]) + "\n"


def impossible(content: Mapping[str, Any], device: Device | None) -> list[str]:
    """Return a sentence for each figure above the datasheet of a known device: such a measurement is wrong."""
    if device is None:
        return []
    found = []
    for precision, rate in content["rates"].items():
        peak = getattr(device, f"dense_{precision}_tflops", None)  # of fp32 none is kept
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


def _rates(content: Mapping[str, Any]) -> Iterator[str]:
    for precision, rate in content["rates"].items():
        yield (
            f"{precision}: best {rate['best_tflops']:g}, sustained {rate['sustained_tflops']:g} TFLOP/s, spread "
            f"{rate['spread_percent']:g} % ({content['device_name']})"
        )
    if one := content["attention"]:
        yield f"attention: {one['tflops']:g} TFLOP/s, +-{one['spread_percent']:g} %, causal, bf16, forward"
    for name, one in content["bandwidth"].items():
        yield (
            f"{name.replace('_', ' ')}: {one['gb_per_second']:g} GB/s, +-{one['spread_percent']:g} % "
            f"({one['gb']:g} GB a pass)"
        )


def _collectives(content: Mapping[str, Any]) -> Iterator[str]:
    rows: Sequence[Mapping[str, Any]] = content["collectives"]
    for one in rows[:MOST_COLLECTIVES]:
        where = f"{one['ranks']} ranks on {one['nodes']} node{'s' if one['nodes'] > 1 else ''}"
        time = f"{one['seconds']:.4g} s" if one["seconds"] >= 1 else f"{1e3 * one['seconds']:.4g} ms"
        yield (
            f"{one['name'].replace('_', '-')} of {one['bytes'] / 1e6:,.1f} MB, {where}: {time}, bus "
            f"{one['bus_gb_per_second']:g} GB/s"
        )
    if len(rows) > MOST_COLLECTIVES:
        yield f"and {len(rows) - MOST_COLLECTIVES} other collectives"
