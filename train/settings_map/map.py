"""The settings map: each thing that must be equal, and what each framework calls it, or why it cannot be set there.

One row a thing. A framework's entry is a `Say` (its keys, and our value in the form that each takes) or a `Fixed` (what
it is there, and why it is not ours to set). From the rows come the overrides that the trainers hand to NeMo and Primus,
the tables of docs/fair.md and the names under which a pair of results is compared. Keys: Class.argument of
Megatron-core 0.16 (mega) and of transformers 5 (hf), dotted paths in a recipe of nemo_toolkit 2.3 (nemo), trainer keys
of Primus v25.10 to v26.5 (prim). Enums and classes stand as their names: the trainer that has the library translates.
"""

from __future__ import annotations

from typing import Any

from train.settings_map import data_rows, layer_rows, model_rows, training_rows
from train.settings_map.environment_rows import ENVIRONMENT
from train.settings_map.row import Fixed, Row, Say
from utils.models import ModelSpec
from utils.settings.config import RunConfig

__all__ = ["ENVIRONMENT", "FRAMEWORKS", "ROWS", "Fixed", "Row", "Say", "differences", "environment", "overrides"]

FRAMEWORKS = ("mega", "hf", "nemo", "prim")
ROWS: tuple[Row, ...] = (
    *training_rows.ROWS,
    *data_rows.ROWS,
    *model_rows.ROWS,
    *layer_rows.ROWS,
)


def overrides(framework: str, config: RunConfig, spec: ModelSpec) -> dict[str, Any]:
    """Return what a framework has to be told for a training, by its own keys; a key comes before those below it."""
    said = _said(ROWS, framework, config, spec)
    return {key: said[key] for key in sorted(said, key=lambda key: key.count("."))}


def environment(framework: str, config: RunConfig, spec: ModelSpec) -> dict[str, str]:
    """Return the environment variables that a framework is started with, for those that nobody has set already."""
    said = _said(ENVIRONMENT, framework, config, spec)
    return {name: value for name, value in said.items() if value is not None}


def differences(framework: str, config: RunConfig, spec: ModelSpec) -> dict[str, tuple[Any, Any, str]]:
    """Return what a framework does otherwise than asked and cannot be told: by row wanted, its value, the reason."""
    found = {}
    for row in (*ROWS, *ENVIRONMENT):
        entry = row.of(framework)
        if isinstance(entry, Fixed):
            wanted, value = row.wanted(config, spec), entry.of(config, spec)
            if wanted != value:
                found[row.name] = (wanted, value, entry.reason)
    return found


def _said(rows: tuple[Row, ...], framework: str, config: RunConfig, spec: ModelSpec) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for row in rows:
        entry = row.of(framework)
        if isinstance(entry, Fixed) or (entry.when is not None and not entry.when(config, spec)):
            continue
        value = row.wanted(config, spec)
        for key, form in entry.forms:
            new = form(value)
            if key in said and said[key] != new:
                raise ValueError(f"settings map, {framework}: {key} is said twice, {said[key]!r} and {new!r}")
            said[key] = new
    return said
