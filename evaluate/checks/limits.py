"""Rules of utilisation and of identity: what the device can do, and what the name of the result promises.

A utilisation that a result claims for itself has to follow from the formula and the peak that are used here. The layers
that ran, the shape and the size of the model and the loss fit the name of the result: the name of a framework names the
code that trained. A job named Megatron that trained a transformers model measures transformers, whichever launcher
started it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from evaluate.checks.consistency import FLOAT32_RELATIVE
from evaluate.checks.recorded import is_recorded
from evaluate.inputs.earlier_names import MFU_CLAIMS, TFLOPS_CLAIMS
from evaluate.metrics.capacity import spec_of
from evaluate.metrics.figures import Figure
from evaluate.metrics.metrics import MEMORISED_NATS, last_loss, utilisation
from utils import frameworks
from utils.errors import quoted
from utils.models import TRAITS, ModelSpec, UnknownModelError
from utils.results.schema import Result

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
    found = utilisation(result) if result["status"] == "ok" else {}
    for name, what in (("mfu_causal", "the dense peak"), ("share_of_measured_matmul", "the measured rate")):
        if (figure := found.get(name)) and (figure.value or 0.0) > FULL_PERCENT:
            yield f"model FLOP/s: {figure.value:.0f} % of {what}, which cannot be: {figure.how}"


def claimed_utilisation_agrees(result: Result) -> Iterator[str]:
    """Yield a line for each utilisation that a result claims and that does not follow from its samples."""
    stored, config = result["performance_metrics"], result["training_config"]
    claims = [key for key in (*MFU_CLAIMS, *TFLOPS_CLAIMS) if isinstance(stored.get(key), (int, float))]
    found = utilisation(result) if claims and result["status"] == "ok" else {}
    for key in claims if result["status"] == "ok" else ():
        kind, unit = ("mfu", "%") if key in MFU_CLAIMS else ("model_tflops", "TFLOP/s")
        right, value = found.get(f"{kind}_causal"), float(stored[key])
        if right is None or right.value is None:
            yield f"{key}: says {value:g}, which nothing stands behind: {right.how if right else 'no steady step'}"
            continue
        said = [value, value * FULL_PERCENT] if kind == "mfu" else [value]  # a share or percent
        if not _is_one_of(said, right):
            in_bf16 = utilisation({**result, "training_config": {**config, "precision": "bf16"}})
            causes = {
                "it is by the full-attention formula": _is_one_of([value, value * FULL_PERCENT], found[f"{kind}_full"]),
                f"it is over the bf16 peak, and this ran in {config['precision']}": kind == "mfu"
                and any(_is_one_of(said, in_bf16[f"mfu_{name}"]) for name in ("causal", "full")),
                "the FLOP count or the peak behind it is wrong": True,
            }
            cause = next(cause for cause, applies in causes.items() if applies)
            yield f"{key}: says {value:g}, attention counted causally makes it {right.value:.1f} {unit}; {cause}"


def _is_one_of(values: list[float], wanted: Figure) -> bool:
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
    if spec is None or not is_recorded(result):
        return
    name = f"{result['model']} {result['model_size']}"
    other = [key for key in _WIDTHS if ran[key] is not None and ran[key] != getattr(spec, key)]
    for key in other:
        yield f"{key}: {name} has {getattr(spec, key)}, ran {ran[key]}; it is another model"
    counted, least = ran["parameter_count"], spec.vocab_size
    padded = range(least, least + VOCABULARY_MULTIPLE * result["training_config"]["tp"] + 1)
    vocabulary = ran["vocab_size"] if ran["vocab_size"] in padded else least
    added: dict[str, Any] = {
        trait.key: True
        for trait in _OPTIONAL
        if not trait.makes_another_model and result["resolved_config"].get(trait.key)
    }
    wanted = replace(spec, vocab_size=vocabulary, **added).parameter_count
    if not other and counted is not None and abs(counted - wanted) > COUNT_RELATIVE * wanted:
        yield f"parameter_count: {name} has {wanted:,}, ran {counted:,}; it is another model"


def _with_traits(result: Result) -> dict[str, Any]:
    """Return what ran with the traits that are recorded only where there is one; a framework that tells of biases tells
    of them too."""
    ran: dict[str, Any] = result["resolved_config"]
    traits = {trait.key: ran.get(trait.key) or trait.absent for trait in _OPTIONAL}
    return ran | (dict.fromkeys(traits) if ran["qkv_bias"] is None else traits)


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
    if result["status"] == "ok" and result["loss_values"] and None not in result["loss_values"]:
        last = last_loss(result)
        if last <= MEMORISED_NATS:
            yield f"loss: {last:.3g} nats a token at the end, under {MEMORISED_NATS}, is that of memorised data"


# Ranges of the numbers in a result: outside them a number is none of a training, and other rules cannot use it.
#
# The limits are far from anything that exists, so that no honest result comes near them. They keep sizes of 0 out of
# divisions, counts of 1e15 out of loops, and values such as 1e-310 J out of quotients that would be infinite.

Range = tuple[float, float]
COUNT: Range = (1, 1e9)
NUMBER: Range = (0, 1e9)
SPLIT: Range = (1, 4096)
"""Tensor, pipeline, context and expert parallel sizes: no model has as many layers, heads or experts."""
SHARE: Range = (0, 1)
SECONDS: Range = (0, 1e7)
"""A step of 1e7 seconds takes 116 days."""
RATE: Range = (0, 1e18)
ANY: Range = (-1e18, 1e18)
"""Of every number without a range of its own, whose sign other rules judge with their own words; arithmetic beyond it
overflows."""
_SETTINGS: dict[str, Range] = {
    **dict.fromkeys(("max_steps", "global_batch_size", "micro_batch_size", "sequence_length"), COUNT),
    **dict.fromkeys(("num_gpus", "gradient_accumulation", "dp"), COUNT),
    **dict.fromkeys(("tp", "pp", "cp", "ep"), SPLIT),
    **dict.fromkeys(("lr", "min_lr", "adam_eps", "init_std"), (0, 1e3)),
    **dict.fromkeys(("beta1", "beta2"), SHARE),
    "clip_grad": (-1, 1e18),
    "warmup_iters": NUMBER,
}
_SECTIONS: dict[str, dict[str, Range]] = {
    "gpu_info": dict.fromkeys(("device_count", "total_memory_gb", "gpu_cores"), NUMBER),
    "training_config": _SETTINGS,
    "resolved_config": _SETTINGS
    | {
        "parameter_count": (1, 1e18),
        **dict.fromkeys(("vocab_size", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"), COUNT),
        "num_query_groups": COUNT,
        **dict.fromkeys(_EXPERTS, NUMBER),
        "norm_eps": SHARE,
        "rope_base": (1e-9, 1e18),
        "parameters_without_weight_decay": RATE,
        "dataloader_workers": NUMBER,
    },
    "performance_metrics": {
        **dict.fromkeys((f"{name}_step_time_seconds" for name in ("avg", "min", "max", "std")), SECONDS),
        **dict.fromkeys(("tokens_per_second", "tokens_per_second_per_gpu", "steps_per_second"), RATE),
        "warmup_steps_excluded": NUMBER,
    },
    "memory_metrics": dict.fromkeys(
        ("avg_memory_allocated_gb", "peak_memory_allocated_gb", "peak_memory_reserved_gb"), NUMBER
    ),
    "energy_metrics": dict.fromkeys(("gpu_count", "samples", "sample_hz"), NUMBER),
    "fingerprint": dict.fromkeys(("token_stream_batches", "epochs"), NUMBER),
    "experts": {"tokens": RATE, "fullest_share": SHARE},
    "conditions": {
        **dict.fromkeys(("gpu_count", "other_processes", "numa_nodes", "busy_before_percent"), NUMBER),
        **dict.fromkeys((f"{name}power_cap_watts" for name in ("", "default_", "max_")), NUMBER),
        **dict.fromkeys(("max_sm_clock_mhz", "max_memory_clock_mhz"), NUMBER),
        **dict.fromkeys(("clock_limit_mhz", "default_clock_limit_mhz"), NUMBER),
        **dict.fromkeys(("gpu_memory_used_gb", "swap_used_gb", "shared_memory_gb", "locked_memory_gb"), RATE),
        **dict.fromkeys((f"temperature_{name}_celsius" for name in ("before", "after")), (-300, 1e4)),
    },
}
RANGES: dict[str, Range] = {
    **dict.fromkeys(("run", "attempt"), COUNT),
    "step_times": SECONDS,
    "data_wait_seconds": (-1e7, 1e7),
    "loss_values": (-1e12, 1e12),
    "learning_rates": (-1e3, 1e3),
} | {f"{section}.{key}": limits for section, ranges in _SECTIONS.items() for key, limits in ranges.items()}
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
    if None not in (stages, layers) and stages > layers + STAGES_WITHOUT_LAYERS:
        yield f"training_config.pp: got {stages} pipeline stages for {layers} layers, wanted a layer or more in each"


def _numbers(value: Any, where: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in a result with its place; of a list, the least and the largest."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        numbers = [one for one in value if isinstance(one, (int, float))]
        ends = (min(numbers), max(numbers)) if numbers else ()
        for inner in (*ends, *(one for one in value if isinstance(one, (dict, list)))):
            yield from _numbers(inner, where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield where, value
