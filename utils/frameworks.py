"""The settings map: each thing that must be equal, and what each framework calls it, or why it cannot be set there.

One row a thing. A framework's entry is a `Say` (its keys, and how our value is written under each) or a `Fixed` (what
it is there, and why it is not ours to set). From the rows come the overrides that the trainers hand to NeMo and Primus,
the fair-comparison table of the README and the certificate of a pair of results. Keys: Megatron-core 0.16 (mega), the
transformers 5 Trainer (hf), nemo_toolkit 2.3 recipes as dotted paths (nemo), Primus v25.10 to v26 trainer keys (prim).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from utils.configure import RunConfig
from utils.models import ModelSpec

FRAMEWORKS = ("mega", "hf", "nemo", "prim")

Wanted = Callable[[RunConfig, ModelSpec], Any]


@dataclass(frozen=True)
class Say:
    """What a framework is told: under each key, the row's value after `form`, or the value of the key's own rule."""

    keys: tuple[str, ...]
    form: Callable[[Any], Any] = field(default=lambda value: value)
    also: tuple[tuple[str, Any], ...] = ()
    """More keys that must be said with it, and their values."""


@dataclass(frozen=True)
class Fixed:
    """What a framework does whatever it is told, or has no key for."""

    value: Any
    reason: str


@dataclass(frozen=True)
class Row:
    """One thing that has to be equal."""

    name: str
    wanted: Wanted
    mega: Say | Fixed
    hf: Say | Fixed
    nemo: Say | Fixed
    prim: Say | Fixed
    resolved: str | None = None
    """Key of `resolved_config` that holds what it really was; None where no object of any framework holds it."""

    def of(self, framework: str) -> Say | Fixed:
        """Return the entry of a framework."""
        entry: Say | Fixed = getattr(self, framework)
        return entry


def say(*keys: str, form: Callable[[Any], Any] | None = None, **also: Any) -> Say:
    """Return a Say; keywords are more keys with their values (`__` for a dot)."""
    more = tuple((key.replace("__", "."), value) for key, value in also.items())
    return Say(keys, form, more) if form else Say(keys, also=more)


def overrides(framework: str, config: RunConfig, spec: ModelSpec) -> dict[str, Any]:
    """Return what a framework has to be told for a training, by its own keys."""
    said: dict[str, Any] = {}
    for row in ROWS:
        entry = row.of(framework)
        if isinstance(entry, Say):
            value = entry.form(row.wanted(config, spec))
            for key, new in (*((key, value) for key in entry.keys), *entry.also):
                if said.get(key, new) != new:
                    raise ValueError(f"settings map, {framework}: {key} is said twice, {said[key]!r} and {new!r}")
                said[key] = new
    return said


ROWS: tuple[Row, ...] = ()
"""Filled in below this line."""
