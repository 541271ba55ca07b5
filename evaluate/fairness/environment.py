"""Certificate items on the environment of both sides: each variable that differs is judged by what reads it.

A variable has no effect where the library that reads it does not run in the job, or where effects.py says so. A
vendor's means is shown and allowed, a handicap of one side blocks, and any other difference leaves it unproven that
both sides did the same work. A run without a recorded environment proves nothing about a variable: its state is
unknown, never "not set". A handicap that is known in one run of a side counts for the side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from evaluate.fairness.effects import HANDICAP, NO_EFFECT, NOT_JUDGED, canonical, effect_of
from evaluate.fairness.items import (
    ALLOWED,
    BLOCKING,
    NOT_KNOWN,
    UNKNOWN,
    Item,
    Sides,
    Values,
    both,
    compared,
    of_runs,
    values,
)
from utils.frameworks import FRAMEWORKS, of, reads
from utils.provenance.origin import READERS, on_record
from utils.results.schema import Result

WITHOUT_ENGINE = {name for name, framework in FRAMEWORKS.items() if not framework.has_megatron_layers}
"""Frameworks whose layers are never TransformerEngine's."""
Environment = Mapping[str, object]


def environment(sides: Sides) -> Iterator[Item]:
    """Yield an item for each environment variable that differs, and one if the environment of a run is unknown.

    The variables without effect have one item together.
    """
    # a run without a record has unknown values, never unset ones
    known = values(sides, "provenance", "environment")
    if None in both(known):
        a, b = ("not recorded" if None in side else "recorded" for side in known)
        yield Item("environment", UNKNOWN, a, b)
    recorded = [[run for run in side if run["provenance"]["environment"] is not None] for side in sides]
    quiet = []
    for name in sorted(set().union(*filter(None, both(known)))):
        shown = [_spellings(side, name) for side in known]
        # one value in all runs of both sides
        if shown[0].keys() == shown[1].keys() and len(shown[0]) == 1:
            continue
        effects = [{_effect(run, name) for run in side} for side in recorded]
        if all(kind == NO_EFFECT for kind, _ in effects[0] | effects[1]):
            quiet.append(name)
        else:
            a, b = (" or ".join(sorted(side.values())) for side in shown)
            yield _item(name, a, b, effects)
    if quiet:
        a, b = (_set_in(side, quiet) for side in known)
        note = "no library of the job reads them, or their values do nothing in a step"
        yield Item("environment without effect", ALLOWED, a, b, note)


def _set_in(side: Sequence[Environment | None], names: Sequence[str]) -> str:
    """Return the names of variables that a run of a side sets."""
    known = set().union(*filter(None, side))
    return ", ".join(name for name in names if name in known) or "none"


def _item(name: str, a: str, b: str, effects: Sequence[set[tuple[str, str]]]) -> Item:
    """Return the item of a variable that differs and does something, from the effects in the known runs of a side."""
    costs = [{note if kind == HANDICAP else "" for kind, note in side} for side in effects]
    every = costs[0] | costs[1]
    worst = max(every)
    # a handicap of all runs alike costs both sides the same
    if len(every) > 1 or (worst and not all(costs)):
        where = "in some runs only"
        if not all(max(side, default="") for side in costs):
            where = "on one side only"
        elif len(costs[0]) == len(costs[1]) == 1:
            where = "differently on each side"
        return Item(f"environment {name}", BLOCKING, a, b, f"{name} {where}, where {worst}")
    every_effect = effects[0] | effects[1]
    state = UNKNOWN if any(kind == NOT_JUDGED for kind, _ in every_effect) else ALLOWED
    note = max(note for kind, note in every_effect if kind != NO_EFFECT)
    return Item(f"environment {name}", state, a, b, note)


def _spellings(side: Sequence[Environment | None], name: str) -> dict[str, str]:
    """Return the values of a variable in the runs of a side, as they are recorded, by the spelling that is compared."""
    spellings = {}
    for recorded in side:
        if recorded is None:
            text = NOT_KNOWN
        elif name in recorded:
            text = on_record(name, str(recorded[name]))  # earlier versions recorded every value, secrets too
        else:
            text = "not set"
        spellings[canonical(text)] = text
    return spellings


def _effect(result: Result, name: str) -> tuple[str, str]:
    """Return the kind and the note of the effect of a variable on a run whose environment is known."""
    environment: dict[str, object] = result["provenance"]["environment"]
    if name not in environment or not _may_run(_reader_of(name), result):
        return NO_EFFECT, ""
    return effect_of(name, environment, result["platform"], str(result["resolved_config"].get("precision")))


def _reader_of(name: str) -> str:
    """Return the condition under which something reads a variable; empty if nothing does."""
    for prefix, reader in READERS.items():
        if name == prefix or name.startswith(f"{prefix}_"):
            return reader
    return ""


def _may_run(reader: str, result: Result) -> bool:
    """Return whether the library that reads a variable may run; True unless it is known to be absent."""
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
        # an unknown layer may be TransformerEngine's
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
    backends = values(sides, "resolved_config", "attention_backend")
    names = of_runs(backends, lambda name: str(name) if name else None)
    kinds = [set(map(_kind, side)) for side in names]
    has_gpus = all(run["platform"] != "cpu" for run in both(sides))
    # on a CPU composed attention is the usual one
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
    return of_runs(found, _without_product)


def _without_product(fused: Any) -> Any:
    return {key: on for key, on in fused.items() if key != PRODUCT} if isinstance(fused, dict) else fused


def product(sides: Sides) -> Iterator[Item]:
    """Yield an item if one platform adds weight gradients to their sum inside the matrix product and the other not."""
    words = {True: "added in the product", False: "added by a kernel of its own", None: "unknown"}
    fused = values(sides, "resolved_config", "fused_ops")
    a, b = (" or ".join(sorted(words.get(value, str(value)) for value in set(side))) for side in of_runs(fused, _adds))
    if _are_two_platforms(sides) and a != b:
        yield Item("sum of weight gradients", ALLOWED, a, b, EACH_OWN)


def _adds(fused: Any) -> Any:
    return (fused or {}).get(PRODUCT)


def of_hf(sides: Sides, if_different: str) -> Iterator[Item]:
    """Yield the item on the functions of hf's models, `stock` or `liger`, if a run has read them back.

    A run of hf that has not is older than HF_KERNELS: the functions of its model are unknown.
    """
    kernels = of_runs(sides, _kernels)
    if not set(both(kernels)) - {None, NOT_HF}:
        return
    note = "one side trains on transformers' own functions, the other on those of liger-kernel"
    yield compared("kernels of hf", kernels, if_different, "" if NOT_HF in both(kernels) else note)


def _kernels(run: Result) -> Any:
    absent = None if reads(run["framework"], "hf_kernels") else NOT_HF
    return run["resolved_config"].get("hf_kernels", absent)


def _are_two_platforms(sides: Sides) -> bool:
    a, b = map(set, of_runs(sides, itemgetter("platform")))
    return a != b


def _kind(name: str | None) -> tuple[bool, bool, str]:
    """Return whether an attention is composed, whether it computes in lower precision, and its implementation."""
    name = (name or NOT_KNOWN).lower()
    implementation, _, kernel = name.partition(":")
    is_composed = kernel in COMPOSED or implementation in COMPOSED
    is_low = any(word in name for word in LOW_PRECISION)
    if implementation in TORCH:
        implementation = TORCH[0]
    return is_composed, is_low, implementation
