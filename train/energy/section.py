"""`energy_metrics` of a result, from the samples of all nodes and the times of its steady steps.

- `joules`, `avg_watts`, `joules_per_token`: energy of all GPUs of the job (without a GPU: of the processors) in the
  steady steps of the summary, its mean power, and energy by token; null with the reason where it is not certain
- `counter_joules`, `integrated_joules`: the same energy by the counters of the devices, and by their power integrated
  over time; both are kept
- `source` in words, `method` (`gpu_counter`, `gpu_power` or `cpu_rapl`), `interval` (the steps and their seconds)
- `idle_watts`: power before the job, which is subtracted nowhere; `cpu_joules`: energy of the processor packages
- `gpu_count` (GPUs covered), `samples` (of node 0 in the interval), `sample_hz` (of the slowest node)
- `mean_*`, `max_*`: state of the GPUs and use of the cores in the same time; `throttled_percent`: share of the samples
  with each reason for reduced clocks, of the GPU with the largest share

Energy is rejected where counter and power of a package differ by more than RELATIVE: one of them then counts something
else, such as one die of two. It is also rejected below LEAST_HERTZ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from train.energy.node_energy import (
    JoulesError,
    Measured,
    NodeEnergy,
    PackageEnergy,
    of_node,
    steady_intervals,
    total,
)
from train.energy.sampler import Header, NodeSamples, SampleFileError, path_of, read_samples
from train.job.job import Job
from train.job.recorder import CLOCK_KEY, shift_seconds
from train.machine.gpu_state import largest
from utils.results.keys import KEYS as RESULT_KEYS
from utils.results.performance import warmup_steps
from utils.results.schema import ENERGY_RELATIVE, LEAST_HERTZ, Result

Section = dict[str, Any]
"""`energy_metrics`, or a part of it."""
LEAST_SECONDS = 10.0
"""Counters and power are renewed every 0.1 s, and some devices average power over up to 1 s (Yang et al., "Part-time
Power Measurements", arXiv 2312.02741): in a shorter interval, counter and power differ although both are right."""
KEYS = tuple(RESULT_KEYS["energy_metrics"])
NOT_THE_WALL = "not the wall"
NO_GPU, NOT_REPORTED = "no GPU", "the devices do not report it"


def of_result(job: Job, result: Result) -> Section:
    """Return the section of a result that a job has just left, from the samples of all its nodes.

    The times of the steps, which the result has in this section, are used up.
    """
    clock = result["energy_metrics"].get(CLOCK_KEY)
    if result["status"] != "ok":
        return unknown(f"not measured: the job ended as {result['status']}")
    if clock is None:
        return unknown("the times at which the steps ended are not known")
    paths = (path_of(job, node) for node in range(job.config.nodes))
    try:
        return of_job((read_samples(path) for path in paths), result, clock)
    except SampleFileError as error:
        return unknown(str(error))


def unknown(reason: str) -> Section:
    """Return the section of a result without energy, with one reason for all of it."""
    return {**dict.fromkeys(KEYS), "reasons": dict.fromkeys(KEYS, reason)}


def of_job(nodes: Iterable[NodeSamples], result: Result, clock: Header) -> Section:
    """Return the section; `clock` is that of the trainer, with the ends of the result's steps.

    The samples of the nodes are taken one node after the other, because those of a long job are large.
    """
    times, ends = result["step_times"], clock["ends"]
    if len(times) != len(ends):
        return unknown(f"the times of {len(ends)} steps are known, and {len(times)} steps are in the result")
    skipped = warmup_steps(len(times))
    if len(times) <= skipped:
        return unknown("no step is steady")
    intervals = steady_intervals(ends, times, skipped)
    seconds = sum(end - start for start, end in intervals)
    # a longer job helps only where there is something to read
    if seconds < LEAST_SECONDS:
        too_short = f"the steady steps took {seconds:.2f} s, and energy needs {LEAST_SECONDS:g} s or more"
        return unknown(_why_nothing_is_read(nodes) or f"{too_short}; raise TRAIN_ITERS")
    measured = []
    try:
        for node in nodes:
            shift = shift_seconds(clock, node.header)
            measured.append(of_node(node, [(start + shift, end + shift) for start, end in intervals]))
    except JoulesError as error:
        return unknown(f"the samples cannot be used: {error}")
    steady = len(times) - skipped
    section, why = _energy(measured, result, seconds, steady)
    steps = f"{steady} steady steps ({result['steps'][skipped]} to {result['steps'][-1]})"
    section["interval"] = f"{steps}, {seconds:.1f} s"
    section = dict.fromkeys(KEYS) | section | _states(measured)
    reasons = {}
    for key, value in section.items():
        if value is None:
            reasons[key] = why.get(key) or why["*"]
    return section | {"reasons": reasons}


def _why_nothing_is_read(nodes: Iterable[NodeSamples]) -> str | None:
    """Return why a node has no counter at all, which no longer job would change; None if each has one."""
    for node in nodes:
        devices, reason = ("packages", "rapl") if node.header["platform"] == "cpu" else ("gpus", "gpus")
        if not node.header[devices]:
            return node.why[reason]
    return None


def _energy(nodes: Sequence[NodeEnergy], result: Result, seconds: float, steps: int) -> tuple[Section, dict[str, str]]:
    """Return energy and its sources, and the reasons for what is null; `*` is that of all other keys."""
    has_gpus = nodes[0].header["platform"] != "cpu"
    cpu = total([node.cpu_joules for node in nodes])
    idle = total([node.idle_watts for node in nodes])
    packages = [package for node in nodes for package in node.packages]
    if has_gpus:
        # of a job on several nodes all must be known
        missing = [Measured(None, node.why["gpus"]) for node in nodes if not node.header["gpus"]]
        counter = total(missing or [package.counter for package in packages])
        power = total(missing or [package.power for package in packages])
        method = "gpu_power" if counter.joules is None else "gpu_counter"
    else:
        counter, power = cpu, Measured(None, cpu.why or "RAPL has a counter and no power")
        method = "cpu_rapl"
    energy = _chosen(counter, power, packages, min(node.hertz for node in nodes))
    config = result["training_config"]
    values = {
        "joules": energy,
        "avg_watts": energy.per(seconds),
        "joules_per_token": energy.per(steps * config["global_batch_size"] * config["sequence_length"]),
        "counter_joules": counter,
        "integrated_joules": power,
        "idle_watts": idle,
        "cpu_joules": cpu,
    }
    section: Section = {name: value.joules for name, value in values.items()}
    why = {name: value.why for name, value in values.items()}
    why |= {"method": energy.why, "source": energy.why, "gpu_count": NO_GPU}
    why["*"] = NOT_REPORTED if packages else nodes[0].why.get("gpus", NO_GPU)
    section |= {"method": None, "source": None, "gpu_count": _covered(packages) if has_gpus else None}
    if counter.joules is not None or power.joules is not None:
        section["method"] = method
        section["source"] = _source(method, nodes[0].header, packages, config["num_gpus"])
    return section, why


def _chosen(counter: Measured, power: Measured, packages: Sequence[PackageEnergy], hertz: float) -> Measured:
    """Return the energy that counts: that of the counters if power confirms it, else that of the only source."""
    if counter.joules is None and power.joules is None:
        return Measured(None, "; ".join(dict.fromkeys((counter.why, power.why))))
    # peaks between two samples would be lost
    if hertz < LEAST_HERTZ:
        return Measured(None, f"sampled {hertz:.1f} times a second, wanted {LEAST_HERTZ:g}: the machine is too busy")
    for package in packages:
        counted, integrated = package.counter.joules, package.power.joules
        if counted is None or integrated is None:
            continue
        if abs(counted - integrated) > ENERGY_RELATIVE * integrated:
            apart = f"its counter makes {counted:,.0f} J and its power {integrated:,.0f} J"
            limit = f"limit {100 * ENERGY_RELATIVE:g} %"
            cause = "one of them counts something else, such as one die"
            return Measured(None, f"rejected: {package.name}: {apart} ({limit}): {cause}")
    # a counter misses nothing between two samples
    return power if counter.joules is None else counter


def _source(method: str, header: Header, packages: Sequence[PackageEnergy], gpus: int) -> str:
    if method == "cpu_rapl":
        names = ", ".join(package["name"] for package in header["packages"])
        return f"CPU RAPL counter of the processors ({names}), {NOT_THE_WALL}"
    kind = "GPU counter" if method == "gpu_counter" else "GPU power, integrated"
    return f"{kind}, {NOT_THE_WALL} ({header['library']}; {_covered(packages)} of {gpus} GPUs)"


def _covered(packages: Sequence[PackageEnergy]) -> int:
    """Return the number of GPUs with an energy."""
    return sum(package.devices for package in packages if package.counter.joules or package.power.joules)


def _states(nodes: Sequence[NodeEnergy]) -> Section:
    section: Section = {"samples": nodes[0].samples, "sample_hz": min(node.hertz for node in nodes)}
    for name in nodes[0].states:
        values = np.concatenate([node.states[name] for node in nodes])
        section[f"mean_{name}"] = section[f"max_{name}"] = None
        if len(values):
            section[f"mean_{name}"] = float(values.mean())
            section[f"max_{name}"] = float(values.max())
    shares = [share for node in nodes for share in node.throttled]
    section["throttled_percent"] = largest(shares) if shares else None
    return section
