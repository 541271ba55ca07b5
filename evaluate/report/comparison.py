"""A comparison of results: groups that may share a table, a verdict on each pair, and the metrics of each run."""

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
    """Return the comparison of everything that was loaded from `folders`.

    `by` is what the two sides of a pair differ in (None: platform where there are two, else framework), `baseline` the
    side that is `a` in each pair, `band` the largest difference that does not matter, stated beforehand. Costs come
    from `price_table` (None: the suite's own), times to a loss from `target_loss` in nats per token, savings are of
    `token_budget` tokens.
    """
    groups, copies = grouped(loaded.entries)
    doubled = {id(copy) for copy, _ in copies}
    entries = [entry for entry in loaded.entries if id(entry) not in doubled]
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


@dataclass(frozen=True)
class Comparison:
    """All that a report shows."""

    folders: tuple[Path, ...]
    groups: tuple[Group, ...]
    copies: tuple[tuple[Entry, Entry], ...]
    unreadable: tuple[tuple[Path, str], ...]
    judged: tuple[Judged, ...]
    by: str
    """What the two sides of each pair differ in."""
    band: float
    """Differences up to this do not matter in practice."""
    figures: Mapping[int, Metrics] = field(default_factory=dict)
    """Metrics of each counted entry, by its id."""
    target_loss: float | None = None
    """Nats per token; the time to it is among the metrics."""
    baseline: str | None = None
    """The side that is `a` wherever it can be, if one was named."""
    price_table: Mapping[str, Price] = field(default_factory=dict)
    """What the costs among the metrics come from."""
    token_budget: float = BUDGET_TOKENS
    """Tokens that the savings are of."""

    @property
    def question(self) -> str:
        """What was asked, before any number."""
        return f"by {self.by}, differences up to {self.band:.1%} count as none"

    @property
    def headline(self) -> str:
        """The first verdict, and how many more there are."""
        if not self.judged:
            return f"No verdict: there are no two sides to compare {self.question}."
        more = f" ({len(self.judged) - 1} more)" if len(self.judged) > 1 else ""
        return plain(f"{self.judged[0].sentence}.{more}")
