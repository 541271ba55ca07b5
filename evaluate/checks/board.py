"""Rules of the board: the platform's vendor made the device, memory holds the weights, and power fits the boards."""

from __future__ import annotations

import math
import re

from evaluate.checks.recorded import is_complete, is_recorded, machines
from evaluate.metrics.metrics import device_of, metrics
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
MOST_POWER, IDLE_POWER = 1.15, 0.15
"""Shares of the board's power: above the first no board is supplied, below the second none computes (an idle H100
draws 70 W of 700 W)."""
LEAST_POWER_OF_MFU = 0.9
"""Share of the utilisation that the power must reach: no board yields more per watt than its peak at full power."""
BOARDS = ("boards", "board_count", "device_count", "num_gpus", "gpus", "gpu_count")
"""Keys under which `energy_metrics` may count the boards that it covers."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that name the GPUs of a run."""
_SOME_OF_ALL = re.compile(r"\b(\d{1,6}) of (\d{1,6}) (?:boards|gpus|devices|dies)\b", re.IGNORECASE)


def device_is_of_the_platform(result: Result) -> list[str]:
    """Return a line if the device, or the software stack, belongs to another platform than the result names."""
    platform, gpu = result["platform"], result["gpu_info"]
    name, stack = gpu["device_name"], gpu["software_stack"]
    if name and platform in FOREIGN and (found := re.search(FOREIGN[platform], name, re.IGNORECASE)):
        is_grace = platform == "cpu" and "grace" in name.lower() and find_device(name) is None
        if found and not is_grace:
            return [f"device_name: {name} is no device of the platform {platform}"]
    if stack and stack == STACKS.get(platform):
        return [f"software_stack: got {stack} on the platform {platform}"]
    return []


def devices_are_counted(result: Result) -> list[str]:
    """Return a line if the number of devices of a job differs from the number that trained."""
    found, asked = result["gpu_info"]["device_count"], result["training_config"]["num_gpus"]
    if result["status"] != "ok" or None in (found, asked) or found == asked:
        return []
    return [f"device_count: the job has {found} devices, and {asked} trained"]


def enough_devices_are_visible(result: Result) -> list[str]:
    """Return a line if a variable lets a node see fewer devices than it trained on."""
    environment = result["provenance"]["environment"] or {}
    a_node = (result["training_config"]["num_gpus"] or 0) / max(1, len(machines(result)))
    for name in VISIBLE if result["platform"] != "cpu" else ():
        seen = len([one for one in str(environment.get(name, "")).split(",") if one.strip()])
        if 0 < seen < a_node:
            return [f"{name}: {seen} devices are visible, and {a_node:g} of a node trained"]
    return []


def names_are_plain(result: Result) -> list[str]:
    """Return a line for each name of a platform, a device or a host with a letter that only looks like a Latin one."""
    provenance = result["provenance"]
    names = {"platform": result["platform"], "framework": result["framework"]}
    names |= {"device_name": result["gpu_info"]["device_name"], "host": provenance["host"]}
    names |= {f"hosts[{place}]": name for place, name in enumerate(provenance.get("hosts") or [])}
    return [
        f"{key}: got {ascii(name)}, wanted letters, digits and signs of ASCII"
        for key, name in names.items()
        if name and not str(name).isascii()
    ]


def hosts_fit_the_devices(result: Result) -> list[str]:
    """Return a line if a run names more hosts than devices."""
    hosts, gpus = result["provenance"].get("hosts") or [], result["training_config"]["num_gpus"]
    return [f"hosts: {len(hosts)} hosts for {gpus} devices"] if gpus and len(hosts) > gpus else []


def hosts_are_different(result: Result) -> list[str]:
    """Return a line if a run names a host twice: one machine as two nodes, or machines (containers) of one name."""
    hosts = machines(result)
    return ["hosts: a host is named twice"] if len(set(hosts)) < len(hosts) else []


def reserved_holds_allocated(result: Result) -> list[str]:
    """Return a line if less memory was reserved than allocated."""
    peak, reserved = (result["memory_metrics"][f"peak_memory_{name}_gb"] for name in ("allocated", "reserved"))
    if peak is None or reserved is None or reserved >= peak * (1 - MEMORY_RELATIVE):
        return []
    return [f"peak_memory_reserved_gb: got {reserved:g} GB, less than the {peak:.4g} GB that were allocated"]


