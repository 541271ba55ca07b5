"""The tables of runs and of steps as pandas DataFrames, with a dtype for each column that has a missing value.

The columns of a run: one documented way from the nested keys of a result to flat names with a dtype each.

A key of a section is a column of its own name (`tokens_per_second_per_gpu`). If a section before it has the same key,
the section's name stands in front of it (`resolved_config.precision`, because `training_config` has `precision` too).
It also does so for keys of `conditions` and `repeats`, and for keys that the schema does not have. A nested object adds
its own keys: `provenance.framework_versions.torch`. A list becomes one text.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.metrics import metrics
from evaluate.metrics.steady import of_result, step_times, tokens_per_second_per_gpu
from utils import redact
from utils.own_files import content_of
from utils.results.keys import IDENTITY_KEYS
from utils.results.schema import OPTIONAL_SECTIONS, SAMPLES, SECTIONS, Result, time_of
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
_SKIPPED = {"schema_version", REASONS, *SAMPLES, *IDENTITY_KEYS, *STATUS}
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
    taken = {*JUDGED, *MEASURED, *IDENTITY_KEYS, *STATUS, REASONS}
    for section, keys in _SECTIONS.items():
        for key in keys:
            is_own = key not in taken and section in SECTIONS
            found[section, key] = key if is_own else f"{section}.{key}"
            taken.add(found[section, key])
    return found


@lru_cache
def dtypes() -> Mapping[str, str]:
    """Return the dtype of each column that every table has; a result may add others, such as library versions."""
    found = {**JUDGED, **{key: _KINDS[row.kind] for key, row in IDENTITY_KEYS.items()}, **STATUS, **MEASURED}
    for (section, key), name in names().items():
        kind = _SECTIONS[section][key]
        if key in TIMES:
            found[name] = TIME
        elif kind is not dict:
            found[name] = _KINDS.get(kind, TEXT)
    return found | {REASONS: TEXT}


def cells(result: Result) -> dict[str, Any]:
    """Return the values of a result by column; missing ones are None or left out, times are datetimes of UTC."""
    known = {key: result.get(key) for key in (*IDENTITY_KEYS, "status", "reason")}
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


Copies = Sequence[tuple[Entry, Entry]]
"""Copies of results, which a comparison does not count, each with the entry that it repeats."""
JOIN = {"platform": TEXT, "framework": TEXT, "model": TEXT, "run": INTEGER}
"""Columns of a step that both tables have, beside `file`, which alone identifies the run."""
SAMPLE_COLUMNS = {
    "step": "steps",
    "step_time_seconds": "step_times",
    "data_wait_seconds": "data_wait_seconds",
    "loss_nats_per_token": "loss_values",
    "grad_norm": "grad_norms",
    "learning_rate": "learning_rates",
}
"""Columns of a step, and the lists of a result that they come from."""
STEPS = {
    **{"file": TEXT, "is_counted": BOOLEAN},
    **JOIN,
    **dict.fromkeys(SAMPLE_COLUMNS, FLOAT),
    **{"step": INTEGER, "is_steady": BOOLEAN},
}
"""Dtype of each column of the table of steps."""


def runs(entries: Sequence[Entry], copies: Copies = ()) -> Any:
    """Return the DataFrame of runs: the columns of the schema in their order, then those of these results alone."""
    found = [_run(entry, entry.is_counted, entry.why_not_counted) for entry in entries]
    found += [_run(copy, False, f"a copy of {first.path}") for copy, first in copies]
    found.sort(key=lambda row: str(row["file"]))
    others = sorted({name for row in found for name in row} - set(dtypes()))
    types = {name: {type(value) for row in found if (value := row.get(name)) is not None} for name in others}
    kinds = dict(dtypes()) | {name: _OF_VALUES.get(frozenset(known), TEXT) for name, known in types.items()}
    kinds[REASONS] = kinds.pop(REASONS)
    return _frame({name: [row.get(name) for row in found] for name in kinds}, kinds)


def steps(entries: Sequence[Entry], copies: Copies = ()) -> Any:
    """Return the DataFrame of steps, in the order of the table of runs and of the steps of each."""
    counted = {id(entry) for entry in entries if entry.is_counted}
    columns: dict[str, list[Any]] = {name: [] for name in STEPS}
    for entry in sorted([*entries, *(copy for copy, _ in copies)], key=lambda one: str(one.path)):
        result, is_counted, count = entry.result, id(entry) in counted, len(entry.result["steps"])
        part = of_result(result) if is_counted else None
        same = {"file": str(entry.path), "is_counted": is_counted} | {key: result[key] for key in JOIN}
        lists: dict[str, Iterable[Any]] = {column: repeat(value, count) for column, value in same.items()}
        lists |= {column: result[key] for column, key in SAMPLE_COLUMNS.items()}
        lists["is_steady"] = [place >= part.first if part else None for place in range(count)]
        for column, values in lists.items():
            columns[column] += values
    return _frame(columns, STEPS)


def _run(entry: Entry, is_counted: bool, why: str) -> dict[str, Any]:
    warnings = "; ".join(entry.findings.warnings) or None
    judged = dict(zip(JUDGED, (str(entry.path), is_counted, why or None, warnings), strict=True))
    return cells(entry.result) | judged | (_measured(entry) if is_counted else {})


def _measured(entry: Entry) -> dict[str, Any]:
    result, times = entry.result, step_times(entry.result)
    utilisation = metrics.utilisation(result).get("mfu_causal")
    losses = result["loss_values"]
    return {
        "steady_tokens_per_second_per_gpu": tokens_per_second_per_gpu(result),
        "steady_step_time_seconds": statistics.fmean(times) if times else None,
        "steady_steps": len(times) or None,
        "model_flops_utilization_percent": utilisation.value if utilisation else None,
        "last_loss_nats_per_token": metrics.last_loss(result) if losses and None not in losses else None,
    }


def _frame(columns: Mapping[str, list[Any]], kinds: Mapping[str, str]) -> Any:
    import pandas

    return pandas.DataFrame({name: _series(values, kinds[name]) for name, values in columns.items()})


def _series(values: list[Any], kind: str) -> Any:
    import pandas

    if kind == TIME:
        return pandas.to_datetime(pandas.Series(values, dtype="object"), utc=True).astype(kind)
    if kind == TEXT:
        values = [value if value is None or isinstance(value, str) else str(value) for value in values]
    return pandas.Series(values, dtype=kind)


# CSV and Parquet files of a table, and the recognition of those that the suite wrote, which needs neither package.

NEEDS = {"csv": ("pandas",), "parquet": ("pandas", "pyarrow")}
"""Packages that each format needs."""
_FIRST_LINES = tuple(",".join(tuple(columns)[:4]).encode() + b"," for columns in (JUDGED, STEPS))
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""Starts of a cell that a spreadsheet takes for a formula (OWASP, CSV Injection)."""
_MARK = b"tprimat.table"
"""Key of the metadata of every Parquet file of the suite, which stands in its footer as it is."""


