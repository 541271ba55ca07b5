"""Rules of the machine: the platform's vendor made the device, all devices and hosts are counted, and the memory of a
rank fits the device and the weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from evaluate.checks.recorded import interval, is_complete, machines
from utils import frameworks
from utils.hardware.devices import find_device
from utils.results.schema import Result

_NVIDIA = r"\bnvidia\b|\bgeforce\b|\btesla\b|\bquadro\b|\b[ABH]\d00\b|\bB[23]00\b|\bG[BH]\d00\b|\bRTX\b"
_AMD = r"\binstinct\b|\bMI\d{3}[AX]?\b|\bradeon (?:pro|rx|instinct)\b"
_PROCESSOR = r"\bepyc\b|\bxeon\b|\bryzen\b|\bthreadripper\b|\bneoverse\b|\bcore\(tm\)"
FOREIGN = {"amd": rf"{_NVIDIA}|{_PROCESSOR}", "nvd": rf"{_AMD}|{_PROCESSOR}|^amd\b", "cpu": rf"{_NVIDIA}|{_AMD}"}
"""Words in the name of a device that a platform cannot have."""
STACKS = {"amd": "cuda", "nvd": "rocm"}
"""Software of the other vendor."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MEMORY_RELATIVE = 0.02
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that name the GPUs of a run."""


def device_is_of_the_platform(result: Result) -> Iterator[str]:
    """Yield a line if the device, or the software stack, belongs to another platform than the result names."""
    platform, name = result["platform"], result["gpu_info"]["device_name"] or ""
    stack = result["gpu_info"]["software_stack"]
    is_foreign = platform in FOREIGN and re.search(FOREIGN[platform], name, re.IGNORECASE) is not None
    # NVIDIA's Grace is a processor with the maker's name in it; a Grace Hopper is in the table of devices
    if platform == "cpu" and "grace" in name.lower() and find_device(name) is None:
        is_foreign = False
    if is_foreign:
        yield f"device_name: {name} is no device of the platform {platform}"
    elif stack and stack == STACKS.get(platform):
        yield f"software_stack: got {stack} on the platform {platform}"


def devices_are_counted(result: Result) -> Iterator[str]:
    """Yield a line if the number of devices of a job differs from the number that trained, if a variable lets a node
    see fewer, or if a run names more hosts than devices."""
    count, gpus = result["gpu_info"]["device_count"], result["training_config"]["num_gpus"]
    if result["status"] == "ok" and count is not None and count != gpus:
        yield f"device_count: the job has {count} devices, and {gpus} trained"
    if result["platform"] != "cpu":
        environment = result["provenance"]["environment"] or {}
        # hosts of earlier results are unknown: then the job counts as one node
        of_a_node = gpus / max(1, len(machines(result)))
        for variable in VISIBLE:
            seen = len(_named_gpus(environment.get(variable)))
            if 0 < seen < of_a_node:
                yield f"{variable}: {seen} devices are visible, and {of_a_node:g} of a node trained"
    hosts = result["provenance"].get("hosts") or []
    if len(hosts) > gpus:
        yield f"hosts: {len(hosts)} hosts for {gpus} devices"


def _named_gpus(value: object) -> list[str]:
    """Return the GPUs that the value of a variable of VISIBLE names."""
    parts = [part.strip() for part in str(value or "").split(",")]
    return [part for part in parts if part]


def hosts_are_different(result: Result) -> Iterator[str]:
    """Yield a line if a run names a host twice: one machine as two nodes, or machines (containers) of one name."""
    hosts = machines(result)
    if len(set(hosts)) < len(hosts):
        yield "hosts: a host is named twice"


def memory_fits(result: Result) -> Iterator[str]:
    """Yield a line if the largest peak of all ranks exceeds the memory of a device or what was reserved, or if it is
    smaller than the share of the weights of a rank."""
    memory, total = result["memory_metrics"], result["gpu_info"]["total_memory_gb"]
    peak, reserved = memory["peak_memory_allocated_gb"], memory["peak_memory_reserved_gb"]
    if peak is None:
        return
    if total is not None and peak > total:
        yield f"peak_memory_allocated_gb: got {peak:g} GB on a device of {total} GB"
    if reserved is not None and reserved < peak * (1 - MEMORY_RELATIVE):
        yield f"peak_memory_reserved_gb: got {reserved:g} GB, less than the {peak:.4g} GB that were allocated"
    splitting_sizes = frameworks.of(result["framework"]).weights_split_over
    if is_complete(result) and splitting_sizes:
        weights = _weights_gb(result, splitting_sizes)
        if peak < weights * (1 - MEMORY_RELATIVE):
            yield f"peak_memory_allocated_gb: got {peak:g} GB, the weights alone are {weights:.3g} GB on a rank"


def _weights_gb(result: Result, splitting_sizes: Sequence[str]) -> float:
    """Return a lower bound for the rank with the most weights; 0 if the number of parameters is unknown."""
    config, ran = result["training_config"], result["resolved_config"]
    # EP divides the experts alone, so the bound is too low for the rest
    ranks: int = math.prod(config[key] or 1 for key in splitting_sizes)
    # an unknown type counts as one byte
    bytes_of_one = BYTES.get(str(ran["parameter_dtype"]).removeprefix("torch."), 1)
    parameters: int = ran["parameter_count"] or 0
    return parameters * bytes_of_one / ranks / 1e9


def average_is_below_peak(result: Result) -> Iterator[str]:
    """Yield a line if the average of the allocated memory is above its peak."""
    memory = result["memory_metrics"]
    average, peak = memory["avg_memory_allocated_gb"], memory["peak_memory_allocated_gb"]
    if average is not None and peak is not None and average > peak * (1 + MEMORY_RELATIVE):
        yield f"avg_memory_allocated_gb: got {average:g} GB, more than the peak of {peak:.4g} GB"


# Rules on several results: no two have the same measurements, and no two shared the GPUs of a machine in time.
#
# Equal losses are no copy: two runs of a deterministic platform with one seed have them. Every attempt counts for a
# machine, also one that failed: it held the GPUs all the same.

ENOUGH_TIMES = 8
"""This many different step times of six digits are never measured twice."""
SLACK = timedelta(seconds=2)
"""Times are whole seconds, and one run may end in the second in which the next one starts."""

Results = Sequence[tuple[Path, Result]]


class Line(NamedTuple):
    """A finding in one of several results."""

    place: int
    """Place of the result among them."""
    is_certain: bool
    """True if the line rejects the result, False if it is a warning."""
    text: str


def copied_runs(results: Results) -> Iterator[Line]:
    """Yield a line for each result whose step times are those of an earlier one.

    A copy of a whole file under another name is the same run and gives no line; `evaluate.report.groups` leaves it out.
    """
    first: dict[tuple[float, ...], int] = {}
    for place, (_, result) in enumerate(results):
        times = tuple(result["step_times"])
        if len(set(times)) < ENOUGH_TIMES:  # too few to be sure
            continue
        path, earlier = results[first.setdefault(times, place)]
        if earlier != result:
            text = f"step_times: those of {path.name} to the last digit; a copied run is no second run"
            yield Line(place, True, text)


def overlapping_runs(results: Results) -> Iterator[Line]:
    """Yield the lines on runs that shared a machine's devices in time."""
    for a, b in _overlaps(results):
        (path_a, first), (path_b, second) = results[a], results[b]
        # a copy of a file under another name is the same run
        if first == second or _have_other_gpus(first, second):
            continue
        is_certain = first["platform"] != "cpu" and not _could_be_apart(first, second)
        end = f"in time on {first['provenance']['host']}; each slowed the other down"
        yield Line(a, is_certain, f"started_utc: overlaps {path_b.name} {end}")
        yield Line(b, is_certain, f"started_utc: overlaps {path_a.name} {end}")