def average_is_below_peak(result: Result) -> list[str]:
    """Return a line if the average of the allocated memory is above its peak."""
    average, peak = (result["memory_metrics"][f"{name}_memory_allocated_gb"] for name in ("avg", "peak"))
    if peak is None or average is None or average <= peak * (1 + MEMORY_RELATIVE):
        return []
    return [f"avg_memory_allocated_gb: got {average:g} GB, more than the peak of {peak:.4g} GB"]


def memory_holds_the_weights(result: Result) -> list[str]:
    """Return a line if the peak memory of a rank is smaller than its share of the weights."""
    peak, count = (
        result["memory_metrics"]["peak_memory_allocated_gb"],
        result["resolved_config"]["parameter_count"],
    )
    config = result["training_config"]
    if peak is None or not count or not is_complete(result) or result["framework"] not in WHOLE_MODEL:
        return []
    parts = max(1, config["tp"] or 1) * max(1, config["pp"] or 1)
    size = BYTES.get(str(result["resolved_config"]["parameter_dtype"]).removeprefix("torch."), 1)
    weights = count * size / parts / 1e9
    if peak >= weights * (1 - MEMORY_RELATIVE):
        return []
    return [f"peak_memory_allocated_gb: got {peak:g} GB, the weights alone are {weights:.3g} GB on a rank"]


def energy_covers_the_boards(result: Result) -> list[str]:
    """Return a line if there is energy or power of other boards than those that trained."""
    energy, gpus = result["energy_metrics"], result["training_config"]["num_gpus"]
    if energy["joules"] is None and energy["avg_watts"] is None:
        return []
    known = [(int(energy[key]), gpus) for key in BOARDS if type(energy.get(key)) is int]
    known += [(int(a), int(b)) for a, b in _SOME_OF_ALL.findall(str(energy["source"]))]
    return [
        f"energy: of {count} boards, and {all_of_them} trained" for count, all_of_them in known if count != all_of_them
    ][:1]


def power_fits_the_boards(result: Result) -> list[str]:
    """Return a line if the mean power of a board is beyond what it can draw, or below what its work needs."""
    device, watts = device_of(result), _watts_of_a_board(result)
    if device is None or not watts or not is_recorded(result):
        return []
    limit = max(device.board_power_watts, (result.get("conditions") or {}).get("max_power_cap_watts") or 0.0)
    if min(watts) > MOST_POWER * limit:
        return [f"energy: {min(watts):,.0f} W a board; {device.name} draws {limit:g} W at the most"]
    mfu = metrics(result).get("mfu_causal")
    used = min(1.0, (mfu.value or 0.0) / 100) if mfu else 0.0
    least = max(IDLE_POWER, LEAST_POWER_OF_MFU * used) * device.board_power_watts
    if max(watts) >= least:
        return []
    why = "it is of fewer boards than trained, or of a part of the time"
    return [f"energy: {max(watts):,.0f} W a board; {device.name} needs {least:,.0f} W or more for this work: {why}"]


def _watts_of_a_board(result: Result) -> list[float]:
    """Return the mean power of a board, from the joules and the steps they are of (all, or the steady ones), else from
    the stored power (of all boards, or of one on average); empty if unknown."""
    energy, times, config = result["energy_metrics"], result["step_times"], result["training_config"]
    joules, watts, gpus = energy["joules"], energy["avg_watts"], config["num_gpus"]
    if result["status"] != "ok" or not gpus or gpus < 1:
        return []
    if not joules or not times or min(times) <= 0:
        return [watts, watts / gpus] if watts else []
    of_a_step = config["global_batch_size"] * config["sequence_length"]
    if energy["joules_per_token"] and of_a_step:
        counts = [min(len(times), max(1, round(joules / energy["joules_per_token"] / of_a_step)))]
    else:
        counts = [len(times), len(times) - (result["performance_metrics"]["warmup_steps_excluded"] or 0)]
    return [float(joules / math.fsum(times[-count:]) / gpus) for count in counts if count > 0]
