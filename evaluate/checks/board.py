"""Rules of the machine: the platform's vendor made the device, all devices and hosts are counted, and the memory of a
rank fits the device and the weights."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import accumulate
from operator import itemgetter
from pathlib import Path

from evaluate.checks.recorded import grouped, interval, is_complete, machines
from utils.hardware.devices import find_device
from utils.results.schema import Result

_NVIDIA = r"\bnvidia\b|\bgeforce\b|\btesla\b|\bquadro\b|\b[ABH]\d00\b|\bB[23]00\b|\bG[BH]\d00\b|\bRTX\b"
_AMD = r"\binstinct\b|\bMI\d{3}[AX]?\b|\bradeon (?:pro|rx|instinct)\b"
_PROCESSOR = r"\bepyc\b|\bxeon\b|\bryzen\b|\bthreadripper\b|\bneoverse\b|\bcore\(tm\)"
FOREIGN = {"amd": rf"{_NVIDIA}|{_PROCESSOR}", "nvd": rf"{_AMD}|{_PROCESSOR}|^amd\b", "cpu": rf"{_NVIDIA}|{_AMD}"}
"""Words in the name of a device that a platform cannot have."""
STACKS = {"amd": "cuda", "nvd": "rocm"}
"""Software of the other vendor."""
WHOLE_MODEL = ("mega", "hf", "nemo", "bridge", "prim")
"""Frameworks in which each data-parallel rank holds all weights of its tensor, pipeline and expert part, except hf, in
which FSDP2 divides them."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MEMORY_RELATIVE = 0.02
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that name the GPUs of a run."""


def device_is_of_the_platform(result: Result) -> Iterator[str]:
    """Yield a line if the device, or the software stack, belongs to another platform than the result names."""
    platform, name = result["platform"], result["gpu_info"]["device_name"] or ""
    stack = result["gpu_info"]["software_stack"]
    is_grace = platform == "cpu" and "grace" in name.lower() and find_device(name) is None
    if platform in FOREIGN and re.search(FOREIGN[platform], name, re.IGNORECASE) and not is_grace:
        yield f"device_name: {name} is no device of the platform {platform}"
    elif stack and stack == STACKS.get(platform):
        yield f"software_stack: got {stack} on the platform {platform}"


def names_are_plain(result: Result) -> list[str]:
    """Return a line for each name of a platform, a device or a host with a letter that only looks like a Latin one."""
    hosts = result["provenance"].get("hosts") or []
    names = {
        **{key: result[key] for key in ("platform", "framework")},
        "device_name": result["gpu_info"]["device_name"],
        "host": result["provenance"]["host"],
        **{f"hosts[{place}]": name for place, name in enumerate(hosts)},
    }
    return [
        f"{key}: got {ascii(name)}, wanted letters, digits and signs of ASCII"
        for key, name in names.items()
        if name and not str(name).isascii()
    ]


def devices_are_counted(result: Result) -> Iterator[str]:
    """Yield a line if the number of devices of a job differs from the number that trained, if a variable lets a node
    see fewer, or if a run names more hosts than devices."""
    found, gpus = result["gpu_info"]["device_count"], result["training_config"]["num_gpus"]
    environment, hosts = result["provenance"]["environment"] or {}, result["provenance"].get("hosts") or []
    if result["status"] == "ok" and found is not None and found != gpus:
        yield f"device_count: the job has {found} devices, and {gpus} trained"
    of_a_node = gpus / max(1, len(machines(result)))
    for name in VISIBLE if result["platform"] != "cpu" else ():
        seen = len([one for one in str(environment.get(name, "")).split(",") if one.strip()])
        if 0 < seen < of_a_node:
            yield f"{name}: {seen} devices are visible, and {of_a_node:g} of a node trained"
    if len(hosts) > gpus:
        yield f"hosts: {len(hosts)} hosts for {gpus} devices"


def hosts_are_different(result: Result) -> Iterator[str]:
    """Yield a line if a run names a host twice: one machine as two nodes, or machines (containers) of one name."""
    hosts = machines(result)
    if len(set(hosts)) < len(hosts):
        yield "hosts: a host is named twice"


def memory_fits(result: Result) -> Iterator[str]:
    """Yield a line if the peak memory of a rank exceeds the memory of its device or what was reserved, or if it is
    smaller than the share of the weights of a rank."""
    memory, config, ran = result["memory_metrics"], result["training_config"], result["resolved_config"]
    peak, reserved = memory["peak_memory_allocated_gb"], memory["peak_memory_reserved_gb"]
    total = result["gpu_info"]["total_memory_gb"]
    if peak is None:
        return
    if total is not None and peak > total:
        yield f"peak_memory_allocated_gb: got {peak} GB on a device of {total} GB"
    if reserved is not None and reserved < peak * (1 - MEMORY_RELATIVE):
        yield f"peak_memory_reserved_gb: got {reserved:g} GB, less than the {peak:.4g} GB that were allocated"
    size = BYTES.get(str(ran["parameter_dtype"]).removeprefix("torch."), 1)
    divided = ("dp",) if result["framework"] == "hf" else ("tp", "pp", "ep")  # by EP the experts alone: a lower bound
    weights = (ran["parameter_count"] or 0) * size / math.prod(config[key] or 1 for key in divided) / 1e9
    if is_complete(result) and result["framework"] in WHOLE_MODEL and peak < weights * (1 - MEMORY_RELATIVE):
        yield f"peak_memory_allocated_gb: got {peak:g} GB, the weights alone are {weights:.3g} GB on a rank"


def average_is_below_peak(result: Result) -> Iterator[str]:
    """Yield a line if the average of the allocated memory is above its peak."""
    memory = result["memory_metrics"]
    average, peak = memory["avg_memory_allocated_gb"], memory["peak_memory_allocated_gb"]
    if average is not None and peak is not None and average > peak * (1 + MEMORY_RELATIVE):
        yield f"avg_memory_allocated_gb: got {average:g} GB, more than the peak of {peak:.4g} GB"


# Rules on several results: no two have the same measurements, and no two shared the GPUs of a machine in time.
#
# Equal losses are no copy: two runs of a deterministic platform with one seed have them. A copy whose samples somebody
# changed is not found; docs/compare.md states what no check of a file can find. Every attempt counts for a machine,
# also one that failed: it held the GPUs all the same.

ENOUGH_TIMES = 8
"""This many different step times of six digits are never measured twice."""
SLACK = timedelta(seconds=2)
"""Times are whole seconds, and one run may end in the second in which the next one starts."""

Found = Sequence[tuple[Path, Result]]
Line = tuple[int, bool, str]
"""Place of a result, whether the line rejects it, and the line; the first line of each kind counts."""


def copied_runs(found: Found) -> Iterator[Line]:
    """Yield the lines on measurements that are those of an earlier result.

    A copy of a whole file under another name is the same run and gives no line; `evaluate.report.groups` leaves it out.
    """
    times = [tuple(result["step_times"]) for _, result in found]
    for place, path in _repeated(found, (one if len(set(one)) >= ENOUGH_TIMES else None for one in times)):
        yield place, True, f"step_times: those of {path.name} to the last digit; a copied run is no second run"
    joules = [result["energy_metrics"]["joules"] for _, result in found]
    for place, path in _repeated(found, (None if one is None or one == float(f"{one:.5g}") else one for one in joules)):
        yield place, False, f"energy: the {joules[place]:g} J of {path.name} to the last digit"


def overlapping_runs(found: Found) -> Iterator[Line]:
    """Yield the lines on runs that shared a machine's devices in time."""
    for a, b in _overlaps(found):
        (path_a, one), (path_b, other) = found[a], found[b]
        if one != other and not _have_other_gpus(one, other):
            is_certain = one["platform"] != "cpu" and not _could_be_apart(one, other)
            for place, path in ((a, path_b), (b, path_a)):
                where = f"{path.name} in time on {one['provenance']['host']}"
                yield place, is_certain, f"started_utc: overlaps {where}; each slowed the other down"


