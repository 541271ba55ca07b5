"""Order of certificate items by their effect on speed, and the items that a statement about the work rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evaluate.fairness.certificate import DATA, FLOAT32_PRODUCTS, LAYOUT, MEANS, MODEL, ONLY_IF_TRUE, OPTIMIZER, WORK
from evaluate.fairness.evidence import OUTSIDE
from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item

STATES = (BLOCKING, UNKNOWN, ALLOWED, SAME)
SHAPE = ("number of parameters", "layers", "hidden size", "feed-forward size", "attention heads", "query groups")
"""Items that decide the number of operations for a token."""
BY_EFFECT = (
    *("proof of model and data", "model", "model size", *SHAPE, "vocabulary", "attention window"),
    *(
        "precision",
        "sequence length",
        "number of GPUs",
        "nodes",
        "micro batch",
        "global batch",
        "gradient accumulation",
    ),
    *("tensor parallel size", "pipeline parallel size", "context parallel size", "data parallel size"),
    *("recomputed activations", "setting", "time outside the steps", "waiting for data"),
    *("power cap", "clocks", "partition", "slowing down", "other work", "NUMA balancing"),
    "environment",
    *("attention", "fused operations", "layers by", "overlap of gradient reduction", "overlap of parameter gather"),
    *("distributed optimizer", "type of reduced gradients", "precision of gradients", "parameter type"),
    *("optimizer states", "optimizer class", "precision of optimizer states", "loader workers", "cpu governor"),
    *("framework versions", "image digest", "code sha256"),
)
"""Names of items, largest effect on the step time first. Items that are not listed have little or none: data,
hyperparameters, seeds, losses. `environment` stands for every item on a
variable, `setting` for every setting beyond the schema."""
RUNS = "number of runs"


def by_effect(items: Iterable[Item]) -> list[Item]:
    """Return items by state, blocking first, and within a state the largest effect on speed first."""
    return sorted(items, key=lambda item: (STATES.index(item.state), _effect(item.name)))


def unproven_work(items: Iterable[Item], *, is_equal_method: bool, is_one_framework: bool) -> list[str]:
    """Return the unproven items on the work or the environment in which a difference would forbid a comparison.

    The layout is part of the settings with the method `equal` alone, and the means only inside one framework too.
    """
    names = {*MODEL.values(), *ONLY_IF_TRUE.values(), *WORK.values(), *DATA.values()} - {"initial weights"}
    names |= {FLOAT32_PRODUCTS, "losses", OPTIMIZER, OUTSIDE, RUNS, "model", "model size"}
    names |= set(LAYOUT.values()) if is_equal_method else set()
    names |= set(MEANS.values()) if is_equal_method and is_one_framework else set()
    unproven = [item.name for item in items if item.is_unproven]
    # an unknown environment may hold a handicap, and so may a variable or a setting that no table knows
    return [name for name in unproven if name in names or name.split()[0] in ("environment", "setting")]


def other_unknown(items: Iterable[Item], proven: Sequence[str]) -> list[str]:
    """Return the unknown items that are not among `proven`, such as conditions of the machines."""
    return [item.name for item in items if item.state == UNKNOWN and item.name not in proven]


def _effect(name: str) -> int:
    key = next((group for group in ("environment", "setting") if name.startswith(f"{group} ")), name)
    return BY_EFFECT.index(key) if key in BY_EFFECT else len(BY_EFFECT)
