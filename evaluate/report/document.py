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
from evaluate.report.groups import Group, Row, known_values, mean_of, run_label
from evaluate.report.notes import EXPLANATION, HEADER, few_runs, notes, scaling, scaling_cells
from evaluate.report.renderers import ADVICE, HEADING
from evaluate.report.tables import wrapped
from evaluate.verdict.gap import MOST_OPERATORS
from evaluate.verdict.inference import FASTER, SLOWER, TIE, UNDECIDED, Estimate
from evaluate.verdict.pairs import Pair
from evaluate.verdict.places import Ranking
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
SYSTEMS = ("System", "Runs", "tokens/s/GPU", "min to max", "Step (s)", "Memory (GB)", "First loss", "Last loss")
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
    "micro_batch_that_would_fit",
    "capacity_bf16_training",
    "capacity_fp8_training",
    "capacity_bf16_weights",
    "capacity_fp8_weights",
    "energy_of_1T_tokens",
    "cost_of_1T_tokens",
    "cost_of_15T_tokens",
    "time_to_1T_tokens",
    "time_to_15T_tokens",
    "time_to_mlperf_target",
)
"""Metrics that mean nothing for a model made small; compare.json has them."""


@lru_cache(maxsize=1)
def blocks(comparison: Comparison) -> list[Block]:
    """Return the whole report, the verdicts first. Cached: several renderers show it."""
    judged = comparison.judged
    report: list[Block] = [Heading(HEADING, 1)]
    for number, ranking in enumerate(comparison.rankings):
        report += [Heading(ranking.title, 2, f"ranking-{number}"), _ranking(ranking)]
        shared = f"Sides share a place where no difference beyond {comparison.band:.1%} is shown."
        report.append(Details([Lines([shared], HINT)]))
    cards: list[Block] = [card(verdict, number) for number, verdict in enumerate(judged, 1)]
    picture = list(_verdicts_picture(comparison))
    summary = Lines([_summary(comparison)])
    # few verdicts open the report; of many the picture shows more than the first ones
    if len(cards) <= CARDS_FIRST:
        report += [*cards, *picture, summary]
    else:
        report += [summary, *picture, *cards]
    scales = scaling(comparison.groups) if comparison.by == "nodes" else []
    if scales:
        table = Table("Scaling", HEADER, list(map(scaling_cells, scales)), 1)
        report += [Heading("Scaling", 2, "scaling"), table, Lines([EXPLANATION], HINT)]
    report.append(Details(list(_why(comparison))))
    titles = [group.key.title for group in comparison.groups]
    for number, group in enumerate(comparison.groups):
        report += _group(comparison, group, _numbered(titles, number), number)
    report.append(Details(list(_certificates(judged))))
    files = [f"{copy.path}: same content as {first.path}, counted once" for copy, first in comparison.copies]
    files += [f"REJECTED {error}" for _, error in comparison.unreadable]
    if files:
        report += [Details([Heading("Files", 2, "files")]), Lines(files, LIST)]
    report.append(Details([Heading("Method", 2, "method"), Lines(METHODOLOGY, LIST)]))
    return report


def _ranking(ranking: Ranking) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for place, side, rate, runs, ratio in ranking.sides:
        against_first = with_interval(*ratio) if ratio else "-"
        rows.append((str(place), side, str(runs), Value(rate), against_first))
    return Table(ranking.title, RANKING, rows, 2)


def _summary(comparison: Comparison) -> str:
    """Return the line on all verdicts: how many of each, and what counts as a tie."""
    if not comparison.judged:
        return comparison.headline
    line = f"Compared by {comparison.by}; differences within {comparison.band:.1%} are ties."
    if len(comparison.judged) > 1:
        weakened = [verdict for verdict in comparison.judged if doubts(verdict)]
        line = f"{comparison.tally}; {len(weakened)} weakened. {line}"
    return line


