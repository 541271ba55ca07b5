"""Rules of identity: the layers that ran, the shape of the model and the loss fit the name of the result.

The name of a framework names the code that trained. A job named Megatron that trained a transformers model measures
transformers, whichever launcher started it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from evaluate.checks.consistency import FLOAT32_RELATIVE
from evaluate.metrics.metrics import MEMORISED_NATS, last_loss
from utils.models import UnknownModelError, get
from utils.results.schema import Result

ENOUGH_TIMES = 8
"""This many different step times of six digits are never measured twice."""
MEGATRON = ("mega", "nemo", "prim")
"""Frameworks whose layers are megatron-core's, its own or TransformerEngine's."""
_OF_TRANSFORMERS = ("forcausallm", "transformers", "huggingface", "hf_")
_OF_MEGATRON = ("megatron", "mcore", "transformer_engine")
_SHAPE = {"qkv_bias": "qkv_bias", "norm_eps": "norm_epsilon", "rope_base": "rope_base"}
"""Properties that are the same in every size of a model: key of `resolved_config` and field of ModelSpec."""


def framework_matches_layers(result: Result) -> list[str]:
    """Return a line if the layers that trained belong to another framework than the result names."""
    framework, layers = result["framework"], result["resolved_config"]["layer_implementation"]
    if layers is None:
        return []
    others = _OF_TRANSFORMERS if framework in MEGATRON else _OF_MEGATRON if framework == "hf" else ()
    if not any(word in layers.casefold() for word in others):
        return []
    return [f"framework: says {framework}, and the layers that ran are {layers}; it is another framework's result"]


def model_matches_name(result: Result) -> list[str]:
    """Return a line for each property in which the model that ran differs from every size of the named model."""
    try:
        spec = get(result["model"])
    except UnknownModelError:
        return []
    ran = result["resolved_config"]
    return [
        f"model: {result['model']} has {key} {getattr(spec, field)}, ran {ran[key]}; it is another model"
        for key, field in _SHAPE.items()
        if ran[key] is not None and not math.isclose(ran[key], getattr(spec, field), rel_tol=FLOAT32_RELATIVE)
    ]


def loss_is_of_unseen_data(result: Result) -> list[str]:
    """Return a line if the last losses are so small that the data must have been seen before."""
    if result["status"] != "ok" or not result["loss_values"] or None in result["loss_values"]:
        return []
    last = last_loss(result)
    if last > MEMORISED_NATS:
        return []
    return [f"loss: {last:.3g} nats a token at the end, under {MEMORISED_NATS}, is that of memorised data"]


def copied_step_times(found: Sequence[tuple[Path, Result]]) -> Iterator[list[str]]:
    """Yield for each result, in order, a line if an earlier run has the same step times to the last digit.

    A copy of a file under another name is the same run and gives no line; `evaluate.report.grouping` leaves it out.
    """
    first: dict[tuple[float, ...], tuple[Path, Result]] = {}
    for path, result in found:
        times = tuple(result["step_times"])
        before_path, before = first.setdefault(times, (path, result))
        is_other = before["run"] != result["run"] or before["provenance"]["host"] != result["provenance"]["host"]
        if is_other and len(set(times)) >= ENOUGH_TIMES:
            yield [f"step_times: those of {before_path.name} to the last digit; a copied run is no second run"]
        else:
            yield []
