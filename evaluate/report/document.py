"""A comparison as blocks: rankings, verdicts, the gap by kind, groups with their systems, certificates, method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from evaluate.checks.entries import Entry
from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item
from evaluate.metrics.figures import combined, sections
from evaluate.report import panels
from evaluate.report.blocks import (
    DIGITS,
    HINT,
    LIST,
    LOSS_DIGITS,
    Block,
    Card,
    Cell,
    Details,
    Folded,
    Heading,
    Lines,
    Pictures,
    Table,
    Value,
)
from evaluate.report.comparison import Comparison
from evaluate.report.groups import Group, Row, mean_of, run_label
from evaluate.report.notes import EXPLANATION, HEADER, few_runs, notes, scaling, scaling_cells
from evaluate.report.renderers import ADVICE, HEADING
from evaluate.report.tables import wrapped
from evaluate.verdict.gap import MOST_OPERATORS
from evaluate.verdict.inference import FASTER, SLOWER, TIE, UNDECIDED
from evaluate.verdict.pairs import Pair
from evaluate.verdict.ratios import with_interval, written
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged, model_name, weaknesses
from evaluate.verdict.side_names import without_vendors

METHODOLOGY = (
    "Throughput is the tokens of a step (global batch x sequence length) over the mean time of the steady steps, over "
    "the number of GPUs (of ranks on a machine without GPUs). Steady steps are those of the last level of the step "
    "times, found once by a change-point search; the first steps, a tenth and at least 3, compile and allocate and "
    "never count. Every figure and every verdict uses the same steady steps, and their numbers stand beside them.",
    "The unit is the run, one start of the process. A value is the geometric mean over the counted runs of a row, "
    "and min to max the smallest and the largest run; brackets hold 95 % intervals only. Steps within a run are not "
    "independent and enter no spread.",
    "A verdict compares two sides that were shown to do the same work (the certificate). Its ratio is of tokens/s/GPU "
    "over the steady steps, which a change-point search finds; its interval is Welch's on the logarithm of the runs' "
    "throughput, or of the machines' where both sides have several; a single run has none. Faster and slower: three "
    "runs a side or more, beyond the band, and not by chance (5 %, Holm's correction for all pairs). Tie: the whole "
    "interval lies in the band. Undecided: all else.",
    "A verdict is weakened by an observation that does not forbid the comparison, such as a power cap that nobody "
    "recorded or a run that does not count. It is a reason to look, or to measure again.",
    "The first loss is that of step 1, the last loss the mean over the last tenth of the steps, both in nats per "
    "token. Memory is the peak of the largest rank.",
    f"A result is counted when its status is ok and its numbers follow from its raw samples "
    f"(./tprimat validate {ADVICE}). Whatever is not counted is listed with its reason and "
    "enters no average.",
)
WHY = (
    "The profiled step of each side by kind of time. The kinds sum to the step, their differences to the difference of "
    "both steps. The cost of the profiler is in all times."
)
SYSTEMS = (*("System", "Runs", "tokens/s/GPU", "min to max", "Step (s)", "Memory (GB)", "First loss", "Last loss"),)
"""Header of the table of a group."""
RANKING = ("Place", "Side", "Runs", "tokens/s/GPU", "against the first (95 %)")
NOT_COUNTED = ("Not counted", "Run", "Status", "Reason", "File")
HEADLINE_CHARACTERS = 140
MOST_SYSTEMS = 12
"""Largest number of systems in the table of metrics; compare.json has all."""
FULL_CERTIFICATES = 50
"""Largest number of pairs whose equal items stand on a page; with more, only what differs is shown."""
CARDS_FIRST = 3
"""Largest number of verdicts that stand above the picture of their ratios."""
SIGNS = {FASTER: "\u25b2", SLOWER: "\u25bc", TIE: "=", UNDECIDED: "?", NOT_COMPARABLE: "\u2715"}
FULL_SIZE_ONLY = (
    *("micro_batch_that_would_fit", "capacity_bf16_training", "capacity_fp8_training", "capacity_bf16_weights"),
    *("capacity_fp8_weights", "energy_of_1T_tokens", "cost_of_1T_tokens", "cost_of_15T_tokens", "time_to_1T_tokens"),
    *("time_to_15T_tokens", "time_to_mlperf_target"),
)
"""Metrics that mean nothing for a model made small; compare.json has them."""


@lru_cache(maxsize=1)
def blocks(comparison: Comparison) -> list[Block]:
    """Return the whole report, the verdicts first. Cached: several renderers show it."""
    judged = comparison.judged
    cards: list[Block] = [card(one, number) for number, one in enumerate(judged, 1)]
    picture = list(_verdicts_picture(comparison))
    found: list[Block] = [Heading(HEADING, 1)]
    for number, one in enumerate(comparison.rankings):
        rows = [
            (str(place), side, str(runs), Value(rate), with_interval(*ratio) if ratio else "-")
            for place, side, rate, runs, ratio in one.sides
        ]
        found += [Heading(one.title, 2, f"ranking-{number}"), Table(one.title, RANKING, rows, 2)]
        said = f"Sides share a place where no difference beyond {comparison.band:.1%} is shown."
        found.append(Details([Lines([said], HINT)]))
    weak = sum(bool(doubts(one)) for one in judged)
    tally = f"{comparison.tally}; {weak} weakened. " if len(judged) > 1 else ""
    said = f"{tally}Compared by {comparison.by}; differences within {comparison.band:.1%} are ties."
    summary = Lines([said if judged else comparison.headline])
    found += [*cards, *picture, summary] if len(cards) <= CARDS_FIRST else [summary, *picture, *cards]
    if comparison.by == "nodes" and (scales := scaling(comparison.groups)):
        table = Table("Scaling", HEADER, list(map(scaling_cells, scales)), 1)
        found += [Heading("Scaling", 2, "scaling"), table, Lines([EXPLANATION], HINT)]
    found.append(Details(list(_why(comparison))))
    titles = [group.key.title for group in comparison.groups]
    for number, group in enumerate(comparison.groups):
        found += _group(comparison, group, _numbered(titles, number), number)
    found.append(Details(list(_certificates(judged))))
    files = [f"{copy.path}: same content as {first.path}, counted once" for copy, first in comparison.copies]
    files += [f"REJECTED {error}" for _, error in comparison.unreadable]
    if files:
        found += [Details([Heading("Files", 2, "files")]), Lines(files, LIST)]
    return [*found, Details([Heading("Method", 2, "method"), Lines(METHODOLOGY, LIST)])]


def picture_lines(comparison: Comparison) -> list[str]:
    """Return the lines above compare.png: the rankings, or else the first verdict with its basis."""
    lines = [f"{one.title}: {one.in_words}." for one in comparison.rankings]
    if not lines:
        lines = [comparison.headline, *(one.basis for one in comparison.judged[:1])]
    if len(comparison.judged) > 1:
        lines.append(f"{comparison.tally}.")
    if not comparison.groups:
        lines.append("No result could be read.")
    return [short for line in lines for short in wrapped(line, 3, HEADLINE_CHARACTERS)]


def card(judged: Judged, number: int = 0) -> Card:
    """Return the card of a verdict, with links to the certificate of the same number."""
    found = judged.estimate
    shown: tuple[str, ...] = ()
    if found and judged.word != NOT_COMPARABLE:
        ratio, *ends = written(found.ratio, *(end for end in (found.low, found.high) if end is not None))
        shown = (f"{ratio}x", f"95 % interval {' to '.join(ends)}" if ends else "no interval")
    reasons = judged.reasons[1:] if judged.word == NOT_COMPARABLE else judged.reasons
    left_out = dict.fromkeys(one.text for one in judged.pair.left_out)
    return Card(
        judged.spoken_word,
        judged.headline,
        pair_title(judged.pair),
        judged.basis,
        doubts(judged),
        [*reasons, *left_out, *judged.expert_lines, *judged.tuning_lines, *judged.money_lines],
        f"w-{judged.word}" + ("" if judged.is_proven else " unproven"),
        SIGNS[judged.word],
        shown,
        judged.word in (FASTER, SLOWER, TIE),
        judged.is_proven,
        f"verdict-{number}",
        f"certificate-{number}" if judged.certificate else "",
    )


def short_opening(judged: Judged) -> str:
    """Return model and size, the word of a verdict, the ratio and both sides with framework and device."""
    pair, found = judged.pair, judged.estimate
    sides = f"{_full_name(pair.b_name, pair.b)} against {_full_name(pair.a_name, pair.a)}"
    if judged.word == NOT_COMPARABLE or found is None:
        return f"{model_name(pair.a[0].result)}: not comparable: {sides}: {judged.reasons[0]}"
    ratio = with_interval(found.ratio, found.low, found.high)
    interval = "" if " " in ratio else " (no interval)"
    return f"{model_name(pair.a[0].result)}: {judged.spoken_word}, {ratio}{interval}: {sides}"


def _full_name(name: str, side: Sequence[Entry]) -> str:
    """Return the name of a side with its framework, without the vendor's name in that of a device."""
    framework, short = side[0].result["framework"], without_vendors(name)
    return short if framework in short.split() else f"{framework} {short}"


