"""The memory of a job against that of its device and its host: a job that cannot fit is refused before it is started,
with the settings that would fit.

`terminal_table` is the fit table: `shell/run_train.sh --dry-run` prints it for the jobs of a matrix, also on a machine
without a GPU. The devices are rows of utils/hardware/devices.py, with the memory that their drivers report.

Host memory is that of the weights before the first step. With INIT=equal a rank of mega fills its part of the model,
which is on the GPU, from parameters that are drawn on the host one after another, and as many ahead as the rank has
threads (train/common/weights.py). In hf the whole model is on the host first: in float32 on rank 0 of all, which sends
every rank its part (train/hf/model.py), in the precision of the training where there is one rank. Interpreter and
libraries of each rank are as measured on a CPU; what a driver of a GPU maps into a process is not known and not
counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from train.job.job import Job
from train.machine.gpus import cpu_capacity_gb, threads_of_a_rank
from utils import frameworks
from utils.hardware.devices import BYTES_PER_GB, DEVICES, Device
from utils.memory.estimate import (
    FRAMEWORKS,
    PROCESS_GB,
    MemoryEstimate,
    device_capacity_gb,
    estimate,
    usable_gb,
)
from utils.memory.terms import FP32_BYTES, Stage
from utils.models import ModelSpec
from utils.settings.config import RunConfig
from utils.settings.keys import KEYS

LOWER_BOUND = 0.96
"""The estimate was at most 4 % above the largest amount of live tensors (docs/memory.md)."""
ORDER = ("MBS", "RECOMPUTE", "OPTIMIZER_STATE", "EP", "TP", "PP")
"""Settings that are changed to fit a job, those that change least of the training first."""
MOST_SUGGESTIONS = 3

Change = tuple[tuple[str, str], ...]
"""Settings and their new values, in the order of ORDER."""
LAYERS = "mega: torch's layers, TransformerEngine's are not estimated"
"""The layers that every estimate of a GPU is for, as text."""
SHOWN = {
    "nvd": ("NVIDIA H100 SXM 80GB", "NVIDIA H200 SXM 141GB", "NVIDIA B200 180GB"),
    "amd": ("AMD Instinct MI300X", "AMD Instinct MI325X", "AMD Instinct MI355X"),
}
"""Devices of a platform, by their names in the table of devices."""


def lower_bound_gb(needs: MemoryEstimate) -> float:
    """Return the least memory, GB (1e9 bytes), that a job of this estimate can need."""
    return LOWER_BOUND * needs.total_gb


def terms_text(needs: MemoryEstimate) -> str:
    """Return the terms of an estimate as text: `weights 16.1, gradients 32.1, ...` in GB."""
    terms = []
    for name, size in vars(needs).items():
        if name.endswith("_gb") and size is not None:
            terms.append(f"{name.removesuffix('_gb')} {size:.1f}")
    return ", ".join(terms)


def changes_that_fit(config: RunConfig, framework: str, spec: ModelSpec, capacity_gb: float) -> list[Change]:
    """Return up to three sets of changed settings with which the job should fit; the fewest changes come first.

    Both sides of a comparison need the same settings, so each change is one that the method `equal` allows on both.
    GBS, SL, precision and the number of GPUs stay. A set whose settings contain all those of another one is left out.
    An empty list means that no combination fits.
    """
    fitting: list[Change] = []
    changes = list(_changes(config, framework, spec))
    # few changes first; among as few, those that change least of the training
    changes.sort(key=lambda change: (len(change), [ORDER.index(setting) for setting, _ in change]))
    for change in changes:
        settings = dict(change)
        # a change that fits is not offered again with more changes
        if any(dict(smaller).keys() <= settings.keys() for smaller in fitting):
            continue
        changed = _changed(config, spec, settings)
        if changed and estimate(changed, framework, spec).total_gb <= usable_gb(capacity_gb, config.platform):
            fitting.append(change)
        if len(fitting) == MOST_SUGGESTIONS:
            break
    return fitting


def change_text(change: Change) -> str:
    """Return a change as arguments of the command line."""
    return " ".join(f"{key}={value}" for key, value in change)


def _changes(config: RunConfig, framework: str, spec: ModelSpec) -> Iterator[Change]:
    """Yield every set of changed settings that may need less memory, possible or not; smaller changes come first."""
    values: dict[str, Sequence[str]] = {
        "MBS": [str(size) for size in range(config.micro_batch_size - 1, 0, -1)],
        "RECOMPUTE": _after(("none", "selective", "full"), config.recompute),
        "OPTIMIZER_STATE": _after(("fp32", "bf16"), config.optimizer_state),
    }
    sizes = {"PP": config.pipeline_parallel_size}
    if spec.num_experts:
        sizes["EP"] = config.expert_parallel_size
    else:
        sizes["TP"] = config.tensor_parallel_size
    for key, size in sizes.items():
        if key in frameworks.of(framework).parallelism:
            values[key] = [str(number) for number in range(2 * size, config.num_gpus + 1, size)]
    choices = [[None, *values.get(key, ())] for key in ORDER]
    for combination in itertools.product(*choices):
        yield tuple((key, value) for key, value in zip(ORDER, combination, strict=True) if value is not None)


def _after(values: Sequence[str], value: str) -> Sequence[str]:
    return values[values.index(value) + 1 :]


def _changed(config: RunConfig, spec: ModelSpec, change: dict[str, str]) -> RunConfig | None:
    """Return the configuration after a change, or None where a number does not divide."""
    fields = {KEYS[key].field: KEYS[key].parse(value) for key, value in change.items()}
    config = replace(config, **fields)
    tensor, pipeline = config.tensor_parallel_size, config.pipeline_parallel_size
    data_parallel, rest = divmod(config.num_gpus, tensor * pipeline * config.context_parallel_size)
    heads = spec.num_attention_heads, spec.num_query_groups
    # each stage has as many layers, and each tensor-parallel rank as many heads
    if rest or spec.num_layers % pipeline or any(count % tensor for count in heads):
        return None
    if any(count % config.expert_parallel_size for count in (spec.num_experts, data_parallel)):
        return None
    accumulation, rest = divmod(config.global_batch_size, config.micro_batch_size * data_parallel)
    changed = replace(config, data_parallel_size=data_parallel, gradient_accumulation=accumulation)
    return None if rest else changed


def refusal(job: Job, capacity: float | None) -> str | None:
    """Return why a job cannot fit into `capacity` GB of its device, and what would fit; None if it may.

    None also for FIT=ignore, for an unknown capacity, and for a framework without a formula.
    """
    if job.config.fit == "ignore" or capacity is None or job.framework not in FRAMEWORKS:
        return None
    estimated = estimate(job.config, job.framework, job.spec)
    # only what cannot fit is refused: the estimate may be too high by what the lower bound leaves out
    needed = lower_bound_gb(estimated)
    if needed <= capacity:
        return None
    changes = changes_that_fit(job.config, job.framework, job.spec, capacity)
    if changes:
        texts = [change_text(change) for change in changes]
        remedy = f"should fit: {', or '.join(texts)} (on both sides of a comparison)"
    else:
        split, more = "TP", "more GPUs"
        if job.spec.num_experts:
            split = "EP"
            if split in frameworks.of(job.framework).parallelism:
                more = "more GPUs with EP"
        remedy = f"no MBS, RECOMPUTE, OPTIMIZER_STATE, {split} or PP fits: use {more}, a lower SL, or MODEL_SIZE=proxy"
    return (
        f"predicted, not run: at least {needed:.1f} GB are needed of a device with {capacity:.1f} GB "
        f"(estimate, GB: {terms_text(estimated)}); {remedy}; FIT=ignore starts it anyway"
    )


def devices_of(*platforms: str) -> list[Device]:
    """Return the devices of the platforms in the order of SHOWN."""
    by_name = {device.name: device for device in DEVICES}
    return [by_name[name] for platform in platforms for name in SHOWN[platform]]


def fit_row(job: Job, devices: Sequence[Device]) -> list[str]:
    """Return the GB that a job needs, and for each device `fits`, `may not fit`, or the settings that would fit."""
    estimated = estimate(job.config, job.framework, job.spec)
    return [f"{estimated.total_gb:.1f}", *(_verdict(job, device) for device in devices)]


def _verdict(job: Job, device: Device) -> str:
    config = replace(job.config, platform=next(name for name, shown in SHOWN.items() if device.name in shown))
    estimated = estimate(config, job.framework, job.spec)
    capacity = device_capacity_gb(device, config.platform)
    if estimated.total_gb <= usable_gb(capacity, config.platform):
        return "fits"
    changes = changes_that_fit(config, job.framework, job.spec, capacity)
    may = "may not fit" if lower_bound_gb(estimated) <= capacity else "no"
    return f"{may}; {change_text(changes[0])}" if changes else may


def terminal_table(jobs: Iterable[Job]) -> str | None:
    """Return the table of the jobs of one platform for a terminal; None for a CPU and for jobs without a formula."""
    first = {(job.framework, job.model): job for job in jobs if job.framework in FRAMEWORKS}
    if not first:
        return None
    platform = next(iter(first.values())).config.platform
    if platform not in SHOWN:
        return None
    devices = devices_of(platform)
    lines = [f"memory of one GPU by the estimate, GB; not measured; {LAYERS}:"]
    width = max(len(device.name) for device in devices)
    for (framework, model), job in first.items():
        needs, *verdicts = fit_row(job, devices)
        lines.append(f"  {framework} {model} needs {needs}")
        for device, verdict in zip(devices, verdicts, strict=True):
            lines.append(f"    {device.name:{width}}  {device.memory_gb:>5.1f}  {verdict}")
    return "\n".join(lines)


def host_gb(job: Job) -> float:
    """Return the host memory, GB (1e9 bytes), of all ranks of the machine with rank 0, for mega or hf on GPUs."""
    config, spec = job.config, job.spec
    stage = Stage(config, job.framework, spec, 0)
    # at most: the embedding or the output layer, and one matrix of a layer for each thread that draws ahead
    largest = max(spec.ffn_hidden_size, spec.query_size)
    at_once = (spec.vocab_size + threads_of_a_rank(config) * largest) * spec.hidden_size
    drawing = FP32_BYTES * at_once if config.init == "equal" else 0
    if stage.is_mega:
        weights = config.ranks_per_node * drawing
    else:
        weights = (FP32_BYTES if config.num_gpus > 1 else stage.width) * spec.parameter_count + drawing
    return config.ranks_per_node * PROCESS_GB[job.framework] + weights / BYTES_PER_GB


def host_memory_lines(jobs: Sequence[Job], *, is_here: bool) -> Iterator[str]:
    """Yield a line for each framework and model, as a warning where the machine has less memory; none on a CPU.

    `is_here` is False in the plan of another machine, whose memory is unknown.
    """
    has, source = cpu_capacity_gb(1)
    for job in {job.kind: job for job in jobs if job.config.platform != "cpu"}.values():
        name = f"host memory: {job.framework} {job.model}"
        if job.framework not in FRAMEWORKS:
            yield f"{name} unknown (no formula for this framework yet)"
            continue
        needed, ranks = host_gb(job), job.config.ranks_per_node
        line = f"{name} about {needed:.1f} GB for {ranks} {'rank' if ranks == 1 else 'ranks'}"
        if not is_here:
            yield f"{line}, of an unknown amount (the plan is for another machine)"
        elif needed <= has:
            yield f"{line} of {has:.1f} GB ({source})"
        else:
            # mega draws its weights in parts, hf has the whole model on the host
            other = "" if frameworks.of(job.framework).has_megatron_layers else "FRAMEWORK=mega or "
            yield f"warning: {line} of {has:.1f} GB ({source}); the machine has less: use {other}one with more memory"
