"""The first part of compare.html: a card for each verdict, then the certificate of each pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item
from evaluate.report.forest_plot import MARGIN, WIDTH, Axis, axis_of, ends, ticks
from evaluate.report.text import evidence, pair_title, verdict_word
from evaluate.verdict.inference import FASTER, SLOWER, TIE, UNDECIDED, Estimate
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged, times

WORDS = {
    FASTER: "\u25b2 faster",
    SLOWER: "\u25bc slower",
    TIE: "= tie",
    UNDECIDED: "? undecided",
    NOT_COMPARABLE: "\u2715 not comparable",
}
STATES = {BLOCKING: "blocking", UNKNOWN: "unknown", ALLOWED: "allowed", SAME: "same"}
"""Class in page.css of each state of a certificate item."""
FULL_CERTIFICATES = 50
"""Largest number of pairs with full certificates; with more, only what differs is shown. compare.json has all."""
FEW_REMARKS = 3


def tally(judged: Sequence[Judged]) -> str:
    """Return the number of verdicts of each word."""
    found = [verdict_word(one) for one in judged]
    order = [word.replace("_", " ") for word in WORDS]
    counts = ", ".join(f"{found.count(word)} {word}" for word in order if word in found)
    return f"{len(judged)} {'pair' if len(judged) == 1 else 'pairs'}: {counts}."


def cards(judged: Sequence[Judged], band: float) -> list[dict[str, Any]]:
    """Return the content of one card for each verdict; all share one axis."""
    axis = axis_of([one.estimate for one in judged if one.estimate], band)
    return [_card(one, axis) for one in judged]


def certificates(judged: Sequence[Judged], *, are_full: bool) -> list[dict[str, Any]]:
    """Return the content of the certificate of each pair, what differs first."""
    return [_certificate(one, are_full) for one in judged]


def _card(judged: Judged, axis: Axis) -> dict[str, Any]:
    found = judged.estimate
    content = {
        "judged": judged,
        "title": pair_title(judged.pair),
        "word": WORDS[judged.word],
        "evidence": evidence(judged),
        "are_remarks_folded": len(judged.remarks) > FEW_REMARKS,
        "plot": None,
    }
    if found:
        ratios = {"ratio": times(found.ratio), **_interval_text(found)}
        content |= ratios | {"plot": _plot(found, axis, str(judged.pair.b[0].result["platform"]))}
    return content


def _interval_text(found: Estimate) -> dict[str, str]:
    if found.low is None or found.high is None:
        return {"low": "-", "high": "-"}
    return {"low": times(found.low), "high": times(found.high)}


def _plot(found: Estimate, axis: Axis, platform: str) -> dict[str, Any]:
    """Return the coordinates of one strip of the forest plot; `platform` selects the colour."""
    start, end = axis.place(1 / (1 + axis.band)), axis.place(1 + axis.band)
    low, high = ends(found)
    return {
        "label": f"Ratio {found.ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}; "
        f"differences up to {axis.band:.1%} do not matter",
        "platform": platform,
        "width": WIDTH,
        "margin": MARGIN,
        "band_start": _at(start),
        "band_width": _at(end - start),
        "one": _at(axis.place(1)),
        "square": _at(axis.place(found.ratio) - 5),
        "ticks": [(_at(axis.place(tick)), f"{tick:g}\u00d7") for tick in ticks(axis)],
        "ends": [_interval_end(low, axis), _interval_end(high, axis)],
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
    pair, found = judged.pair, judged.certificate
    return {
        "title": f"{pair.b_name} against {pair.a_name}",
        "pair_title": pair_title(pair),
        "names": (pair.a_name, pair.b_name),
        "missing": "; ".join(judged.reasons) if found is None else "",
        "differing": [_item(item) for item in found or () if item.state != SAME],
        "same": [_item(item) for item in found or () if item.state == SAME],
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
