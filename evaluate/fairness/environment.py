"""Certificate items on the environment of both sides: each variable that differs is judged by what reads it.

A variable has no effect where the library that reads it does not run in the job, or where effects.py says so. A
vendor's means is shown and allowed, a handicap of one side blocks, and any other difference leaves it unproven that
both sides did the same work. A run without a recorded environment proves nothing about a variable: its state is
unknown, never "not set". A handicap that is known in one run of a side counts for the side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evaluate.fairness.effects import HANDICAP, NO_EFFECT, NOT_JUDGED, canonical, effect_of
from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, UNKNOWN, Item, Sides, Values, compared, values
from utils.frameworks import FRAMEWORKS, of, reads
from utils.provenance.origin import READERS, on_record
from utils.results.schema import Result

WITHOUT_ENGINE = {name for name, framework in FRAMEWORKS.items() if not framework.has_megatron_layers}
"""Frameworks whose layers are never TransformerEngine's."""


def environment(sides: Sides) -> Iterator[Item]:
    """Yield an item for each environment variable that differs, and one if the environment of a run is unknown.

    The variables without effect have one item together.
    """
    known = [[one["provenance"]["environment"] for one in side] for side in sides]
    if any(one is None for side in known for one in side):
        a, b = ("not recorded" if None in side else "recorded" for side in known)
        yield Item("environment", UNKNOWN, a, b)
    quiet = []
    for name in sorted({name for side in known for one in side for name in one or {}}):
        values = [_values(side, name) for side in known]
        if values[0].keys() == values[1].keys() and len(values[0]) == 1:
            continue
        effects = [
            {_effect(one, name) for one in side if one["provenance"]["environment"] is not None} for side in sides
        ]
        if {kind for side in effects for kind, _ in side} <= {NO_EFFECT}:
            quiet.append(name)
        else:
            yield _item(name, [" or ".join(sorted(side.values())) for side in values], effects)
    if quiet:
        a, b = (", ".join(name for name in quiet if any(name in (one or {}) for one in side)) for side in known)
        note = "no library of the job reads them, or their values do nothing in a step"
        yield Item("environment without effect", ALLOWED, a or "none", b or "none", note)


def _item(name: str, shown: Sequence[str], effects: Sequence[set[tuple[str, str]]]) -> Item:
    """Return the item of a variable that differs and does something, from the effects in the known runs of a side."""
    costs = [{note if kind == HANDICAP else "" for kind, note in side} for side in effects]
    worst = max(costs[0] | costs[1])
    if len(costs[0] | costs[1]) > 1 or (worst and not all(costs)):
        where = "differently on each side" if len(costs[0]) == len(costs[1]) == 1 else "in some runs only"
        where = where if all(max(side, default="") for side in costs) else "on one side only"
        return Item(f"environment {name}", BLOCKING, shown[0], shown[1], f"{name} {where}, where {worst}")
    is_judged = all(kind != NOT_JUDGED for side in effects for kind, _ in side)
    note = max(note for side in effects for kind, note in side if kind != NO_EFFECT)
    return Item(f"environment {name}", ALLOWED if is_judged else UNKNOWN, shown[0], shown[1], note)


def _values(side: Sequence[Mapping[str, object] | None], name: str) -> dict[str, str]:
    """Return the values of a variable in the runs of a side, as they are recorded, by the spelling that is compared."""
    # earlier versions recorded every value
    texts = [
        NOT_KNOWN if one is None else on_record(name, str(one[name])) if name in one else "not set" for one in side
    ]
    return {canonical(text): text for text in texts}


def _effect(result: Result, name: str) -> tuple[str, str]:
    """Return the kind and the note of the effect of a variable on a run whose environment is known."""
    environment: dict[str, object] = result["provenance"]["environment"]
    reader = next((runs for prefix, runs in READERS.items() if name == prefix or name.startswith(f"{prefix}_")), None)
    if name not in environment or reader is None or not _may_run(reader, result):
        return NO_EFFECT, ""
    return effect_of(name, environment, result["platform"], str(result["resolved_config"].get("precision")))


