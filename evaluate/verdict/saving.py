"""The saving of one side of a pair over the other on a number of tokens, by measured rates and prices of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evaluate.checks.entries import Entry
from evaluate.metrics.figures import Figure, Metrics, combined, unknown
from evaluate.metrics.metrics import device_of
from evaluate.metrics.prices import SENSITIVITY
from evaluate.verdict.pairs import Pair

COST, COST_TOKENS = "cost_of_1T_tokens", 1e12
"""The metric from which the cost of a side is scaled, and its number of tokens."""


@dataclass(frozen=True)
class Saving:
    """Costs of both sides for `tokens` tokens, and the saving of b over a, negative if b costs more."""

    tokens: float
    cost_a: Figure
    cost_b: Figure
    saved: Figure
    """Money in the currency of the prices."""
    percent: Figure
    """Percent of the cost of a."""
    percent_range: tuple[float, float] | None
    """Range of `percent` if one price is SENSITIVITY higher and the other as much lower; None if a cost is unknown, or
    if both sides have the same device, whose price cannot differ from itself."""

    def lines(self, a: str, b: str) -> Iterator[str]:
        """Yield the saving in words; nothing if a cost is unknown."""
        cost_a, cost_b, percent = self.cost_a.value, self.cost_b.value, self.percent.value
        if cost_a is None or cost_b is None or percent is None:
            return
        sign, word = (1, "less") if percent >= 0 else (-1, "more")
        said = (
            f"{_spoken(self.tokens)} tokens cost {_spoken(cost_b)} {self.saved.unit} on {b} and "
            f"{_spoken(cost_a)} on {a}: {b} costs {sign * percent:.2g} % {word}"
        )
        if self.percent_range is not None:
            low, high = sorted(sign * end for end in self.percent_range)
            said += f"; {low:.0f} to {high:.0f} % {word} if the prices are {SENSITIVITY:.0%} off in opposite directions"
        yield said


def saving(pair: Pair, figures: Mapping[int, Metrics], tokens: float) -> Saving:
    """Return the saving of b over a; `figures` holds the metrics of each counted entry by its id."""
    cost_a, cost_b = _cost(pair.a, figures, tokens), _cost(pair.b, figures, tokens)
    a, b = cost_a.value, cost_b.value
    if a is None or b is None:
        reason = cost_a.how if a is None else cost_b.how
        return Saving(tokens, cost_a, cost_b, unknown(cost_a.unit, reason), unknown("%", reason), None)
    saved = Figure(a - b, cost_a.unit, "cost of a - cost of b")
    percent = Figure(100 * (1 - b / a), "%", "(cost of a - cost of b) / cost of a")
    devices_a, devices_b = ({device_of(result) for result in side} for side in pair.counted)
    percent_range = None
    # the price of one device cannot be off against itself
    if devices_a != devices_b:
        apart = (1 + SENSITIVITY) / (1 - SENSITIVITY)
        percent_range = (100 * (1 - b / a * apart), 100 * (1 - b / a / apart))
    return Saving(tokens, cost_a, cost_b, saved, percent, percent_range)


def _spoken(value: float) -> str:
    """Return tokens or money with three significant digits."""
    value = float(f"{value:.3g}")
    for name, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if value >= size:
            return f"{value / size:g} {name}"
    return f"{value:,g}"


def _cost(side: Sequence[Entry], figures: Mapping[int, Metrics], tokens: float) -> Figure:
    """Return the median cost over the counted runs, scaled to `tokens`."""
    found = combined([figures[id(entry)].get(COST) for entry in side if entry.is_counted])
    how = f"{COST} (median over runs: {found.how}) x {tokens:g} / {COST_TOKENS:g}"
    return found.map(lambda value: value * tokens / COST_TOKENS, found.unit, how)
