"""Changes of a synthetic result, for the faults that tests plant; nothing else is made to agree unless it is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sides import STEPS, Change, Result, both, conditions, make_consistent, schedule, start_at, summarise

from example import put

NVIDIA = {
    **{"power_cap_watts": 700.0, "default_power_cap_watts": 700.0, "max_power_cap_watts": 700.0},
    **{"max_sm_clock_mhz": 1980.0, "clock_limit_mhz": 1980.0, "default_clock_limit_mhz": 1980.0},
    **{"numa_balancing": False, "numa_nodes": 2, "other_processes": 0, "busy_before_percent": 2.0, "ecc": "Enabled"},
    **{"throttle_after": ["gpu_idle"], "throttled_percent": {"sw_power_cap": 80.0, "hw_thermal_slowdown": 0.0}},
}
AMD = NVIDIA | {
    **{"power_cap_watts": 750.0, "default_power_cap_watts": None, "max_power_cap_watts": 750.0},
    **{"max_sm_clock_mhz": 2100.0, "clock_limit_mhz": None, "default_clock_limit_mhz": None},
    "performance_level": "AMDSMI_DEV_PERF_LEVEL_AUTO",
    "throttled_percent": {"ppt": 60.0, "socket_thermal": 0.1},
}
"""Conditions of both vendors' boards as they are shipped."""
MOE = {"query_key_norm": True, "norm_eps": 1e-6, "rope_base": 1e6, "num_experts": 128, "experts_per_token": 8}
"""Traits of Qwen3 30B-A3B in `resolved_config`."""
KNOWN = {"nvd": NVIDIA, "amd": AMD}


def into(section: str, **values: Any) -> Change:
    """Return a change of keys of a section, after which nothing else is made to agree."""
    return lambda result: result[section].update(values)


def ran(**values: Any) -> Change:
    """Return a change of the settings that ran."""
    return into("resolved_config", **values)


def each(*changes: Change) -> Change:
    """Return several changes as one."""
    return lambda result: [change(result) for change in changes]


def nothing(result: Result) -> None:
    """Change nothing: the honest twin of most faults."""


def times(factor: float) -> Change:
    """Return a change of all step times with their summary, after which the clock does not agree."""

    def change(result: Result) -> None:
        result["step_times"] = [float(f"{time * factor:.6g}") for time in result["step_times"]]
        summarise(result)

    return change


def samples(key: str, new: Callable[[int, float], float]) -> Change:
    """Return a change of each sample of a list, from its place and value."""
    return lambda result: result.update({key: [new(place, value) for place, value in enumerate(result[key])]})


def settings(**values: Any) -> Change:
    """Return a change of settings that were requested and ran."""
    return each(lambda result: put(result, both(**values)), summarise)


def environment(**values: Any) -> Change:
    """Return a change to these recorded variables."""
    return into("provenance", environment=values)


def stated(**changes: Any) -> Change:
    """Return a change to the usual conditions of the board, with these differences."""
    return lambda result: result.update(conditions=conditions(**KNOWN[result["platform"]] | changes))


def in_runs(change: Change, *numbers: int, otherwise: Change = nothing) -> Change:
    """Return a change of the runs of these numbers."""
    return lambda result: (change if result["run"] in numbers else otherwise)(result)


def hosts(*names: str) -> Change:
    return lambda result: result["provenance"].update(
        hosts=[f"{result['provenance']['host']}-{name}" for name in names]
    )


def unknown(section: str, *keys: str) -> Change:
    """Return a change to keys that nobody knows."""

    def change(result: Result) -> None:
        reasons = result[section].get("reasons", {}) | dict.fromkeys(keys, "not read back")
        result[section] |= dict.fromkeys(keys) | {"reasons": reasons}

    return change


def of(**values: Any) -> Change:
    """Return a change of top-level keys."""
    return lambda result: result.update(values)


