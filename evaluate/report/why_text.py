"""The section "why" of a comparison: the sentences, the table of kinds and the notes of each pair, and as markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evaluate.floor.losses import duration
from evaluate.floor.parts import PairWhy, SideWhy
from evaluate.report.comparison import Comparison
from evaluate.report.groups import Group
from evaluate.report.kind_bars import Bar
from evaluate.report.tables import bullets, markdown_table, markdown_text, number
from evaluate.report.verdict_text import pair_title
from utils.kinds import KINDS, UNATTRIBUTED, WORDS

MS = 1e3
TITLE = "Why"
EXPLANATION = (
    "The floor of a step is the time of its operators, each as fast as the probe of this machine measured it alone, "
    "and of the communication that computation cannot hide. It has no time for the host, for copies and for waits. "
    "What a measured step takes above its floor is its loss. What the two floors differ by is the hardware with its "
    "libraries."
)
NO_PROFILE = "not measured: no profile of this job; PROFILING=true records one"
AT_FLOOR = 5e-4
"""Share of the floor below which a step is said to be at it."""
SUM, STEP = "sum", "step of the counted runs"


@dataclass(frozen=True)
class Explained:
    """A pair of the section with its attribution."""

    name: str
    """Both sides: `b against a`."""
    title: str
    """Model, framework and method."""
    why: PairWhy
    group: Group | None = None
    """Group of the results of the second side; it has settings and conditions."""


def explained(comparison: Comparison) -> list[Explained]:
    """Return the pairs that have an attribution or a reason for none, in the order of the verdicts.

    There is none in a comparison without a probe by operator.
    """
    group_of = {id(entry): group for group in comparison.groups for row in group.rows for entry in row.entries}
    return [
        Explained(
            f"{judged.pair.b_name} against {judged.pair.a_name}",
            pair_title(judged.pair),
            why,
            group_of.get(id(judged.pair.b[0])),
        )
        for judged, why in zip(comparison.judged, comparison.whys, strict=False)
        if why is not None
    ]


def has_picture(comparison: Comparison) -> bool:
    """Return whether any pair has an attribution, and so a panel in why.png."""
    return any(sides(one.why) for one in explained(comparison))


def sides(why: PairWhy) -> tuple[SideWhy, SideWhy] | None:
    """Return both sides of an attribution; None if it was refused."""
    return None if why.refused or why.a is None or why.b is None else (why.a, why.b)


def sentences(why: PairWhy) -> list[str]:
    """Return three sentences: the factors of the ratio, then the largest loss of the slower and of the faster side.

    Returns one sentence with the reason if nothing is attributed.
    """
    both = sides(why)
    if both is None:
        return list(why.sentences[:1])
    a, b = both
    order = (b, a) if b.step_seconds >= a.step_seconds else (a, b)
    return [*why.sentences[:1], *map(_losses, order)]


def kind_table(why: PairWhy) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of the table: each kind with the floor and the measured time of both sides in ms a step.

    A side without a profile has no measured column. Kinds without any time are left out.
    """
    header, columns, steps = ["Kind"], [], []
    for side in sides(why) or ():
        header.append(f"{side.name}, floor (ms)")
        columns.append(side.floor_by_kind)
        steps.append("")
        if side.measured_by_kind is not None:
            header.append(f"{side.name}, measured (ms)")
            columns.append(side.measured_by_kind)
            steps.append(_ms(side.step_seconds))
    rows = [
        (WORDS[kind], *(_ms(column.get(kind, 0.0)) for column in columns))
        for kind in KINDS
        if any(column.get(kind) for column in columns)
    ]
    rows.append((SUM, *(_ms(sum(column.values())) for column in columns)))
    if any(steps):
        rows.append((STEP, *steps))
    return tuple(header), rows


def remarks(why: PairWhy) -> list[str]:
    """Return the arithmetic behind the factors, then a line on the sources of each side and its remarks."""
    lines = [f"{line[:1].upper()}{line[1:]}" for line in why.sentences[1:2]]
    for side in sides(why) or ():
        profile = f"measured by kind from {side.profile}" if side.measured_by_kind is not None else NO_PROFILE
        lines.append(f"{side.name}: floor from {side.probe}; {profile}")
        lines += [f"{side.name}: {remark}" for remark in side.remarks]
    return lines


def bars(why: PairWhy) -> list[Bar]:
    """Return four bars: floor and measured step of both sides; none if nothing is attributed."""
    return [bar for side in sides(why) or () for bar in (_floor_bar(side), _measured_bar(side))]


def markdown_why(comparison: Comparison) -> Iterator[str]:
    """Yield the section as markdown; nothing without an attribution."""
    found = explained(comparison)
    if found:
        yield f"## {TITLE}"
    if has_picture(comparison):
        yield EXPLANATION
    for one in found:
        yield f"### {markdown_text(one.name)}\n\n{markdown_text(one.title)}"
        yield "\n\n".join(map(markdown_text, sentences(one.why)))
        if sides(one.why):
            yield markdown_table(*kind_table(one.why))
            yield bullets(remarks(one.why))


def _losses(side: SideWhy) -> str:
    over = side.step_seconds - side.floor_seconds
    share = abs(over) / side.floor_seconds
    where = f"{duration(abs(over))} ({share:.1%}) {'above' if over > 0 else 'below'}" if share >= AT_FLOOR else "at"
    return (
        f"A step of {side.name} takes {duration(side.step_seconds)}, {where} its floor of "
        f"{duration(side.floor_seconds)}; {_largest_loss(side)}."
    )


def _largest_loss(side: SideWhy) -> str:
    if side.measured_by_kind is None:
        return "without a profile of this job the difference is not divided by kind"
    loss = max(side.losses, key=lambda one: one.seconds, default=None)
    if loss is None or loss.seconds <= 0:
        return "no kind of time is above its floor"
    words = loss.words.replace(f"{WORDS[UNATTRIBUTED]}:", "unattributed time:", 1)
    return f"the largest loss, {loss.seconds / side.step_seconds:.1%} of the step, is in {words.rstrip('.')}"


def _floor_bar(side: SideWhy) -> Bar:
    half = side.floor_seconds * side.floor_spread_percent / 100
    low, high = side.floor_seconds - half, side.floor_seconds + half
    name = f"{side.name}, floor: {_ms(side.floor_seconds)} ms"
    return Bar(name, side.floor_by_kind, side.floor_seconds, low, high, is_thin=True)


def _measured_bar(side: SideWhy) -> Bar:
    kinds = side.measured_by_kind
    name = f"{side.name}, measured: {_ms(side.step_seconds)} ms"
    if kinds is None:
        name += ", not by kind (no profile)"
    return Bar(name, kinds, side.step_seconds, side.step_low, side.step_high, has_mark=True)


def _ms(seconds: float) -> str:
    return number(seconds * MS)
