"""The certificate of a pair: a list of items that shows whether both sides did the same work under the same conditions.

Each item holds the values of both sides. It is the same, differs as the method allows, differs so that the pair cannot
be compared, or is unknown. Both sides must share the work: model, data in one order, arithmetic, optimizer, schedule.
The way they do it (kernels, overlap, library versions) is the object of a comparison, and is only shown. With the
method `equal` the layout is part of the work. Reports show the items by their effect on speed, and a statement about
the work rests on those of `unproven_work`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from evaluate.fairness import losses, pair_conditions
from evaluate.fairness.early import EARLY_LOSSES, NORMS
from evaluate.fairness.effects import BY_EFFECT
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
    both,
    compared,
    evidence,
    of_runs,
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
RUNS = "number of runs"
NAMES = (
    MODEL
    | ONLY_IF_TRUE
    | WORK
    | LAYOUT
    | MEANS
    | DATA
    | pair_conditions.MODES
    | {
        "model_size": "model size",
        "method": "track",
        "float32_matmul_precision": FLOAT32_PRODUCTS,
        "attention_library": "attention library",
        "hf_kernels": KERNELS_OF_HF,
    }
)
"""Names of the properties of results by their key; the other items are no property of a single key."""
_KEYS = {name: key for key, name in NAMES.items()}


def certificate(a: Sequence[Result], b: Sequence[Result]) -> tuple[Item, ...]:
    """Return the certificate of two sides, each at least one ok result of one system."""
    sides = (a, b)
    items = [*_identity(sides), *_resolved(sides), *_data(sides), *losses.losses(sides)]
    items += [*evidence(sides), *environment(sides)]
    for key in ("framework_versions", "code_sha256", "image_digest"):
        items.append(_item(key.replace("_", " "), values(sides, "provenance", key), ALLOWED))
    return (*items, *pair_conditions.items(sides))


def by_effect(items: Iterable[Item]) -> list[Item]:
    """Return items by state, blocking first, and within a state the largest effect on speed first."""
    return sorted(items, key=lambda item: (STATES.index(item.state), BY_EFFECT.index(key_of(item.name))))


def unproven_work(items: Iterable[Item], *, is_equal_method: bool, is_one_framework: bool) -> list[str]:
    """Return the unproven items on the work or the environment in which a difference would forbid a comparison.

    The layout is part of the settings with the method `equal` alone, and the means only inside one framework too.
    """
    work = {*MODEL.values(), *ONLY_IF_TRUE.values(), *WORK.values(), *DATA.values()} - {"initial weights"}
    work |= {FLOAT32_PRODUCTS, OPTIMIZER, OUTSIDE, RUNS, "model", "model size"}
    work |= {"losses", EARLY_LOSSES, NORMS, losses.STABILITY}
    if is_equal_method:
        work |= set(LAYOUT.values())
        if is_one_framework:
            work |= {*MEANS.values(), KERNELS_OF_HF}
    # an unknown environment may hold a handicap, and so may a variable or a setting that no table knows
    always = ("environment", "setting")
    return [item.name for item in items if item.is_unproven and (item.name in work or item.name.split()[0] in always)]


def key_of(name: str) -> str:
    """Return the key in BY_EFFECT of an item: that of its property in results, its group, or else its name."""
    group = name.split()[0]
    if group in ("environment", "setting"):
        return group
    return _KEYS.get(name, name)


def _identity(sides: Sides) -> Iterator[Item]:
    """Yield the items on the names of the work.

    A side in an earlier format blocks, because such a result records neither the model nor the data.
    """
    a, b = ("an earlier format" if EARLIER in side else "read back" for side in of_runs(sides, _source))
    if "an earlier format" in (a, b):
        yield Item("proof of model and data", BLOCKING, a, b, "neither model nor data is proven to be the same")
    yield compared("model", _stated(sides, "model"), BLOCKING)
    yield compared("model size", _stated(sides, "model_size"), BLOCKING)
    yield compared("track", _stated(sides, "method"), BLOCKING)
    profiles = of_runs(sides, lambda run: run["training_config"].get("profile") or NO_PROFILE)
    yield from unless_all(NO_PROFILE, "profile", profiles, BLOCKING)


def _source(run: Result) -> Any:
    return run.get("source")


def _stated(sides: Sides, key: str) -> Values:
    """Return a name of the work; None where a log does not say it."""
    return of_runs(sides, lambda run: None if run[key] == NOT_STATED else run[key])


def _resolved(sides: Sides) -> Iterator[Item]:
    """Yield the items on what was read back from the frameworks."""
    is_equal_method = sides[0][0]["method"] == "equal"
    a, b = map(set, of_runs(sides, itemgetter("framework")))
    means = BLOCKING if is_equal_method and a == b else ALLOWED
    # METHOD=best lets each side split its model as it likes
    layout = BLOCKING if is_equal_method else ALLOWED
    has_experts = any(both(values(sides, "resolved_config", "num_experts")))
    for keys, state in ((MODEL, BLOCKING), (WORK, BLOCKING), (LAYOUT, layout), (MEANS, means)):
        for key, name in keys.items():
            if key == "attention_backend":
                yield attention(sides, state)
            # a dense model has no experts to spread
            elif key != "ep" or has_experts:
                yield _item(name, _of_setting(sides, key), state)
    # TF32 changes products of float32 alone
    if "fp32" in both(values(sides, "resolved_config", "precision")):
        products = values(sides, "resolved_config", "float32_matmul_precision")
        yield from unless_all(None, FLOAT32_PRODUCTS, products, BLOCKING)
    libraries = of_runs(sides, lambda run: run["resolved_config"].get("attention_library") or NOT_KNOWN)
    yield from unless_all(NOT_KNOWN, "attention library", libraries, ALLOWED)
    yield from product(sides)
    yield from of_hf(sides, means)
    for key, name in ONLY_IF_TRUE.items():
        # only a model with the trait has its key
        if any(key in run["resolved_config"] for run in both(sides)):
            yield compared(name, _traits(sides, key), BLOCKING)
    yield from _optimizer(sides)


def _of_setting(sides: Sides, key: str) -> Values:
    """Return a setting that was read back from each run of both sides, as it is compared."""
    ran = values(sides, "resolved_config", key)
    if key == "seed":
        return _as_one(ran)
    if key == "fused_ops":
        return fused_ops(sides)
    if key in MAY_BE_NONE:
        return of_runs(sides, lambda run: _or_none(run["resolved_config"], key))
    return ran


def _or_none(ran: Mapping[str, Any], key: str) -> Any:
    """Return a property that a model may lack. A null is a lack where anything of the model was read back."""
    if ran.get(key) is None and ran.get("num_layers") is not None:
        return "none"
    return ran.get(key)


def _traits(sides: Sides, key: str) -> Values:
    return of_runs(sides, lambda run: _trait(run["resolved_config"], key))


def _trait(ran: Mapping[str, Any], key: str) -> Any:
    """Return a trait that ran. A framework that has read back the biases has read back all traits, so that an absent
    one is False; otherwise it is unknown."""
    return ran.get(key, None if ran["qkv_bias"] is None else False)


def _as_one(found: Values) -> Values:
    """Return one value for each side, the set of its values, because a side may have runs of several seeds."""
    return [side if None in side else [sorted(set(side))] for side in found]


def _optimizer(sides: Sides) -> Iterator[Item]:
    """Yield an item if one side's optimizer does less work than AdamW, or has a class that is not known."""
    others, lesser = [], []
    for side in values(sides, "resolved_config", "optimizer"):
        names = {str(name or ADAM[0]).lower() for name in side}
        others.append(", ".join(sorted(name for name in names if name.rpartition(".")[2] not in ADAM)))
        # frameworks name AdamW by many classes; the words tell those that store or compute less
        lesser.append({word for word in LESS_THAN_ADAM if word in " ".join(names)})
    if others[0] == others[1]:
        return
    state, note = UNKNOWN, ""
    if lesser[0] != lesser[1]:
        state, note = BLOCKING, "one side's optimizer keeps smaller states than AdamW's of 32 bits"
    yield Item(OPTIMIZER, state, others[0] or "AdamW", others[1] or "AdamW", note)


def _data(sides: Sides) -> Iterator[Item]:
    """Yield the items on the data, the tokenizer and the initial weights, by their hashes."""
    data = both(values(sides, "fingerprint", "dataset_bin_sha256"))
    is_one_data = None not in data and len(set(data)) == 1
    for key, name in DATA.items():
        found = values(sides, "fingerprint", key)
        is_free = key == "initial_weights_sha256"
        if key == "tokenizer_sha256" and is_one_data and set(both(found)) == {None}:
            is_free = True  # the tokens are equal, so the tokenizer does not matter
        # runs of other seeds draw other weights and batches, on both sides alike
        if key in FOLLOW_THE_SEED:
            found = _as_one(found)
        yield _item(name, found, ALLOWED if is_free else BLOCKING)


def _item(name: str, found: Values, if_different: str) -> Item:
    """Return the item that compares the values of all runs; one that may differ and that nobody knows is the same."""
    # nobody has the value, and nothing follows from it
    if if_different == ALLOWED and all(value is None for value in both(found)):
        return Item(name, SAME, "none", "none")
    return compared(name, found, if_different)
