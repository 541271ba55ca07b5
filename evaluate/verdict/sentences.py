"""A pair with its verdict, and the sentences that state it."""

from __future__ import annotations

from dataclasses import dataclass

from evaluate.fairness.items import Item
from evaluate.metrics.published import Tuning
from evaluate.verdict import inference
from evaluate.verdict.pairs import Pair
from evaluate.verdict.saving import Saving

NOT_COMPARABLE = "not_comparable"
ALL_SHARED = "same model, data, settings and loss"
MOST_NAMED = 8
"""Largest number of unproven items that a sentence names; the certificate has all."""


@dataclass(frozen=True)
class Judged:
    """A pair with its verdict."""

    pair: Pair
    word: str
    reasons: tuple[str, ...]
    certificate: tuple[Item, ...] | None
    estimate: inference.Estimate | None
    remarks: tuple[str, ...] = ()
    """Observations on the runs that do not forbid a comparison."""
    is_decided: bool = True
    """False for `undecided`, which shows neither a difference nor that there is none."""
    adjusted_p_value: float | None = None
    band: float = inference.BAND
    tunings: tuple[Tuning, ...] = ()
    """With the method `best`: each side's share of the best published figure for its device."""
    saving: Saving | None = None
    """The saving of b over a on a number of tokens; None if the two are not comparable."""
    would_decide: str | None = None
    """With the word `undecided`: one clause about what would decide it, such as `3 more runs on amd`."""

    @property
    def sentence(self) -> str:
        """The verdict as one sentence."""
        pair = self.pair
        if self.word == NOT_COMPARABLE or self.estimate is None:
            return f"NOT COMPARABLE: {pair.a_name} and {pair.b_name}: {self.reasons[0]}"
        found = self.estimate
        if self.word == inference.TIE:
            outcome = f"{pair.b_name} and {pair.a_name} tie within {self.band:.1%}: {times(found.ratio)}x"
        elif self.word == inference.UNDECIDED:
            outcome = f"{pair.b_name} against {pair.a_name} is undecided: {times(found.ratio)}x"
        elif self.word == inference.FASTER:
            outcome = f"{pair.b_name} is {found.ratio:.2f}x as fast as {pair.a_name}: faster"
        else:
            outcome = f"{pair.b_name} is {found.ratio:.2f}x as fast as {pair.a_name}: slower"
        interval = "no interval"
        if found.low is not None and found.high is not None:
            interval = f"95 % interval {times(found.low)} to {times(found.high)}"
        counts = f"{_count(found.runs, 'run')}, {_count(found.machines, 'machine')}"
        return f"{outcome} ({interval}, {counts}), {self.claim}{self._would_decide_clause()}"

    @property
    def claim(self) -> str:
        """The scope of the verdict, and the properties that both sides were shown to share."""
        unproven = [item.name for item in self.certificate or () if item.is_unproven]
        more = f" and {len(unproven) - MOST_NAMED} more" if len(unproven) > MOST_NAMED else ""
        shared = f"not proven: {', '.join(unproven[:MOST_NAMED])}{more}" if unproven else ALL_SHARED
        scope = self.estimate.scope if self.estimate else ""
        return f"{shared}; holds for {scope}{self._tuning_clause()}"

    def _would_decide_clause(self) -> str:
        return f"; would decide it: {self.would_decide}" if self.would_decide else ""

    def _tuning_clause(self) -> str:
        clause = ""
        for name, found in zip((self.pair.a_name, self.pair.b_name), self.tunings, strict=False):
            share = found.share.value
            if share is None:
                clause += f"; no published figure to tell whether {name} is tuned"
            else:
                word = "untuned, " if found.is_untuned else ""
                clause += f"; {name}: {word}{share:.0f} % of the best published figure"
        return clause

    @property
    def tuning_lines(self) -> list[str]:
        """Each side's share of the best published figure with its source, or the reason why it is unknown."""
        names = (self.pair.a_name, self.pair.b_name)
        return [
            f"{name}: {'tuning unknown' if one.share.value is None else f'{one.share.value:.1f} %'}, {one.share.how}"
            for name, one in zip(names, self.tunings, strict=False)
        ]

    @property
    def money_lines(self) -> list[str]:
        """The saving of one side in words; empty if a price is unknown."""
        sentence = self.saving.sentence(self.pair.a_name, self.pair.b_name) if self.saving else ""
        return [sentence] if sentence else []


def times(ratio: float) -> str:
    """Return a ratio as text: three decimals near 1, three significant digits far from it."""
    return f"{ratio:.3f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}"


def _count(numbers: tuple[int, int], word: str) -> str:
    a, b = numbers
    if a == b:
        return f"{a} {word}{'' if a == 1 else 's'} a side"
    return f"{a} and {b} {word}s"
