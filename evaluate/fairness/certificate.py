"""The certificate of a pair: a list of items that shows whether both sides did the same work under the same conditions.

Each item holds the values of both sides. It is the same, differs as the method allows, differs so that the pair cannot
be compared, or is unknown. Both sides must share the work: model, data in one order, arithmetic, optimizer, schedule.
The way they do it (kernels, overlap, library versions) is the object of a comparison, and is only shown. With the
method `equal` the layout is part of the work.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from evaluate.fairness import by_seed, kernels, pair_conditions
from evaluate.fairness.environment import environment
from evaluate.fairness.evidence import evidence
from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, SAME, UNKNOWN, Item
from evaluate.fairness.loss_course import loss_course
from evaluate.metrics.metrics import MEMORISED_NATS, last_loss
from utils.results.schema import Result
from utils.settings.keys import names_of
from utils.settings.profiling import NO_PROFILE

MODEL = {
    "parameter_count": "number of parameters",
    "vocab_size": "vocabulary",
    "num_layers": "layers",
    "hidden_size": "hidden size",
    "ffn_hidden_size": "feed-forward size",
    "num_attention_heads": "attention heads",
    "num_query_groups": "query groups",
    "norm_eps": "norm epsilon",
    "qkv_bias": "QKV bias",
    "rope_base": "rotary base",
    "rope_scaling": "rotary scaling",
    "sliding_window": "attention window",
} | names_of("model")
WORK = names_of("work") | {"parameters_without_weight_decay": "parameters without weight decay"} | names_of("seed")
LAYOUT = {"num_gpus": "number of GPUs"} | names_of("layout")
"""Part of the work in the track `equal`; in `best` each side has its own."""
ONLY_IF_TRUE = {
    "tie_word_embeddings": "embedding shared with the output layer",
    "query_key_norm": "norm of queries and keys",
}
"""Part of the model; `resolved_config` holds the key only where it is true, and two sides without it give no item."""
FLOAT32_PRODUCTS = "products of float32"
"""Item on TF32 (`high`) against IEEE float32 (`highest`), of trainings in fp32 only."""
MEANS = names_of("means") | {
    "optimizer": "optimizer class",
    "distributed_optimizer": "distributed optimizer",
    "parameter_dtype": "parameter type",
    "gradient_reduce_dtype": "type of reduced gradients",
    "overlap_grad_reduce": "overlap of gradient reduction",
    "overlap_param_gather": "overlap of parameter gather",
    "attention_backend": "attention",
    "layer_implementation": "layers by",
    "fused_ops": "fused operations",
    "dataloader_workers": "loader workers",
}
"""How a framework does the work: may differ between frameworks; inside one, `equal` wants it the same."""
DATA = {
    "dataset_bin_sha256": "data",
    "dataset_idx_sha256": "index of the data",
    "epochs": "passes over the data",
    "token_stream_sha256": "tokens of the first batches in order",
    "tokenizer_sha256": "tokenizer",
    "model_config_sha256": "model configuration",
    "initial_weights_sha256": "initial weights",
}


MAY_BE_NONE = ("rope_scaling", "sliding_window")
"""Properties that a model may lack."""
NOT_STATED, EARLIER = "unknown", "earlier"
FOLLOW_THE_SEED = ("token_stream_sha256", "initial_weights_sha256")
OPTIMIZER = "optimizer states"
ADAM = ("adam", "adamw", "fusedadam", "fusedadamw", "distributedoptimizer")
"""Classes of optimizers whose work is that of AdamW; the precision of their states is a setting."""
LESS_THAN_ADAM = ("8bit", "4bit", "fp8", "bnb", "bitsandbytes", "adafactor", "lion", "sgd", "muon")
"""Words in the class name of an optimizer that does less work than AdamW with 32-bit states."""
FIRST_LOSS_EQUAL_INIT = 1e-3
FIRST_LOSS_NATIVE_INIT = 0.02
"""Relative. The losses of weights that different generators draw from one distribution differ by far less than this."""
LAST_LOSS = 0.02
"""Relative to the loss: the band of the mean over the last tenth of the steps."""
ENOUGH_FOR_INTERVAL = 3


def certificate(a: Sequence[Result], b: Sequence[Result]) -> tuple[Item, ...]:
    """Return the certificate of two sides, each at least one ok result of one system; blocking items come first."""
    items = [
        *_proof(a, b),
        *_identity(a, b),
        *_resolved(a, b),
        *_data(a, b),
        *_losses(a, b),
        *loss_course(a, b),
        *evidence(a, b),
        *_surroundings(a, b),
    ]
    order = (BLOCKING, UNKNOWN, ALLOWED, SAME)
    return tuple(sorted(items, key=lambda item: order.index(item.state)))


def _proof(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield a blocking item if a side has an earlier format, which records neither the model nor the data."""
    is_earlier = [any(one.get("source") == EARLIER for one in side) for side in (a, b)]
    if any(is_earlier):
        shown = ["an earlier format" if one else "read back" for one in is_earlier]
        note = "neither model nor data is proven to be the same"
        yield Item("proof of model and data", BLOCKING, shown[0], shown[1], note)