def picture_lines(comparison: Comparison) -> list[str]:
    """Return the lines above compare.png: the rankings, or else the first verdict with its basis."""
    lines = [f"{ranking.title}: {ranking.in_words}." for ranking in comparison.rankings]
    if not lines:
        lines.append(comparison.headline)
        if comparison.judged:
            lines.append(comparison.judged[0].basis)
    if len(comparison.judged) > 1:
        lines.append(f"{comparison.tally}.")
    if not comparison.groups:
        lines.append("No result could be read.")
    return [short for line in lines for short in wrapped(line, 3, HEADLINE_CHARACTERS)]


def card(judged: Judged, number: int = 0) -> Card:
    """Return the card of a verdict, with links to the certificate of the same number."""
    is_comparable = judged.word != NOT_COMPARABLE
    left_out = dict.fromkeys(remark.text for remark in judged.pair.left_out)
    # the first reason of a pair that is not comparable is in its headline
    reasons = judged.reasons if is_comparable else judged.reasons[1:]
    return Card(
        judged.spoken_word,
        judged.headline,
        title=pair_title(judged.pair),
        basis=judged.basis,
        doubts=doubts(judged),
        support=[*reasons, *left_out, *judged.expert_lines, *judged.tuning_lines, *judged.money_lines],
        kind=f"w-{judged.word}" if judged.is_proven else f"w-{judged.word} unproven",
        sign=SIGNS[judged.word],
        figure=_figure(judged.estimate) if judged.estimate and is_comparable else (),
        is_claim=judged.word in (FASTER, SLOWER, TIE),
        is_proven=judged.is_proven,
        anchor=f"verdict-{number}",
        more=f"certificate-{number}" if judged.certificate else "",
    )


def _figure(estimate: Estimate) -> tuple[str, str]:
    """Return the ratio and its interval."""
    if estimate.low is None or estimate.high is None:
        (ratio,) = written(estimate.ratio)
        return f"{ratio}x", "no interval"
    ratio, low, high = written(estimate.ratio, estimate.low, estimate.high)
    return f"{ratio}x", f"95 % interval {low} to {high}"


def short_opening(judged: Judged) -> str:
    """Return model and size, the word of a verdict, the ratio and both sides with framework and device."""
    pair, estimate = judged.pair, judged.estimate
    model = model_name(pair.a[0].result)
    sides = f"{_full_name(pair.b_name, pair.b)} against {_full_name(pair.a_name, pair.a)}"
    if judged.word == NOT_COMPARABLE or estimate is None:
        return f"{model}: not comparable: {sides}: {judged.reasons[0]}"
    ratio = with_interval(estimate.ratio, estimate.low, estimate.high)
    if " " not in ratio:
        ratio += " (no interval)"
    return f"{model}: {judged.spoken_word}, {ratio}: {sides}"


def _full_name(name: str, side: Sequence[Entry]) -> str:
    """Return the name of a side with its framework, without the vendor's name in that of a device."""
    framework, short = side[0].result["framework"], without_vendors(name)
    return short if framework in short.split() else f"{framework} {short}"


def pair_title(pair: Pair) -> str:
    """Return model, framework and method of a pair."""
    return f"{pair.model}, {pair.framework}, method {pair.method}"


def doubts(judged: Judged) -> list[str]:
    """Return the lines that weaken a verdict, the remarks on its runs last, but not what is left out of it."""
    left_out = {remark.text for remark in judged.pair.left_out}
    return [*weaknesses(judged), *(remark for remark in judged.remarks if remark not in left_out)]


def _numbered(titles: Sequence[str], place: int) -> str:
    title = titles[place]
    count = titles.count(title)
    if count == 1:
        return title
    return f"{title} ({titles[: place + 1].count(title)} of {count})"