def pair_title(pair: Pair) -> str:
    """Return model, framework and method of a pair."""
    return f"{pair.model}, {pair.framework}, method {pair.method}"


def doubts(judged: Judged) -> list[str]:
    """Return the lines that weaken a verdict, the remarks on its runs last, but not what is left out of it."""
    left_out = {one.text for one in judged.pair.left_out}
    return [*weaknesses(judged), *(remark for remark in judged.remarks if remark not in left_out)]


def _numbered(titles: Sequence[str], place: int) -> str:
    title, count = titles[place], titles.count(titles[place])
    return title if count == 1 else f"{title} ({titles[: place + 1].count(title)} of {count})"


def _verdicts_picture(comparison: Comparison) -> Iterator[Block]:
    judged = comparison.judged
    if not any(one.estimate for one in judged):
        return  # nothing to draw: the verdicts say why
    quantity = "tokens/s of the job" if any(one.pair.is_of_jobs for one in judged) else "tokens/s/GPU"
    line = f"Square: ratio of {quantity}, in the colour of the platform named first; line: its 95 % interval; hollow: "
    line += f"undecided, or the same work is not proven; shaded: differences within {comparison.band:.1%}, which count "
    yield Pictures("", [f"{line}as ties."], lambda: [panels.verdicts(judged, comparison.band, quantity)])


