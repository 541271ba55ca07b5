"""Questions about a result that several rules ask before they judge it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, TypeVar

from evaluate.metrics.measured_rate import moment_of
from utils.results.schema import Result

Value = TypeVar("Value")
Key = TypeVar("Key", bound=Hashable)


def is_recorded(result: Result) -> bool:
    """Return whether the suite's own recorder made the result, so that every sample is exact and complete."""
    return bool(result.get("source", "recorder") == "recorder")


def is_complete(result: Result) -> bool:
    """Return whether the recorder made the result of a training that ran to its end."""
    return is_recorded(result) and result["status"] == "ok"


def content_of(result: Result) -> dict[str, Any]:
    """Return what the file of a result holds: without the rate of a probe, which is attached on reading."""
    return {key: value for key, value in result.items() if key != "probe"}


def machines(result: Result) -> list[str]:
    """Return the machines of a run: their host names in lower case and without a domain; empty if unknown.

    One machine may call itself node1, node1.local or NODE1. An address stays whole.
    """
    provenance = result["provenance"]
    names = []
    # a job on one node has no list of hosts
    for host in provenance.get("hosts") or [provenance["host"]]:
        if host:
            name = str(host).lower()
            is_address = re.fullmatch(r"[\d.]+|.*:.*", name) is not None
            names.append(name if is_address else name.partition(".")[0])
    return names


def machine_of(result: Result) -> str:
    """Return the machine of a run, or all machines of a job on several, in one text."""
    return " and ".join(sorted(machines(result))) or "unknown host"


def interval(result: Result) -> tuple[datetime, datetime] | None:
    """Return start and end of a run; None if either is unknown or no time."""
    start, end = moment_of(result, "started_utc"), moment_of(result, "finished_utc")
    if start is None or end is None:
        return None
    return start, end


def longest_equal(values: Sequence[object]) -> int:
    """Return the largest number of equal values in a row; unknown ones (None) are equal to nothing."""
    # None beside None is not measured, and not the same
    longest = 0
    for value, same in groupby(values):
        if value is not None:
            longest = max(longest, len(list(same)))
    return longest


def job_of(result: Result) -> tuple[Any, ...]:
    """Return what the runs of one job share beside the settings of their side: machine, label and seed."""
    return machine_of(result), result["label"], result["training_config"]["seed"]


def grouped(values: Iterable[Value], key_of: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Return the values of each key, in their order."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key_of(value), []).append(value)
    return groups
