"""The verdict on each pair: faster, slower, tie, undecided or not comparable, with its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import grouped, machine_of
from evaluate.fairness.certificate import by_effect, certificate
from evaluate.fairness.items import ALLOWED, BLOCKING, Item
from evaluate.metrics import steady
from evaluate.metrics.defaults import BAND
from evaluate.metrics.partition import kind_of
from evaluate.metrics.published import Tuning, tuning
from evaluate.metrics.steady import step_times, tokens_per_second, tokens_per_second_per_gpu
from evaluate.verdict import deciding, inference, order
from evaluate.verdict.deciding import run_of
from evaluate.verdict.pairs import BEST, MAY_DIFFER, Pair, example
from evaluate.verdict.ratios import scaling
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged, weaknesses
from evaluate.verdict.side_names import layout_of
from utils.errors import counted
from utils.results.performance import warmup_steps
from utils.results.schema import Result


def as_json(judged: Judged) -> dict[str, Any]:
    """Return the entry of `verdicts` in compare.json."""
    pair = judged.pair
    return {
        "model": pair.model,
        "framework": pair.framework,
        "track": pair.method,
        "a": pair.a_name,
        "b": pair.b_name,
        "verdict": judged.word,
        "is_decided": judged.word != inference.UNDECIDED,
        "quantity": "tokens/s of the job" if pair.is_of_jobs else "tokens/s/GPU",
        **_estimate(judged),
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
        "published": [_tuning(tuning) for tuning in judged.tunings] or None,
        "inputs": [[_input(entry) for entry in side if entry.is_counted] for side in (pair.a, pair.b)],
        "certificate": [vars(item) for item in judged.certificate or ()],
        "files": [[str(entry.path) for entry in side] for side in (pair.a, pair.b)],
    }


def _estimate(judged: Judged) -> dict[str, Any]:
    """Return the figures of the estimate; without one null, and the numbers of runs and machines that count."""
    found = judged.estimate
    if found is None:
        unknown = ["ratio", "interval", "why_no_interval", "p_value", "adjusted_p_value"]
        unknown += ["degrees_of_freedom", "scope", "selection"]
        sides = judged.pair.counted
        return dict.fromkeys(unknown) | {
            "runs": [len(side) for side in sides],
            "machines": [len(set(map(machine_of, side))) for side in sides],
        }
    return {
        "ratio": found.ratio,
        "interval": None if found.low is None else [found.low, found.high],
        "why_no_interval": [why for _, why in found.sides_without_spread] or None,
        "p_value": found.p_value,
        "adjusted_p_value": judged.adjusted_p_value,
        "degrees_of_freedom": found.degrees_of_freedom,
        "scope": found.scope,
        "selection": found.selection,
        "runs": list(found.runs),
        "machines": list(found.machines),
    }


def _side(side: Sequence[Entry]) -> dict[str, Any]:
    """Return what makes a side, of its first counted result: device, partition mode and layout."""
    result = example(side).result
    kind = kind_of(result)
    layout = layout_of(result)._asdict()
    if layout["ep"] in (None, 1):
        del layout["ep"]
    return {"device": kind.name, "partition": kind.text or "whole device", **layout}


def _tuning(found: Tuning) -> dict[str, Any]:
    return {
        "share_percent": found.share.value,
        "is_untuned": found.is_untuned,
        "how": found.share.how,
        "tokens_per_second_per_gpu": found.tokens_per_second_per_gpu,
        "published": vars(found.published) if found.published else None,
        "age_months": found.age_months,
    }


def _input(entry: Entry) -> dict[str, Any]:
    """Return a run behind a ratio; its rates are null without a steady step."""
    return {
        "file": str(entry.path),
        "machine": machine_of(entry.result),
        "steady_steps": len(step_times(entry.result)),
        "steps": steady.steps_text([entry.result]),
        "tokens_per_second_per_gpu": tokens_per_second_per_gpu(entry.result),
        "tokens_per_second": tokens_per_second(entry.result),
    }


def judge(pairs: Sequence[Pair], by: str, band: float = BAND) -> list[Judged]:
    """Return the verdicts on all pairs; their p-values are corrected together for the number of pairs (Holm)."""
    judged = [_estimated(pair, by, band) for pair in pairs]
    estimates = [one.estimate for one in judged if one.estimate]
    adjusted = iter(inference.adjusted(estimates))
    for place, one in enumerate(judged):
        if one.estimate:
            # pairs that are not comparable test nothing, and so cost the others nothing
            judged[place] = deciding.decided(one, one.estimate, next(adjusted), len(estimates))
    return judged


def _estimated(pair: Pair, by: str, band: float) -> Judged:
    """Return a pair with its estimate and no verdict yet, or as not comparable with the reasons."""
    left_out = tuple(dict.fromkeys(one.text for one in pair.left_out))
    missing = []
    for (name, results), side in zip(pair.sides, (pair.a, pair.b), strict=True):
        if not results:
            missing.append(f"{name} has no valid result: {side[0].why_not_counted or side[0].result['status']}")
    if missing:
        return Judged(pair, NOT_COMPARABLE, tuple(missing), None, None, left_out)
    found = _certificate(pair, by)
    tunings = tuple(map(tuning, pair.counted)) if pair.method == BEST else ()
    reasons = _reasons(pair, found)
    if reasons:
        return Judged(pair, NOT_COMPARABLE, tuple(reasons), found, None, left_out, tunings=tunings)
    estimate = deciding.estimate(pair)
    of_nodes = None
    if pair.is_of_jobs:
        a, b = (int(side[0].result["training_config"]["num_gpus"]) for side in (pair.a, pair.b))
        of_nodes = scaling(a, b, estimate.ratio, (estimate.low, estimate.high))
    remarks = tuple(dict.fromkeys((*left_out, *_remarks(pair))))
    undecided = Judged(pair, inference.UNDECIDED, (), found, estimate, remarks)
    return replace(undecided, band=band, tunings=tunings, scaling=of_nodes)


def _certificate(pair: Pair, by: str) -> tuple[Item, ...]:
    """Return the certificate of a pair, in which the two sides may differ in what was chosen to be compared."""
    allowed = MAY_DIFFER.get(by, frozenset())
    items = []
    for item in (*certificate(*pair.counted), deciding.planned(pair)):
        is_chosen = item.state == BLOCKING and item.name in allowed
        items.append(replace(item, state=ALLOWED) if is_chosen else item)
    return tuple(by_effect(items))


def _reasons(pair: Pair, items: Sequence[Item]) -> list[str]:
    """Return why a pair with counted runs on both sides cannot be compared; empty if it can."""
    reasons = [item.sentence for item in items if item.state == BLOCKING]
    if pair.refusal:
        # without the same kind of device the rest of the certificate says little
        reasons.insert(0, pair.refusal)
    if reasons:
        return reasons
    for name, side in pair.sides:
        for result in side:
            if not step_times(result):
                count = len(result["step_times"])
                reasons.append(f"{name}, run {result['run']}: got {count} steps, none of them steady; train more steps")
    return reasons


def _remarks(pair: Pair) -> Iterator[str]:
    """Yield observations on the order, the steps and the machines of the runs."""
    yield from order.remarks(pair)
    # with several machines on both sides the interval covers their differences already
    is_of_products = all(len(set(map(machine_of, side))) > 1 for side in pair.counted)
    for name, side in pair.sides:
        noted = [(remark, result["run"]) for result in side for remark in _remarks_on_steps(result)]
        for remark, of_runs in grouped(noted, itemgetter(0)).items():
            numbers = ", ".join(str(run) for _, run in sorted(of_runs))
            runs = "run" if len(of_runs) == 1 else "runs"
            yield f"{name}, {runs} {numbers}: {remark}"
        on_machines = inference.remark_on_machines(name, [run_of(result) for result in side])
        if on_machines and not is_of_products:
            yield on_machines


def _remarks_on_steps(result: Result) -> Iterator[str]:
    part = steady.of_result(result)
    assert part is not None
    count = len(result["step_times"])
    if part.first > warmup_steps(count):
        yield f"the first {part.first} of {count} steps are cut, because their level is another"
    if part.label in (steady.SLOW_DOWN, steady.NO_STEADY_STATE):
        yield part.label
    if part.drift is not None and part.is_drifting:
        change = f"by {part.drift:+.1%}" if part.drift < 1 else "to more than twice as much"
        yield f"step times drift {change} over the steady part"
    if part.outliers:
        yield f"{counted(len(part.outliers), 'steady step')} far from the others, counted too"
