"""The verdict on each pair: faster, slower, tie or not comparable, as a sentence with its evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.fairness.certificate import certificate
from evaluate.fairness.items import ALLOWED, BLOCKING, Item
from evaluate.metrics import steady
from evaluate.metrics.metrics import step_times
from evaluate.metrics.published import Tuning, tuning
from evaluate.verdict import inference
from evaluate.verdict.pairs import MAY_DIFFER, Pair
from evaluate.verdict.saving import Saving
from evaluate.verdict.untuned import local_layers_clause
from utils.results.performance import warmup_steps
from utils.results.schema import Result

NOT_COMPARABLE = "not_comparable"
ALL_SHARED = "same model, data, settings and loss"
MOST_NAMED = 8
"""Largest number of unproven items that a sentence names; the certificate has all."""
BEST = "best"
"""The method that tunes each side by the means of its vendor."""


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
    """False for a tie by lack of evidence, which shows neither a difference nor that there is none."""
    adjusted_p_value: float | None = None
    band: float = inference.BAND
    tunings: tuple[Tuning, ...] = ()
    """With the method `best`: each side's share of the best published figure for its device."""
    saving: Saving | None = None
    """The saving of b over a on a number of tokens; None if the two are not comparable."""

    @property
    def sentence(self) -> str:
        """The verdict as one sentence."""
        pair = self.pair
        if self.word == NOT_COMPARABLE or self.estimate is None:
            return f"NOT COMPARABLE: {pair.a_name} and {pair.b_name}: {self.reasons[0]}"
        found = self.estimate
        if self.word == inference.TIE and self.is_decided:
            outcome = f"{pair.b_name} and {pair.a_name} tie within {self.band:.1%}: {times(found.ratio)}x"
        elif self.word == inference.TIE:
            outcome = f"{pair.b_name} against {pair.a_name} is undecided, a tie for now: {times(found.ratio)}x"
        elif self.word == inference.FASTER:
            outcome = f"{pair.b_name} is {found.ratio:.2f}x as fast as {pair.a_name}: faster"
        else:
            outcome = f"{pair.b_name} is {found.ratio:.2f}x as fast as {pair.a_name}: slower"
        interval = f"95 % interval {times(found.low)} to {times(found.high)}"
        return f"{outcome} ({interval}, {_count(found.runs, 'run')}, {_count(found.machines, 'machine')}), {self.claim}"

    @property
    def claim(self) -> str:
        """The scope of the verdict, and the properties that both sides were shown to share."""
        unproven = [item.name for item in self.certificate or () if item.is_unproven]
        more = f" and {len(unproven) - MOST_NAMED} more" if len(unproven) > MOST_NAMED else ""
        shared = f"not proven: {', '.join(unproven[:MOST_NAMED])}{more}" if unproven else ALL_SHARED
        scope = self.estimate.scope if self.estimate else ""
        return f"{shared}; holds for {scope}{self._tuning_clause()}"

    def _tuning_clause(self) -> str:
        clause = ""
        for name, found in zip((self.pair.a_name, self.pair.b_name), self.tunings, strict=False):
            share = found.share.value
            if share is None:
                clause += f"; no published figure to tell whether {name} is tuned"
            else:
                word = "untuned, " if found.is_untuned else ""
                clause += f"; {name}: {word}{share:.0f} % of the best published figure"
        return clause + local_layers_clause(self.pair)

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

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `verdicts` in compare.json."""
        found, pair = self.estimate, self.pair
        return {
            "model": pair.model,
            "framework": pair.framework,
            "track": pair.method,
            "a": pair.a_name,
            "b": pair.b_name,
            "verdict": self.word,
            "is_decided": self.is_decided,
            "ratio": found.ratio if found else None,
            "interval": [found.low, found.high] if found else None,
            "p_value": found.p_value if found else None,
            "adjusted_p_value": self.adjusted_p_value,
            "degrees_of_freedom": found.degrees_of_freedom if found else None,
            "scope": found.scope if found else None,
            "runs": list(found.runs) if found else [len(side) for side in pair.counted],
            "machines": list(found.machines) if found else [len(set(map(_machine, side))) for side in pair.counted],
            "reasons": list(self.reasons),
            "remarks": list(self.remarks),
            "sentence": self.sentence,
            "saving": self.saving.as_json() if self.saving else None,
            "published": [_tuning_json(one) for one in self.tunings] or None,
            "inputs": [[_input(entry) for entry in side if entry.is_counted] for side in (pair.a, pair.b)],
            "certificate": [vars(item) for item in self.certificate or ()],
            "files": [[str(entry.path) for entry in side] for side in (pair.a, pair.b)],
        }


def times(ratio: float) -> str:
    """Return a ratio as text: three decimals near 1, three significant digits far from it."""
    return f"{ratio:.3f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}"


def judge(pairs: Sequence[Pair], by: str, band: float = inference.BAND) -> list[Judged]:
    """Return the verdicts on all pairs; their p-values are corrected together for the number of pairs (Holm)."""
    judged = [_estimated(pair, by, band) for pair in pairs]
    places = [place for place, one in enumerate(judged) if one.estimate]
    adjusted = inference.holm([one.estimate.p_value for one in judged if one.estimate])
    for place, p_value in zip(places, adjusted, strict=True):
        judged[place] = _decided(judged[place], p_value)
    return judged


def _estimated(pair: Pair, by: str, band: float) -> Judged:
    """Return a pair with its estimate and no verdict yet, or as not comparable with the reasons."""
    if missing := _missing(pair):
        return Judged(pair, NOT_COMPARABLE, missing, None, None)
    found = _relaxed(certificate(*pair.counted), by)
    tunings = tuple(map(tuning, pair.counted)) if pair.method == BEST else ()
    refused = Judged(pair, NOT_COMPARABLE, (), found, None, tunings=tunings)
    if blocking := tuple(item.sentence for item in found if item.state == BLOCKING):
        return replace(refused, reasons=blocking)
    try:
        estimate = _estimate(pair)
    except ValueError as error:
        return replace(refused, reasons=(str(error),))
    return Judged(pair, inference.TIE, (), found, estimate, _remarks(pair), band=band, tunings=tunings)


def _decided(judged: Judged, p_value: float) -> Judged:
    """Return a pair with the verdict that its estimate and its adjusted p-value allow."""
    assert judged.estimate is not None
    verdict = inference.decide(judged.estimate, p_value, judged.band)
    return replace(
        judged,
        word=verdict.word,
        reasons=(verdict.reason,) if verdict.reason else (),
        is_decided=verdict.word != inference.TIE or inference.is_within(judged.estimate, judged.band),
        adjusted_p_value=p_value,
    )


def _missing(pair: Pair) -> tuple[str, ...]:
    reasons = []
    for name, side, counted in zip((pair.a_name, pair.b_name), (pair.a, pair.b), pair.counted, strict=True):
        if not counted:
            first = side[0]
            reasons.append(f"{name} has no valid result: {first.why_not_counted or first.result['status']}")
    return tuple(reasons)


def _relaxed(found: Sequence[Item], by: str) -> tuple[Item, ...]:
    """Allow the items in which the two sides differ by choice."""
    expected = MAY_DIFFER.get(by, frozenset())
    return tuple(
        replace(item, state=ALLOWED) if item.state == BLOCKING and item.name in expected else item for item in found
    )


def _estimate(pair: Pair) -> inference.Estimate:
    sides = [[_run(result) for result in side] for side in pair.counted]
    return inference.estimate(sides[0], sides[1])


def _run(result: Result) -> inference.Run:
    times, config = step_times(result), result["training_config"]
    tokens = config["global_batch_size"] * config["sequence_length"] / config["num_gpus"]
    rate = tokens * len(times) / math.fsum(times)
    return inference.Run(_machine(result), math.log(rate), tuple(times))


def _machine(result: Result) -> str:
    return str(result["provenance"]["host"] or "unknown host")


def _input(entry: Entry) -> dict[str, Any]:
    """Return the input of a run to the ratio; its rate is None if it has no steady step."""
    count = len(step_times(entry.result))
    return {
        "file": str(entry.path),
        "machine": _machine(entry.result),
        "steady_steps": count,
        "tokens_per_second_per_gpu": math.exp(_run(entry.result).log_throughput) if count else None,
    }


def _tuning_json(found: Tuning) -> dict[str, Any]:
    return {
        "share_percent": found.share.value,
        "is_untuned": found.is_untuned,
        "how": found.share.how,
        "tokens_per_second_per_gpu": found.tokens_per_second_per_gpu,
        "published": vars(found.published) if found.published else None,
    }


def _remarks(pair: Pair) -> tuple[str, ...]:
    found: list[str] = []
    for name, side in zip((pair.a_name, pair.b_name), pair.counted, strict=True):
        for result in side:
            found += (f"{name}, run {result['run']}: {remark}" for remark in _remarks_on_steps(result))
        if remark := inference.remark_on_machines(name, [_run(result) for result in side]):
            found.append(remark)
    return tuple(dict.fromkeys(found))


def _remarks_on_steps(result: Result) -> Iterator[str]:
    times = result["step_times"]
    least = max(warmup_steps(len(times)), result["performance_metrics"]["warmup_steps_excluded"] or 0)
    part = steady.find(times, least)
    if part.label in (steady.SLOW_DOWN, steady.NO_STEADY_STATE):
        yield part.label
    if part.is_drifting and part.drift is not None:
        much = f"by {part.drift:+.1%}" if part.drift < 1 else "to more than twice as much"
        yield f"step times drift {much} over the steady part"
    if part.outliers:
        yield f"{len(part.outliers)} steady steps far from the others, which count"


def _count(numbers: tuple[int, int], word: str) -> str:
    a, b = numbers
    if a == b:
        return f"{a} {word}{'' if a == 1 else 's'} a side"
    return f"{a} and {b} {word}s"
