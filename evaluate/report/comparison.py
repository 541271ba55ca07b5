"""A comparison of results: groups of comparable runs, a verdict on each pair, and the metrics of each run.

In compare.json every number has its inputs: `definitions` gives the formula and the source key of each kind of number.
Metrics carry their own formula (`how`); where a value is unknown it is null, and `how` gives the reason.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluate.checks.entries import Entry, Loaded
from evaluate.metrics import prices
from evaluate.metrics.defaults import BAND, BUDGET_TOKENS
from evaluate.metrics.figures import Metrics, combined
from evaluate.metrics.metrics import metrics
from evaluate.metrics.prices import Price
from evaluate.report.groups import Group, Row, grouped, mean_of, without_copies
from evaluate.report.notes import notes, scaling
from evaluate.report.tables import counted, plain
from evaluate.verdict import gap, inference, pairs, verdicts
from evaluate.verdict.gap import Gap
from evaluate.verdict.odd_runs import without_odd_runs
from evaluate.verdict.places import Ranking, rankings
from evaluate.verdict.saving import saving
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged
from utils.arguments import VERSION

COMPARISON_VERSION = 3
DEFINITIONS = {
    "verdicts.ratio": "tokens/s/GPU of b over a, or tokens/s of the whole job in a comparison by nodes (`quantity`): "
    "exp(mean of ln(b) - mean of ln(a)), over runs of one machine, or over "
    "machines where both sides have several; the runs and their steady steps are in verdicts.inputs",
    "ranking.sides": "place: one more than the number of sides that are shown to be faster; tokens_per_second_per_gpu: "
    "geometric mean over the runs, or over machines where a side has several",
    "verdicts.interval": "of the difference of mean logarithms over the runs, or the machines where both sides have "
    "several; null where a side has a single run (evaluate/metrics/intervals.py)",
    "verdicts.p_value": "two-sided, of no difference, times `selection` (layouts tried, RUNS=auto), before Holm's "
    "correction; adjusted_p_value: after it",
    "verdicts.inputs.tokens_per_second_per_gpu": "global_batch_size x sequence_length / num_gpus of training_config x "
    "steady steps / sum of their step_times",
    "groups.rows.tokens_per_second_per_gpu": "global_batch_size x sequence_length / num_gpus of training_config x "
    "steady steps / sum of their step_times, of each counted result: the numbers of verdicts.inputs",
    "groups.rows": "mean: the geometric one of the counted results, as in a verdict; median, min and max: theirs",
    "groups.rows.step_time_seconds": "mean of the steady step_times of each counted result",
    "groups.rows.peak_memory_allocated_gb": "memory_metrics.peak_memory_allocated_gb of each counted result",
    "groups.rows.first_loss": "loss_values of step 1, nats per token",
    "groups.rows.last_loss": "mean of loss_values over the last tenth of the steps, nats per token",
    "groups.rows.metrics": "median over the counted runs (`runs`, in the order of the counted results) of what "
    "evaluate/metrics/metrics.py makes of each; `how` is the formula with its sources, or why the value is null",
    "verdicts.scaling": "by nodes: the ratio of the jobs, that of each GPU (job ratio x GPUs of a / GPUs of b) and the "
    "efficiency (per GPU, the larger number of GPUs over the smaller)",
    "verdicts.why": "seconds of a profiled step of the first rank of each side, by kind and by operator, with the cost "
    "of the profiler; difference: b less a; null without a profile of each side (evaluate/verdict/gap.py)",
    "verdicts.left_out": "runs of the same devices that are in no ratio of this pair, and why",
    "scaling.efficiency": "geometric mean of tokens_per_second_per_gpu over that of base_gpus on one node, same "
    "global batch",
    "steady_steps": "the last level of the step_times after the first tenth, at least 3 (evaluate/metrics/steady.py)",
}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Everything that a report shows."""

    folders: tuple[Path, ...]
    groups: tuple[Group, ...]
    copies: tuple[tuple[Entry, Entry], ...]
    """Each copy with the entry that it repeats."""
    unreadable: tuple[tuple[Path, str], ...]
    """Files that are not results, each with the error."""
    judged: tuple[Judged, ...]
    by: str
    """The property in which the two sides of each pair differ."""
    band: float
    """Largest relative difference that does not matter in practice."""
    figures: Mapping[int, Metrics] = field(default_factory=dict)
    """Metrics of each counted entry, by the `id()` of the entry."""
    target_loss: float | None = None
    """Loss in nats per token that the metric `time_to_target_loss` refers to."""
    baseline: str | None = None
    """Side that is `a` in every pair that has it, if the user named one."""
    price_table: Mapping[str, Price] = field(default_factory=dict)
    """Prices behind the costs among the metrics."""
    token_budget: float = BUDGET_TOKENS
    """Tokens for which savings are calculated."""
    gaps: tuple[Gap | None, ...] = ()
    """The profiled steps of each pair by kind, in the order of `judged`; None for a pair without two profiles."""

    @cached_property
    def rankings(self) -> list[Ranking]:
        """The rankings of more than two sides, which open a report."""
        return rankings(self.judged)

    @property
    def entries(self) -> list[Entry]:
        """All results but copies, counted or not."""
        return [entry for group in self.groups for row in group.rows for entry in row.entries]

    @property
    def headline(self) -> str:
        """The headline of the first verdict."""
        if self.judged:
            return plain(f"{self.judged[0].headline}.")
        line = f"No verdict: there are no two sides to compare by {self.by}"
        why = pairs.why_none(self.entries, self.by)
        if why:
            line += f"; {why}"
        return plain(f"{line}.")

    @property
    def tally(self) -> str:
        """The number of pairs, and of verdicts of each word."""
        counts = Counter(judged.spoken_word for judged in self.judged)
        words = ", ".join(f"{count} {word}" for word, count in counts.most_common())
        return f"{counted(len(self.judged), 'pair')}: {words}"