def _may_run(reader: str, result: Result) -> bool:
    """Return whether a condition of READERS holds in a run: what is not known to be absent may run."""
    platform, framework = result["platform"], result["framework"]
    has_collectives = platform != "cpu" and result["training_config"].get("num_gpus") != 1
    layers = [result["resolved_config"].get(key) for key in ("layer_implementation", "attention_backend")]
    may_be_engine = any(one is None or "transformer_engine" in str(one) for one in layers)
    holds: dict[str, bool] = {
        "always": True,
        "gpu": platform != "cpu",
        "nvidia": platform == "nvd",
        "amd": platform == "amd",
        "collectives": has_collectives,
        "rccl": has_collectives and platform == "amd",
        "engine": framework not in WITHOUT_ENGINE and may_be_engine,
        "primus": of(framework).starts_its_ranks,
        "nodes": len(result["provenance"].get("hosts") or ()) > 1,
    }
    return holds.get(reader, False)


# Certificate items on kernels: between platforms the name of a kernel is the vendor's means, its kind is not.
#
# `attention_backend` has the implementation before the colon and the kernel after it, such as `torch_sdpa:cudnn`.

COMPOSED = ("math", "unfused", "eager", "dot_product")
"""Attention of several kernels, which writes all scores to memory."""
LOW_PRECISION = ("fp8", "float8", "fp4", "int8", "sage")
"""Words in the name of an attention that computes in less than 16 bits."""
TORCH = ("torch_sdpa", "torch_varlen")
"""Implementations of PyTorch: the second is its flash attention with a window."""
PRODUCT = "gradient_accumulation_fusion"
"""Key of `fused_ops` that depends on whether the vendor's matrix product adds to a float32 sum."""
NOT_HF = "not hf"
EACH_OWN = "each vendor's own kernel"


def attention(sides: Sides, if_other_kind: str) -> Item:
    """Return the item on attention: composed attention or lower precision of one side blocks."""
    names = [
        [str(name) if name else None for name in side] for side in values(sides, "resolved_config", "attention_backend")
    ]
    kinds = [{_kind(name or NOT_KNOWN) for name in side} for side in names]
    has_gpus = all(one["platform"] != "cpu" for side in sides for one in side)
    for place, words in enumerate(("is composed of several kernels", "computes in lower precision")):
        if has_gpus and {kind[place] for kind in kinds[0]} != {kind[place] for kind in kinds[1]}:
            return compared("attention", names, BLOCKING, f"attention of one side {words}")
    if len(kinds[0] | kinds[1]) > 1 or not _are_two_platforms(sides):
        return compared("attention", names, if_other_kind)
    return compared("attention", names, ALLOWED, EACH_OWN)


def fused_ops(sides: Sides) -> Values:
    """Return the fused operations of the runs of both sides; between platforms without the choice of a product."""
    found = values(sides, "resolved_config", "fused_ops")
    if not _are_two_platforms(sides):
        return found
    return [
        [{key: on for key, on in ops.items() if key != PRODUCT} if isinstance(ops, dict) else ops for ops in side]
        for side in found
    ]


def product(sides: Sides) -> Iterator[Item]:
    """Yield an item if the products of two platforms differ in whether they add to the sum of the gradients."""
    words = {True: "added in the product", False: "added by a kernel of its own", None: "unknown"}
    found = [{(ops or {}).get(PRODUCT) for ops in side} for side in values(sides, "resolved_config", "fused_ops")]
    if _are_two_platforms(sides) and found[0] != found[1]:
        a, b = (" or ".join(sorted(words.get(value, str(value)) for value in side)) for side in found)
        yield Item("sum of weight gradients", ALLOWED, a, b, EACH_OWN)


def of_hf(sides: Sides, if_different: str) -> Iterator[Item]:
    """Yield the item on the functions of hf's models, `stock` or `liger`, if a run has read them back.

    A run of hf that has not is older than HF_KERNELS: the functions of its model are unknown.
    """
    found = [
        [
            one["resolved_config"].get("hf_kernels", None if reads(one["framework"], "hf_kernels") else NOT_HF)
            for one in side
        ]
        for side in sides
    ]
    if {*found[0], *found[1]} - {None, NOT_HF}:
        note = "one side trains on transformers' own functions, the other on those of liger-kernel"
        yield compared("kernels of hf", found, if_different, note if NOT_HF not in found[0] + found[1] else "")


def _are_two_platforms(sides: Sides) -> bool:
    return {one["platform"] for one in sides[0]} != {one["platform"] for one in sides[1]}


def _kind(name: str) -> tuple[bool, bool, str]:
    """Return whether an attention is composed, whether it computes in lower precision, and its implementation."""
    implementation, _, kernel = name.lower().partition(":")
    is_composed = kernel in COMPOSED or implementation in COMPOSED
    is_low = any(word in name.lower() for word in LOW_PRECISION)
    return is_composed, is_low, TORCH[0] if implementation in TORCH else implementation
