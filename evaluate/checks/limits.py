"""Rules of utilisation and of identity: what the device can do, and what the name of the result promises.

A utilisation that a result claims for itself has to follow from the formula and the peak that are used here. The layers
that ran, the shape and the size of the model and the loss fit the name of the result: the name of a framework names the
code that trained. A job named Megatron that trained a transformers model measures transformers, whichever launcher
started it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from evaluate.checks.consistency import FLOAT32_RELATIVE
from evaluate.checks.recorded import is_recorded
from evaluate.inputs.earlier import MFU_CLAIMS, TFLOPS_CLAIMS
from evaluate.metrics.capacity import spec_of
from evaluate.metrics.figures import Figure
from evaluate.metrics.metrics import MEMORISED_NATS, last_loss, utilisation
from utils import frameworks
from utils.errors import quoted
from utils.models import TRAITS, ModelSpec, UnknownModelError
from utils.results.keys import IDENTITY_KEYS, KEYS, SAMPLE_KEYS
from utils.results.schema import Result
from utils.settings.keys import ANY

FULL_PERCENT = 100.0
CLAIM_RELATIVE = 0.02
"""A utilisation over other steps of the same run differs by less; one by another formula by more (attention counted in
full, Llama 3.1 8B: 3.5 % at 2,048 tokens, 12.5 % at 8,192)."""
COUNT_RELATIVE = 1e-3
"""Tolerance of the parameter count; one layer of a model is 2 % of it or more."""
VOCABULARY_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this number times the tensor-parallel size."""
_OPTIONAL = tuple(trait for trait in TRAITS if trait.is_in_spec and not trait.is_always_recorded)
_EXPERTS = tuple(trait.key for trait in _OPTIONAL if trait.kind is int)
_WIDTHS = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", *_EXPERTS)
_SHAPE = {
    "norm_eps": "norm_epsilon",
    "rope_base": "rope_base",
} | {trait.key: trait.key for trait in TRAITS if trait.is_in_spec and trait.kind is bool and trait.makes_another_model}
"""Properties that are the same in every size of a model: key of `resolved_config` and field of ModelSpec."""


def utilisation_is_possible(result: Result) -> Iterator[str]:
    """Yield a line if model FLOP/s, with causal attention, exceed the dense peak or the measured rate."""
    if result["status"] != "ok":
        return
    figures = utilisation(result)
    for name, rate in (("mfu_causal", "the dense peak"), ("share_of_measured_matmul", "the measured rate")):
        figure = figures.get(name)
        if figure is not None and figure.value is not None and figure.value > FULL_PERCENT:
            yield f"model FLOP/s: {figure.value:.0f} % of {rate}, which cannot be: {figure.how}"


def claimed_utilisation_agrees(result: Result) -> Iterator[str]:
    """Yield a line for each utilisation that a result claims and that does not follow from its samples."""
    stored = result["performance_metrics"]
    claims = [key for key in (*MFU_CLAIMS, *TFLOPS_CLAIMS) if isinstance(stored.get(key), (int, float))]
    if not claims or result["status"] != "ok":
        return
    figures = utilisation(result)
    # the suite writes no such key; results of others and of earlier formats have them
    for key in claims:
        value = float(stored[key])
        # an MFU may be a share or percent
        possible = [value, value * FULL_PERCENT] if key in MFU_CLAIMS else [value]
        kind, unit = ("mfu", "%") if key in MFU_CLAIMS else ("model_tflops", "TFLOP/s")
        right = figures.get(f"{kind}_causal")
        if right is None or right.value is None:
            why = "no steady step" if right is None else right.how
            yield f"{key}: says {value:g}, which nothing stands behind: {why}"
        elif not _is_one_of(possible, right):
            cause = _cause(result, kind, value, possible, figures[f"{kind}_full"])
            yield f"{key}: says {value:g}, attention counted causally makes it {right.value:.1f} {unit}; {cause}"


def _cause(result: Result, kind: str, value: float, possible: Sequence[float], of_full: Figure) -> str:
    """Return in words how a wrong utilisation may have come about."""
    if _is_one_of([value, value * FULL_PERCENT], of_full):
        return "it is by the full-attention formula"
    config = result["training_config"]
    if kind == "mfu":
        in_bf16 = utilisation({**result, "training_config": config | {"precision": "bf16"}})
        if _is_one_of(possible, in_bf16["mfu_causal"]) or _is_one_of(possible, in_bf16["mfu_full"]):
            return f"it is over the bf16 peak, and this ran in {config['precision']}"
    return "the FLOP count or the peak behind it is wrong"


def _is_one_of(values: Sequence[float], wanted: Figure) -> bool:
    right = wanted.value
    return right is not None and any(abs(value - right) <= CLAIM_RELATIVE * abs(right) for value in values)


def framework_matches_layers(result: Result) -> Iterator[str]:
    """Yield a line if the layers that trained belong to another framework than the result names."""
    framework, layers = result["framework"], result["resolved_config"]["layer_implementation"] or ""
    if any(word in layers.casefold() for word in frameworks.of(framework).foreign_layers):
        yield f"framework: says {framework}, and the layers that ran are {layers}; it is another framework's result"


