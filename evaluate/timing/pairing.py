"""Two breakdowns side by side: their operators aligned by kind, computation and shape, with the difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from evaluate.timing.breakdown import Breakdown
from evaluate.timing.tables import OperatorRow


@dataclass(frozen=True)
class Aligned:
    """An operator of both sides: the same computation with the same sizes in the same phase; kernels may differ."""

    kind: str
    family: str
    sizes: str
    a: OperatorRow | None
    """On the first side; None if it does not run there."""
    b: OperatorRow | None
    phase: str | None = None
    """One of PHASES; None where a trace does not tell."""

    @property
    def difference_seconds(self) -> float:
        """Seconds a step that the second side takes more than the first."""
        return (self.b.seconds if self.b else 0.0) - (self.a.seconds if self.a else 0.0)


def align(a: Breakdown, b: Breakdown) -> list[Aligned]:
    """Return the operators of both sides, the largest difference first."""
    left, right = _by_key(a.operators), _by_key(b.operators)
    found = [Aligned(*key[:3], left.get(key), right.get(key), key[3]) for key in {**left, **right}]
    return sorted(found, key=lambda one: (-abs(one.difference_seconds), one.kind, one.family, one.sizes))


def _by_key(rows: Iterable[OperatorRow]) -> dict[tuple[str, str, str, str | None], OperatorRow]:
    """Return the rows by kind, family, sizes and phase; equal ones become one, named after the longest."""
    found: dict[tuple[str, str, str, str | None], OperatorRow] = {}
    for row in rows:  # the longest first
        key = (row.kind, row.work.family, row.work.sizes, row.phase)
        first = found.setdefault(key, row)
        if first is not row:
            found[key] = replace(first, count=first.count + row.count, seconds=first.seconds + row.seconds)
    return found
