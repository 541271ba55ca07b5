"""The ranking of more than two sides, from the verdicts on all their pairs.

The place of a side is one more than the number of sides that are shown to be faster: sides between which no difference
is shown share a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evaluate.verdict import deciding, inference
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged

Ratio = tuple[float, float | None, float | None]
"""A ratio and the ends of its interval."""


class Ranked(NamedTuple):
    """A side in a ranking."""

    place: int
    side: str
    tokens_per_second_per_gpu: float
    runs: int
    against_the_first: Ratio | None
    """Ratio to the side that stands first, with its 95 % interval; None for that side itself."""


@dataclass(frozen=True)
class Ranking:
    """Sides of which every two have a verdict, the first place first; an entry of `ranking` in compare.json."""

    work: str
    """Model, settings and frameworks in words."""
    is_proven: bool
    """False if the same work is not proven of a pair."""
    sides: tuple[Ranked, ...]

    @property
    def title(self) -> str:
        """One line about what is ranked."""
        return f"Ranking of {len(self.sides)} sides, {self.work}{'' if self.is_proven else ', if the work is the same'}"

    @property
    def in_words(self) -> str:
        """The places in one line: `1. H200, 2. H100`."""
        return ", ".join(f"{one.place}. {one.side}" for one in self.sides)

    def as_json(self) -> dict[str, Any]:
        """Return an entry of `ranking` in compare.json."""
        sides = [dict(zip(Ranked._fields[:3], one, strict=False)) for one in self.sides]
        return {"work": self.work, "is_proven": self.is_proven, "sides": sides}


def rankings(judged: Sequence[Judged]) -> list[Ranking]:
    """Return a ranking of each set of three sides or more that are comparable with one another."""
    return [_ranking(found) for found in _sets(judged) if len(found) > 1]


def _sets(judged: Sequence[Judged]) -> Iterator[list[Judged]]:
    """Yield the verdicts of each set of sides in which every side has a ratio to every other."""
    left = [one for one in judged if one.estimate and one.word != NOT_COMPARABLE and not one.pair.is_of_jobs]
    while left:
        found, known = [left[0]], set(_sides(left[0]))
        for one in left[1:]:
            for new in set(_sides(one)) - known:
                of_new = [other for other in left if new in _sides(other) and set(_sides(other)) - {new} <= known]
                if len(of_new) == len(known):
                    found, known = [*found, *of_new], known | {new}
        yield found
        left = [one for one in left if not any(one is other for other in found)]


def _sides(judged: Judged) -> list[frozenset[int]]:
    return [frozenset(id(one) for one in side if one.is_counted) for side in (judged.pair.a, judged.pair.b)]


def _ranking(found: Sequence[Judged]) -> Ranking:
    names, levels, slower_than = {}, {}, {key: 0 for one in found for key in _sides(one)}
    for one in found:
        a, b = _sides(one)
        for key, name, runs in zip((a, b), (one.pair.a_name, one.pair.b_name), deciding.runs_of(one.pair), strict=True):
            names[key], levels[key] = name, inference.level(runs)
        if one.word in (inference.FASTER, inference.SLOWER):
            slower_than[a if one.word == inference.FASTER else b] += 1
    order = sorted(names, key=lambda key: (slower_than[key], -levels[key]))
    frameworks = sorted({run["framework"] for one in found for side in one.pair.counted for run in side})
    known = [found[0].work, *([" and ".join(frameworks)] if len(frameworks) < 3 else [])]  # more are the sides' names
    ranked = [
        Ranked(slower_than[key] + 1, names[key], levels[key], len(key), _ratio(found, key, order[0])) for key in order
    ]
    return Ranking(", ".join(known), all(one.is_proven for one in found), tuple(ranked))


def _ratio(found: Sequence[Judged], side: frozenset[int], first: frozenset[int]) -> Ratio | None:
    """Return the ratio of a side to the first with its interval, from their verdict in either direction."""
    for one in found:
        if one.estimate and set(_sides(one)) == {side, first}:
            ratio, low, high = one.estimate.ratio, one.estimate.low, one.estimate.high
            if _sides(one)[1] == side:
                return ratio, low, high
            return 1 / ratio, high and 1 / high, low and 1 / low
    return None