def size_matches_name(result: Result) -> Iterator[str]:
    """Yield a line for each width that the named size of a model does not have, else for another parameter count."""
    ran, spec = _with_traits(result), _named(result, result["model_size"])
    if spec is None or not is_recorded(result):  # a log may name a model only in part
        return
    name = f"{result['model']} {result['model_size']}"
    other = [key for key in _WIDTHS if ran[key] is not None and ran[key] != getattr(spec, key)]
    for key in other:
        yield f"{key}: {name} has {getattr(spec, key)}, ran {ran[key]}; it is another model"
    # with another width the count differs too, which is no second fault
    counted = ran["parameter_count"]
    if other or counted is None:
        return
    wanted = _as_built(spec, ran, result["training_config"]["tp"]).parameter_count
    if abs(counted - wanted) > COUNT_RELATIVE * wanted:
        yield f"parameter_count: {name} has {wanted:,}, ran {counted:,}; it is another model"


def _as_built(spec: ModelSpec, ran: Mapping[str, Any], tensor_parallel: int) -> ModelSpec:
    """Return a model with what a framework may choose: the padding of its vocabulary, and an embedding that the output
    layer shares."""
    added: dict[str, Any] = {}
    for trait in _OPTIONAL:
        if not trait.makes_another_model and ran.get(trait.key):
            added[trait.key] = True
    most = spec.vocab_size + VOCABULARY_MULTIPLE * tensor_parallel
    vocabulary = ran["vocab_size"]
    if vocabulary is None or not spec.vocab_size <= vocabulary <= most:
        vocabulary = spec.vocab_size
    return replace(spec, vocab_size=vocabulary, **added)


def _with_traits(result: Result) -> dict[str, Any]:
    """Return what ran, with the traits that are recorded only where there is one.

    A framework that tells of biases tells of them too, so that a trait that is not there is absent, and not unknown.
    """
    ran: dict[str, Any] = dict(result["resolved_config"])
    is_told = ran["qkv_bias"] is not None
    for trait in _OPTIONAL:
        ran[trait.key] = (ran.get(trait.key) or trait.absent) if is_told else None
    return ran


def _named(result: Result, size: str) -> ModelSpec | None:
    """Return the named model; a proxy has as many layers as ran, if they are fewer than those of the full model."""
    with suppress(UnknownModelError):
        return spec_of({**result, "model_size": size})
    return None


def model_matches_name(result: Result) -> Iterator[str]:
    """Yield a line for each property in which the model that ran differs from every size of the named model."""
    spec = _named(result, "full")
    if spec is None:
        return
    ran = _with_traits(result)
    for key, field in _SHAPE.items():
        wanted = getattr(spec, field)
        if ran[key] is not None and not math.isclose(ran[key], wanted, rel_tol=FLOAT32_RELATIVE):
            yield f"model: {result['model']} has {key} {wanted}, ran {ran[key]}; it is another model"


def loss_is_of_unseen_data(result: Result) -> Iterator[str]:
    """Yield a line if the last losses are so small that the data must have been seen before."""
    losses = result["loss_values"]
    if result["status"] != "ok" or not losses or None in losses:
        return
    last = last_loss(result)
    if last <= MEMORISED_NATS:
        yield f"loss: {last:.3g} nats a token at the end, under {MEMORISED_NATS}, is that of memorised data"


# Ranges of the numbers in a result: outside them a number is none of a training, and other rules cannot use it.

RANGES = {key: row.limits for key, row in (IDENTITY_KEYS | SAMPLE_KEYS).items()} | {
    f"{section}.{key}": row.limits for section, rows in KEYS.items() for key, row in rows.items()
}
"""Least and largest value by place. A key that the suite does not have gets ANY, whose sign no rule judges."""
LEAST = 1e-12
"""Below it, and above 0, a loss is no cross entropy, and energy and power are none; their inverse would be infinite."""
STAGES_WITHOUT_LAYERS = 2
"""Pipeline stages that may hold the embedding and the output alone."""


def out_of_range(result: Result) -> Iterator[str]:
    """Yield a line for each number of a result, which satisfies the schema, that no training has."""
    for key, value in _numbers(result):
        low, high = RANGES.get(key, ANY)
        if not low <= value <= high:
            yield f"{key}: got {quoted(value)}, wanted a number from {low:g} to {high:g}"
        elif 0 < value < LEAST and key.startswith(("loss_values", "energy_metrics")):
            yield f"{key}: got {value:g}, wanted {LEAST:g} or more"
    stages, layers = result["training_config"]["pp"], result["resolved_config"]["num_layers"]
    if stages is not None and layers is not None and stages > layers + STAGES_WITHOUT_LAYERS:
        yield f"training_config.pp: got {stages} pipeline stages for {layers} layers, wanted a layer or more in each"


def _numbers(value: Any, where: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in a result with its place; of a list, the least and the largest."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        numbers = [entry for entry in value if isinstance(entry, (int, float))]
        if numbers:
            yield from _numbers(min(numbers), where)
            yield from _numbers(max(numbers), where)
        for entry in value:
            if isinstance(entry, (dict, list)):
                yield from _numbers(entry, where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield where, value
