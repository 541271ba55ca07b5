"""Imaginary machines with known ceilings and known software losses: their results, probes and profiles as files.

All arithmetic is done here from plain numbers; nothing of evaluate/ or utils/ is imported. Times are microseconds.

A step of a machine: its operators run one after the other, each `slowness` times as long as the machine's library
needs (its ceiling), with a gap in front of each. The collective begins inside the last operator of the backward pass
and its rest is exposed in front of the optimizer. The profiler makes each gap longer.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import random
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from example import example_result

DAY = datetime(2026, 11, 21, tzinfo=timezone.utc)
STEPS, TRACED = 40, 3
GPUS, BATCH, LENGTH = 8, 64, 128
LEAD = 20.0
"""Idle time at the start of a step."""
SIZES = (1_000_000, 10_000_000, 100_000_000)
"""Measured sizes of collectives."""
SENT = 40_000_000
"""Bytes of the collective of a step."""
KINDS = (
    *("matmul", "attention", "memory_bound", "optimizer"),
    *("communication_exposed", "host_copy", "idle", "unattributed"),
)


@dataclass(frozen=True)
class Call:
    """An operator with one shape."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    kind: str
    phase: str
    count: int
    microseconds: float
    """Ceiling: what the best library of a machine of speed 1 needs for one call."""
    flops: float
    kernel: str


CALLS = (
    Call("aten::mm", ((1024, 512), (512, 2048)), "matmul", "forward", 12, 150.0, 2.0 * 1024 * 512 * 2048, "gemm"),
    Call("aten::_flash_attention_forward", ((8, 128, 8, 64),) * 3, "attention", "forward", 4, 120.0, 4e8, "flash_fwd"),
    Call("aten::mul", ((8, 128, 512), (8, 128, 512)), "memory_bound", "forward", 20, 40.0, 0.0, "at::native::mul"),
    Call("aten::mm", ((2048, 1024), (1024, 512)), "matmul", "backward", 8, 260.0, 2.0 * 2048 * 1024 * 512, "gemm"),
    Call("aten::_fused_adamw_", ((), ()), "optimizer", "optimizer", 2, 300.0, 0.0, "multi_tensor_apply_kernel<Adam>"),
)


@dataclass(frozen=True)
class Machine:
    """A machine and the software on it."""

    platform: str
    host: str
    device: str
    memory_gb: float
    cores: int
    stack: str
    power_cap: float
    speed: dict[str, float] = field(default_factory=dict)
    """Ceiling of each kind over that of CALLS; 1 if it is missing."""
    slowness: dict[str, float] = field(default_factory=dict)
    """Time of each kind over its ceiling, which is the software's loss; 1 if it is missing."""
    unfused: int = 1
    """Number of optimizer kernels in place of each one, under another name."""
    gap: float = 2.0
    """Idle time in front of each kernel."""
    bandwidth: float = 100_000.0
    """Bytes of a collective in a microsecond, at the best."""
    slow_collective: float = 1.0
    """Time of the collective over the best one."""
    data_wait: float = 0.0
    """Part of the idle time at the start of a step in which the job waits for samples."""
    recording: float = 3.0
    """Cost of a recorded kernel; it makes the gap longer."""
    run_noise: float = 3e-4
    """Standard deviation of the runs, relative."""
    probe_noise: float = 0.0
    """Standard deviation of each measured ceiling, relative."""

    def ceiling(self, call: Call) -> float:
        return call.microseconds * self.speed.get(call.kind, 1.0)

    def floor(self) -> dict[str, float]:
        found = dict.fromkeys(KINDS, 0.0)
        for call in CALLS:
            found[call.kind] += call.count * self.ceiling(call)
        found["communication_exposed"] = max(0.0, SENT / self.bandwidth - sum(found.values()))
        return found

    def measured(self) -> dict[str, float]:
        """The step without a profiler, by kind."""
        found = dict.fromkeys(KINDS, 0.0)
        kernels = 0
        for call in CALLS:
            found[call.kind] += call.count * self.ceiling(call) * self.slowness.get(call.kind, 1.0)
            kernels += call.count * (self.unfused if call.kind == "optimizer" else 1)
        found["communication_exposed"] = self.exposed()
        found["idle"] = LEAD + self.data_wait + kernels * self.gap
        return found

    def exposed(self) -> float:
        """The collective but for the half of the last operator of the backward pass."""
        last = [call for call in CALLS if call.phase == "backward"][-1]
        hidden = self.ceiling(last) * self.slowness.get(last.kind, 1.0) / 2
        return max(0.0, self.slow_collective * SENT / self.bandwidth - hidden)

    def losses(self) -> dict[str, float]:
        floor = self.floor()
        return {kind: seconds - floor[kind] for kind, seconds in self.measured().items()}

    @property
    def step(self) -> float:
        return sum(self.measured().values())


