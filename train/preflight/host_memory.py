"""The host memory that the ranks of one machine take for their weights before the first step.

With INIT=equal a rank of mega fills its part of the model, which is on the GPU, from parameters that are drawn on the
host one after another, and as many ahead as the rank has threads (train/common/weights.py). In hf the whole model is on
the host first: in float32 on rank 0 of all, which sends every rank its part (train/hf/sharding.py), in the precision of
the training where there is one rank. Interpreter and libraries of each rank are as measured on a CPU; what a driver of
a GPU maps into a process is not known and not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from train.job.job import Job
from train.machine.capacity import threads_of_a_rank
from utils.memory.estimate import BYTES_PER_GB, FRAMEWORKS, PROCESS_GB, cpu_capacity_gb
from utils.memory.terms import FP32_BYTES, Stage


def host_gb(job: Job) -> float:
    """Return the host memory, GB (1e9 bytes), of all ranks of the machine with rank 0, for mega or hf on GPUs."""
    config, spec = job.config, job.spec
    stage = Stage(config, job.framework, spec, 0)
    # at most: the embedding or the output layer, and one matrix of a layer for each thread that draws ahead
    at_once = spec.vocab_size * spec.hidden_size + threads_of_a_rank(config) * spec.hidden_size * spec.ffn_hidden_size
    drawing = FP32_BYTES * at_once if config.init == "equal" else 0
    if stage.is_mega:
        weights = config.ranks_per_node * drawing
    else:
        weights = (FP32_BYTES if config.num_gpus > 1 else stage.width) * spec.parameter_count + drawing
    return config.ranks_per_node * PROCESS_GB[job.framework] + weights / BYTES_PER_GB


def lines(jobs: Sequence[Job], *, is_here: bool) -> list[str]:
    """Return a line for each framework and model, as a warning where the machine has less memory; none on a CPU.

    `is_here` is False in the plan of another machine, whose memory is unknown.
    """
    found = []
    for job in {(job.framework, job.model): job for job in jobs if job.config.platform != "cpu"}.values():
        name = f"host memory: {job.framework} {job.model}"
        if job.framework not in FRAMEWORKS:
            found.append(f"{name} unknown (no formula for this framework yet)")
            continue
        needed, ranks = host_gb(job), job.config.ranks_per_node
        line = f"{name} about {needed:.1f} GB for {ranks} {'rank' if ranks == 1 else 'ranks'}"
        if not is_here:
            found.append(f"{line}, of an unknown amount (the plan is for another machine)")
            continue
        has, source = cpu_capacity_gb(1)
        less = (
            f"; the machine has less: use {'FRAMEWORK=mega or ' if job.framework == 'hf' else ''}one with more memory"
        )
        found.append(f"{'warning: ' * (needed > has)}{line} of {has:.1f} GB ({source}){less * (needed > has)}")
    return found
