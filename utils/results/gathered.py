"""Lines that several jobs have in common, gathered by kind: one line each, with the number of jobs.

Lines are of one kind if they differ only in numbers. Quantities become a range (`99 to 100 %`), other numbers a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_LISTED = 3
"""Largest number of different numbers, such as those of processes, that one line lists."""
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)(?: (?P<unit>%|[kMGT]i?B|W|kW|ms|s|MHz|C)(?![\w/]))?")


def gathered(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return each kind of line once, in the order of the first, with the number of jobs that said it.

    `said` has the name of a job and a line of it; a job that says a line twice counts once.
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for job, line in said:
        kinds.setdefault(_NUMBER.sub(_kind, line), []).append((job, line))
    return [f"{_merged([line for _, line in found])} ({_jobs(found)})" for found in kinds.values()]


def _kind(match: re.Match[str]) -> str:
    return f"# {match['unit']}" if match["unit"] else "#"


def _jobs(found: list[tuple[str, str]]) -> str:
    count = len({job for job, _ in found})
    return f"{count} job{'' if count == 1 else 's'}"


def _merged(lines: list[str]) -> str:
    """Return the first line with the numbers of all of them; all have the same places of numbers."""
    places = zip(*([match[0] for match in _NUMBER.finditer(line)] for line in lines), strict=True)
    merged = iter([_of_place(list(dict.fromkeys(numbers))) for numbers in places])
    return _NUMBER.sub(lambda _: next(merged), lines[0])


def _of_place(numbers: list[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    by_size = sorted(numbers, key=lambda text: float(text.split(" ")[0].replace(",", "")))
    low, _, unit = by_size[0].partition(" ")
    if unit:
        return f"{low} to {by_size[-1]}"
    return ", ".join([*by_size[:MOST_LISTED], *(["..."] if len(by_size) > MOST_LISTED else [])])