def _why(comparison: Comparison) -> Iterator[Block]:
    """Yield the gap by kind of time of each pair that has a profile of each side."""
    known = [(one, gap) for one, gap in zip(comparison.judged, comparison.gaps, strict=True) if gap]
    if known:
        yield Heading("Why", 2, "why")
        yield Lines([WHY], HINT)
    for one, gap in known:
        from evaluate.report import trace_blocks  # most comparisons have no profile
        from evaluate.timing.ceiling import align

        names = (one.pair.a_name, one.pair.b_name)
        yield Heading(f"{names[1]} against {names[0]}, {pair_title(one.pair)}", 3)
        if gap.a is not None and gap.b is not None:
            yield from trace_blocks.gap(names, gap.a, gap.b)
            rows = trace_blocks.differences(names, align(gap.a, gap.b), MOST_OPERATORS, "")
            yield Folded("The operators with the largest differences are in compare.json", list(rows)[1:])
        yield trace_blocks.rates(names, gap)
        yield Lines(gap.remarks, LIST)


def _group(comparison: Comparison, group: Group, title: str, number: int) -> Iterator[Block]:
    yield Heading(title, 2, f"group-{number}")
    yield Lines([f"{group.key.setting}."], HINT)
    yield Table(f"Systems: {title}", SYSTEMS, list(map(_system, group.rows)), 2)
    if group.counted:
        yield Lines([f"Throughput and step time: {group.steady_steps}. Means over the runs; min to max: smallest and "
            "largest run. Memory is the peak; losses are in nats per token."], HINT)  # fmt: skip
    rows, figures = group.rows, comparison.figures
    yield Pictures(title, list(_caption(group)), lambda: [*panels.bars(rows, figures), *panels.curves(rows)])
    refused = [
        (
            *(row.name, run_label(entry.result)),
            "REJECTED" if entry.findings.rejections else str(entry.result["status"]),
            *(entry.why_not_counted, str(entry.path)),
        )
        for row, entry in group.not_counted
    ]
    yield Table(f"Results that do not count: {title}", NOT_COUNTED, refused)
    yield Lines([f"note: {note}" for note in notes(group)], LIST)
    yield Details(list(_metrics(comparison, group, title)))


def _system(row: Row) -> tuple[Cell, ...]:
    figures = [
        Value(mean_of(runs), runs, digits=LOSS_DIGITS if place > 2 else DIGITS) if runs else Value(None)
        for place, runs in enumerate(row.figures.values())
    ]
    runs, speed = f"{len(row.counted)} of {len(row.entries)}", figures[0]
    return f"{row.name} {row.device}", runs, Value(speed.value), speed.range or speed.text, *figures[1:]


