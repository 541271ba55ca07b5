"""A comparison of results: groups of comparable runs, a verdict on each pair, and the metrics of each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evaluate.checks.entries import Entry, Loaded
from evaluate.metrics import prices
from evaluate.metrics.metric_table import Metrics
from evaluate.metrics.metrics import metrics
from evaluate.metrics.prices import Price
from evaluate.report.grouping import grouped
from evaluate.report.groups import Group
from evaluate.report.tables import plain
from evaluate.verdict import inference, pairs, verdicts
from evaluate.verdict.saving import BUDGET_TOKENS, saving
from evaluate.verdict.verdicts import Judged


@dataclass(frozen=True)
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

    @property
    def question(self) -> str:
        """The terms of the comparison, as fixed before any number was seen."""
        return f"by {self.by}, differences up to {self.band:.1%} count as none"

    @property
    def headline(self) -> str:
        """The first verdict, and the number of further ones."""
        if not self.judged:
            return f"No verdict: there are no two sides to compare {self.question}."
        more = f" ({len(self.judged) - 1} more)" if len(self.judged) > 1 else ""
        return plain(f"{self.judged[0].sentence}.{more}")


def compare(
    loaded: Loaded,
    folders: Sequence[Path],
    by: str | None = None,
    baseline: str | None = None,
    band: float = inference.BAND,
    price_table: Mapping[str, Price] | None = None,
    target_loss: float | None = None,
    token_budget: float = BUDGET_TOKENS,
) -> Comparison:
    """Return the comparison of all results in `loaded`, which came from `folders`.

    `by` is the property in which the two sides of a pair differ (None: platform if there are two, else framework).
    `baseline` is the side that becomes `a` in each pair, `band` the largest relative difference that does not matter.
    Costs use `price_table` (None: the suite's own prices). `target_loss` is in nats per token, `token_budget` is a
    number of tokens.
    """
    groups, copies = grouped(loaded.entries)
    repeated = {id(copy) for copy, _ in copies}
    entries = [entry for entry in loaded.entries if id(entry) not in repeated]
    by = by or pairs.default_by(entries)
    judged = verdicts.judge(pairs.pairs(entries, by, baseline), by, band)
    table = prices.load() if price_table is None else price_table
    figures = {id(entry): metrics(entry.result, table, target_loss) for group in groups for entry in group.counted}
    judged = [
        one if one.word == verdicts.NOT_COMPARABLE else replace(one, saving=saving(one.pair, figures, token_budget))
        for one in judged
    ]
    return Comparison(
        tuple(folders),
        tuple(groups),
        tuple(copies),
        loaded.unreadable,
        tuple(judged),
        by,
        band,
        figures,
        target_loss,
        baseline,
        table,
        token_budget,
    )