def energy(watts: Any = 4800.0, joules: float = 1.0, per_token: float = 1.0, **more: Any) -> Change:
    """Return a change to an energy over all steps, with these shares of the joules that agree with 4,800 W."""

    def change(result: Result) -> None:
        config, true = result["training_config"], 4800.0 * sum(result["step_times"])
        tokens = len(result["steps"]) * config["global_batch_size"] * config["sequence_length"]
        known = {"joules": joules * true, "avg_watts": watts, "joules_per_token": per_token * true / tokens}
        reasons = {} if watts is not None else {"avg_watts": "N/A"}
        result["energy_metrics"] = known | {"source": "counter", "interval": "all", "reasons": reasons} | more

    return change


def boards(watts_of_a_board: float, **more: Any) -> Change:
    """Return a change to an energy of eight boards whose joules and power agree."""
    share = watts_of_a_board / 600
    return energy(8 * watts_of_a_board, share, share, **more)


def sources(counter: float | None, power: float | None, **more: Any) -> Change:
    """Return a change to an energy with these shares of its joules by counter and by integrated power."""
    known = {"counter_joules": counter, "integrated_joules": power}

    def change(result: Result) -> None:
        joules = 4800.0 * sum(result["step_times"])
        found = {key: share and share * joules for key, share in known.items()}
        energy(reasons={key: "N/A" for key, share in known.items() if share is None}, **found, **more)(result)

    return change


def faster(factor: float) -> Change:
    """Return a change of all durations, so that the clock agrees with the steps."""
    return each(times(1 / factor), make_consistent)


def rates(rule: Callable[[int, dict[str, Any]], float], framework: str = "mega") -> Change:
    """Return a change of the learning rates to those of a rule of step and settings."""

    def change(result: Result) -> None:
        result["framework"] = framework
        result["learning_rates"] = [rule(step, result["training_config"]) for step in result["steps"]]

    return change


def cosine(warm: int, early: int = 0, late: int = 0) -> Change:
    """Return a change to a cosine that begins `early` steps too early, or ends at the last step with `late` 1."""

    def rate(step: int, config: dict[str, Any]) -> float:
        least, place = config["min_lr"], min(STEPS, step + early)
        share = (place - warm - 1 + late) / (STEPS - warm)
        turned = least + (config["lr"] - least) * (1 + math.cos(math.pi * share)) / 2
        return schedule(place, config) if place <= warm else float(turned)

    return each(settings(warmup_iters=warm), rates(rate))


def near(*levels: float) -> Change:
    """Return a change to losses that start at 8 and are near each of these values for an equal part of the steps."""
    part = STEPS // len(levels)
    losses = [level * (1 + 1e-3 * (step % 7 - 3)) for level in levels for step in range(part)]
    return lambda result: result.update(loss_values=[8.0, *losses][:STEPS])


def gpu(**values: Any) -> Change:
    return into("gpu_info", **values)


def memory(**values: float) -> Change:
    return into("memory_metrics", **{f"{key}_gb": value for key, value in values.items()})


def claims(**values: float) -> Change:
    return into("performance_metrics", **values)


def stages(count: int) -> Change:
    """Return a change to so many pipeline stages of one GPU each; Llama 3.1 8B has 32 layers."""
    layout = settings(pp=count, dp=1, num_gpus=count, gradient_accumulation=64)
    return each(layout, into("gpu_info", device_count=count))


def padded(result: Result) -> None:
    """Pad the vocabulary as Megatron does for eight tensor-parallel ranks: 129,024 is a multiple of 128 x 8."""
    more = 2 * (129024 - 128256) * 4096
    put(result, both(tp=8, dp=1, gradient_accumulation=64))
    ran(vocab_size=129024, parameter_count=8_030_261_248 + more)(result)


def ends(start_up: float) -> Change:
    """Return a change of the end of a run to so many seconds after its start and its steps."""
    return lambda result: start_at(result, datetime.fromisoformat(result["provenance"]["started_utc"]), start_up)
