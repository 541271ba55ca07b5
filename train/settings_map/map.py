"""The settings map: each thing that must be equal, with its key in each framework or the reason why none sets it.

NeMo, Primus, Bridge and torchtitan have an entry for each row, in the row itself or in a column of their own
(`COLUMNS`): an `Override` (its keys, and our value in the form that each takes) or a `Fixed` (the value there, and why
we cannot set it). mega and hf are built by code of ours, and what they were built with is read back. The rows give the
overrides that trainers pass on and the names under which a pair of results is compared. Keys are dotted paths in a
recipe of nemo_toolkit 2.3 (nemo) and of megatron-bridge 0.6 (bridge), trainer keys of Primus v25.10 to v26.5 (prim),
and paths in the JobConfig of torchtitan 0.2.2 (titan). Enums and classes are given by name; the trainer that imports
the library converts them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from train.settings_map import model_rows, training_rows
from train.settings_map.bridge_column import COLUMN as BRIDGE
from train.settings_map.environment_rows import ENVIRONMENT
from train.settings_map.row import Fixed, MapRow, Override
from train.settings_map.titan_column import COLUMN as TITAN
from utils.errors import ConfigError
from utils.models import ModelSpec
from utils.settings.config import RunConfig

ROWS: tuple[MapRow, ...] = (*training_rows.ROWS, *model_rows.ROWS)
COLUMNS: Mapping[str, Mapping[str, Override | Fixed]] = {"bridge": BRIDGE, "titan": TITAN}
"""Entries of each framework that has a file of its own (`<framework>_column.py`), by the name of the row."""


def entry_of(row: MapRow, framework: str) -> Override | Fixed:
    """Return the entry of a framework for a row."""
    entry: Override | Fixed = COLUMNS[framework][row.name] if framework in COLUMNS else getattr(row, framework)
    return entry


def overrides(framework: str, config: RunConfig, spec: ModelSpec) -> dict[str, Any]:
    """Return the values to set in a framework for a training, by its own keys; a key comes before those below it."""
    values: dict[str, Any] = {}
    for row in ROWS:
        entry = entry_of(row, framework)
        if isinstance(entry, Fixed) or (entry.when is not None and not entry.when(config, spec)):
            continue
        value = row.wanted(config, spec)
        for key, form in entry.forms:
            new = form(value)
            if key in values and values[key] != new:
                raise ValueError(f"settings map, {framework}: {key} is set twice, to {values[key]!r} and {new!r}")
            values[key] = new
    return {key: values[key] for key in sorted(values, key=lambda key: key.count("."))}


def set_field(framework: str, settings: Any, path: str, value: Any) -> None:
    """Set the dotted `path` in a framework's dataclasses; raise ConfigError where there is no such field.

    The fields decide, because these classes take any attribute and ignore those that they do not know.
    """
    *parents, name = path.split(".")
    for parent in parents:
        settings = getattr(settings, parent, None)
    if not dataclasses.is_dataclass(settings) or name not in {field.name for field in dataclasses.fields(settings)}:
        raise ConfigError(f"settings map, {framework}: {path}: {type(settings).__name__} has no {name}")
    setattr(settings, name, value)


def environment(framework: str, config: RunConfig, spec: ModelSpec) -> dict[str, str]:
    """Return the environment variables to start a framework with; a value that the user has set takes precedence."""
    ours = {row.name: row.wanted(config, spec) for row in ENVIRONMENT if isinstance(row.of(framework), Override)}
    return {name: value for name, value in ours.items() if value is not None}