NVD = Machine("nvd", "nvd-1", "NVIDIA H100 80GB HBM3", 85.0, 16896, "cuda", 700.0)
AMD = Machine("amd", "amd-1", "AMD Instinct MI300X", 206.0, 19456, "rocm", 750.0)


def truth(a: Machine, b: Machine) -> dict[str, float]:
    """The factors of b over a, as ratios of times."""
    floors = [sum(machine.floor().values()) for machine in (a, b)]
    return {
        "ratio": a.step / b.step,
        "hardware": floors[0] / floors[1],
        "framework": (a.step / floors[0]) / (b.step / floors[1]),
    }


def write(folder: Path, machine: Machine, runs: int = 4, seed: int = 0, **parts: bool) -> None:
    """Write results, probe and profile of a machine; `probe=False` and `profile=False` leave one out."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, runs + 1):
        result = result_of(machine, number, seed)
        name = f"train_{machine.platform}_mega_llama_run{number}.json"
        (folder / name).write_text(json.dumps(result))
    if parts.get("probe", True):
        (folder / f"probe_{machine.platform}_{machine.host}.json").write_text(json.dumps(probe_of(machine, seed)))
    if parts.get("profile", True):
        write_profile(folder, machine)


def result_of(machine: Machine, number: int, seed: int = 0) -> dict[str, Any]:
    """Return a run of the machine, all of whose evidence agrees with itself."""
    draw = random.Random(f"{seed} {machine.host} {number}")
    result = example_result(platform=machine.platform, run=number)
    for section in ("training_config", "resolved_config"):
        result[section] |= config()
    result["gpu_info"] |= {
        **{"device_name": machine.device, "device_count": GPUS, "total_memory_gb": machine.memory_gb},
        **{"gpu_cores": machine.cores, "software_stack": machine.stack, "software_version": "7.1"},
        "driver_version": "580.1",
    }
    mean = machine.step * 1e-6 * (1 + draw.gauss(0, machine.run_noise))
    times = [float(f"{mean * (1 + draw.gauss(0, 0.001)):.6g}") for _ in range(STEPS)]
    shift = mean / (sum(times[4:]) / len(times[4:]))
    times = [float(f"{time * shift:.6g}") for time in times]
    result["steps"] = list(range(1, STEPS + 1))
    result["step_times"] = times
    result["data_wait_seconds"] = [machine.data_wait * 1e-6] * STEPS
    result["loss_values"] = [8.0, *(3 + 5 * 0.95**step + 1e-4 * draw.gauss(0, 1) for step in range(1, STEPS))]
    result["grad_norms"] = [1 + 2 * 0.95**step + 0.01 * draw.random() for step in range(STEPS)]
    result["learning_rates"] = [_rate(step, result["training_config"]) for step in result["steps"]]
    result["performance_metrics"] |= _summary(times, machine)
    if (share := result["performance_metrics"]["data_wait_fraction"]) > 0.01:
        result["warnings"] = [f"data: waiting for samples took {100 * share:.3g} % of a step"]
    started = DAY + timedelta(hours=number)
    result["provenance"] |= {
        "host": machine.host,
        "started_utc": started.isoformat(timespec="seconds"),
        "finished_utc": (started + timedelta(seconds=20 + round(sum(times)))).isoformat(timespec="seconds"),
    }
    result["conditions"] = conditions(machine)
    return result


def config() -> dict[str, Any]:
    return {
        **{"max_steps": STEPS, "num_gpus": GPUS, "global_batch_size": BATCH, "micro_batch_size": 8, "dp": GPUS},
        **{"gradient_accumulation": 1, "precision": "bf16", "sequence_length": LENGTH},
    }


def conditions(machine: Machine) -> dict[str, Any]:
    known = {
        **{"gpu_tool": "smi", "gpu_count": GPUS, "other_processes": 0, "driver_version": "580.1"},
        **dict.fromkeys(("power_cap_watts", "default_power_cap_watts", "max_power_cap_watts"), machine.power_cap),
        "max_sm_clock_mhz": 2000.0,
    }
    unknown = (
        *("max_memory_clock_mhz", "clock_limit_mhz", "default_clock_limit_mhz", "performance_level", "persistence"),
        *("compute_mode", "ecc", "partition", "gpu_memory_used_gb", "temperature_before_celsius"),
        *("temperature_after_celsius", "throttle_before", "throttle_after", "throttled_percent"),
        *("busy_before_percent", "numa_balancing", "numa_nodes", "cpu_governor", "swap_used_gb", "shared_memory_gb"),
        *("open_files_limit", "locked_memory_gb"),
    )
    reasons = dict.fromkeys(unknown, "an imaginary machine")
    return known | dict.fromkeys(unknown) | {"reasons": reasons}


def probe_of(machine: Machine, seed: int = 0) -> dict[str, Any]:
    """Return the content of the probe: each ceiling with its own error, half of it where the cache is warm."""
    draw = random.Random(f"probe {seed} {machine.host}")
    operators = []
    for call in CALLS:
        seconds = machine.ceiling(call) * 1e-6 * (1 + draw.gauss(0, machine.probe_noise))
        operators.append(
            {
                **{"name": call.name, "shapes": json.dumps(call.dims), "dtypes": '["bfloat16"]', "phase": call.phase},
                **{"kind": call.kind, "flops": call.flops, "bytes": 1e6, "seconds": 1.1 * seconds},
                **{"warm_seconds": seconds, "spread_percent": 196 * machine.probe_noise, "method": "replayed"},
                **{"reason": "", "variants": {}},
            }
        )
    job = {
        **{"framework": "mega", "model": "llama", "model_size": "tiny", "ranks": GPUS, "threads": None},
        "settings": result_of(machine, 1)["training_config"],
        "calls": [[place, call.count] for place, call in enumerate(CALLS)],
        "collectives": [{"name": "all_reduce", "bytes": SENT, "group": "", "ranks": GPUS, "count": 1}],
    }
    rate = {"best_tflops": 600.0, "sustained_tflops": 500.0, "spread_percent": 1.0}
    return {
        **{"probe_version": 2, "platform": machine.platform, "host": machine.host, "device_name": machine.device},
        **{"total_memory_gb": machine.memory_gb, "started_utc": DAY.isoformat(), "pytorch_version": "2.13.0"},
        **{"rates": {"bf16": rate}, "reasons": {"fp8": "torch cannot"}, "operators": operators, "jobs": [job]},
        "collectives": [
            {
                **{"name": "all_reduce", "bytes": size, "ranks": GPUS, "nodes": 1, "spread_percent": 1.0},
                **{"seconds": size / machine.bandwidth * 1e-6, "bus_gb_per_second": machine.bandwidth / 1e3},
            }
            for size in SIZES
        ],
        **{"bandwidth": {}, "loader_samples_per_second": None, "findings": []},
        "machine": {
            **{"driver_version": "580.1", "software_version": "7.1", "pytorch_version": "2.13.0"},
            **{"power_cap_watts": machine.power_cap, "max_sm_clock_mhz": 2000.0},
        },
    }


def write_profile(folder: Path, machine: Machine) -> Path:
    """Write the profile of one run and return its folder."""
    place = folder / "profiles" / f"profiled_train_{machine.platform}_mega_llama_run1_attempt1"
    place.mkdir(parents=True)
    events, at = [], 0.0
    for number in range(TRACED):
        length = _add_step(events, machine, at, number)
        at += length
    trace = gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    (place / "rank0.json.gz").write_bytes(trace)
    content = {
        **{"profile_version": 1, "platform": machine.platform, "framework": "mega", "model": "llama"},
        **{"model_size": "tiny", "run": 1, "host": machine.host, "device_name": machine.device},
        **{"started_utc": (DAY + timedelta(hours=9)).isoformat(), "reasons": {}},
        **{"settings": result_of(machine, 1)["training_config"], "steps": [11, 12, 13], "ranks": [0]},
        "traces": {"0": {"file": "rank0.json.gz", "sha256": hashlib.sha256(trace).hexdigest()}},
        "profiled_step_seconds": [length * 1e-6] * TRACED,
        "unprofiled_step_seconds": machine.step * 1e-6,
    }
    (place / "profile.json").write_text(json.dumps(content))
    return place


def _add_step(events: list[dict[str, Any]], machine: Machine, begin: float, number: int) -> float:
    """Add the events of a step and return its length."""
    at = begin + LEAD + machine.data_wait
    for call in CALLS:
        if call.phase == "optimizer":
            at += machine.exposed()
        pieces = machine.unfused if call.kind == "optimizer" else 1
        for place in range(call.count * pieces):
            at += machine.gap + machine.recording
            length = machine.ceiling(call) * machine.slowness.get(call.kind, 1.0) / pieces
            _add_kernel(events, machine, call, at, length, is_unfused=pieces > 1)
            at += length
            is_last = call.phase == "backward" and place == call.count - 1
            if is_last and machine.exposed():
                sent = {"device": 0, "stream": 20}
                name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
                _add(events, "kernel", name, at - length / 2, length / 2 + machine.exposed(), 20, sent)
    _add(events, "user_annotation", f"ProfilerStep#{number}", begin, at - begin, 100, {})
    return at - begin


def _add_kernel(
    events: list[dict[str, Any]], machine: Machine, call: Call, at: float, length: float, *, is_unfused: bool
) -> None:
    correlation = len(events)
    gemm = "nvjet_tst_128x256" if machine.platform == "nvd" else "Cijk_Alik_Bljk_BBS_BH_MT256x256x64"
    kernel = gemm if call.kernel == "gemm" else f"{call.kernel}_kernel"
    name = "aten::_foreach_addcdiv_" if is_unfused else call.name
    dims = {"Input Dims": [list(dims) for dims in call.dims], "Input type": ["c10::BFloat16"] * len(call.dims)}
    _add(events, "cpu_op", name, at - 4, 3, 100, dims | {"External id": correlation})
    launch = "cudaLaunchKernel" if machine.platform == "nvd" else "hipLaunchKernel"
    _add(events, "cuda_runtime", launch, at - 3, 1, 100, {"correlation": correlation})
    _add(events, "kernel", kernel, at, length, 7, {"device": 0, "stream": 7, "correlation": correlation})


def _add(
    events: list[dict[str, Any]], category: str, name: str, at: float, length: float, thread: int, args: dict[str, Any]
) -> None:
    place = {"pid": 0 if category == "kernel" else 1, "tid": thread, "ts": 1e9 + at, "dur": length}
    events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})


def _rate(step: int, asked: dict[str, Any]) -> float:
    peak, warm, last = asked["lr"], asked["warmup_iters"], asked["max_steps"]
    if step <= warm:
        return float(peak * step / (warm + 1))
    return float(peak * (1 + math.cos(math.pi * (step - warm - 1) / (last - warm))) / 2)


def _summary(times: list[float], machine: Machine) -> dict[str, Any]:
    steady = times[4:]
    mean = sum(steady) / len(steady)
    tokens = BATCH * LENGTH
    return {
        **{"avg_step_time_seconds": mean, "min_step_time_seconds": min(steady), "max_step_time_seconds": max(steady)},
        "std_step_time_seconds": math.sqrt(sum((time - mean) ** 2 for time in steady) / (len(steady) - 1)),
        **{"tokens_per_second": tokens / mean, "tokens_per_second_per_gpu": tokens / mean / GPUS},
        **{"steps_per_second": 1 / mean, "warmup_steps_excluded": 4},
        "data_wait_fraction": min(1.0, machine.data_wait * 1e-6 / mean),
    }


def slower(machine: Machine, **changes: Any) -> Machine:
    """Return the machine with other properties."""
    return replace(machine, **changes)
