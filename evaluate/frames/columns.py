"""The columns of a table of runs: one documented way from the nested keys of a result to flat names with a dtype each.

A key of a section is a column of its own name (`tokens_per_second_per_gpu`). If a section before it has the same key,
the section's name stands in front of it (`resolved_config.precision`, because `training_config` has `precision` too).
It also does so for keys of `conditions` and `repeats`, and for keys that the schema does not have. A nested object adds
its own keys: `provenance.framework_versions.torch`. A list becomes one text. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from utils.results.schema import IDENTITY, OPTIONAL_SECTIONS, SAMPLES, SECTIONS, Result, time_of
from utils.settings.keys import Number

TEXT, INTEGER, FLOAT, BOOLEAN, TIME = "string", "Int64", "float64", "boolean", "datetime64[us, UTC]"
"""Dtypes of pandas. Each of them has a value for what is missing: NA, NaN or NaT."""
TIMES = ("started_utc", "finished_utc")
JUDGED = {"file": TEXT, "is_counted": BOOLEAN, "why_not_counted": TEXT, "check_warnings": TEXT}
"""First columns: the place of the result, whether a comparison counts it, and the warnings of the rules."""
MEASURED = {
    "steady_tokens_per_second_per_gpu": FLOAT,
    "steady_step_time_seconds": FLOAT,
    "steady_steps": INTEGER,
    "model_flops_utilization_percent": FLOAT,
    "last_loss_nats_per_token": FLOAT,
}
"""Figures of a comparison, made from the raw samples of a counted run; missing for any other run."""
STATUS = {"status": TEXT, "reason": TEXT, "source": TEXT, "recorded_steps": INTEGER, "excluded_steps": INTEGER}
REASONS = "reasons"
"""Last column: JSON of the reasons that a result gives for its missing values, by column."""
_SKIPPED = {"schema_version", REASONS, *SAMPLES, *IDENTITY, *STATUS}
_KINDS: dict[Any, str] = {str: TEXT, int: INTEGER, bool: BOOLEAN, Number: FLOAT}
_OF_VALUES: dict[frozenset[type], str] = {
    frozenset({bool}): BOOLEAN,
    frozenset({int}): INTEGER,
    **dict.fromkeys((frozenset({float}), frozenset({int, float})), FLOAT),
}
"""Dtypes by the types of all values of a column; any others are texts."""
_SECTIONS = {**SECTIONS, **OPTIONAL_SECTIONS}


@lru_cache
def names() -> Mapping[tuple[str, str], str]:
    """Return the column of each (section, key) of the schema, in the order of the table."""
    found: dict[tuple[str, str], str] = {}
    taken = {*JUDGED, *MEASURED, *IDENTITY, *STATUS, REASONS}
    for section, keys in _SECTIONS.items():
        for key in keys:
            is_own = key not in taken and section in SECTIONS
            found[section, key] = key if is_own else f"{section}.{key}"
            taken.add(found[section, key])
    return found


@lru_cache
def dtypes() -> Mapping[str, str]:
    """Return the dtype of each column that every table has; a result may add others, such as library versions."""
    found = {**JUDGED, **{key: _KINDS[kind] for key, kind in IDENTITY.items()}, **STATUS, **MEASURED}
    for (section, key), name in names().items():
        kind = _SECTIONS[section][key]
        if key in TIMES:
            found[name] = TIME
        elif kind is not dict:
            found[name] = _KINDS.get(kind, TEXT)
    return found | {REASONS: TEXT}


def cells(result: Result) -> dict[str, Any]:
    """Return the values of a result by column; missing ones are None or left out, times are datetimes of UTC."""
    known = {key: result.get(key) for key in (*IDENTITY, "status", "reason")}
    known |= {
        "source": result.get("source", "recorder"),
        "recorded_steps": len(result["steps"]),
        "excluded_steps": len(result.get("excluded_steps") or ()),
    }
    others: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for section, value in result.items():
        if section in _SECTIONS:
            for key, one in value.items():
                name = names().get((section, key), "")
                if name in TIMES:
                    known[name], why = _time(one)
                    reasons |= {name: why} if why else {}
                elif name in dtypes():
                    known[name] = next(iter(_flat("", one).values()))
                elif key == "reasons":
                    reasons |= {names().get((section, about), f"{section}.{about}"): why for about, why in one.items()}
                else:
                    others |= _flat(f"{section}.{key}", one)
        elif section not in _SKIPPED:
            others |= _flat(
                section if isinstance(value, Mapping) or section not in dtypes() else f"other.{section}", value
            )
    text = json.dumps(reasons, ensure_ascii=False, sort_keys=True) if reasons else None
    others = {name: value for name, value in others.items() if value is not None and name not in dtypes()}
    return known | others | {REASONS: text}


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Return a value as cells: an object by its keys, a list as one text."""
    if isinstance(value, Mapping):
        return {column: one for key, inner in value.items() for column, one in _flat(f"{name}.{key}", inner).items()}
    if isinstance(value, list):
        return {name: "; ".join(one if isinstance(one, str) else json.dumps(one) for one in value) or None}
    return {name: value}


def _time(text: str | None) -> tuple[Any, str]:
    """Return a time, or None with the reason if a text cannot be read as one."""
    try:
        return time_of(text) if text else None, ""
    except (ValueError, OverflowError):
        return None, f"got {text!r}, which is no time"


def dtype_of(values: Iterator[Any]) -> str:
    """Return the dtype of a column that the schema does not have, from its values that are not missing."""
    return _OF_VALUES.get(frozenset(type(value) for value in values if value is not None), TEXT)
