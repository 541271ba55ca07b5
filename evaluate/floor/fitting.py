"""The probe, the job in it and the profile that fit a result, or the first reason why none does.

A floor and a measured time belong together only if they are of one machine in one state, of one day, and of the same
operators. The operators follow from framework, model and the settings in DECIDING.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from evaluate.metrics import measured_rate
from utils.results.probe_file import JobOperators, Probe
from utils.results.profile_file import Profile
from utils.results.schema import Result
from utils.settings.keys import in_results

LONGEST_APART = timedelta(hours=24)
"""Longest time between a probe, or a profile, and a result: drivers, clocks, caps and neighbours change."""
DECIDING = (
    *("precision", "fp8_recipe", "sequence_length", "global_batch_size", "micro_batch_size", "gradient_accumulation"),
    *("num_gpus", "tp", "pp", "cp", "dp", "recompute", "optimizer_state", "gradient_dtype", "layers"),
)
"""Settings that decide which operators run with which shapes, by their key in `training_config`."""
VERSIONS = {
    "driver_version": "driver",
    "software_version": "CUDA or ROCm version",
    "pytorch_version": "version of torch",
}
CONDITIONS = {
    "power_cap_watts": "power cap in W",
    "clock_limit_mhz": "clock limit in MHz",
    "max_sm_clock_mhz": "highest clock in MHz",
    "max_memory_clock_mhz": "highest memory clock in MHz",
    "performance_level": "performance level",
    "compute_mode": "compute mode",
    "ecc": "ECC",
    "partition": "partition mode",
    "cpu_governor": "governor of the cores",
}
"""State of a machine that decides its speed: keys of `gpu_info` and of `conditions` in a result, and their words."""
TOLERANCE = 0.01
"""Relative difference of two numbers of a state that counts as none."""
_NAMES = {place.key: place.name for place in in_results().values() if place.name} | {"num_gpus": "number of GPUs"}


def why_not_probe(probe: Probe, result: Result) -> str:
    """Return the first reason why a probe of the same machine is not of a result; empty if it is."""
    name = probe.path.name
    if other := measured_rate.other_device(probe, result):
        return f"{name} is of another device: {other}"
    if state := next(_other_state(probe, result), ""):
        return f"{name} was measured in another state of the machine: {state}"
    if probe.other_work:
        return f"{name} was measured while {probe.other_work}; measure again"
    return _other_day(name, probe.started, result)


def job_of(probe: Probe, result: Result) -> tuple[JobOperators | None, str]:
    """Return the job of a probe that has the operators of a result, or None and the reason."""
    wanted = {key: result[key] for key in ("framework", "model", "model_size")}
    words = " ".join(wanted.values())
    jobs = [job for job in probe.jobs if all(getattr(job, key) == value for key, value in wanted.items())]
    if not jobs:
        have = ", ".join(dict.fromkeys(f"{job.framework} {job.model} {job.model_size}" for job in probe.jobs))
        return None, f"{probe.path.name} has the operators of {have or 'no job'}, not of {words}"
    closest = min(jobs, key=lambda job: len(list(_other_settings(job.settings, result))))
    if setting := next(_other_settings(closest.settings, result), ""):
        return None, f"{probe.path.name} has the operators of {words} with other settings: {setting}"
    if threads := _other_threads(closest, result):
        return None, f"{probe.path.name} was measured with {threads}"
    return closest, ""


def why_not_profile(profile: Profile, result: Result) -> str:
    """Return the first reason why a profile is not of a result's job and machine; empty if it is."""
    where = f"{profile.path.parent.name}/{profile.path.name}"
    for key in ("platform", "framework", "model", "model_size"):
        if getattr(profile, key) != result[key]:
            return f"{where} is of {key} {getattr(profile, key)}, the result's is {result[key]}"
    for word, ours, theirs in (
        ("machine", profile.host, result["provenance"]["host"]),
        ("device", profile.device_name, result["gpu_info"]["device_name"]),
    ):
        if ours != theirs:
            return f"{where} is of {word} {ours!r}, the result's is {theirs!r}"
    if setting := next(_other_settings(profile.settings, result), ""):
        return f"{where} is of other settings: {setting}"
    return _other_day(where, profile.started, result)


def _other_settings(settings: Mapping[str, Any], result: Result) -> Iterator[str]:
    asked = result["training_config"]
    for key in DECIDING:
        ours, theirs = settings.get(key), asked.get(key)
        if ours != theirs:
            yield f"{_NAMES.get(key, key)} {_shown(ours)}, the result's is {_shown(theirs)}"


def _other_state(probe: Probe, result: Result) -> Iterator[str]:
    """Yield the differences of the states, as far as both are known."""
    conditions = result.get("conditions") or {}
    for section, words in ((result["gpu_info"], VERSIONS), (conditions, CONDITIONS)):
        for key, word in words.items():
            ours, theirs = probe.machine.get(key), section.get(key)
            if ours is not None and theirs is not None and not _is_close(ours, theirs):
                yield f"{word} {_shown(ours)}, the result's is {_shown(theirs)}"


def _other_threads(job: JobOperators, result: Result) -> str:
    """Return the threads of a rank in the probe and in the run, if both are known and differ."""
    text = (result["provenance"].get("environment") or {}).get("OMP_NUM_THREADS")
    if result["platform"] != "cpu" or job.threads is None or not str(text).isdecimal():
        return ""
    return "" if int(str(text)) == job.threads else f"{job.threads} threads a rank, the result has {text}"


def _other_day(name: str, when: datetime, result: Result) -> str:
    began = measured_rate.started(result)
    if began is None:
        return "the result does not say when it was started"
    apart = abs(when - began)
    if apart <= LONGEST_APART:
        return ""
    hours = apart / timedelta(hours=1)
    limit = LONGEST_APART // timedelta(hours=1)
    return f"{name} was measured {hours:.0f} hours from run {result['run']}, wanted {limit} at most"


def _is_close(ours: Any, theirs: Any) -> bool:
    numbers = [value for value in (ours, theirs) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == 2:
        return bool(abs(ours - theirs) <= TOLERANCE * max(abs(ours), abs(theirs)))
    return bool(ours == theirs)


def _shown(value: Any) -> str:
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
