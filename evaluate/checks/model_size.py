"""Rule of the model's size: parameters, layers and widths that ran are those of the named model in the named size."""

from __future__ import annotations

from dataclasses import replace

from evaluate.checks.recorded import is_recorded
from utils.models import ModelSpec, UnknownModelError, get
from utils.results.schema import Result

COUNT_RELATIVE = 1e-3
"""Tolerance of the parameter count; one layer of a model is 2 % of it or more."""
VOCABULARY_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this number times the tensor-parallel size."""
WIDTHS = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")


def size_matches_name(result: Result) -> list[str]:
    """Return a line for each width, the layers and the parameter count that the named size does not have."""
    ran = result["resolved_config"]
    spec = _named(result)
    if spec is None or not is_recorded(result):
        return []
    name = f"{result['model']} {result['model_size']}"
    lines = [
        f"{key}: {name} has {getattr(spec, key)}, ran {ran[key]}; it is another model"
        for key in WIDTHS
        if ran[key] is not None and ran[key] != getattr(spec, key)
    ]
    return lines or _count(result, name, spec)


def _count(result: Result, name: str, spec: ModelSpec) -> list[str]:
    ran = result["resolved_config"]
    counted, vocabulary = ran["parameter_count"], ran["vocab_size"] or spec.vocab_size
    padding = VOCABULARY_MULTIPLE * max(1, result["training_config"]["tp"] or 1)
    if spec.vocab_size <= vocabulary <= spec.vocab_size + padding:
        spec = replace(spec, vocab_size=vocabulary)
    if ran.get("tie_word_embeddings"):
        spec = replace(spec, tie_word_embeddings=True)
    wanted = spec.parameter_count
    if counted is None or abs(counted - wanted) <= COUNT_RELATIVE * wanted:
        return []
    return [f"parameter_count: {name} has {wanted:,}, ran {counted:,}; it is another model"]


def _named(result: Result) -> ModelSpec | None:
    """Return the named model; a proxy has as many layers as ran, if they are fewer than those of the full model."""
    layers = result["resolved_config"]["num_layers"]
    try:
        if result["model_size"] == "proxy" and layers:
            return get(result["model"], "proxy", proxy_layers=layers)
        return get(result["model"], result["model_size"])
    except UnknownModelError:
        return None
