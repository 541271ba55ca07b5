"""The content of a probe's file: everything that is measured, in order, each with its part of the time."""

from __future__ import annotations

import os
import platform as python_platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from train.job.job import utc_now
from train.machine import conditions
from train.probing import bandwidth, collectives, findings, loading, operators, rates
from train.probing.jobs import Rehearsed
from train.probing.place import Place, first_gpu_or_cpu
from utils.hardware.detect import gpu_info
from utils.hardware.devices import find_device
from utils.provenance.origin import speed_variables
from utils.results import probe_file
from utils.settings.config import RunConfig

OPERATORS, BANDWIDTH, COLLECTIVES, LOADER = 14.0, 0.3, 3.0, 0.2
"""Seconds of each part over the seconds of a precision's rate."""
LEAST_LOADER_SECONDS = 0.2
CAPS = ("power_cap_watts", "clock_limit_mhz", "max_sm_clock_mhz", "max_memory_clock_mhz", "performance_level")
"""Conditions that a result must share with a probe, by their names in the result's section."""
VERSIONS = ("driver_version", "software_version", "pytorch_version")
NO_OPERATORS = "left out by --operators none"


@dataclass(frozen=True)
class Plan:
    """Jobs whose operators, collectives and loader a probe measures."""

    config: RunConfig | None
    """Settings of the jobs; None without operators."""
    pairs: Sequence[tuple[str, str]]
    """Framework and model of each job."""
    jobs: Sequence[Rehearsed]
    reasons: Mapping[str, str]
    """Reasons of jobs without a rehearsal."""


def measure(platform: str, seconds: float, plan: Plan, before: conditions.Snapshot) -> dict[str, Any]:
    """Return the content of the file: rates of every precision for `seconds` each, and the other parts in proportion.

    `before` is the state of the machine before the measurement. With several processes of torchrun, number 0 calls it.
    """
    started, device = utc_now(), first_gpu_or_cpu(platform)
    place = Place(device)
    found, reasons = _rates(device, seconds)
    moved, missing = bandwidth.measure(place, BANDWIDTH * seconds)
    reasons |= missing
    rows = _operators(plan, place, {name: one["best_tflops"] for name, one in found.items()}, moved, seconds, reasons)
    sent, loaded = _collectives(platform, plan, seconds, reasons), _loader(plan, seconds, reasons)
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
        **rows,
        "collectives": sent,
        "loader_samples_per_second": loaded,
        "machine": {key: info[key] for key in VERSIONS}
        | {key: section[key] for key in (*CAPS, "cpu_governor")}
        | {"threads": threads},
        "conditions": section,
    }
    known = find_device(str(info["device_name"]), info["total_memory_gb"], info["gpu_cores"])  # type: ignore[arg-type]
    content["findings"] = [
        *findings.of_physics(content, known),
        *findings.of_software(content["operators"], content["jobs"]),
        *findings.of_coverage(content["operators"], content["jobs"]),
    ]
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


def _operators(
    plan: Plan,
    place: Place,
    best: Mapping[str, float],
    moved: Mapping[str, Any],
    seconds: float,
    reasons: dict[str, str],
) -> dict[str, Any]:
    """Return the operators of the jobs and the jobs with their calls; on a CPU with the threads of a rank."""
    reasons |= plan.reasons
    if not plan.jobs or not best or "copy" not in moved:
        reasons.setdefault("operators", NO_OPERATORS if plan.config is None else "no job, rate or bandwidth to base on")
        return {"operators": [], "jobs": []}
    distinct = operators.distinct(plan.jobs)
    threads = torch.get_num_threads()
    if plan.jobs[0].threads:
        torch.set_num_threads(plan.jobs[0].threads)
    try:
        ceilings = operators.Ceilings(best, moved["copy"]["gb_per_second"])
        with _progress(f"{len(distinct)} operators", OPERATORS * seconds) as advance:
            measured = operators.measure(distinct, place, ceilings, OPERATORS * seconds, advance)
    finally:
        torch.set_num_threads(threads)
    return {"operators": measured, "jobs": [_job(number, job, distinct) for number, job in enumerate(plan.jobs)]}


def _job(number: int, job: Rehearsed, distinct: Sequence[operators.Distinct]) -> dict[str, Any]:
    calls = [[place, one.counts[number]] for place, one in enumerate(distinct) if number in one.counts]
    sent = [{key: one[key] for key in ("name", "bytes", "ranks", "count")} for one in job.collectives]
    return {
        **{key: getattr(job, key) for key in ("framework", "model", "model_size", "settings", "ranks", "threads")},
        "calls": calls,
        "collectives": sent,
    }


def _collectives(platform: str, plan: Plan, seconds: float, reasons: dict[str, str]) -> list[dict[str, Any]]:
    _, ranks = collectives.world()
    if plan.config is None and ranks == 1:
        reasons["collectives"] = NO_OPERATORS
        return []
    kind = "cpu" if platform == "cpu" else "cuda"
    sizes = collectives.sizes_of((one for job in plan.jobs for one in job.collectives), kind)
    try:
        with _progress("collectives", COLLECTIVES * seconds):
            if ranks > 1 or plan.config is None:
                return collectives.in_this_world(platform, sizes, COLLECTIVES * seconds)
            threads = plan.jobs[0].threads if plan.jobs else None
            return collectives.on_this_machine(
                platform, plan.config.ranks_per_node, sizes, COLLECTIVES * seconds, threads
            )
    except (collectives.CollectiveError, RuntimeError) as error:
        reasons["collectives"] = str(error).splitlines()[0][:200]
        return []


def _loader(plan: Plan, seconds: float, reasons: dict[str, str]) -> float | None:
    if plan.config is None or not plan.jobs:
        reasons["loader_samples_per_second"] = NO_OPERATORS if plan.config is None else "no job was rehearsed"
        return None
    try:
        found = loading.samples_per_second(plan.config, plan.jobs[0].model, max(LEAST_LOADER_SECONDS, LOADER * seconds))
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
