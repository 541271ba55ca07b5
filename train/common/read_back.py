"""Values read back from built objects, held against those that the settings map set in a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from train.job.job import Job
from train.settings_map.map import ROWS, entry_of
from train.settings_map.row import Override

NOT_COMPARED = ("optimizer", "attention_backend")
"""Keys that a framework takes as a name and that are read back as the object built from it."""
AS_ASKED: dict[str, Callable[[Any], Any]] = {
    "gradient_reduce_dtype": lambda name: name == "float32",
    # `resolved_config` has these keys only of a model that has the trait
    "tie_word_embeddings": bool,
    "query_key_norm": bool,
}
"""Conversion of a value that is read back into the form in which it was asked for."""


def differences(framework: str, job: Job, resolved: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each setting of the map that was not built as asked: its key, and `NAME: asked ..., built ... (KEYS)`.

    The key is that of `resolved_config`. This finds a setting that did not arrive, where a default of a recipe or of a
    library applies instead.
    """
    found, config, spec = [], job.config, job.spec
    for row in ROWS:
        entry = entry_of(row, framework)
        if row.resolved is None or row.resolved in NOT_COMPARED or not isinstance(entry, Override):
            continue
        if entry.when is not None and not entry.when(config, spec):
            continue
        wanted = row.wanted(config, spec)
        built = AS_ASKED.get(row.resolved, lambda value: value)(_at(resolved, row.resolved))
        if wanted != built:
            found.append((row.resolved, f"{row.name}: asked {wanted!r}, built {built!r} ({', '.join(entry.keys)})"))
    return found


def _at(resolved: Mapping[str, Any], path: str) -> Any:
    value: Any = resolved
    for name in path.split("."):
        value = None if value is None else value.get(name)
    return value
