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
    lines: dict[str, list[str]] = {}
    jobs: dict[str, set[str]] = {}
    for job, line in said:
        # the unit stays: 3 GB and 3 W are no lines of one kind
        kind = _NUMBER.sub(_unit_alone, line)
        lines.setdefault(kind, []).append(line)
        jobs.setdefault(kind, set()).add(job)
    texts = []
    for kind, same in lines.items():
        count = len(jobs[kind])
        texts.append(f"{_merged(same)} (1 job)" if count == 1 else f"{_merged(same)} ({count} jobs)")
    return texts


def _unit_alone(match: re.Match[str]) -> str:
    return f"# {match['unit']}" if match["unit"] else "#"


def _merged(lines: list[str]) -> str:
    """Return the first line with the numbers of all of them; all have the same places of numbers."""
    numbers_of_lines = [[match[0] for match in _NUMBER.finditer(line)] for line in lines]
    texts = [_of_place(list(dict.fromkeys(numbers))) for numbers in zip(*numbers_of_lines, strict=True)]
    first = lines[0]
    # from the end, so that a longer text does not move the places before it
    for match, text in reversed(list(zip(_NUMBER.finditer(first), texts, strict=True))):
        first = first[: match.start()] + text + first[match.end() :]
    return first


def _of_place(numbers: list[str]) -> str:
    """Return different numbers of one place in words: a range of quantities with a unit, a list of others."""
    if len(numbers) == 1:
        return numbers[0]
    by_size = sorted(numbers, key=_size)
    low, _, unit = by_size[0].partition(" ")
    if unit:
        return f"{low} to {by_size[-1]}"
    if len(by_size) > MOST_LISTED:
        by_size = [*by_size[:MOST_LISTED], "..."]
    return ", ".join(by_size)


def _size(number: str) -> float:
    return float(number.partition(" ")[0].replace(",", ""))
