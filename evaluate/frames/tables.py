"""The tables of runs and of steps as pandas DataFrames, with a dtype for each column that has a missing value.

A key of a section is a column of its own name (`tokens_per_second_per_gpu`). If a section before it has the same key,
the section's name stands in front of it (`resolved_config.precision`, because `training_config` has `precision` too).
It also does so for keys of `conditions` and `repeats`, and for keys that the schema does not have. A nested object adds
its own keys: `provenance.framework_versions.torch`. A list becomes one text.

pandas.json_normalize is not used: beside a missing value it makes whole numbers floats, which hold no more than 2^53.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.metrics import metrics
from evaluate.metrics.steady import of_result, step_times, tokens_per_second_per_gpu
from utils import redact
from utils.own_files import content_of
from utils.results.keys import IDENTITY_KEYS, KEYS, SAMPLE_KEYS, SECTIONS_OF_SOME, UTC
from utils.results.schema import Result, time_of
from utils.settings.keys import Number

TEXT, INTEGER, FLOAT, BOOLEAN, TIME = "string", "Int64", "float64", "boolean", "datetime64[us, UTC]"
"""Dtypes of pandas. Each of them has a value for what is missing: NA, NaN or NaT."""
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
_SKIPPED = {"schema_version", REASONS, *SAMPLE_KEYS, *IDENTITY_KEYS, *STATUS}
_DTYPES: dict[Any, str] = {str: TEXT, int: INTEGER, bool: BOOLEAN, Number: FLOAT, list: TEXT}
_DTYPES_OF_VALUES = {
    frozenset({bool}): BOOLEAN,
    frozenset({int}): INTEGER,
    frozenset({float}): FLOAT,
    frozenset({int, float}): FLOAT,
}
"""Dtypes by the types of all values of a column; any others are texts."""


@lru_cache
def names() -> Mapping[tuple[str, str], str]:
    """Return the column of each (section, key) that every result of its age has, in the order of the table."""
    columns: dict[tuple[str, str], str] = {}
    taken = {*JUDGED, *MEASURED, *IDENTITY_KEYS, *STATUS, REASONS}
    for section, rows in KEYS.items():
        for key, row in rows.items():
            if row.is_optional:
                continue
            # the keys of these sections mean little without the section: `runs`, `tokens`, `partition`
            is_free = key not in taken and section not in SECTIONS_OF_SOME
            columns[section, key] = key if is_free else f"{section}.{key}"
            taken.add(columns[section, key])
    return columns


@lru_cache
def dtypes() -> Mapping[str, str]:
    """Return the dtype of each column that every table has; a result may add others, such as library versions."""
    dtypes = {**JUDGED, **{key: _DTYPES[row.kind] for key, row in IDENTITY_KEYS.items()}, **STATUS, **MEASURED}
    for (section, key), column in names().items():
        row = KEYS[section][key]
        if row.unit == UTC:
            dtypes[column] = TIME
        elif row.kind is not dict:
            dtypes[column] = _DTYPES[row.kind]
    return dtypes | {REASONS: TEXT}


def cells(result: Result) -> dict[str, Any]:
    """Return the known values of a result by column; times are datetimes of UTC."""
    row: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for section, value in result.items():
        if section in KEYS:
            for key, inner in value.items():
                if key == "reasons":
                    for about, why in inner.items():
                        reasons[names().get((section, about), f"{section}.{about}")] = why
                    continue
                column = names().get((section, key), "")
                row |= _flat(column if column in dtypes() else f"{section}.{key}", inner)
        elif section not in _SKIPPED:
            # a key of a later version does not take the place of a column of this one
            is_taken = section in dtypes() and not isinstance(value, Mapping)
            row |= _flat(f"other.{section}" if is_taken else section, value)
    for column in dtypes():
        if dtypes()[column] == TIME and row.get(column) is not None:
            try:
                row[column] = time_of(row[column])
            except (ValueError, OverflowError):
                reasons[column] = f"got {row.pop(column)!r}, which is no time"
    row |= {key: result.get(key) for key in (*IDENTITY_KEYS, "status", "reason")}
    row["source"] = result.get("source", "recorder")
    row["recorded_steps"] = len(result["steps"])
    row["excluded_steps"] = len(result.get("excluded_steps") or ())
    if reasons:
        row[REASONS] = json.dumps(reasons, ensure_ascii=False, sort_keys=True)
    return {column: value for column, value in row.items() if value is not None}


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Return a value as cells: an object by its keys, a list as one text."""
    if isinstance(value, Mapping):
        row: dict[str, Any] = {}
        for key, inner in value.items():
            row |= _flat(f"{name}.{key}", inner)
        return row
    if isinstance(value, list):
        return {name: "; ".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in value) or None}
    return {name: value}


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
STEPS = (
    {"file": TEXT, "is_counted": BOOLEAN}
    | JOIN
    | dict.fromkeys(SAMPLE_COLUMNS, FLOAT)
    | {"step": INTEGER, "is_steady": BOOLEAN}
)
"""Dtype of each column of the table of steps."""


