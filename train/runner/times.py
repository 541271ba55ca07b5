"""Times in words: `4:12 elapsed, about 3:10 left`."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Return `m:ss` or `h:mm:ss`; a dash for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def between(least: float, most: float) -> str:
    """Return `about m:ss`, or `m:ss to m:ss` where the number of runs is open."""
    first, last = duration(least), duration(most)
    return f"about {first}" if first == last else f"{first} to {last}"


def times(elapsed: float | None, left: tuple[float, float] | None) -> str:
    """Return `4:12 elapsed, about 3:10 left`, both in seconds; `left` has the least and the most, None if unknown."""
    return f"{duration(elapsed)} elapsed, {'remaining time unknown' if left is None else f'{between(*left)} left'}"