def _verdicts_picture(comparison: Comparison) -> Iterator[Block]:
    judged = comparison.judged
    if not any(verdict.estimate for verdict in judged):
        # nothing to draw: the verdicts say why
        return
    is_of_jobs = any(verdict.pair.is_of_jobs for verdict in judged)
    quantity = "tokens/s of the job" if is_of_jobs else "tokens/s/GPU"
    line = (
        f"Square: ratio of {quantity}, in the colour of the platform named first; line: its 95 % interval; hollow: "
        "undecided, or the same work is not proven; shaded: differences within "
        f"{comparison.band:.1%}, which count as ties."
    )
    yield Pictures("", [line], lambda: [panels.verdicts(judged, comparison.band, quantity)])


def _why(comparison: Comparison) -> Iterator[Block]:
    """Yield the gap by kind of time of each pair that has a profile of each side."""
    if not any(comparison.gaps):
        return
    # most comparisons have no profile
    from evaluate.report import trace_blocks
    from evaluate.timing.ceiling import align

    yield Heading("Why", 2, "why")
    yield Lines([WHY], HINT)
    for judged, gap in zip(comparison.judged, comparison.gaps, strict=True):
        if not gap:
            continue
        names = (judged.pair.a_name, judged.pair.b_name)
        yield Heading(f"{names[1]} against {names[0]}, {pair_title(judged.pair)}", 3)
        if gap.a is not None and gap.b is not None:
            yield from trace_blocks.gap(names, gap.a, gap.b)
            _, *rows = trace_blocks.differences(names, align(gap.a, gap.b), MOST_OPERATORS, "")
            yield Folded("The operators with the largest differences are in compare.json", rows)
        yield trace_blocks.rates(names, gap)
        yield Lines(gap.remarks, LIST)


def _group(comparison: Comparison, group: Group, title: str, number: int) -> Iterator[Block]:
    yield Heading(title, 2, f"group-{number}")
    yield Lines([f"{group.key.setting}."], HINT)
    yield Table(f"Systems: {title}", SYSTEMS, list(map(_system, group.rows)), 2)
    if group.counted:
        line = (
            f"Throughput and step time: {group.steady_steps}. Means over the runs; min to max: smallest and largest "
            "run. Memory is the peak; losses are in nats per token."
        )
        yield Lines([line], HINT)
    rows, figures = group.rows, comparison.figures
    yield Pictures(title, list(_caption(group)), lambda: [*panels.bars(rows, figures), *panels.curves(rows)])
    refused = []
    for row, entry in group.not_counted:
        status = "REJECTED" if entry.findings.rejections else str(entry.result["status"])
        refused.append((row.name, run_label(entry.result), status, entry.why_not_counted, str(entry.path)))
    yield Table(f"Results that do not count: {title}", NOT_COUNTED, refused)
    yield Lines([f"note: {note}" for note in notes(group)], LIST)
    yield Details(list(_metrics(comparison, group, title)))


def _system(row: Row) -> tuple[Cell, ...]:
    values = []
    for name, runs in row.figures.items():
        # losses of equal work differ in the fourth digit only
        digits = LOSS_DIGITS if name.endswith("loss") else DIGITS
        values.append(Value(mean_of(runs), runs, digits=digits) if runs else Value(None))
    speed, *others = values
    count = f"{len(row.counted)} of {len(row.entries)}"
    return f"{row.name} {row.device}", count, Value(speed.value), speed.range or speed.text, *others


def _caption(group: Group) -> Iterator[str]:
    """Yield the lines above the panels of a group: settings, layouts, versions, dates, and missing runs."""
    counted, refused = len(group.counted), group.not_counted
    yield f"{group.key.setting}; {group.conditions}"
    if counted:
        yield "Bars: means over the runs; dots: the runs; lines on the bars: min to max. Step times: those that count."
    yield from few_runs(group)
    if refused and counted:
        yield f"Not counted: {len(refused)} of {len(refused) + counted}."
    if not counted:
        # without a panel, the reasons are all that there is to show
        for row, entry in refused:
            yield f"Not counted: {row.name} {run_label(entry.result)}: {entry.why_not_counted}"


