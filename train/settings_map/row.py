"""A row of the settings map: one thing that must be equal, and the entry of each framework for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from utils.models import ModelSpec
from utils.settings.config import RunConfig

FRAMEWORKS = ("mega", "hf", "nemo", "prim")
Wanted = Callable[[RunConfig, ModelSpec], Any]
Form = Callable[[Any], Any]


@dataclass(frozen=True)
class Override:
    """Keys of a framework to set, each with the row's value in the form that the key takes."""

    forms: tuple[tuple[str, Form], ...]
    when: Wanted | None = None
    """Where it is false nothing is set: the keys belong to another model or precision."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys in the framework."""
        return tuple(key for key, _ in self.forms)

    @property
    def unchanged_key(self) -> str | None:
        """Name of the first key that takes the value as it is, None where each takes another form."""
        return next((key for key, form in self.forms if form is _as_it_is), None)


@dataclass(frozen=True)
class Fixed:
    """Behaviour of a framework that no key of its own sets."""

    value: Any
    """The value, or a function of settings and model that returns it."""
    reason: str

    def of(self, config: RunConfig, spec: ModelSpec) -> Any:
        """Return the value in a configuration."""
        return self.value(config, spec) if callable(self.value) else self.value


@dataclass(frozen=True)
class MapRow:
    """One thing that has to be equal."""

    name: str
    wanted: Wanted
    mega: Override | Fixed
    hf: Override | Fixed
    nemo: Override | Fixed
    prim: Override | Fixed
    resolved: str | None = None
    """Key of `resolved_config` that holds the value read back (a dot leads into a map); None where there is none."""

    def of(self, framework: str) -> Override | Fixed:
        """Return the entry of a framework."""
        entry: Override | Fixed = getattr(self, framework)
        return entry


def override(*keys: str | tuple[str, Form], when: Wanted | None = None) -> Override:
    """Return an Override; a key alone takes the value unchanged, a pair through its function."""
    return Override(tuple((key, _as_it_is) if isinstance(key, str) else key for key in keys), when)


_MODEL = {"hf": "PretrainedConfig.", "nemo": "model.config.", "prim": ""}
MODEL = {"mega": "TransformerConfig.", **_MODEL}
GPT = {"mega": "GPTModel.", **_MODEL}
STRATEGY = {"mega": "TransformerConfig.", "nemo": "trainer.strategy.", "prim": ""}
FP8 = {"mega": "TransformerConfig.", "nemo": "trainer.plugins.", "prim": ""}
OPTIMIZER = {"mega": "OptimizerConfig.", "hf": "TrainingArguments.", "nemo": "optim.config.", "prim": ""}
DDP = {"mega": "DistributedDataParallelConfig.", "nemo": "trainer.strategy.ddp.", "prim": ""}
DATA = {"mega": "GPTDatasetConfig.", "hf": "GPTDatasetConfig.", "nemo": "data.", "prim": ""}
"""Places of fields in each framework, for `field`; transformers has no place for some of them."""


def field(
    name: str,
    wanted: Wanted,
    place: Mapping[str, str],
    key: str,
    resolved: str | None = None,
    *,
    when: Wanted | None = None,
    **others: str | Override | Fixed,
) -> MapRow:
    """Return the row of a field that has the name `key` at a place in every framework except those in `others`.

    A text in `others` is the framework's own name for the field, at the same place.
    """
    entries: dict[str, Any] = {**dict.fromkeys(FRAMEWORKS, key), **others}
    for framework, entry in entries.items():
        if isinstance(entry, str):
            entries[framework] = override(place[framework] + entry, when=when)
    return MapRow(name, wanted, **entries, resolved=resolved)


def asked(name: str) -> Wanted:
    """Return the rule that gives a field of RunConfig."""
    return lambda config, spec: getattr(config, name)


def shape(name: str) -> Wanted:
    """Return the rule that gives a field of ModelSpec."""
    return lambda config, spec: getattr(spec, name)


def always(value: Any) -> Wanted:
    """Return the rule that gives `value` for every training."""
    return lambda config, spec: value


def _as_it_is(value: Any) -> Any:
    return value
