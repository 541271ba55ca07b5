"""Settings with which a job fits into the memory of its device, by the estimate. Standard library only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from utils.memory.estimate import MemoryEstimate, estimate, usable_gb
from utils.models import ModelSpec
from utils.settings.config import RunConfig
from utils.settings.keys import KEYS

LOWER_BOUND = 0.96
"""The estimate was at most 4 % above the largest amount of live tensors (docs/memory.md)."""
ORDER = ("MBS", "RECOMPUTE", "OPTIMIZER_STATE", "TP", "PP")
"""Settings that are changed to fit a job, those that change least of the training first."""
MOST_SUGGESTIONS = 3

Change = tuple[tuple[str, str], ...]
"""Settings and their new values, in the order of ORDER."""


def lower_bound_gb(found: MemoryEstimate) -> float:
    """Return the least memory, GB (1e9 bytes), that a job of this estimate can need."""
    return LOWER_BOUND * found.total_gb


def terms_text(found: MemoryEstimate) -> str:
    """Return the terms of an estimate as text: `weights 16.1, gradients 32.1, ...` in GB."""
    names = ("weights", "gradients", "optimizer", "activations", "logits", "workspace", "process")
    terms = ((name, getattr(found, f"{name}_gb")) for name in names)
    return ", ".join(f"{name} {size:.1f}" for name, size in terms if size is not None)


def changes_that_fit(config: RunConfig, framework: str, spec: ModelSpec, capacity_gb: float) -> list[Change]:
    """Return up to three sets of changed settings with which the job should fit; the fewest changes come first.

    Both sides of a comparison need the same settings, so each change is one that the method `equal` allows on both.
    GBS, SL, precision and the number of GPUs stay. A set whose settings contain all those of another one is left out.
    An empty list means that no combination fits.
    """
    found: list[Change] = []
    for change in sorted(_changes(config, framework), key=_cost):
        if any(dict(smaller).keys() <= dict(change).keys() for smaller in found):
            continue
        changed = _changed(config, spec, dict(change))
        if changed and estimate(changed, framework, spec).total_gb <= usable_gb(capacity_gb, config.platform):
            found.append(change)
        if len(found) == MOST_SUGGESTIONS:
            break
    return found


def change_text(change: Change) -> str:
    """Return a change as arguments of the command line."""
    return " ".join(f"{key}={value}" for key, value in change)


def _changes(config: RunConfig, framework: str) -> Iterator[Change]:
    """Yield every set of changed settings that may need less memory, possible or not; smaller changes come first."""
    values: dict[str, Sequence[str]] = {
        "MBS": [str(size) for size in range(config.micro_batch_size - 1, 0, -1)],
        "RECOMPUTE": _after(("none", "selective", "full"), config.recompute),
        "OPTIMIZER_STATE": _after(("fp32", "bf16"), config.optimizer_state),
    }
    if framework == "mega":
        for key, size in (("TP", config.tensor_parallel_size), ("PP", config.pipeline_parallel_size)):
            values[key] = [str(n) for n in range(size + 1, config.num_gpus + 1) if n % size == 0]
    choices = [[None, *values.get(key, ())] for key in ORDER]
    for combination in itertools.product(*choices):
        yield tuple((key, value) for key, value in zip(ORDER, combination, strict=True) if value is not None)


def _after(values: Sequence[str], value: str) -> Sequence[str]:
    return values[values.index(value) + 1 :]


def _cost(change: Change) -> tuple[int, list[int]]:
    """Return the sort key of a change: the number of settings, then their places in ORDER."""
    return len(change), [ORDER.index(key) for key, _ in change]


def _changed(config: RunConfig, spec: ModelSpec, change: dict[str, str]) -> RunConfig | None:
    """Return the configuration after a change, or None where a number does not divide."""
    fields = {KEYS[key].field: KEYS[key].parse(value) for key, value in change.items()}
    config = replace(config, **fields)
    parallel = config.tensor_parallel_size * config.pipeline_parallel_size * config.context_parallel_size
    if config.num_gpus % parallel or spec.num_layers % config.pipeline_parallel_size:
        return None
    if spec.num_attention_heads % config.tensor_parallel_size or spec.num_query_groups % config.tensor_parallel_size:
        return None
    data_parallel = config.num_gpus // parallel
    sequences = config.micro_batch_size * data_parallel
    if config.global_batch_size % sequences:
        return None
    return replace(
        config, data_parallel_size=data_parallel, gradient_accumulation=config.global_batch_size // sequences
    )
