"""The first part of compare.html: a card for each verdict, then the certificate of each pair."""

from __future__ import annotations

from collections.abc import Sequence

from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item
from evaluate.page.forest_strip import strip
from evaluate.page.markup import Html, element, items, joined, table
from evaluate.report.axis import Axis, axis_of
from evaluate.report.comparison import Comparison
from evaluate.verdict.inference import FASTER, SLOWER, TIE
from evaluate.verdict.verdicts import NOT_COMPARABLE, Judged, times

WORDS = {FASTER: "\u25b2 faster", SLOWER: "\u25bc slower", TIE: "= tie", NOT_COMPARABLE: "\u2715 not comparable"}
UNDECIDED = "? tie, undecided"
STATES = {BLOCKING: "blocking", UNKNOWN: "unknown", ALLOWED: "allowed", SAME: "same"}
FULL_CERTIFICATES = 50
"""Of more pairs than this only what differs is shown; compare.json has all."""
FEW_REMARKS = 3


def tally(judged: Sequence[Judged]) -> str:
    """Return how many verdicts there are of each word; ties that are not decided apart."""
    found = [one.word.replace("_", " ") if one.is_decided else "undecided" for one in judged]
    order = [*(word.replace("_", " ") for word in WORDS), "undecided"]
    said = ", ".join(f"{found.count(word)} {word}" for word in order if word in found)
    return f"{len(judged)} {'pair' if len(judged) == 1 else 'pairs'}: {said}."


def cards(comparison: Comparison) -> Html:
    """Return one card for each verdict, on one axis."""
    if not comparison.judged:
        return element("p", comparison.headline)
    estimates = [judged.estimate for judged in comparison.judged if judged.estimate]
    axis = axis_of(estimates, comparison.band)
    found = [_card(judged, number, axis) for number, judged in enumerate(comparison.judged, start=1)]
    key = (
        f"A square is the ratio of tokens/s/GPU, second side over first, its bar the 95 % interval. The axis is "
        f"logarithmic and the same in all cards; differences inside the shaded band, {comparison.band:.1%}, count as "
        "none."
    )
    return joined([*found, element("p", key, class_="hint") if estimates else ""])


def certificates(comparison: Comparison) -> Html:
    """Return the certificate of each pair, what differs first."""
    is_full = len(comparison.judged) <= FULL_CERTIFICATES
    found = [_certificate(judged, number, is_full) for number, judged in enumerate(comparison.judged, start=1)]
    if not is_full:
        found.insert(0, element("p", "Items that are the same are left out here; compare.json has all.", class_="hint"))
    return joined(found)


def _card(judged: Judged, number: int, axis: Axis) -> Html:
    pair, found = judged.pair, judged.estimate
    title = f"{pair.model}, {pair.framework}, track {pair.method}"
    reasons = judged.reasons[1:] if judged.word == NOT_COMPARABLE else judged.reasons
    word = WORDS[judged.word] if judged.is_decided else UNDECIDED
    head = [element("span", word, class_="word")]
    if found:
        head.append(element("span", f"{times(found.ratio)}\u00d7", class_="figure-large"))
        head.append(element("span", f"95 %: {times(found.low)} to {times(found.high)}", class_="interval-text"))
    link = element("a", "Certificate", href=f"#certificate-{number}", aria_label=f"Certificate of {title}")
    words = element(
        "div",
        element("h3", title, id=f"verdict-{number}"),
        element("p", *head, class_="head"),
        element("p", f"{judged.sentence}."),
        items([*reasons, *judged.tuning_lines, *judged.money_lines]),
        _remarks(judged.remarks),
        element("p", link, class_="hint") if judged.certificate else "",
    )
    drawing = strip(found, axis, _platform(judged)) if found else element("p", "No ratio is given.", class_="none")
    inside = (words, element("div", drawing, class_="strip"))
    return element("article", *inside, class_=f"card w-{judged.word}", aria_labelledby=f"verdict-{number}")


def _remarks(remarks: Sequence[str]) -> Html:
    if len(remarks) <= FEW_REMARKS:
        return items(remarks)
    return element("details", element("summary", f"{len(remarks)} remarks on the runs"), items(remarks))


def _certificate(judged: Judged, number: int, is_full: bool) -> Html:
    pair = judged.pair
    title = f"{pair.b_name} against {pair.a_name}"
    what = f"{pair.model}, {pair.framework}, track {pair.method}"
    heading = element("h3", title, element("small", f" {what}"), id=f"certificate-{number}")
    if judged.certificate is None:
        return joined([heading, element("p", "; ".join(judged.reasons))])
    differing = [item for item in judged.certificate if item.state != SAME]
    same = [item for item in judged.certificate if item.state == SAME]
    parts = [heading]
    if differing:
        parts.append(_items_table(f"What is not the same: {title}", differing, judged))
    if same and is_full:
        summary = element("summary", f"{len(same)} items are the same on both sides")
        inside = _items_table(f"What is the same: {title}", same, judged)
        parts.append(element("details", summary, inside))
    elif same:
        parts.append(element("p", f"{len(same)} items are the same on both sides.", class_="hint"))
    return joined(parts)


def _items_table(caption: str, found: Sequence[Item], judged: Judged) -> Html:
    rows = [
        (
            item.name,
            element("span", item.state, class_=f"state s-{STATES[item.state]}"),
            item.a,
            item.b,
            "" if item.state == SAME else item.note,
        )
        for item in found
    ]
    header = ("Item", "State", judged.pair.a_name, judged.pair.b_name, "Note")
    columns = len(header) if any(row[-1] for row in rows) else len(header) - 1
    return table(caption, header[:columns], [row[:columns] for row in rows])


def _platform(judged: Judged) -> str:
    return str(judged.pair.b[0].result["platform"])
