"""The content of a probe's file: everything that is measured, in order, each with its part of the time."""

from __future__ import annotations

import os
import platform as python_platform
import sys
from collections.abc import Callable
from typing import Any

import torch

from train.job.job import utc_now
from train.machine import conditions
from train.machine.planned_gpus import threads_of_a_rank
from train.probing import bandwidth, collectives, rates, report, timing
from utils.hardware.detect import gpu_info
from utils.hardware.devices import find_device
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
            reasons[name] = timing.reason(error)
            return {}
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()

    products: dict[str, Any] = {}
    for name in probe_file.PRECISIONS:
        products |= part(name, 1, lambda name=name: rates.rate(device, name, seconds))  # type: ignore[misc]
    moved: dict[str, Any] = {}
    for name in bandwidth.ARRAYS:
        moved |= part(name, BANDWIDTH, lambda name=name: bandwidth.measure(device, name, BANDWIDTH * seconds))  # type: ignore[misc]
    scores = part("attention", ATTENTION, lambda: rates.attention(device, ATTENTION * seconds))
    sent = part("collectives", COLLECTIVES, lambda: _collectives(config, COLLECTIVES * seconds))
    info = gpu_info(platform, 1, torch)
    known = find_device(str(info["device_name"]), info["total_memory_gb"], info["gpu_cores"])  # type: ignore[arg-type]
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
    findings = report.impossible(content, known)
    return content | {"findings": findings, "finished_utc": utc_now(), "reasons": reasons}


def _collectives(config: RunConfig, seconds: float) -> list[dict[str, Any]]:
    """Return the rows between the ranks of torchrun, or of a job's ranks on this machine with a job's threads."""
    if collectives.world()[1] > 1:
        return collectives.in_this_world(config.platform, seconds)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(asked) if asked.isdecimal() and int(asked) else threads_of_a_rank(config)
    return collectives.on_this_machine(
        config.platform, config.ranks_per_node, seconds, threads if config.platform == "cpu" else None
    )