def _caption(group: Group) -> Iterator[str]:
    """Yield the lines above the panels of a group: settings, layouts, versions, dates, and missing runs."""
    counted, refused = len(group.counted), group.not_counted
    yield f"{group.key.setting}; {group.conditions}"
    if counted:
        yield "Bars: means over the runs; dots: the runs; lines on the bars: min to max. Step times: those that count."
    yield from few_runs(group)
    if refused and counted:
        yield f"Not counted: {len(refused)} of {len(refused) + counted}."
    if not counted:  # without a panel, the reasons are all that there is to show
        yield from (
            f"Not counted: {row.name} {run_label(entry.result)}: {entry.why_not_counted}" for row, entry in refused
        )


def _metrics(comparison: Comparison, group: Group, title: str) -> Iterator[Block]:
    """Yield the known metrics, each with its formula, and the reasons why others are unknown."""
    rows = [row for row in group.rows if row.counted]
    shown = rows[:MOST_SYSTEMS]
    runs = [[comparison.figures[id(entry)] for entry in row.counted] for row in shown]
    cells: list[list[Cell]] = []
    unknown: dict[str, list[str]] = {}
    for section, names in sections(runs).items():
        for key, name in names.items():
            if key in FULL_SIZE_ONLY and group.key.model_size != "full":
                continue
            found = [combined([one.get(key) for one in side]) for side in runs]
            if all(figure.value is None for figure in found):
                unknown.setdefault("; or ".join(dict.fromkeys(figure.how for figure in found)), []).append(name)
                continue
            unit = next((figure.unit for figure in found if figure.unit), "")
            values = [
                Value(
                    figure.value,
                    [value for one in side if key in one and (value := one[key].value) is not None],
                    figure.how,
                    f"{name}, {row.name}",
                )
                for row, figure, side in zip(shown, found, runs, strict=True)
            ]
            cells.append([f"{section}: {name} ({unit})" if unit else f"{section}: {name}", *values])
    if not cells and not unknown:
        return
    first = f" The first {MOST_SYSTEMS} of {len(rows)} systems are shown." if len(rows) > len(shown) else ""
    yield Heading("Metrics", 3)
    yield Lines([f"Medians over the counted runs, then the smallest and the largest run.{first}"], HINT)
    yield Table(f"Metrics: {title}", ["Metric", *(f"{row.name} {row.device}" for row in shown)], cells, 1)
    count = sum(map(len, unknown.values()))
    if unknown:
        said = f"{count} metric{' is' if count == 1 else 's are'} unknown for every system"
        yield Folded(said, [Lines([f"{', '.join(names)}: {why}" for why, names in unknown.items()], LIST)])


def _certificates(judged: Sequence[Judged]) -> Iterator[Block]:
    """Yield the certificate of each pair: what differs, largest effect on speed first, then what is unknown."""
    if not judged:
        return
    yield Heading("Certificates", 2, "certificates")
    yield Lines(["Did both sides do the same work? What forbids a comparison comes first; within that, what has the "
        "largest effect on speed."], HINT)  # fmt: skip
    for number, one in enumerate(judged, 1):
        pair, items = one.pair, one.certificate or ()
        title = f"{pair.b_name} against {pair.a_name}"
        yield Heading(title, 3, f"certificate-{number}")
        yield Lines([pair_title(pair)], HINT)
        if one.certificate is None:
            yield Lines(["; ".join(one.reasons)])
        yield _items(
            f"What is not the same: {title}", pair, [item for item in items if item.state in (BLOCKING, ALLOWED)]
        )
        if unknown := [item for item in items if item.state == UNKNOWN]:
            verb = "item is" if len(unknown) == 1 else "items are"
            said = f"{len(unknown)} {verb} unknown: {', '.join(map(_unknown_item, unknown))}"
            yield Folded(said, [_items(f"What is unknown: {title}", pair, unknown)])
        if same := [item for item in items if item.state == SAME]:
            table = _items(f"What is the same: {title}", pair, same) if len(judged) <= FULL_CERTIFICATES else None
            yield Folded(
                f"{len(same)} items are the same on both sides (compare.json has all)", [table] if table else []
            )


def _items(title: str, pair: Pair, items: Sequence[Item]) -> Table:
    header = ("Item", "State", pair.a_name, pair.b_name, "Note")
    return Table(title, header, [(one.name, one.state, one.a, one.b, one.note) for one in items])


def _unknown_item(item: Item) -> str:
    return f"{item.name} ({item.a})" if item.a == item.b else f"{item.name} ({item.a} against {item.b})"
