"""The first part of compare.html: a card for each verdict, then the certificate of each pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item
from evaluate.report.forest_plot import MARGIN, WIDTH, Axis, axis_of, interval, is_filled, ticks
from evaluate.report.verdict_text import doubts, evidence, pair_title, unknown_count
from evaluate.verdict.inference import FASTER, SLOWER, TIE, UNDECIDED, Estimate
from evaluate.verdict.ratios import times, with_interval, written
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged

SIGNS = {FASTER: "\u25b2", SLOWER: "\u25bc", TIE: "=", UNDECIDED: "?", NOT_COMPARABLE: "\u2715"}
"""Sign before each word, so that no verdict is told by its colour alone."""
STATES = {BLOCKING: "blocking", UNKNOWN: "unknown", ALLOWED: "allowed", SAME: "same"}
"""Class in page.css of each state of a certificate item."""
FULL_CERTIFICATES = 50
"""Largest number of pairs with full certificates; with more, only what differs is shown. compare.json has all."""
MOST_DOUBTS = 8
"""Largest number of lines that weaken a verdict and stand on its card unfolded."""


def cards(judged: Sequence[Judged], band: float) -> list[dict[str, Any]]:
    """Return the content of one card for each verdict; all share one axis."""
    axis = axis_of([one.estimate for one in judged if one.estimate], band)
    return [_card(one, axis) for one in judged]


def certificates(judged: Sequence[Judged], *, are_full: bool) -> list[dict[str, Any]]:
    """Return the content of the certificate of each pair; what is unknown or the same is folded."""
    return [_certificate(one, are_full) for one in judged]


def _card(judged: Judged, axis: Axis) -> dict[str, Any]:
    found = judged.estimate
    content = {
        "judged": judged,
        "title": pair_title(judged.pair),
        "word": f"{SIGNS[judged.word]} {judged.spoken_word}",
        "kind": f"w-{judged.word}" + ("" if judged.is_proven else " unproven"),
        "evidence": evidence(judged),
        "doubts": doubts(judged),
        "are_doubts_folded": len(doubts(judged)) > MOST_DOUBTS,
        "plot": None,
    }
    if found:
        ends = interval(found)
        shown = written(found.ratio, *ends)
        content |= {"ratio": shown[0], "interval": " to ".join(shown[1:])}
        content["plot"] = _plot(found, axis, str(judged.pair.b[0].result["platform"]), is_filled(judged))
    return content


def _plot(found: Estimate, axis: Axis, platform: str, is_solid: bool) -> dict[str, Any]:
    """Return the coordinates of one strip of the forest plot; `platform` selects the colour."""
    start, end = axis.place(1 / (1 + axis.band)), axis.place(1 + axis.band)
    ends = interval(found)
    said = with_interval(found.ratio, *ends) if ends else f"{times(found.ratio)}, no valid interval"
    return {
        "label": f"Ratio with 95 % interval: {said}; differences up to {axis.band:.1%} do not matter",
        "platform": platform,
        "is_solid": is_solid,
        "width": WIDTH,
        "margin": MARGIN,
        "band_start": _at(start),
        "band_width": _at(end - start),
        "one": _at(axis.place(1)),
        "square": _at(axis.place(found.ratio) - 5),
        "ticks": [(_at(axis.place(tick)), f"{tick:g}\u00d7") for tick in ticks(axis)],
        "ends": [_interval_end(place, axis) for place in ends],
    }


def _interval_end(ratio: float, axis: Axis) -> dict[str, Any]:
    """Return the end of an interval: a bar, or an arrow to `tip` if the interval continues beyond the axis."""
    place = axis.place(ratio)
    return {
        "x": _at(place),
        "tip": _at(place + (6 if ratio > 1 else -6)),
        "is_on_axis": axis.holds(max(ratio, 1e-300)),
    }


def _at(value: float) -> str:
    return f"{value:.1f}"


def _certificate(judged: Judged, is_full: bool) -> dict[str, Any]:
    pair, found = judged.pair, judged.certificate or ()
    unknown = [_item(item) for item in found if item.state == UNKNOWN]
    return {
        "title": f"{pair.b_name} against {pair.a_name}",
        "pair_title": pair_title(pair),
        "names": (pair.a_name, pair.b_name),
        "missing": "; ".join(judged.reasons) if judged.certificate is None else "",
        "differing": [_item(item) for item in found if item.state in (BLOCKING, ALLOWED)],
        "unknown": unknown,
        "unknown_count": unknown_count(len(unknown)),
        "same": [_item(item) for item in found if item.state == SAME],
        "is_full": is_full,
    }


def _item(item: Item) -> dict[str, str]:
    note = "" if item.state == SAME else item.note
    return {
        "name": item.name,
        "state": item.state,
        "kind": STATES[item.state],
        "a": item.a,
        "b": item.b,
        "note": note,
    }