def runs(entries: Sequence[Entry], copies: Copies = ()) -> Any:
    """Return the DataFrame of runs: the columns of the schema in their order, then those of these results alone."""
    rows = [_run(entry, entry.is_counted, entry.why_not_counted) for entry in entries]
    rows += [_run(copy, False, f"a copy of {first.path}") for copy, first in copies]
    rows.sort(key=lambda row: str(row["file"]))
    # a column that the schema does not have is of the type of its values in these results
    types: dict[str, set[type]] = {}
    for row in rows:
        for column, value in row.items():
            if column not in dtypes():
                types.setdefault(column, set()).add(type(value))
    wanted = dict(dtypes()) | {name: _DTYPES_OF_VALUES.get(frozenset(types[name]), TEXT) for name in sorted(types)}
    wanted[REASONS] = wanted.pop(REASONS)  # the last one
    return _frame(rows, wanted)


def steps(entries: Sequence[Entry], copies: Copies = ()) -> Any:
    """Return the DataFrame of steps, in the order of the table of runs and of the steps of each."""
    import pandas

    counted = {id(entry) for entry in entries if entry.is_counted}
    frames = []
    for entry in sorted([*entries, *(copy for copy, _ in copies)], key=lambda entry: str(entry.path)):
        result, is_counted = entry.result, id(entry) in counted
        frame = pandas.DataFrame({column: result[key] for column, key in SAMPLE_COLUMNS.items()}, dtype=object)
        for key in JOIN:
            frame[key] = result[key]
        frame["file"], frame["is_counted"] = str(entry.path), is_counted
        part = of_result(result) if is_counted else None
        frame["is_steady"] = None if part is None else frame.index >= part.first
        frames.append(_typed(frame, STEPS))
    return pandas.concat(frames, ignore_index=True)


def _run(entry: Entry, is_counted: bool, why: str) -> dict[str, Any]:
    row = cells(entry.result)
    row["file"], row["is_counted"] = str(entry.path), is_counted
    if why:
        row["why_not_counted"] = why
    if entry.findings.warnings:
        row["check_warnings"] = "; ".join(entry.findings.warnings)
    return row | _measured(entry.result) if is_counted else row


def _measured(result: Result) -> dict[str, Any]:
    times, losses = step_times(result), result["loss_values"]
    figure = metrics.utilisation(result).get("mfu_causal")
    row = {
        "steady_tokens_per_second_per_gpu": tokens_per_second_per_gpu(result),
        "model_flops_utilization_percent": None if figure is None else figure.value,
    }
    if times:
        row["steady_step_time_seconds"] = statistics.fmean(times)
        row["steady_steps"] = len(times)
    # MLPerf's logs may lack a loss
    if losses and None not in losses:
        row["last_loss_nats_per_token"] = metrics.last_loss(result)
    return row


def _frame(rows: Sequence[Mapping[str, Any]], dtypes: Mapping[str, str]) -> Any:
    """Return the rows as a DataFrame of these columns; what a row lacks is missing."""
    import pandas

    return _typed(pandas.DataFrame(rows, dtype=object), dtypes)


def _typed(frame: Any, dtypes: Mapping[str, str]) -> Any:
    """Return a table of objects with these columns, in their order, of these dtypes."""
    import pandas

    frame = frame.reindex(columns=list(dtypes))
    columns = {}
    for name, dtype in dtypes.items():
        column = frame[name]
        if dtype == TIME:
            column = pandas.to_datetime(column, utc=True)
        elif dtype == TEXT:
            column = column.map(str, na_action="ignore")
        columns[name] = column.astype(dtype)
    return pandas.DataFrame(columns)


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
    # an earlier version may have let a secret into a result
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
