"""The pairs of a comparison: two sides that differ in one thing and are as equal as possible in everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.checks.entries import Entry
from utils.results.schema import Result

PLATFORMS = {"nvd": "NVIDIA", "amd": "AMD", "cpu": "CPU"}
VENDOR_FRAMEWORKS = ("nemo", "prim")
"""Frameworks of one vendor each; a comparison of platforms pairs them with each other."""

BY: dict[str, Callable[[Result], str]] = {
    "platform": lambda result: str(result["platform"]),
    "framework": lambda result: str(result["framework"]),
    "machine": lambda result: str(result["provenance"]["host"] or "unknown host"),
    "nodes": lambda result: f"{result['training_config']['num_gpus']} GPUs",
    "label": lambda result: str(result["label"] or "no label"),
}
"""The property in which the two sides differ, and the function that reads it from a result."""
MAY_DIFFER = {"nodes": frozenset({"number of GPUs", "data parallel size", "gradient accumulation"})}
"""Certificate items that differ by the choice of the property."""


@dataclass(frozen=True)
class Pair:
    """Two sides of one comparison; a side may have no counted result."""

    model: str
    framework: str
    method: str
    a_name: str
    b_name: str
    a: tuple[Entry, ...]
    b: tuple[Entry, ...]

    @property
    def counted(self) -> tuple[list[Result], list[Result]]:
        """The counted results of both sides."""
        return [e.result for e in self.a if e.is_counted], [e.result for e in self.b if e.is_counted]


def default_by(entries: Sequence[Entry]) -> str:
    """Return the usual property: the platform if there are two, otherwise the framework."""
    return "platform" if len({entry.result["platform"] for entry in entries}) > 1 else "framework"


def pairs(entries: Sequence[Entry], by: str, baseline: str | None = None) -> list[Pair]:
    """Return all pairs of the baseline's side with another, by model, method and the other shared properties."""
    found = []
    for (model, method, _), members in _grouped(
        entries, lambda result: (result["model"], result["method"], _shared(result, by))
    ):
        sides = dict(_grouped(members, BY[by]))
        names = sorted(sides, key=lambda name: (name != baseline, _rank(name, by), name))
        if len(names) < 2 or (baseline is not None and names[0] != baseline):
            continue
        for name in names[1:]:
            for a, b in _variants(sides[names[0]], sides[name]):
                framework = " and ".join(dict.fromkeys(entry.result["framework"] for entry in (a[0], b[0])))
                found.append(Pair(model, framework, method, _name(a, by), _name(b, by), tuple(a), tuple(b)))
    return found


def _shared(result: Result, by: str) -> tuple[Any, ...]:
    """Return the properties that both sides share besides model and method."""
    framework = "vendor" if by == "platform" and result["framework"] in VENDOR_FRAMEWORKS else result["framework"]
    platform, device = result["platform"], result["gpu_info"]["device_name"]
    return {
        "platform": (framework,),
        "framework": (platform, device, result["provenance"]["host"]),
        "machine": (platform, framework, device),
        "nodes": (platform, framework, device),
        "label": (platform, framework),
    }[by]


def _variants(a: Sequence[Entry], b: Sequence[Entry]) -> list[tuple[list[Entry], list[Entry]]]:
    """Pair equal settings of both sides; if none are equal, the first of each, to report the difference."""

    def setting(result: Result) -> tuple[Any, ...]:
        config = result["training_config"]
        keys = ("sequence_length", "global_batch_size", "precision")
        return result["model_size"], *(config[key] for key in keys)

    left, right = dict(_grouped(a, setting)), dict(_grouped(b, setting))
    both = [(left[key], right[key]) for key in left if key in right]
    return both or [(next(iter(left.values())), next(iter(right.values())))]


def _grouped(entries: Iterable[Entry], key_of: Callable[[Result], Any]) -> list[tuple[Any, list[Entry]]]:
    found: dict[Any, list[Entry]] = {}
    for entry in entries:
        found.setdefault(key_of(entry.result), []).append(entry)
    return sorted(found.items(), key=lambda item: str(item[0]))


def _rank(name: str, by: str) -> int:
    if by == "nodes":
        return int(name.split()[0])
    return list(PLATFORMS).index(name) if name in PLATFORMS else len(PLATFORMS)


def _name(side: Sequence[Entry], by: str) -> str:
    """Return the name of a side for a sentence."""
    result = side[0].result
    vendor = PLATFORMS.get(result["platform"], "")  # a log may name no platform
    device = str(result["gpu_info"]["device_name"] or " ".join(filter(None, ("unknown", vendor, "device"))))
    if by == "platform":
        return device
    return f"{BY[by](result)} on {device}"
