"""The tables of runs and of steps as pandas DataFrames, with a dtype for each column that has a missing value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.frames import rows
from evaluate.frames.columns import REASONS, TEXT, TIME, dtype_of, dtypes

Copies = Sequence[tuple[Entry, Entry]]


def runs(entries: Sequence[Entry], copies: Copies = ()) -> Any:
    """Return the DataFrame of runs: the columns of the schema in their order, then those of these results alone."""
    found = rows.runs(entries, copies)
    others = sorted({name for row in found for name in row} - set(dtypes()))
    kinds = dict(dtypes()) | {name: dtype_of(row.get(name) for row in found) for name in others}
    kinds[REASONS] = kinds.pop(REASONS)
    return _frame({name: [row.get(name) for row in found] for name in kinds}, kinds)


def steps(entries: Sequence[Entry], copies: Copies = ()) -> Any:
    """Return the DataFrame of steps, in the order of the table of runs and of the steps of each."""
    columns: dict[str, list[Iterable[Any]]] = {name: [] for name in rows.STEPS}
    for same, lists in rows.steps(entries, copies):
        for name, value in same.items():
            columns[name].append(repeat(value, len(lists["step"])))
        for name, values in lists.items():
            columns[name].append(values)
    return _frame({name: list(chain.from_iterable(parts)) for name, parts in columns.items()}, rows.STEPS)


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
