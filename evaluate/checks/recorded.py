"""Questions about a result that several rules ask before they judge it. Standard library only."""

from __future__ import annotations

from datetime import datetime

from utils.results.schema import Result, time_of


def is_recorded(result: Result) -> bool:
    """Return whether the suite's own recorder made the result, so that every sample is exact and complete."""
    return bool(result.get("source", "recorder") == "recorder")


def is_complete(result: Result) -> bool:
    """Return whether the recorder made the result of a training that ran to its end."""
    return is_recorded(result) and result["status"] == "ok"


def moment(text: str | None) -> datetime | None:
    """Return a time of `provenance` in UTC; None if it is unknown. Raises ValueError if the text is no time."""
    return time_of(text) if text else None


def interval(result: Result) -> tuple[datetime, datetime] | None:
    """Return start and end of a run; None if either is unknown or no time."""
    provenance = result["provenance"]
    try:
        start, end = moment(provenance["started_utc"]), moment(provenance["finished_utc"])
    except ValueError:
        return None
    return (start, end) if start is not None and end is not None else None


def longest_equal(values: list[float | None]) -> int:
    """Return the largest number of equal values in a row; unknown ones are equal to nothing."""
    longest = count = 0
    before: float | None = None
    for value in values:
        count = count + 1 if value is not None and value == before else int(value is not None)
        before, longest = value, max(longest, count)
    return longest