def _identity(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    for key, name in (("model", "model"), ("model_size", "model size"), ("method", "track")):
        left, right = ([None if one[key] == NOT_STATED else one[key] for one in side] for side in (a, b))
        yield _item(name, left, right, BLOCKING)
    profiles = [[one["training_config"].get("profile") or NO_PROFILE for one in side] for side in (a, b)]
    if any(profile != NO_PROFILE for side in profiles for profile in side):
        yield _item("profile", profiles[0], profiles[1], BLOCKING)


def _resolved(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    is_equal_method = a[0]["method"] == "equal"
    is_one_framework = {one["framework"] for one in a} == {one["framework"] for one in b}
    groups = (
        (MODEL, BLOCKING),
        (WORK, BLOCKING),
        (LAYOUT, BLOCKING if is_equal_method else ALLOWED),
        (MEANS, BLOCKING if is_equal_method and is_one_framework else ALLOWED),
    )
    for keys, state in groups:
        for key, name in keys.items():
            if key == "attention_backend":
                yield kernels.attention(a, b, state)
                continue
            sides = (_values(a, "resolved_config", key), _values(b, "resolved_config", key))
            if key == "seed":
                sides = (_as_one(sides[0]), _as_one(sides[1]))
            if key == "fused_ops":
                sides = kernels.fused_ops(a, b)
            if key in MAY_BE_NONE:
                sides = (_with_none(a, sides[0]), _with_none(b, sides[1]))
            yield _item(name, *sides, state)
    products = [_values(side, "resolved_config", "float32_matmul_precision") for side in (a, b)]
    if "fp32" in _values([*a, *b], "resolved_config", "precision") and set(products[0] + products[1]) != {None}:
        yield _item(FLOAT32_PRODUCTS, products[0], products[1], BLOCKING)
    yield from kernels.library(a, b)
    yield from kernels.product(a, b)
    for key, name in ONLY_IF_TRUE.items():
        values_a, values_b = ([one["resolved_config"].get(key, False) for one in side] for side in (a, b))
        if any(values_a + values_b):
            yield _item(name, values_a, values_b, BLOCKING)
    yield from _optimizer(a, b)


def _as_one(values: list[Any]) -> list[Any]:
    """Return values that follow the seed as one value: a side may have several seeds if both sides have the same."""
    return values if None in values else [sorted(set(values))]


def _with_none(side: Sequence[Result], values: list[Any]) -> list[Any]:
    """Return the values with `none` for a null that was read back; without layers, nothing of the model was."""
    has_layers = [one["resolved_config"].get("num_layers") is not None for one in side]
    return ["none" if value is None and known else value for value, known in zip(values, has_layers, strict=True)]


def _optimizer(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield an item if one side's optimizer does less work than AdamW, or has a class that is not known."""
    names = [{str(one["resolved_config"]["optimizer"] or ADAM[0]).lower() for one in side} for side in (a, b)]
    others = [", ".join(sorted(n for n in side if n.rpartition(".")[2] not in ADAM)) for side in names]
    less = [{word for word in LESS_THAN_ADAM for name in side if word in name} for side in names]
    if others[0] != others[1]:
        note = "one side's optimizer keeps smaller states than AdamW's of 32 bits" if less[0] != less[1] else ""
        yield Item(OPTIMIZER, BLOCKING if note else UNKNOWN, others[0] or "AdamW", others[1] or "AdamW", note)


def _data(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    for key, name in DATA.items():
        state = ALLOWED if key == "initial_weights_sha256" else BLOCKING
        left, right = _values(a, "fingerprint", key), _values(b, "fingerprint", key)
        if key in FOLLOW_THE_SEED:
            left, right = _as_one(left), _as_one(right)
        if key == "tokenizer_sha256" and set(left + right) == {None} and _has_equal_data(a, b):
            state = ALLOWED  # the tokens are equal, so the tokenizer does not matter
        yield _item(name, left, right, state)


def _has_equal_data(a: Sequence[Result], b: Sequence[Result]) -> bool:
    known = {value for side in (a, b) for value in _values(side, "fingerprint", "dataset_bin_sha256")}
    return len(known) == 1 and None not in known


def _surroundings(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    yield from environment(a, b)
    for key in ("framework_versions", "code_sha256", "image_digest"):
        yield _item(key.replace("_", " "), _values(a, "provenance", key), _values(b, "provenance", key), ALLOWED)
    yield from pair_conditions.items(a, b)


def _values(side: Sequence[Result], section: str, key: str) -> list[Any]:
    return [one[section].get(key) for one in side]


def _item(name: str, a: Sequence[Any], b: Sequence[Any], state_if_different: str) -> Item:
    """Return the item for the values of all runs of both sides; the runs of one side must agree too."""
    left, right = _distinct(a), _distinct(b)
    shown = [" or ".join(_shown(json.loads(value)) for value in side) for side in (left, right)]
    if left == right == ["null"] and state_if_different == ALLOWED:
        return Item(name, SAME, "none", "none")  # an unknown value that may differ does not matter
    if "null" in left + right:
        return Item(name, UNKNOWN, shown[0], shown[1])
    state = SAME if left == right and len(left) == 1 else state_if_different
    return Item(name, state, shown[0], shown[1])


def _distinct(values: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(json.dumps(_as_number(value), sort_keys=True) for value in values))


def _as_number(value: Any) -> Any:
    """Return a whole number as int: 1000000 and 1000000.0 are equal, and a framework may print either."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _shown(value: Any) -> str:
    if value is None:
        return NOT_KNOWN
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, dict):
        return _shown_map(value)
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text[:12] if len(text) == 64 and " " not in text else text


def _shown_map(value: dict[str, Any]) -> str:
    """Return a map in words: the keys that are on, those that are off, and the value of each other key."""
    on, off = ([key for key in sorted(value) if value[key] is state] for state in (True, False))
    parts = [f"{key} {_shown(value[key])}" for key in sorted(value) if not isinstance(value[key], bool)]
    parts += [f"{word}: {', '.join(keys)}" for word, keys in (("on", on), ("off", off)) if keys]
    return "; ".join(parts) or "none"


def _losses(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield the items on the loss curves; a single unknown item if a loss is missing.

    Equal weights and an equal first batch give an equal first loss. Later the curves may drift apart through rounding
    and different kernels, so the end is tested for equivalence: the difference has to lie in a band that is a share of
    the loss, and so shrinks with it. From three runs a side on, the whole 90 % interval of the difference has to lie in
    the band (two one-sided tests at 5 %: Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). Runs
    of several seeds are compared seed by seed, and the interval is that of the paired differences.
    """
    sides = (a, b)
    has_all = [all(one["loss_values"] and None not in one["loss_values"] for one in side) for side in sides]
    if not all(has_all):
        shown = ["known" if known else "unknown" for known in has_all]
        yield Item("losses", UNKNOWN, shown[0], shown[1], "a loss is missing")
        return
    first = [[one["loss_values"][0] for one in side] for side in sides]
    last = [[last_loss(one) for one in side] for side in sides]
    has_equal_init = all(one["resolved_config"].get("init") == "equal" for side in sides for one in side)
    band = FIRST_LOSS_EQUAL_INIT if has_equal_init else FIRST_LOSS_NATIVE_INIT
    seeds = [_values(side, "resolved_config", "seed") for side in sides]
    yield _initial(by_seed.matched(*first, *seeds), band)
    yield _final(last[0], last[1], by_seed.matched(*last, *seeds))
    lowest = [min(side) for side in last]
    note = "a loss this small is of memorised data"
    yield _fits("unseen data", min(lowest) > MEMORISED_NATS, _digits(lowest[0]), _digits(lowest[1]), note)
    rises = [max(end - start for end, start in zip(*pair, strict=True)) for pair in zip(last, first, strict=True)]
    note = "the loss ends above where it began"
    yield _fits("convergence", max(rises) <= 0, f"{rises[0]:+.4g}", f"{rises[1]:+.4g}", note)


def _initial(seeds: Sequence[tuple[float, float]], band: float) -> Item:
    left, right = (statistics.fmean(side) for side in zip(*seeds, strict=True))
    note = f"initial losses differ by more than {band:.1%}{_of_a_seed(seeds)}"
    is_equal = by_seed.largest_difference(seeds) <= band
    return _fits("initial loss", is_equal, _digits(left), _digits(right), note)


def _final(a: Sequence[float], b: Sequence[float], seeds: Sequence[tuple[float, float]]) -> Item:
    left, right = (statistics.fmean(side) for side in zip(*seeds, strict=True))
    if len(seeds) > 1:
        half = by_seed.half_interval(seeds) if len(seeds) >= ENOUGH_FOR_INTERVAL else 0.0
        is_equal = len(seeds) >= ENOUGH_FOR_INTERVAL or by_seed.largest_difference(seeds) <= LAST_LOSS
    else:
        half = _half_interval(a, b) if min(len(a), len(b)) >= ENOUGH_FOR_INTERVAL else 0.0
        is_equal = True
    is_equal = is_equal and abs(right - left) + half <= LAST_LOSS * min(left, right)
    note = f"final losses are not shown to agree within {LAST_LOSS:.0%} of the loss{_of_a_seed(seeds)}"
    return _fits("final loss", is_equal, _digits(left), _digits(right), note)


def _of_a_seed(seeds: Sequence[tuple[float, float]]) -> str:
    """Return, for several seeds, the losses of the seed that differs most."""
    if len(seeds) < 2:
        return ""
    left, right = max(seeds, key=lambda pair: by_seed.largest_difference([pair]))
    return f", {_digits(left)} against {_digits(right)} with the seed that differs most; means"


def _half_interval(a: Sequence[float], b: Sequence[float]) -> float:
    """Return half the 90 % interval of the difference of two means (Welch); 0 if nothing varies."""
    from scipy.special import stdtrit  # scipy.stats warns on stderr if losses are nearly equal, as they should be

    parts = [(statistics.variance(side) / len(side), len(side) - 1) for side in (a, b)]
    variance = sum(part for part, _ in parts)
    if not variance:
        return 0.0
    degrees = variance**2 / sum(part**2 / freedom for part, freedom in parts)
    return float(stdtrit(degrees, 0.95)) * math.sqrt(variance)


def _fits(name: str, is_fine: bool, a: str, b: str, note: str) -> Item:
    return Item(name, SAME if is_fine else BLOCKING, a, b, note)


def _digits(value: float) -> str:
    return f"{value:.5g}"
