"""The verdicts and certificates of a comparison as markdown and for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item
from evaluate.report.comparison import Comparison
from evaluate.report.tables import bullets, markdown_table, markdown_text, plain
from evaluate.verdict.inference import FASTER, SLOWER, TIE, UNDECIDED
from evaluate.verdict.pairs import Pair
from evaluate.verdict.ratios import with_interval
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged, model_name, weaknesses

WEAKENED = "weakened"
"""First word of a line that weakens a verdict."""


def pair_title(pair: Pair) -> str:
    """Return model, framework and method of a pair."""
    return f"{pair.model}, {pair.framework}, track {pair.method}"


def opening(judged: Judged) -> str:
    """Return the word of a verdict and its headline; the headline alone if it holds the word itself."""
    is_claim = judged.word in (FASTER, SLOWER, TIE)
    return f"{judged.spoken_word}: {judged.headline}" if is_claim else judged.headline


def short_opening(judged: Judged) -> str:
    """Return model and size, the word of a verdict, the ratio and the sides; `opening` also has the conditions."""
    model, found = model_name(judged.pair.a[0].result), judged.estimate
    if judged.word == NOT_COMPARABLE or found is None:
        return f"{model}: {judged.headline}"
    ratio = with_interval(found.ratio, found.low, found.high)
    interval = "" if " " in ratio else " (no interval)"
    return f"{model}: {judged.spoken_word}, {ratio}{interval}: {judged.pair.b_name} against {judged.pair.a_name}"


def evidence(judged: Judged) -> list[str]:
    """Return the lines that support a verdict; a headline without a ratio has the first reason."""
    reasons = judged.reasons[1:] if judged.word == NOT_COMPARABLE else judged.reasons
    condition = "at the undecided ratio: " if judged.word == UNDECIDED else ""
    return [*reasons, *judged.tuning_lines, *(f"{condition}{line}" for line in judged.money_lines)]


def doubts(judged: Judged) -> list[str]:
    """Return the lines that weaken a verdict, the remarks on its runs last."""
    return [*weaknesses(judged), *judged.remarks]


def basis(judged: Judged) -> str:
    """Return model, framework and method of the pair, and what its verdict rests on."""
    return ": ".join(filter(None, (pair_title(judged.pair), judged.basis)))


def _support(judged: Judged) -> list[str]:
    return [*(f"{WEAKENED}: {doubt}" for doubt in doubts(judged)), *evidence(judged)]


def _asked(comparison: Comparison) -> str:
    tally = f"{comparison.tally}. " if len(comparison.judged) > 1 else ""
    return f"{tally}Asked beforehand: {comparison.question}."


def terminal_verdicts(comparison: Comparison, width: int) -> Iterator[str]:
    """Yield a block for each verdict: its headline, what it rests on, what weakens it; then what was asked."""
    if not comparison.judged:
        yield textwrap.fill(comparison.headline, width)
        return
    for judged in comparison.judged:
        lines = [textwrap.fill(plain(opening(judged)), width, subsequent_indent="  ")]
        lines.append(textwrap.fill(plain(basis(judged)), width, initial_indent="  ", subsequent_indent="  "))
        for line in _support(judged):
            lines.append(textwrap.fill(plain(line), width, initial_indent="  - ", subsequent_indent="    "))
        yield "\n".join(lines)
    yield textwrap.fill(_asked(comparison), width)


def markdown_verdicts(comparison: Comparison) -> Iterator[str]:
    """Yield the same parts as markdown."""
    if not comparison.judged:
        yield markdown_text(comparison.headline)
    for judged in comparison.judged:
        yield f"{_markdown_opening(judged)}."
        yield bullets([basis(judged), *_support(judged)])
    yield markdown_text(_asked(comparison))


def _markdown_opening(judged: Judged) -> str:
    """Return the opening with its word in bold, unless the same work is not proven."""
    word, colon, rest = opening(judged).partition(": ")
    is_claim = judged.is_proven and rest == judged.headline
    return f"**{word}:** {markdown_text(rest)}" if is_claim else markdown_text(word + colon + rest)


def markdown_certificates(comparison: Comparison) -> Iterator[str]:
    """Yield the certificate of each pair: what differs, largest effect on speed first, then what is unknown."""
    found = [judged for judged in comparison.judged if judged.certificate]
    if found:
        yield "## Certificates"
        yield "What forbids a comparison comes first; within that, what has the largest effect on speed."
    for judged in found:
        items = judged.certificate or ()
        pair = judged.pair
        yield f"### {markdown_text(f'{pair.b_name} against {pair.a_name}')}\n\n{markdown_text(pair_title(pair))}"
        if cells := [(item.name, item.state, item.a, item.b) for item in items if item.state in (BLOCKING, ALLOWED)]:
            yield markdown_table(("Item", "State", pair.a_name, pair.b_name), cells)
        if unknown := [item for item in items if item.state == UNKNOWN]:
            yield markdown_text(f"{unknown_count(len(unknown))}: {', '.join(map(_unknown_item, unknown))}.")
        same = sum(1 for item in items if item.state == SAME)
        yield f"{same} items are the same on both sides (compare.json has all)."


def unknown_count(count: int) -> str:
    """Return `3 items are unknown`."""
    return f"{count} item{' is' if count == 1 else 's are'} unknown"


def _unknown_item(item: Item) -> str:
    return f"{item.name} ({item.a})" if item.a == item.b else f"{item.name} ({item.a} against {item.b})"
