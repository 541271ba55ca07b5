"""Grouping of results: those of equal work share a table, and those of one system share a row of it.

Model, size, method, sequence length, global batch, precision and data are never mixed: each combination is a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from string import ascii_uppercase
from typing import Any, TypeVar

from evaluate.checks.entries import Entry
from evaluate.report.groups import Group, GroupKey, Row, RowKey
from evaluate.report.tables import plain

_Key = TypeVar("_Key", bound=tuple[Any, ...])


def grouped(entries: Iterable[Entry]) -> tuple[list[Group], list[tuple[Entry, Entry]]]:
    """Return the sorted groups, and the copies: each entry whose content repeats an earlier one, with that one.

    A copy is not a second measurement and does not count. A result that failed before it recorded its data, device or
    host joins the only group and row that match it. If several match, it forms its own.
    """
    unique, copies = _without_copies(entries)
    groups = []
    for key, members in sorted(_by_key(unique, _group_key).items(), key=lambda item: str(item[0])):
        rows = [Row(row_key, found) for row_key, found in _by_key(members, _row_key).items()]
        rows.sort(key=lambda row: str(row.key))
        for number, row in enumerate(rows):
            row.letter = _letter(number)
        _distinguish(rows)
        groups.append(Group(key, rows))
    return groups, copies


def _group_key(entry: Entry) -> GroupKey:
    result, config = entry.result, entry.result["training_config"]
    dataset = result["fingerprint"]["dataset_bin_sha256"]
    if dataset is None and result["status"] == "ok":
        dataset = (
            f"unknown ({result['platform']}/{result['framework']} on {result['provenance']['host'] or 'unknown host'})"
        )
    return GroupKey(
        result["model"],
        result["model_size"],
        result["method"],
        config["sequence_length"],
        config["global_batch_size"],
        config["precision"],
        dataset,
    )


def _row_key(entry: Entry) -> RowKey:
    result, config = entry.result, entry.result["training_config"]
    unit = "rank" if result["platform"] == "cpu" else "GPU"
    count = f"{config['num_gpus']} {unit}{'' if config['num_gpus'] == 1 else 's'}"
    split = ", ".join(f"{name.upper()} {config[name]}" for name in ("dp", "tp", "pp", "cp"))
    layout = f"{count}, MBS {config['micro_batch_size']}, {split}"
    host = result["provenance"]["host"]
    return RowKey(
        result["platform"], result["framework"], result["gpu_info"]["device_name"], layout, result["label"], host
    )


def _by_key(entries: Sequence[Entry], key_of: Callable[[Entry], _Key]) -> dict[_Key, list[Entry]]:
    keys = {key_of(entry) for entry in entries}
    found: dict[_Key, list[Entry]] = {}
    for entry in entries:
        key = key_of(entry)
        # Only a result that is not ok may join others on incomplete evidence: it enters no average.
        if None in key and entry.result["status"] != "ok":
            complete = [k for k in keys if None not in k]
            homes = [k for k in complete if all(a is None or a == b for a, b in zip(key, k, strict=True))]
            key = homes[0] if len(homes) == 1 else key
        found.setdefault(key, []).append(entry)
    return found


def _without_copies(entries: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, Entry]]]:
    """Return the entries of distinct content, and each further entry with the first of the same content."""
    unique, copies = [], []
    alike: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        same_samples = alike.setdefault((entry.result["run"], *entry.result["step_times"]), [])
        first = next((other for other in same_samples if other.result == entry.result), None)
        if first is not None:
            copies.append((entry, first))
        else:
            same_samples.append(entry)
            unique.append(entry)
    return unique, copies


def _distinguish(rows: Sequence[Row]) -> None:
    """Set the detail of each row to the properties that not all rows share."""
    for name, words in (("host", "host {}"), ("label", "label {}"), ("layout", "{}")):
        values = {getattr(row.key, name) for row in rows}
        if len(values) > 1:
            for row in rows:
                text = plain(words.format(getattr(row.key, name) or "none"))
                row.detail = f"{row.detail}, {text}" if row.detail else text


def _letter(number: int) -> str:
    prefix, last = divmod(number, len(ascii_uppercase))
    return (_letter(prefix - 1) if prefix else "") + ascii_uppercase[last]
