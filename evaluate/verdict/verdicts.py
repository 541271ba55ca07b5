"""The verdict on each pair: faster, slower, tie, undecided or not comparable, with its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import grouped, machine_of
from evaluate.fairness.certificate import by_effect, certificate
from evaluate.fairness.items import ALLOWED, BLOCKING
from evaluate.metrics import steady
from evaluate.metrics.defaults import BAND
from evaluate.metrics.partition import kind_of
from evaluate.metrics.published import tuning
from evaluate.metrics.steady import step_times, tokens_per_second, tokens_per_second_per_gpu
from evaluate.verdict import deciding, inference, order
from evaluate.verdict.deciding import run_of
from evaluate.verdict.pairs import BEST, MAY_DIFFER, Pair
from evaluate.verdict.ratios import scaling
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged, weaknesses
from evaluate.verdict.side_names import layout_of
from utils.results.performance import warmup_steps
from utils.results.schema import Result


def as_json(judged: Judged) -> dict[str, Any]:
    """Return the entry of `verdicts` in compare.json."""
    found, pair = judged.estimate, judged.pair
    return {
        "model": pair.model,
        "framework": pair.framework,
        "track": pair.method,
        "a": pair.a_name,
        "b": pair.b_name,
        "verdict": judged.word,
        "is_decided": judged.word != inference.UNDECIDED,
        "quantity": "tokens/s of the job" if pair.is_of_jobs else "tokens/s/GPU",
        "ratio": found.ratio if found else None,
        "interval": [found.low, found.high] if found and found.low is not None else None,
        "why_no_interval": [why for _, why in found.sides_without_spread] or None if found else None,
        "p_value": found.p_value if found else None,
        "adjusted_p_value": judged.adjusted_p_value,
        "degrees_of_freedom": found.degrees_of_freedom if found else None,
        "scope": found.scope if found else None,
        "selection": found.selection if found else None,
        "runs": list(found.runs) if found else [len(side) for side in pair.counted],
        "machines": list(found.machines) if found else [len(set(map(machine_of, side))) for side in pair.counted],
        "reasons": list(judged.reasons),
        "would_decide": judged.would_decide,
        "scaling": asdict(judged.scaling) if judged.scaling else None,
        "steady_steps": pair.steady_steps,
        "sides": [_side(side) for side in (pair.a, pair.b)],
        "left_out": [
            {"side": one.side, "reason": one.reason, "files": [str(entry.path) for entry in one.entries]}
            for one in pair.left_out
        ],
        "unproven": judged.unproven,
        "weaknesses": list(weaknesses(judged)),
        "remarks": list(judged.remarks),
        "headline": judged.headline,
        "sentence": judged.sentence,
        "saving": asdict(judged.saving) if judged.saving else None,
        "published": [
            {
                "share_percent": one.share.value,
                "is_untuned": one.is_untuned,
                "how": one.share.how,
                "tokens_per_second_per_gpu": one.tokens_per_second_per_gpu,
                "published": vars(one.published) if one.published else None,
                "age_months": one.age_months,
            }
            for one in judged.tunings
        ]
        or None,
        "inputs": [
            [
                {
                    "file": str(entry.path),
                    "machine": machine_of(entry.result),
                    "steady_steps": len(step_times(entry.result)),
                    "steps": steady.steps_text([entry.result]),
                    "tokens_per_second_per_gpu": tokens_per_second_per_gpu(entry.result),  # None without a steady step
                    "tokens_per_second": tokens_per_second(entry.result),
                }
                for entry in side
                if entry.is_counted
            ]
            for side in (pair.a, pair.b)
        ],
        "certificate": [vars(item) for item in judged.certificate or ()],
        "files": [[str(entry.path) for entry in side] for side in (pair.a, pair.b)],
    }


def judge(pairs: Sequence[Pair], by: str, band: float = BAND) -> list[Judged]:
    """Return the verdicts on all pairs; their p-values are corrected together for the number of pairs (Holm)."""
    judged = [_estimated(pair, by, band) for pair in pairs]
    estimates = [one.estimate for one in judged if one.estimate]
    adjusted = iter(inference.adjusted(estimates))
    return [
        deciding.decided(one, one.estimate, next(adjusted), len(estimates)) if one.estimate else one for one in judged
    ]


def _estimated(pair: Pair, by: str, band: float) -> Judged:
    """Return a pair with its estimate and no verdict yet, or as not comparable with the reasons."""
    missing = tuple(
        f"{name} has no valid result: {side[0].why_not_counted or side[0].result['status']}"
        for (name, counted), side in zip(pair.sides, (pair.a, pair.b), strict=True)
        if not counted
    )
    if missing:
        return Judged(pair, NOT_COMPARABLE, missing, None, None, _left_out(pair))
    allowed = MAY_DIFFER.get(by, frozenset())  # the two sides differ in these by choice
    items = [
        replace(item, state=ALLOWED) if item.state == BLOCKING and item.name in allowed else item
        for item in (*certificate(*pair.counted), deciding.planned(pair))
    ]
    found = tuple(by_effect(items))
    tunings = tuple(map(tuning, pair.counted)) if pair.method == BEST else ()
    reasons = list(filter(None, (pair.refusal, *(item.sentence for item in found if item.state == BLOCKING))))
    reasons = reasons or [
        f"{name}, run {result['run']}: got {len(result['step_times'])} steps, none of them steady; train more steps"
        for name, side in pair.sides
        for result in side
        if not step_times(result)
    ]
    if reasons:
        return Judged(pair, NOT_COMPARABLE, tuple(reasons), found, None, _left_out(pair), tunings=tunings)
    estimate = deciding.estimate(pair)
    a, b = (int(side[0].result["training_config"]["num_gpus"]) for side in (pair.a, pair.b))
    return Judged(
        *(pair, inference.UNDECIDED, (), found, estimate, tuple(dict.fromkeys(_remarks(pair)))),
        band=band,
        tunings=tunings,
        scaling=scaling(a, b, estimate.ratio, (estimate.low, estimate.high)) if pair.is_of_jobs else None,
    )


def _side(side: Sequence[Entry]) -> dict[str, Any]:
    """Return what makes a side, of its first counted result: device, partition mode and layout."""
    result = next((entry for entry in side if entry.is_counted), side[0]).result
    kind = kind_of(result)
    layout = layout_of(result)._asdict()
    if layout["ep"] in (None, 1):
        del layout["ep"]
    return {"device": kind.name, "partition": kind.text or "whole device", **layout}


def _left_out(pair: Pair) -> tuple[str, ...]:
    """Return a line for the runs of other layouts and settings, which are in no ratio of this pair."""
    return tuple(dict.fromkeys(one.text for one in pair.left_out))


def _remarks(pair: Pair) -> Iterator[str]:
    yield from (*_left_out(pair), *order.remarks(pair))
    is_of_products = all(len(set(map(machine_of, side))) > 1 for side in pair.counted)
    for name, side in pair.sides:
        noted = [(remark, result["run"]) for result in side for remark in _remarks_on_steps(result)]
        for remark, of_runs in grouped(noted, itemgetter(0)).items():
            numbers = ", ".join(str(run) for _, run in sorted(of_runs))
            yield f"{name}, run{'' if len(of_runs) == 1 else 's'} {numbers}: {remark}"
        if not is_of_products and (remark := inference.remark_on_machines(name, [run_of(result) for result in side])):
            yield remark


def _remarks_on_steps(result: Result) -> list[str]:
    part = steady.of_result(result)
    assert part is not None
    count, far, drift = len(result["step_times"]), len(part.outliers), part.drift or 0.0
    much = f"by {drift:+.1%}" if drift < 1 else "to more than twice as much"
    remarks = {
        f"the first {part.first} of {count} steps are cut, because their level is another": part.first
        > warmup_steps(count),
        part.label: part.label in (steady.SLOW_DOWN, steady.NO_STEADY_STATE),
        f"step times drift {much} over the steady part": part.is_drifting,
        f"{far} steady step{'' if far == 1 else 's'} far from the others, counted too": far > 0,
    }
    return [remark for remark, applies in remarks.items() if applies]
