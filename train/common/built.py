"""Checks of what a framework has built: the same model as the spec, and each setting of the map as it was asked.

The `resolved.py` of each framework reads the facts from its built objects with the functions at the end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from train.job.job import Job
from train.job.report import MismatchError
from train.settings_map.map import applied
from utils.models import TRAITS, ModelSpec

FLOAT32_RELATIVE = 1e-6
NOT_COMPARED = ("optimizer", "attention_backend")
"""Keys that a framework takes as a name and that are read back as the object built from it."""
SHAPE = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_query_groups",
    "vocab_size": "vocab_size",
    "norm_eps": "norm_epsilon",
    "qkv_bias": "qkv_bias",
    "rope_base": "rope_base",
    "parameter_count": "parameter_count",
}
"""Keys of `resolved_config` that every model has, with the fields of ModelSpec."""


def model_differences(spec: ModelSpec, resolved: Mapping[str, Any]) -> list[str]:
    """Return the differences between the resolved configuration and the model, as `key: asked ..., built ...`.

    A value of SHAPE that is None was not read back and is not compared.
    """
    pairs = {}
    for key, field in SHAPE.items():
        if resolved[key] is not None:
            pairs[key] = (getattr(spec, field), resolved[key])
    # without the number of layers nothing of the model was read back, and a missing trait proves nothing
    if resolved["num_layers"] is not None:
        scaling = None if spec.rope_scaling is None else dataclasses.asdict(spec.rope_scaling)
        pairs["rope_scaling"] = (scaling, resolved["rope_scaling"])
        for trait in TRAITS:
            if not trait.is_always_recorded:
                pairs[trait.key] = (getattr(spec, trait.key, trait.absent), resolved.get(trait.key, trait.absent))
        dtype = resolved["parameter_dtype"]
        # a router in another precision than the weights chooses other experts
        pairs["router_dtype"] = (dtype, resolved.get("router_dtype", dtype))
    return [f"{key}: asked {asked!r}, built {built!r}" for key, (asked, built) in pairs.items() if differ(asked, built)]


def differ(asked: object, built: object) -> bool:
    """Return whether two values differ; floats are compared as float32, because rope's base is computed from such."""
    if isinstance(asked, float) and isinstance(built, float):
        return not math.isclose(asked, built, rel_tol=FLOAT32_RELATIVE)
    return asked != built


def map_differences(framework: str, job: Job, resolved: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each setting of the map that was not built as asked: its key, and `NAME: asked ..., built ... (KEYS)`.

    The key is that of `resolved_config`. This finds a setting that did not arrive, where a default of a recipe or of a
    library applies instead.
    """
    differences = []
    for row, entry, asked in applied(framework, job.config, job.spec):
        if row.resolved is None or row.resolved in NOT_COMPARED:
            continue
        built = _read_back(resolved, row.resolved)
        if asked != built:
            text = f"{row.name}: asked {asked!r}, built {built!r} ({', '.join(entry.keys)})"
            differences.append((row.resolved, text))
    return differences


def _read_back(resolved: Mapping[str, Any], path: str) -> Any:
    """Return what was read back under a dotted key, in the form in which it is asked for."""
    value: Any = resolved
    for name in path.split("."):
        if value:
            value = value.get(name)
    if path == "gradient_reduce_dtype":
        return value == "float32"
    if any(trait.key == path and trait.is_left_out for trait in TRAITS):
        return bool(value)
    return value


def require_built(title: str, wrong: Sequence[str]) -> None:
    """Raise MismatchError if there is a difference between what the framework `title` was asked for and has built."""
    if wrong:
        raise MismatchError(f"{title} did not build what was asked: " + "; ".join(wrong))


# Functions for readers of built objects


def one_of_all(values: Iterable[Any], where: str, what: str) -> Any:
    """Return the value that all have; raise MismatchError where they differ, with their place and their name."""
    different = sorted(set(values))
    if len(different) != 1:
        raise MismatchError(f"{where}: got {what} {', '.join(map(str, different))}, wanted one for all")
    return different[0]


def one_recompute(checkpoints: Iterable[Any]) -> str:
    """Return what every layer computes again, `none`, `selective` or `full`; raise MismatchError where layers differ.

    `checkpoints` has the function of each layer that runs it again, a partial one, or None.
    """
    kinds = []
    for checkpoint in checkpoints:
        if checkpoint is None:
            kinds.append("none")
        elif "context_fn" in checkpoint.keywords:  # the contexts choose the operators whose results are kept
            kinds.append("selective")
        else:
            kinds.append("full")
    return str(one_of_all(kinds, "layers", "recomputation"))


def head_norms(attention: Any, names: Sequence[str], channels: int) -> list[Any]:
    """Return the norms of queries and keys, by these names, that normalise the `channels` of one head."""
    norms = []
    for name in names:
        norm = getattr(attention, name, None)
        weight = getattr(norm, "weight", None)  # a layer without norms may have modules without a weight
        if weight is not None and weight.shape == (channels,):
            norms.append(norm)
    return norms


def learned(others: Mapping[str, Any]) -> str:
    """Return the label of the routing: `learned`, with each setting of the router that is not the usual one."""
    return ", ".join(["learned", *(f"{name} {value}" for name, value in others.items())])
