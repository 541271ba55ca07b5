"""Certificate items on the environment of both sides: each variable that differs is judged by what reads it.

A variable has no effect where the library that reads it does not run in the job, or where effects.py says so. A
vendor's means is shown and allowed, a handicap of one side blocks, and any other difference leaves it unproven that
both sides did the same work. A run without a recorded environment proves nothing about a variable: its state is
unknown, never "not set". A handicap that is known in one run of a side counts for the side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evaluate.fairness.effects import HANDICAP, NO_EFFECT, NOT_JUDGED, canonical, effect_of
from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, UNKNOWN, Item, Sides
from utils.frameworks import FRAMEWORKS, MEGATRON
from utils.provenance.origin import READERS, on_record
from utils.results.schema import Result

NOT_SET = "not set"
WITHOUT_ENGINE = FRAMEWORKS.keys() - MEGATRON
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
        "primus": framework == "prim",
        "nodes": len(result["provenance"].get("hosts") or ()) > 1,
    }
    return holds.get(reader, False)
