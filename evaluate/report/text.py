"""A comparison as markdown and as tables for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from evaluate.metrics.figures import Figure, Metrics, combined, sections
from evaluate.report import scaling
from evaluate.report.comparison import Comparison
from evaluate.report.groups import Group, Ratio, Row, Spread, ratios, run_label
from evaluate.report.notes import notes
from evaluate.report.own_files import HEADING
from evaluate.report.tables import bullets, markdown_table, markdown_text, number, plain, text_table
from evaluate.report.verdict_text import markdown_certificates, markdown_verdicts, terminal_verdicts
from evaluate.report.why_text import markdown_why
from evaluate.verdict import places
from evaluate.verdict.ratios import times, with_range

METHODOLOGY = (
    "Throughput is the tokens of a step (global batch x sequence length) over the mean time of the steady steps, over "
    "the number of GPUs (of ranks on a machine without GPUs). Steady steps are those of the last level of the step "
    "times, found once by a change-point search; the first steps, a tenth and at least 3, compile and allocate and "
    "never count. Every figure and every verdict uses the same steady steps, and their numbers stand beside them.",
    "The unit is the run, one start of the process. A value is the geometric mean over the counted runs of a row, "
    "and min to max the smallest and the largest run; brackets hold 95 % intervals only. Steps within a run are not "
    "independent and enter no spread.",
    "A ratio is the throughput of one row over that of another, as in a verdict; its min to max is the smallest and "
    "the largest quotient of a run of the one and a run of the other.",
    "A verdict compares two sides that were shown to do the same work (the certificate). Its ratio is of tokens/s/GPU "
    "over the steady steps, which a change-point search finds; its interval is Welch's on the logarithm of the runs' "
    "throughput, or of the machines' where both sides have several; a single run has none. Faster and slower: three "
    "runs a side or more, beyond the band, and not by chance (5 %, Holm's correction for all pairs). Tie: the whole "
    "interval lies in the band. Undecided: all else.",
    "The first loss is that of step 1, the last loss the mean over the last tenth of the steps, both in nats per "
    "token. Memory is the peak of the largest rank.",
    "A result is counted when its status is ok and its numbers follow from its raw samples (`python -m "
    "evaluate.validate` shows every rule it breaks). Whatever is not counted is listed with its reason and enters no "
    "average.",
)
SYSTEMS = (
    "System",
    "Device",
    "Runs counted",
    "tokens/s/GPU",
    "Step time (s)",
    "Peak memory (GB)",
    "First loss (nats/token)",
    "Last loss (nats/token)",
)
"""Header of the table of a group."""
NOT_COUNTED = ("System", "Run", "Status", "Reason", "File")
"""Header of the table of results that enter no average."""
MOST_SYSTEMS = 6
"""Largest number of systems in the table of metrics; compare.json has all."""
WIDE = 100
"""Columns of a terminal that has room for the losses too."""
_NONE = "-"


class KnownMetric(NamedTuple):
    """A metric that at least one system of a table has."""

    section: str
    key: str
    name: str
    found: list[Figure]
    """The median over the runs of each system."""


def spread_text(spread: Spread | None) -> str:
    """Return `mean, min to max smallest to largest run`, or only the mean if all runs print alike."""
    if spread is None:
        return _NONE
    return ", ".join(filter(None, (number(spread.mean), min_to_max(spread.values))))


def min_to_max(values: Sequence[float]) -> str:
    """Return `min to max 1.05 to 1.12`; empty if all values print alike. Brackets are for 95 % intervals."""
    low, high = number(min(values)), number(max(values))
    return "" if low == high else f"min to max {low} to {high}"


def ratio_text(ratio: Ratio) -> str:
    """Return one line about a ratio of throughputs, without a verdict."""
    line = f"tokens/s/GPU of {ratio.row.name} over {ratio.base.name}:"
    if len(ratio.row.counted) == len(ratio.base.counted) == 1:
        return f"{line} {times(ratio.value)}, one run a side: no spread"
    return f"{line} {with_range(ratio.value, ratio.low, ratio.high)}"


def not_counted_rows(group: Group) -> list[tuple[str, ...]]:
    """Return the rows of the table with the header NOT_COUNTED."""
    return [
        (
            row.name,
            run_label(entry.result),
            "REJECTED" if entry.findings.rejections else str(entry.result["status"]),
            entry.why_not_counted,
            str(entry.path),
        )
        for row, entry in group.not_counted
    ]


def scaling_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of the scaling table; none unless the comparison is by nodes."""
    return [scale.cells() for scale in scaling.scaling(comparison.groups)] if comparison.by == "nodes" else []


def file_notes(comparison: Comparison) -> list[str]:
    """Return one line for each file that is a copy or not a result."""
    copies = [f"{copy.path}: same content as {first.path}, counted once" for copy, first in comparison.copies]
    return [plain(line) for line in copies + [f"REJECTED {error}" for _, error in comparison.unreadable]]


def markdown(comparison: Comparison) -> str:
    """Return the comparison as markdown, verdict first."""
    parts = [
        HEADING,
        *(f"## {markdown_text(one.title)}\n\n{markdown_table(places.HEADER, one.rows)}" for one in comparison.rankings),
        *markdown_verdicts(comparison),
        *_markdown_scaling(comparison),
        *markdown_why(comparison),
        *(part for group in comparison.groups for part in _markdown_group(group, comparison.figures)),
        *markdown_certificates(comparison),
    ]
    if files := file_notes(comparison):
        parts += ["## Files", bullets(files)]
    return "\n\n".join([*parts, "## Method", bullets(METHODOLOGY, escape=False)]) + "\n"