class MissingPackageError(ValueError):
    """A format needs a package that this Python does not have; the message names it and the remedy."""


def require_packages(name: str) -> None:
    """Raise MissingPackageError if a package that the format `name` needs is not installed."""
    missing = [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingPackageError(
            f"{name}: needs {' and '.join(missing)}, which this Python does not have; run: pip install "
            f"-c cpu-requirements.txt {' '.join(missing)}"
        )


def content(frame: Any, name: str) -> bytes:
    """Return a table in the format `name`, without secrets: `csv` in UTF-8, missing values empty, or `parquet`.

    A text that a spreadsheet would run as a formula has an apostrophe before it in `csv`.
    """
    frame = _with_texts(frame, redact.text)
    if name == "csv":
        frame = _with_texts(frame, lambda cell: f"'{cell}" if cell.startswith(_FORMULAS) else cell)
        text: str = frame.to_csv(index=False, lineterminator="\n", date_format="%Y-%m-%dT%H:%M:%S%z")
        return text.encode(errors="backslashreplace")
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _MARK: b"1"})
    with pyarrow.BufferOutputStream() as buffer:
        parquet.write_table(table, buffer)
        return bytes(buffer.getvalue())


def _with_texts(frame: Any, change: Callable[[str], str]) -> Any:
    """Return the table with every text and name of a column changed; each distinct text is looked at once."""
    changed = {}
    for name in frame.columns:
        if frame[name].dtype == TEXT:
            known = {text: change(text) for text in frame[name].dropna().unique()}
            if any(text != shown for text, shown in known.items()):
                changed[name] = frame[name].map(known, na_action="ignore").astype(TEXT)
    return frame.assign(**changed).rename(columns=change)


def _is_csv(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(max(map(len, _FIRST_LINES))).startswith(_FIRST_LINES)


def _is_parquet(path: Path) -> bool:
    content = content_of(path)
    return content.startswith(b"PAR1") and _MARK in content


RECOGNISERS: dict[str, Callable[[Path], bool]] = {"csv": _is_csv, "parquet": _is_parquet}
