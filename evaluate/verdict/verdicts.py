"""The verdict on each pair: faster, slower, tie or not comparable, in one sentence, with the evidence behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.fairness.certificate import ALLOWED, BLOCKING, Certificate, Item, certificate
from evaluate.metrics import steady
from evaluate.metrics.metrics import step_times
from evaluate.metrics.published import Tuning, tuning
from evaluate.verdict import inference
from evaluate.verdict.inference import between_machines
from evaluate.verdict.pairs import MAY_DIFFER, Pair
from evaluate.verdict.saving import Saving
from utils.results.performance import warmup_steps
from utils.results.schema import Result

NOT_COMPARABLE = "not_comparable"
ALL_SHARED = "same model, data, settings and loss"
MOST_NAMED = 8
"""Of what is not proven; the certificate has them all."""
BEST = "best"
"""The track in which each side is tuned by its own vendor's means."""


@dataclass(frozen=True)
class Judged:
    """A pair with its verdict."""

    pair: Pair
    word: str
    reasons: tuple[str, ...]
    certificate: Certificate | None
    estimate: inference.Estimate | None
    remarks: tuple[str, ...] = ()
    """What was seen in the runs and does not forbid a comparison."""
    is_decided: bool = True
    """False for a tie that is one only because nothing was shown: neither a difference nor that there is none."""
    adjusted_p_value: float | None = None
    band: float = inference.BAND
    tunings: tuple[Tuning, ...] = ()
    """In the track `best`: how near each side comes to the best published figure of its device."""
    saving: Saving | None = None
    """What b saves over a on a number of tokens; None where the two may not be compared."""

    @property
    def sentence(self) -> str:
        """The verdict as one sentence."""
        pair = self.pair
        if self.word == NOT_COMPARABLE or self.estimate is None:
            return f"NOT COMPARABLE: {pair.a_name} and {pair.b_name}: {self.reasons[0]}"
        found = self.estimate
        if self.word == inference.TIE and self.is_decided:
            said = f"{pair.b_name} and {pair.a_name} tie within {self.band:.1%}: {times(found.ratio)}x"
        elif self.word == inference.TIE:
            said = f"{pair.b_name} against {pair.a_name} is undecided, a tie for now: {times(found.ratio)}x"
        elif self.word == inference.FASTER:
            said = f"{pair.b_name} is {found.ratio:.2f}x as fast as {pair.a_name}: faster"
        else:
            said = f"{pair.b_name} is {found.ratio:.2f}x as fast as {pair.a_name}: slower"
        interval = f"95 % interval {times(found.low)} to {times(found.high)}"
        return f"{said} ({interval}, {_count(found.runs, 'run')}, {_count(found.machines, 'machine')}), {self.claim}"

    @property
    def claim(self) -> str:
        """For what the verdict holds, and what both sides were shown to share."""
        unproven = [item.name for item in self.certificate or () if item.is_unproven]
        more = f" and {len(unproven) - MOST_NAMED} more" if len(unproven) > MOST_NAMED else ""
        shared = f"not proven: {', '.join(unproven[:MOST_NAMED])}{more}" if unproven else ALL_SHARED
        scope = self.estimate.scope if self.estimate else ""
        return f"{shared}; holds for {scope}{self._said_of_tuning()}"

    def _said_of_tuning(self) -> str:
        said = ""
        for name, found in zip((self.pair.a_name, self.pair.b_name), self.tunings, strict=False):
            share = found.share.value
            if share is None:
                said += f"; no published figure to tell whether {name} is tuned"
            else:
                word = "untuned, " if found.is_untuned else ""
                said += f"; {name}: {word}{share:.0f} % of the best published figure"
        return said

    @property
    def tuning_lines(self) -> list[str]:
        """How near each side comes to the best published figure, with its source, or why that is not known."""
        names = (self.pair.a_name, self.pair.b_name)
        return [
            f"{name}: {'tuning unknown' if one.share.value is None else f'{one.share.value:.1f} %'}, {one.share.how}"
            for name, one in zip(names, self.tunings, strict=False)
        ]

    @property
    def money_lines(self) -> list[str]:
        """What one side saves; empty where a price is unknown."""
        said = self.saving.sentence(self.pair.a_name, self.pair.b_name) if self.saving else ""
        return [said] if said else []

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `verdicts` in compare.json."""
        found, pair = self.estimate, self.pair
        return {
            "model": pair.model,
            "framework": pair.framework,
            "track": pair.track,
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
    """Return a ratio to be read: three decimals near 1, three significant digits where it is far from it."""
    return f"{ratio:.3f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}"


def judge(pairs: Sequence[Pair], by: str, band: float = inference.BAND) -> list[Judged]:
    """Return the verdicts of all pairs, each after correction for their number (Holm)."""
    open_questions: list[tuple[Judged, inference.Estimate]] = []
    judged: dict[int, Judged] = {}
    for pair in pairs:
        missing = _missing(pair)
        if missing:
            judged[id(pair)] = Judged(pair, NOT_COMPARABLE, missing, None, None)
            continue
        tunings = tuple(map(tuning, pair.counted)) if pair.track == BEST else ()
        found = _relaxed(certificate(*pair.counted), by)
        if not found.is_comparable:
            reasons = tuple(item.sentence for item in found.blocking)
            judged[id(pair)] = Judged(pair, NOT_COMPARABLE, reasons, found, None, tunings=tunings)
            continue
        try:
            estimate = _estimate(pair)
        except ValueError as error:
            judged[id(pair)] = Judged(pair, NOT_COMPARABLE, (str(error),), found, None, tunings=tunings)
            continue
        question = Judged(pair, inference.TIE, (), found, estimate, _remarks(pair), band=band, tunings=tunings)
        open_questions.append((question, estimate))
    adjusted = inference.holm([estimate.p_value for _, estimate in open_questions])
    for (question, estimate), p_value in zip(open_questions, adjusted, strict=True):
        verdict = inference.judge(estimate, p_value, band)
        judged[id(question.pair)] = replace(
            question,
            word=verdict.word,
            reasons=(verdict.reason,) if verdict.reason else (),
            is_decided=verdict.word != inference.TIE or inference.is_within(estimate, band),
            adjusted_p_value=p_value,
        )
    return [judged[id(pair)] for pair in pairs]


def _missing(pair: Pair) -> tuple[str, ...]:
    reasons = []
    for name, side, counted in zip((pair.a_name, pair.b_name), (pair.a, pair.b), pair.counted, strict=True):
        if not counted:
            first = side[0]
            reasons.append(f"{name} has no valid result: {first.why_not_counted or first.result['status']}")
    return tuple(reasons)


def _relaxed(found: Certificate, by: str) -> Certificate:
    """Allow the items that are what the two sides differ in by choice."""
    expected = MAY_DIFFER.get(by, frozenset())
    return Certificate(
        tuple(
            Item(item.name, ALLOWED, item.a, item.b, item.note)
            if item.state == BLOCKING and item.name in expected
            else item
            for item in found
        )
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
    """Return what a run gives to the ratio; without a steady step it gives nothing."""
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
    found: dict[str, None] = {}
    for name, side in zip((pair.a_name, pair.b_name), pair.counted, strict=True):
        for result in side:
            least = max(
                warmup_steps(len(result["step_times"])), result["performance_metrics"]["warmup_steps_excluded"] or 0
            )
            part = steady.find(result["step_times"], least)
            run = f"{name}, run {result['run']}"
            if part.label in (steady.SLOW_DOWN, steady.NO_STEADY_STATE):
                found[f"{run}: {part.label}"] = None
            if part.is_drifting and part.drift is not None:
                much = f"by {part.drift:+.1%}" if part.drift < 1 else "to more than twice as much"
                found[f"{run}: step times drift {much} over the steady part"] = None
            if part.outliers:
                found[f"{run}: {len(part.outliers)} steady steps far from the others, which count"] = None
        if said := between_machines(name, [_run(result) for result in side]):
            found[said] = None
    return tuple(found)


def _count(numbers: tuple[int, int], word: str) -> str:
    a, b = numbers
    if a == b:
        return f"{a} {word}{'' if a == 1 else 's'} a side"
    return f"{a} and {b} {word}s"