def terminal(comparison: Comparison, width: int) -> str:
    """Return the comparison as plain text, about `width` characters wide; only the throughput shows its spread.

    A terminal below WIDE shows no losses; the other reports have them.
    """
    losses = ("first loss", "last loss") if width >= WIDE else ()
    header = ("system", "runs", "tokens/s/GPU", "min to max", "step s", "peak GB", *losses)
    parts = [f"{plain(one.title)}\n\n{text_table(places.HEADER, one.rows, width)}" for one in comparison.rankings]
    parts += terminal_verdicts(comparison, width)
    if found := scaling_rows(comparison):
        parts += [text_table(scaling.HEADER, found, width), textwrap.fill(scaling.EXPLANATION, width)]
    for group in comparison.groups:
        rows = [(f"{row.name} {row.device}", *_short_figures(row))[: len(header)] for row in group.rows]
        parts.append(f"{group.key.title}\n{group.key.setting}\n\n{text_table(header, rows, width)}")
        if group.counted:
            parts.append(textwrap.fill(f"Throughput and step time: {group.steady_steps}.", width))
        if refused := not_counted_rows(group):
            cells = [row[:-1] for row in refused]
            parts.append(text_table(("not counted", "run", "status", "reason"), cells, width))
        lines = [ratio_text(ratio) for ratio in ratios(group)] + [f"note: {note}" for note in notes(group)]
        parts.append(_filled(lines, width))
    parts.append(_filled(file_notes(comparison), width))
    return "\n\n".join(part for part in parts if part)


def _markdown_scaling(comparison: Comparison) -> Iterator[str]:
    if found := scaling_rows(comparison):
        yield f"## Scaling\n\n{markdown_table(scaling.HEADER, found)}\n\n{scaling.EXPLANATION}"


def _figures(row: Row) -> tuple[str, ...]:
    return (f"{len(row.counted)} of {len(row.entries)}", *map(spread_text, row.spreads))


def _short_figures(row: Row) -> tuple[str, ...]:
    means = [_NONE if spread is None else number(spread.mean) for spread in row.spreads[1:]]
    ends = min_to_max(row.throughput.values).removeprefix("min to max ") if row.throughput else ""
    mean = number(row.throughput.mean) if row.throughput else _NONE
    return (f"{len(row.counted)} of {len(row.entries)}", mean, ends or _NONE, *means)


def _markdown_group(group: Group, figures: Mapping[int, Metrics]) -> Iterator[str]:
    yield f"## {markdown_text(group.key.title)}"
    yield f"{markdown_text(group.key.setting)}."
    yield markdown_table(SYSTEMS, [(row.name, row.device, *_figures(row)) for row in group.rows])
    if group.counted:
        yield f"Throughput and step time: {group.steady_steps}."
    if found := ratios(group):
        yield "Ratios of tokens/s/GPU:\n\n" + bullets([ratio_text(ratio) for ratio in found])
    yield from _markdown_metrics(group, figures)
    if lines := notes(group):
        yield "Notes:\n\n" + bullets(lines)
    if refused := not_counted_rows(group):
        yield "Not counted:\n\n" + markdown_table(NOT_COUNTED, refused)


def _markdown_metrics(group: Group, figures: Mapping[int, Metrics]) -> Iterator[str]:
    """Yield the known metrics, median over the runs, each with its formula; then the reasons why others are unknown."""
    rows = [row for row in group.rows if row.counted][:MOST_SYSTEMS]
    known, unknown = metrics_of([[figures[id(entry)] for entry in row.counted] for row in rows])
    cells = []
    for section, _, name, found in known:
        values = ["unknown" if figure.value is None else number(figure.value) for figure in found]
        cells.append((f"{section}: {name}", found[0].unit, *values, _ways(found)))
    if cells:
        header = ("Metric", "Unit", *(row.name for row in rows), "Formula and source, or why unknown")
        yield "Metrics, median over the counted runs:\n\n" + markdown_table(header, cells)
    if unknown:
        yield "Unknown:\n\n" + bullets([f"{', '.join(names)}: {why}" for why, names in unknown.items()])


def metrics_of(runs: Sequence[Sequence[Metrics]]) -> tuple[list[KnownMetric], dict[str, list[str]]]:
    """Return the metrics that a system has, and the names of those that none has by the reason.

    `runs` has the metrics of each system's runs.
    """
    known: list[KnownMetric] = []
    unknown: dict[str, list[str]] = {}
    for section, names in sections(runs).items():
        for key, name in names.items():
            found = [combined([one.get(key) for one in side]) for side in runs]
            if all(figure.value is None for figure in found):
                unknown.setdefault(_ways(found), []).append(name)
            else:
                known.append(KnownMetric(section, key, name, found))
    return known, unknown


def _ways(found: Sequence[Figure]) -> str:
    return "; or ".join(dict.fromkeys(figure.how for figure in found))


def _filled(lines: Sequence[str], width: int) -> str:
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in lines)
