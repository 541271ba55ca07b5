"""Advice for a job that ran out of memory: how much it held, and the micro batch that should fit instead."""

from __future__ import annotations

from train.job.recorder import Device
from utils.memory.estimate import FRAMEWORKS, estimate, largest_micro_batch
from utils.models import ModelSpec
from utils.settings.config import RunConfig


def memory_at(device: Device | None) -> str:
    """Return how much the device held when it ran out, in GB; `device` is None before the first step."""
    if device is None:
        return "the memory at that point is unknown: it was before the first step"
    reserved = device.peak_reserved_gb()
    held = "" if reserved is None else f", {reserved:.1f} GB reserved by the allocator"
    return f"{device.allocated_gb():.1f} GB were in use, {device.peak_allocated_gb():.1f} GB at the most{held}"


def advice(config: RunConfig, framework: str, spec: ModelSpec, capacity_gb: float | None) -> str:
    """Return the smaller micro batch that should fit by the estimate (utils/memory/estimate.py), or another remedy.

    `capacity_gb` is the memory of one device (on a CPU: of one rank); None where it is unknown.
    """
    if capacity_gb is None:
        return "lower MBS; how far cannot be said, because the memory of the device is unknown"
    if framework not in FRAMEWORKS:
        return f"lower MBS; how far cannot be said, because there is no formula for {framework} yet"
    needed = f"about {estimate(config, framework, spec).total_gb:.1f} GB are needed by the estimate"
    size = largest_micro_batch(config, framework, spec, capacity_gb, below=config.micro_batch_size)
    if size is None:
        return f"{needed} of {capacity_gb:.1f} GB, and no smaller micro batch fits: raise TP or PP, or lower SL"
    return f"{needed} of {capacity_gb:.1f} GB at MBS={config.micro_batch_size}; MBS={size} should fit"
