"""The certificate of a pair: a list of items that shows whether both sides did the same work under the same conditions.

Each item holds the values of both sides. It is the same, differs as the method allows, differs so that the pair cannot
be compared, or is unknown. Both sides must share the work: model, data in one order, arithmetic, optimizer, schedule.
The way they do it (kernels, overlap, library versions) is the object of a comparison, and is only shown. With the
method `equal` the layout is part of the work. Reports show the items by their effect on speed, and a statement about
the work rests on those of `unproven_work`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evaluate.fairness import losses, pair_conditions
from evaluate.fairness.early import EARLY_LOSSES, NORMS
from evaluate.fairness.environment import attention, environment, fused_ops, of_hf, product
from evaluate.fairness.items import (
    ALLOWED,
    BLOCKING,
    NOT_KNOWN,
    OUTSIDE,
    SAME,
    UNKNOWN,
    Item,
    Sides,
    Values,
    compared,
    evidence,
    unless_all,
    values,
)
from utils.models import TRAITS
from utils.results.keys import names_of
from utils.results.schema import Result
from utils.settings.profiling import NO_PROFILE

MODEL = names_of("model")
WORK = names_of("work") | names_of("seed")
LAYOUT = names_of("layout")
"""Part of the work in the track `equal`; in `best` each side has its own."""
ONLY_IF_TRUE = names_of("trait")
"""Part of the model; `resolved_config` holds the key only of a model with the trait, and two sides without it give no
item."""
FLOAT32_PRODUCTS = "products of float32"
"""Item on TF32 (`high`) against IEEE float32 (`highest`), of trainings in fp32 only."""
MEANS = names_of("means")
"""How a framework does the work: may differ between frameworks; inside one, `equal` wants it the same."""
DATA = names_of("data")


MAY_BE_NONE = tuple(trait.key for trait in TRAITS if trait.absent is None)
"""Properties that a model may lack."""
NOT_STATED, EARLIER = "unknown", "earlier"
FOLLOW_THE_SEED = ("token_stream_sha256", "initial_weights_sha256")
OPTIMIZER = "optimizer states"
KERNELS_OF_HF = "kernels of hf"
ADAM = ("adam", "adamw", "fusedadam", "fusedadamw", "distributedoptimizer")
"""Classes of optimizers whose work is that of AdamW; the precision of their states is a setting."""
LESS_THAN_ADAM = ("8bit", "4bit", "fp8", "bnb", "bitsandbytes", "adafactor", "lion", "sgd", "muon")
"""Words in the class name of an optimizer that does less work than AdamW with 32-bit states."""

STATES = (BLOCKING, UNKNOWN, ALLOWED, SAME)
BY_EFFECT = (
    *("proof of model and data", "model", "model size", "number of parameters", "layers", "hidden size"),
    *("feed-forward size", "experts of a layer", "experts of a token", "size of a shared expert", "routing"),
    *("tokens dropped", "attention heads", "query groups", "vocabulary", "attention window"),
    *(
        "precision",
        "sequence length",
        "number of GPUs",
        "nodes",
        "micro batch",
        "global batch",
        "gradient accumulation",
    ),
    *("tensor parallel size", "pipeline parallel size", "context parallel size", "expert parallel size"),
    "data parallel size",
    *("recomputed activations", "setting", "time outside the steps", "waiting for data"),
    *("power cap", "clocks", "partition", "slowing down", "other work", "NUMA balancing"),
    "environment",
    *(
        "attention",
        KERNELS_OF_HF,
        "fused operations",
        "layers by",
        "overlap of gradient reduction",
        "overlap of parameter gather",
    ),
    *("distributed optimizer", "type of reduced gradients", "precision of gradients", "parameter type"),
    *("optimizer states", "optimizer class", "precision of optimizer states", "loader workers", "cpu governor"),
    *("framework versions", "image digest", "code sha256"),
)
"""Names of items, largest effect on the step time first. Items that are not listed have little or none: data,
hyperparameters, seeds, losses. `environment` stands for every item on a variable, `setting`
for every setting beyond the schema."""
RUNS = "number of runs"


def certificate(a: Sequence[Result], b: Sequence[Result]) -> tuple[Item, ...]:
    """Return the certificate of two sides, each at least one ok result of one system."""
    sides = (a, b)
    return (
        *_identity(sides),
        *_resolved(sides),
        *_data(sides),
        *losses.losses(sides),
        *evidence(sides),
        *environment(sides),
        *(
            _item(key.replace("_", " "), values(sides, "provenance", key), ALLOWED)
            for key in ("framework_versions", "code_sha256", "image_digest")
        ),
        *pair_conditions.items(sides),
    )


def by_effect(items: Iterable[Item]) -> list[Item]:
    """Return items by state, blocking first, and within a state the largest effect on speed first."""
    return sorted(items, key=lambda item: (STATES.index(item.state), _effect(item.name)))


def unproven_work(items: Iterable[Item], *, is_equal_method: bool, is_one_framework: bool) -> list[str]:
    """Return the unproven items on the work or the environment in which a difference would forbid a comparison.

    The layout is part of the settings with the method `equal` alone, and the means only inside one framework too.
    """
    names = {*MODEL.values(), *ONLY_IF_TRUE.values(), *WORK.values(), *DATA.values()} - {"initial weights"}
    names |= {FLOAT32_PRODUCTS, OPTIMIZER, OUTSIDE, RUNS, "model", "model size"}
    names |= {"losses", EARLY_LOSSES, NORMS, losses.STABILITY}
    names |= set(LAYOUT.values()) if is_equal_method else set()
    names |= {*MEANS.values(), KERNELS_OF_HF} if is_equal_method and is_one_framework else set()
    unproven = [item.name for item in items if item.is_unproven]
    # an unknown environment may hold a handicap, and so may a variable or a setting that no table knows
    return [name for name in unproven if name in names or name.split()[0] in ("environment", "setting")]


def _effect(name: str) -> int:
    key = next((group for group in ("environment", "setting") if name.startswith(f"{group} ")), name)
    return BY_EFFECT.index(key) if key in BY_EFFECT else len(BY_EFFECT)


def _identity(sides: Sides) -> Iterator[Item]:
    """Yield the items on the names of the work, and a blocking one if a side has an earlier format, which records
    neither the model nor the data."""
    is_earlier = [any(one.get("source") == EARLIER for one in side) for side in sides]
    if any(is_earlier):
        a, b = ("an earlier format" if one else "read back" for one in is_earlier)
        yield Item("proof of model and data", BLOCKING, a, b, "neither model nor data is proven to be the same")
    for key, name in (("model", "model"), ("model_size", "model size"), ("method", "track")):
        known = [[None if one[key] == NOT_STATED else one[key] for one in side] for side in sides]
        yield compared(name, known, BLOCKING)
    profiles = [[one["training_config"].get("profile") or NO_PROFILE for one in side] for side in sides]
    yield from unless_all(NO_PROFILE, "profile", profiles, BLOCKING)


def _resolved(sides: Sides) -> Iterator[Item]:
    is_equal_method = sides[0][0]["method"] == "equal"
    is_one_framework = {one["framework"] for one in sides[0]} == {one["framework"] for one in sides[1]}
    means = BLOCKING if is_equal_method and is_one_framework else ALLOWED
    layout = BLOCKING if is_equal_method else ALLOWED
    for keys, state in ((MODEL, BLOCKING), (WORK, BLOCKING), (LAYOUT, layout), (MEANS, means)):
        for key, name in keys.items():
            if key == "attention_backend":
                yield attention(sides, state)
            elif key != "ep" or any(one["resolved_config"].get("num_experts") for side in sides for one in side):
                yield _item(name, _of_setting(sides, key), state)
    if any("fp32" in side for side in values(sides, "resolved_config", "precision")):
        products = values(sides, "resolved_config", "float32_matmul_precision")
        yield from unless_all(None, FLOAT32_PRODUCTS, products, BLOCKING)
    libraries = [[name or NOT_KNOWN for name in side] for side in values(sides, "resolved_config", "attention_library")]
    yield from unless_all(NOT_KNOWN, "attention library", libraries, ALLOWED)
    yield from product(sides)
    yield from of_hf(sides, means)
    for key, name in ONLY_IF_TRUE.items():
        if any(key in one["resolved_config"] for side in sides for one in side):
            yield compared(name, [[_trait(one["resolved_config"], key) for one in side] for side in sides], BLOCKING)
    yield from _optimizer(sides)


def _of_setting(sides: Sides, key: str) -> Values:
    """Return a setting that was read back from each run of both sides, as it is compared."""
    found = values(sides, "resolved_config", key)
    if key == "seed":
        return _as_one(found)
    if key == "fused_ops":
        return fused_ops(sides)
    if key in MAY_BE_NONE:  # a null was read back where anything of the model was
        layers = values(sides, "resolved_config", "num_layers")
        return [
            ["none" if value is None and known is not None else value for value, known in zip(*side, strict=True)]
            for side in zip(found, layers, strict=True)
        ]
    return found


def _trait(ran: Mapping[str, Any], key: str) -> Any:
    """Return a trait that ran; a framework that tells of biases tells of every trait that the model has."""
    return ran.get(key, None if ran["qkv_bias"] is None else False)


def _as_one(found: Values) -> Values:
    """Return values that follow the seed as one value: a side may have several seeds if both sides have the same."""
    return [side if None in side else [sorted(set(side))] for side in found]


def _optimizer(sides: Sides) -> Iterator[Item]:
    """Yield an item if one side's optimizer does less work than AdamW, or has a class that is not known."""
    names = [{str(name or ADAM[0]).lower() for name in side} for side in values(sides, "resolved_config", "optimizer")]
    others = [", ".join(sorted(n for n in side if n.rpartition(".")[2] not in ADAM)) for side in names]
    less = [{word for word in LESS_THAN_ADAM for name in side if word in name} for side in names]
    if others[0] != others[1]:
        note = "one side's optimizer keeps smaller states than AdamW's of 32 bits" if less[0] != less[1] else ""
        yield Item(OPTIMIZER, BLOCKING if note else UNKNOWN, others[0] or "AdamW", others[1] or "AdamW", note)


def _data(sides: Sides) -> Iterator[Item]:
    data = {one["fingerprint"]["dataset_bin_sha256"] for side in sides for one in side}
    for key, name in DATA.items():
        found = values(sides, "fingerprint", key)
        is_free = key == "initial_weights_sha256"
        if key == "tokenizer_sha256" and len(data) == 1 and None not in data and {*found[0], *found[1]} == {None}:
            is_free = True  # the tokens are equal, so the tokenizer does not matter
        yield _item(name, _as_one(found) if key in FOLLOW_THE_SEED else found, ALLOWED if is_free else BLOCKING)


def _item(name: str, found: Values, if_different: str) -> Item:
    """Return the item for the values of all runs; an unknown value that may differ does not matter."""
    if if_different == ALLOWED and not any(value is not None for side in found for value in side):
        return Item(name, SAME, "none", "none")
    return compared(name, found, if_different)
