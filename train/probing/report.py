"""The content of a probe's file, measured in order, each part with its share of the time, and its text for a person."""

from __future__ import annotations

import os
import platform as python_platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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

Content = Mapping[str, Any]
"""The content of a probe's file (utils/results/probe_file.py), or of one of its rows."""
BANDWIDTH, COLLECTIVES, ATTENTION = 0.3, 3.0, 0.3
"""Seconds of each part over the seconds of a precision's rate."""


def measure(platform: str, seconds: float, config: RunConfig, before: conditions.Snapshot) -> Content:
    """Return the content of the file: rates of every precision for `seconds` each, and the other parts in proportion.

    `before` is the state of the machine before the measurement. With several processes of torchrun, number 0 calls it.
    """
    # several GPUs are the same kind, and the first one stands for all
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
        # the next part must not find the memory taken
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()

    products: dict[str, Any] = {}
    for name in probe_file.PRECISIONS:
        products |= part(name, 1, partial(rates.rate, device, name, seconds))
    moved: dict[str, Any] = {}
    for name in rates.ARRAYS:
        moved |= part(name, BANDWIDTH, partial(rates.bandwidth, device, name, BANDWIDTH * seconds))
    scores = part("attention", ATTENTION, partial(rates.attention, device, ATTENTION * seconds))
    sent = part("collectives", COLLECTIVES, partial(_rows, config, COLLECTIVES * seconds))
    info = gpu_info(platform, 1, torch)
    known = find_device(str(info["device_name"]), info["total_memory_gb"], info["gpu_cores"])
    content = {
        "probe_version": probe_file.VERSION,
        "platform": platform,
        "host": python_platform.node(),
        **{key: info[key] for key in OF_DEVICE},
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
    # under torchrun the ranks are there already
    if collectives.world()[1] > 1:
        return collectives.in_this_world(config.platform, seconds)
    threads = None
    if config.platform == "cpu":
        asked = os.environ.get("OMP_NUM_THREADS", "")
        threads = int(asked) if asked.isdecimal() and int(asked) else threads_of_a_rank(config)
    return collectives.on_this_machine(config.platform, config.ranks_per_node, seconds, threads)


OF_DEVICE = (
    "device_name",
    "total_memory_gb",
    "gpu_cores",
    "driver_version",
    "software_stack",
    "software_version",
    "pytorch_version",
)
"""Keys of gpu_info that the file keeps."""
MOST_COLLECTIVES = 12
TOLERANCE = 1.02
"""A device may run this much above the clock of its datasheet."""


def as_text(content: Content) -> str:
    """Return the figures of a probe for a person."""
    findings = [f"finding: {line}" for line in content["findings"]]
    return "\n".join([*_rates(content), *_collectives(content), *findings]) + "\n"


def impossible(content: Content, device: Device | None) -> list[str]:
    """Return a sentence for each figure above the datasheet of a known device: such a measurement is wrong."""
    if device is None:
        return []
    limits = []
    for precision, rate in content["rates"].items():
        peak = getattr(device, f"dense_{precision}_tflops", None)  # of fp32 none is kept
        limits.append((precision, rate["best_tflops"], peak, "TFLOP/s"))
    for name in ("copy", "triad"):
        if name in content["bandwidth"]:
            rate = content["bandwidth"][name]["gb_per_second"]
            limits.append((name, rate, device.memory_bandwidth_gb_per_second, "GB/s"))
    findings = []
    for name, rate, limit, unit in limits:
        if limit and rate > TOLERANCE * limit:
            above = f"{rate:g} {unit} are above the {limit:g} of the datasheet of {device.name}"
            findings.append(f"impossible: {name}: {above}; measure again")
    return findings


def _rates(content: Content) -> Iterator[str]:
    for precision, rate in content["rates"].items():
        yield (
            f"{precision}: best {rate['best_tflops']:g}, sustained {rate['sustained_tflops']:g} TFLOP/s, spread "
            f"{rate['spread_percent']:g} % ({content['device_name']})"
        )
    attention = content["attention"]
    if attention:
        yield f"attention: {attention['tflops']:g} TFLOP/s, +-{attention['spread_percent']:g} %, causal, bf16, forward"
    for name, moved in content["bandwidth"].items():
        speed = f"{moved['gb_per_second']:g} GB/s, +-{moved['spread_percent']:g} %"
        yield f"{name.replace('_', ' ')}: {speed} ({moved['gb']:g} GB a pass)"


def _collectives(content: Content) -> Iterator[str]:
    rows: Sequence[Content] = content["collectives"]
    for row in rows[:MOST_COLLECTIVES]:
        where = f"{row['ranks']} ranks on {row['nodes']} node{'s' if row['nodes'] > 1 else ''}"
        time = f"{row['seconds']:.4g} s" if row["seconds"] >= 1 else f"{1e3 * row['seconds']:.4g} ms"
        size = f"{row['bytes'] / 1e6:,.1f} MB"
        yield f"{row['name'].replace('_', '-')} of {size}, {where}: {time}, bus {row['bus_gb_per_second']:g} GB/s"
    if len(rows) > MOST_COLLECTIVES:
        yield f"and {len(rows) - MOST_COLLECTIVES} other collectives"