class _Span(NamedTuple):
    start: datetime
    end: datetime
    place: int


def _overlaps(results: Results) -> Iterator[tuple[int, int]]:
    """Yield the pairs that overlap on a machine: each run with the one that ended last of those that started before."""
    spans: dict[tuple[str, ...], list[_Span]] = {}
    for place, (_, result) in enumerate(results):
        times = interval(result)
        if times is None or times[0] >= times[1]:
            continue
        for host in machines(result):
            devices = (host, result["platform"], str(result["gpu_info"]["device_name"]))
            spans.setdefault(devices, []).append(_Span(times[0], times[1], place))
    for of_machine in spans.values():
        of_machine.sort()
        last = of_machine[0]
        for span in of_machine[1:]:
            if span.start + SLACK < min(last.end, span.end):
                yield last.place, span.place
            if span.end > last.end:
                last = span


def _have_other_gpus(a: Result, b: Result) -> bool:
    """Return whether both runs name their GPUs and share none."""
    gpus_a, gpus_b = _gpus_of(a), _gpus_of(b)
    return bool(gpus_a) and bool(gpus_b) and gpus_a.isdisjoint(gpus_b)


def _gpus_of(result: Result) -> set[str]:
    """Return the GPUs that the first variable of VISIBLE names; empty if none does."""
    environment = result["provenance"]["environment"] or {}
    for variable in VISIBLE:
        if environment.get(variable):
            return set(_named_gpus(environment[variable]))
    return set()


def _could_be_apart(a: Result, b: Result) -> bool:
    """Return whether the machine has enough GPUs for both runs."""
    used = 0
    for result in (a, b):
        used += result["training_config"]["num_gpus"] or 0
    for result in (a, b):
        count = (result.get("conditions") or {}).get("gpu_count")
        if count is None or used > count:
            return False
    return True
