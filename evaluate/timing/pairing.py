"""Two breakdowns side by side: their operators aligned by kind, computation and shape, with the difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evaluate.timing.breakdown import Breakdown
from evaluate.timing.tables import OperatorRow


@dataclass(frozen=True)
class Aligned:
    """An operator of both sides: the same computation with the same sizes; names and kernels may differ."""

    kind: str
    family: str
    sizes: str
    a: OperatorRow | None
    """On the first side; None if it does not run there."""
    b: OperatorRow | None

    @property
    def difference_seconds(self) -> float:
        """Seconds a step that the second side takes more than the first."""
        return (self.b.seconds if self.b else 0.0) - (self.a.seconds if self.a else 0.0)


def align(a: Breakdown, b: Breakdown) -> list[Aligned]:
    """Return the operators of both sides, the largest difference first."""
    left, right = _by_key(a.operators), _by_key(b.operators)
    found = [Aligned(*key, left.get(key), right.get(key)) for key in {**left, **right}]
    return sorted(found, key=lambda one: (-abs(one.difference_seconds), one.kind, one.family, one.sizes))


def _by_key(rows: Iterable[OperatorRow]) -> dict[tuple[str, str, str], OperatorRow]:
    """Return the rows by kind, family and sizes; rows of the same computation become one, named after the longest."""
    found: dict[tuple[str, str, str], OperatorRow] = {}
    for row in rows:  # the longest first
        key = (row.kind, row.work.family, row.work.sizes)
        first = found.get(key)
        if first is None:
            found[key] = row
        else:
            count, seconds = first.count + row.count, first.seconds + row.seconds
            found[key] = OperatorRow(first.name, first.kind, first.work, count, seconds, first.kernel)
    return found