def _metrics(comparison: Comparison, group: Group, title: str) -> Iterator[Block]:
    """Yield the known metrics, each with its formula, and the reasons why others are unknown."""
    rows = [row for row in group.rows if row.counted]
    shown = rows[:MOST_SYSTEMS]
    runs = [[comparison.figures[id(entry)] for entry in row.counted] for row in shown]
    cells: list[list[Cell]] = []
    unknown: dict[str, list[str]] = {}
    for section, names in sections(runs).items():
        for key, name in names.items():
            # a tiny model would fit any device and cost nothing
            if key in FULL_SIZE_ONLY and group.key.model_size != "full":
                continue
            figures = [combined([metrics.get(key) for metrics in side]) for side in runs]
            # unknown for all: one line with the reason instead of a row of dashes
            if all(figure.value is None for figure in figures):
                reasons = dict.fromkeys(figure.how for figure in figures)
                unknown.setdefault("; or ".join(reasons), []).append(name)
                continue
            title_of_row = f"{section}: {name}"
            unit = next((figure.unit for figure in figures if figure.unit), "")
            if unit:
                title_of_row += f" ({unit})"
            values = []
            for row, figure, side in zip(shown, figures, runs, strict=True):
                known = known_values(metrics[key].value for metrics in side if key in metrics)
                values.append(Value(figure.value, known, figure.how, f"{name}, {row.name}"))
            cells.append([title_of_row, *values])
    if not cells and not unknown:
        return
    line = "Medians over the counted runs, then the smallest and the largest run."
    if len(rows) > len(shown):
        line += f" The first {MOST_SYSTEMS} of {len(rows)} systems are shown."
    yield Heading("Metrics", 3)
    yield Lines([line], HINT)
    yield Table(f"Metrics: {title}", ["Metric", *(f"{row.name} {row.device}" for row in shown)], cells, 1)
    if unknown:
        count = sum(map(len, unknown.values()))
        summary = f"{count} metric{' is' if count == 1 else 's are'} unknown for every system"
        yield Folded(summary, [Lines([f"{', '.join(names)}: {why}" for why, names in unknown.items()], LIST)])


def _certificates(judged: Sequence[Judged]) -> Iterator[Block]:
    """Yield the certificate of each pair: what differs, largest effect on speed first, then what is unknown."""
    if not judged:
        return
    yield Heading("Certificates", 2, "certificates")
    question = "Did both sides do the same work?"
    yield Lines(
        [f"{question} What forbids a comparison comes first; within that, what has the largest effect on speed."], HINT
    )
    for number, verdict in enumerate(judged, 1):
        pair, items = verdict.pair, verdict.certificate or ()
        title = f"{pair.b_name} against {pair.a_name}"
        yield Heading(title, 3, f"certificate-{number}")
        yield Lines([pair_title(pair)], HINT)
        if verdict.certificate is None:
            yield Lines(["; ".join(verdict.reasons)])
        differing = [item for item in items if item.state in (BLOCKING, ALLOWED)]
        yield _items(f"What is not the same: {title}", pair, differing)
        unknown = [item for item in items if item.state == UNKNOWN]
        if unknown:
            verb = "item is" if len(unknown) == 1 else "items are"
            summary = f"{len(unknown)} {verb} unknown: {', '.join(map(_unknown_item, unknown))}"
            yield Folded(summary, [_items(f"What is unknown: {title}", pair, unknown)])
        same = [item for item in items if item.state == SAME]
        if same:
            summary = f"{len(same)} items are the same on both sides (compare.json has all)"
            # hundreds of pairs would make a page of megabytes
            tables = []
            if len(judged) <= FULL_CERTIFICATES:
                tables.append(_items(f"What is the same: {title}", pair, same))
            yield Folded(summary, tables)


def _items(title: str, pair: Pair, items: Sequence[Item]) -> Table:
    header = ("Item", "State", pair.a_name, pair.b_name, "Note")
    return Table(title, header, [(item.name, item.state, item.a, item.b, item.note) for item in items])


def _unknown_item(item: Item) -> str:
    return f"{item.name} ({item.a})" if item.a == item.b else f"{item.name} ({item.a} against {item.b})"
