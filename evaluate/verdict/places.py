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
Side = frozenset[int]
"""The counted entries of a side by their `id`, which no other side of a comparison shares."""


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
        title = f"Ranking of {len(self.sides)} sides, {self.work}"
        return title if self.is_proven else f"{title}, if the work is the same"

    @property
    def in_words(self) -> str:
        """The places in one line: `1. H200, 2. H100`."""
        return ", ".join(f"{one.place}. {one.side}" for one in self.sides)

    def as_json(self) -> dict[str, Any]:
        """Return an entry of `ranking` in compare.json."""
        sides = []
        for one in self.sides:
            rate = one.tokens_per_second_per_gpu
            sides.append({"place": one.place, "side": one.side, "tokens_per_second_per_gpu": rate})
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
                # a side joins if it has a ratio to every side that is in the set already
                of_new = [other for other in left if new in _sides(other) and set(_sides(other)) - {new} <= known]
                if len(of_new) == len(known):
                    found += of_new
                    known.add(new)
        yield found
        left = [one for one in left if not any(one is other for other in found)]


def _sides(judged: Judged) -> tuple[Side, Side]:
    a, b = (frozenset(id(entry) for entry in side if entry.is_counted) for side in (judged.pair.a, judged.pair.b))
    return a, b


def _ranking(found: Sequence[Judged]) -> Ranking:
    names: dict[Side, str] = {}
    levels: dict[Side, float] = {}
    places: dict[Side, int] = {}
    for judged in found:
        sides = _sides(judged)
        runs_of = deciding.runs_of(judged.pair)
        for side, name, runs in zip(sides, (judged.pair.a_name, judged.pair.b_name), runs_of, strict=True):
            names[side], levels[side] = name, inference.level(runs)
            places.setdefault(side, 1)
        if judged.word == inference.FASTER:
            places[sides[0]] += 1
        elif judged.word == inference.SLOWER:
            places[sides[1]] += 1
    # sides that share a place are shown by their speed
    order = sorted(names, key=lambda side: (places[side], -levels[side]))
    ranked = []
    for side in order:
        ratio = _ratio(found, side, order[0])
        ranked.append(Ranked(places[side], names[side], levels[side], len(side), ratio))
    work = found[0].work
    frameworks = sorted({result["framework"] for one in found for side in one.pair.counted for result in side})
    if len(frameworks) < 3:  # more are the names of the sides
        work = f"{work}, {' and '.join(frameworks)}"
    return Ranking(work, all(one.is_proven for one in found), tuple(ranked))


def _ratio(found: Sequence[Judged], side: Side, first: Side) -> Ratio | None:
    """Return the ratio of a side to the first with its interval, from their verdict in either direction."""
    for judged in found:
        estimate = judged.estimate
        if estimate is None:
            continue
        if _sides(judged) == (first, side):
            return estimate.ratio, estimate.low, estimate.high
        if _sides(judged) == (side, first):
            return 1 / estimate.ratio, estimate.high and 1 / estimate.high, estimate.low and 1 / estimate.low
    return None
