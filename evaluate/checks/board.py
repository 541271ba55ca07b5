"""Rules of the machine: the platform's vendor made the device, all devices and hosts are counted, and the memory of a
rank fits the device and the weights."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evaluate.checks.recorded import is_complete, machines
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
"""Frameworks in which each data-parallel rank holds all weights of its tensor and pipeline part."""
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
    weights = (ran["parameter_count"] or 0) * size / (config["tp"] or 1) / (config["pp"] or 1) / 1e9
    if is_complete(result) and result["framework"] in WHOLE_MODEL and peak < weights * (1 - MEMORY_RELATIVE):
        yield f"peak_memory_allocated_gb: got {peak:g} GB, the weights alone are {weights:.3g} GB on a rank"


def average_is_below_peak(result: Result) -> Iterator[str]:
    """Yield a line if the average of the allocated memory is above its peak."""
    average, peak = (result["memory_metrics"][f"{name}_memory_allocated_gb"] for name in ("avg", "peak"))
    if None not in (peak, average) and average > peak * (1 + MEMORY_RELATIVE):
        yield f"avg_memory_allocated_gb: got {average:g} GB, more than the peak of {peak:.4g} GB"