def compare(
    loaded: Loaded,
    folders: Sequence[Path],
    by: str | None = None,
    baseline: str | None = None,
    band: float = BAND,
    price_table: Mapping[str, Price] | None = None,
    target_loss: float | None = None,
    token_budget: float = BUDGET_TOKENS,
) -> Comparison:
    """Return the comparison of all results in `loaded`, which came from `folders`.

    `by` is the property in which the two sides of a pair differ (None: `pairs.default_by`).
    `baseline` is the side that becomes `a` in each pair, `band` the largest relative difference that does not matter.
    Costs use `price_table` (None: the suite's own prices). `target_loss` is in nats per token, `token_budget` is a
    number of tokens.
    """
    unique, copies = without_copies(loaded.entries)
    by = by or pairs.default_by(unique)
    entries = without_odd_runs(unique, by)
    judged = verdicts.judge(pairs.pairs(entries, by, baseline), by, band)
    # what was trained alike opens the report
    judged.sort(key=lambda verdict: verdict.pair.method != "equal")
    groups = grouped(entries, by, baseline)
    # an empty table is a choice: no costs
    table = prices.load() if price_table is None else price_table
    figures = {}
    for group in groups:
        for entry in group.counted:
            figures[id(entry)] = metrics(entry.result, table, target_loss)
    for place, verdict in enumerate(judged):
        if verdict.word != NOT_COMPARABLE:
            judged[place] = replace(verdict, saving=saving(verdict.pair, figures, token_budget))
    return Comparison(
        folders=tuple(folders),
        groups=tuple(groups),
        copies=tuple(copies),
        unreadable=loaded.unreadable,
        judged=tuple(judged),
        by=by,
        band=band,
        figures=figures,
        target_loss=target_loss,
        baseline=baseline,
        price_table=table,
        token_budget=token_budget,
        gaps=gap.gaps(judged, loaded.profiles.found, loaded.probes),
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the content of compare.json. The ratio of a verdict is b over a."""
    entries = []
    for judged, why in zip(comparison.judged, comparison.gaps, strict=True):
        entries.append(verdicts.as_json(judged) | {"why": gap.as_json(why) if why else why})
    groups = []
    for group in comparison.groups:
        rows = [_row(comparison, row) for row in group.rows]
        groups.append({"key": group.key._asdict(), "rows": rows, "notes": notes(group)})
    content = {
        "comparison_version": COMPARISON_VERSION,
        "suite_version": VERSION,
        "by": comparison.by,
        "baseline": comparison.baseline,
        "band": comparison.band,
        "confidence": inference.CONFIDENCE,
        "target_loss": comparison.target_loss,
        "token_budget": comparison.token_budget,
        "price_table": prices.as_json(comparison.price_table),
        "ranking": [ranking.as_json() for ranking in comparison.rankings],
        "verdicts": entries,
        "definitions": DEFINITIONS,
    }
    if comparison.by == "nodes":
        content["scaling"] = scaling(comparison.groups)
    return content | {
        "folders": list(map(str, comparison.folders)),
        "groups": groups,
        "copies": [{"file": str(copy.path), "same_as": str(first.path)} for copy, first in comparison.copies],
        "unreadable": [{"file": str(path), "reason": error} for path, error in comparison.unreadable],
    }


def _row(comparison: Comparison, row: Row) -> dict[str, Any]:
    of_runs = [comparison.figures[id(entry)] for entry in row.counted]
    # in the order of the first run that has a metric
    of_row: dict[str, Any] = {}
    for name in dict.fromkeys(itertools.chain(*of_runs)):
        figures = [figures_of_run.get(name) for figures_of_run in of_runs]
        values = [figure.value if figure else None for figure in figures]
        of_row[name] = vars(combined(figures)) | {"runs": values}
    return {
        "letter": row.letter,
        **row.key._asdict(),
        "runs_counted": len(row.counted),
        "runs_found": len(row.entries),
        "steady_steps": row.steady_steps(),
        **{name: _spread(runs) for name, runs in row.figures.items()},
        "metrics": of_row,
        "results": list(map(_entry, row.entries)),
    }


def _spread(runs: Sequence[float]) -> dict[str, Any] | None:
    if not runs:
        return None
    middle = {"mean": mean_of(runs), "median": statistics.median(runs)}
    return middle | {"min": min(runs), "max": max(runs), "runs": list(runs)}


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "file": str(entry.path),
        "run": entry.result["run"],
        "attempt": entry.result["attempt"],
        "status": entry.result["status"],
        "reason": entry.result["reason"],
        "is_counted": entry.is_counted,
        "rejections": list(entry.findings.rejections),
        "warnings": list(entry.findings.warnings),
    }
