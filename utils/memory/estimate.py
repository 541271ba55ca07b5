"""Estimate of the memory that a job needs on one device, and of the micro batch that fits. Standard library only.

`estimate` adds up the memory at the fullest moment of a step on the fullest pipeline stage: weights, gradients and
optimizer states; what the forward pass keeps for the backward pass, for every micro batch in flight; the logits; and
temporary tensors at that moment. The terms are in utils/memory/terms.py.

Errors measured on a CPU (docs/memory.md describes the comparison):

- kept for the backward pass: up to 0.1 % below what both frameworks really keep, for every model;
- largest amount of live tensors of a rank: 2 % below to 4 % above; threads of gloo may hold the weights once more;
- resident set of a rank: 8 % below to 2 % above, but up to 26 % below for tensors under 32 MiB each, because the C
  library keeps their freed memory.

On one H200 five whole-model jobs had a peak of allocated tensors from 1.6 % below to 0.5 % above the estimate
(docs/memory.md; tests/h200). No other GPU has confirmed it. Memory of a GPU outside torch's tensors (context,
communication buffers, workspaces of libraries, fragmentation) is not counted: `process_gb` is None, and a device needs
more than the total.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from utils import frameworks
from utils.hardware.devices import BYTES_PER_GB, MIB, Device
from utils.memory.terms import Stage
from utils.models import ModelSpec
from utils.settings.config import RunConfig

FORMULA = "live_tensors/v6"
"""Id of the formula in utils/memory/terms.py; change it with every change of a term."""
USABLE = 0.95
"""Largest share of a device's memory for tensors; driver, libraries and fragmentation take the rest."""
OUTSIDE_TORCH_GB = {"amd": 10.9}
"""Memory that the runtime takes outside torch, GB (1e9 bytes), by platform: HIP's contexts, RCCL, libraries. amd: 8
MI355X, 94.71 GiB in use, of which torch reserved 86,588 MiB (Primus, branch feat/xiaoming/tuning_agent,
real_e2e_escape_demo_baseline/train.log, 11 May 2026). None was seen for another platform: its share is 1 - USABLE."""
RESERVED_GB = {"nvd": 616 * MIB / BYTES_PER_GB}
"""Memory that driver and firmware keep of what the driver reports, GB (1e9 bytes), by platform. nvd: 616 MiB of an
H200, driver 580.159.04 (tests/h200/facts/nvidia_smi_q.txt); other boards are taken to be alike. amd: none is known."""
PROCESS_GB = {one.name: one.process_gb for one in frameworks.FRAMEWORKS.values() if one.process_gb is not None}
FRAMEWORKS = tuple(PROCESS_GB)
"""Frameworks with a memory estimate."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of one device at the fullest moment of a step, GB (1e9 bytes); the fields add up to the total."""

    weights_gb: float
    gradients_gb: float
    """Gradients held at that moment, with DDP's buckets."""
    optimizer_gb: float
    activations_gb: float
    """Kept by the layers for the backward pass, over all micro batches in flight."""
    logits_gb: float
    """Logits and their gradients; 0 on a stage without the output layer."""
    workspace_gb: float
    """Gathered weights (hf on several devices), and memory of the fullest moment beyond all other terms."""
    process_gb: float | None
    """The process itself, on a CPU; None on a GPU, where it has not been measured."""
    stage: int
    """Number of the fullest pipeline stage, from 0; all fields describe it."""
    formula: str
    """Id of the formula and its assumptions: bytes per parameter, micro batches in flight."""

    @property
    def total_gb(self) -> float:
        """Sum of all known terms."""
        total = 0.0
        for field in fields(self):
            if field.name.endswith("_gb"):
                total += getattr(self, field.name) or 0.0
        return total


def estimate(config: RunConfig, framework: str, spec: ModelSpec) -> MemoryEstimate:
    """Return the estimate for one device of a job of `framework`, one of FRAMEWORKS.

    PRECISION=fp8 is counted as bf16 with fp8 copies of the layers' weights. Raises ValueError for any other framework.
    """
    if framework not in FRAMEWORKS:
        raise ValueError(
            f"memory estimate: got framework {framework!r}, wanted {' or '.join(FRAMEWORKS)}; others have no formula"
        )
    stages = range(config.pipeline_parallel_size)
    # the first stage has the embedding and most micro batches in flight, the last the logits
    estimates = [_add_up(Stage(config, framework, spec, stage)) for stage in stages]
    return max(estimates, key=lambda estimate: estimate.total_gb)


def device_capacity_gb(device: Device, platform: str) -> float:
    """Return the memory that a job finds on a device of the table: what its driver reports, less what it reserves."""
    return device.memory_gb - RESERVED_GB.get(platform, 0.0)


def usable_gb(capacity_gb: float, platform: str) -> float:
    """Return the memory that tensors may take on a device of `capacity_gb`, without what the driver reserves."""
    return min(USABLE * capacity_gb, capacity_gb - OUTSIDE_TORCH_GB.get(platform, 0.0))


def _add_up(stage: Stage) -> MemoryEstimate:
    weight, gradient, state = stage.bytes_per_parameter
    return MemoryEstimate(
        weights_gb=weight * stage.parameters / BYTES_PER_GB,
        gradients_gb=stage.gradients / BYTES_PER_GB,
        optimizer_gb=stage.optimizer / BYTES_PER_GB,
        activations_gb=stage.activations / BYTES_PER_GB,
        logits_gb=stage.logits / BYTES_PER_GB,
        workspace_gb=stage.workspace / BYTES_PER_GB,
        process_gb=PROCESS_GB[stage.framework] if stage.is_cpu else None,
        stage=stage.stage,
        formula=f"{FORMULA}: {stage.framework} {stage.config.precision}, bytes a parameter: weights {weight:g}, "
        f"gradients {gradient:g}, optimizer {state:g}; micro batches in flight: {stage.in_flight}",
    )