def _repeated(found: Found, values: Iterable[Hashable | None]) -> Iterator[tuple[int, Path]]:
    """Yield each result whose value an earlier, different result has too, with the path of the first such result; None
    is a value that two results may have."""
    first: dict[Hashable, int] = {}
    for place, value in enumerate(values):
        path, earlier = found[first.setdefault(value, place)]
        if value is not None and earlier != found[place][1]:
            yield place, path


def _overlaps(found: Found) -> Iterator[tuple[int, int]]:
    """Yield the pairs that overlap on a machine: each run with the one that ended last of those that started before."""
    spans = [
        (host, result["platform"], result["gpu_info"]["device_name"], *times, place)
        for place, (_, result) in enumerate(found)
        for host in machines(result)
        if (times := interval(result)) and times[0] < times[1]
    ]
    for of_machine in grouped(spans, itemgetter(0, 1, 2)).values():
        runs = sorted(span[3:] for span in of_machine)
        ended_last = accumulate(runs, partial(max, key=itemgetter(1)))
        for last, run in zip(ended_last, runs[1:], strict=False):
            if run[0] + SLACK < last[1] and run[0] + SLACK < run[1]:
                yield last[2], run[2]


def _have_other_gpus(a: Result, b: Result) -> bool:
    """Return whether both runs name their GPUs and share none."""
    of_both = [one["provenance"]["environment"] or {} for one in (a, b)]
    named = [next((str(one[name]) for name in VISIBLE if one.get(name)), "") for one in of_both]
    sets = [{part.strip() for part in text.split(",")} for text in named]
    return all(named) and sets[0].isdisjoint(sets[1])


def _could_be_apart(a: Result, b: Result) -> bool:
    """Return whether the machine has enough GPUs for both runs."""
    counts = [(one.get("conditions") or {}).get("gpu_count") for one in (a, b)]
    used = sum(one["training_config"]["num_gpus"] or 0 for one in (a, b))
    return None not in counts and used <= min(count for count in counts if count is not None)
