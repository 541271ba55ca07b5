"""The parts of a report. Each report is a list of these blocks, and every renderer shows all reports.

Blocks hold facts: numbers with their runs, lines, functions that draw. `renderers.py` has the terminal and Markdown,
`evaluate/report/page.py` HTML, `pictures.py` PNG.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.report.tables import number

DIGITS, LOSS_DIGITS = 3, 4
"""Significant digits of times, rates and memory in tables, and those of losses."""
TEXT, LIST, HINT = "text", "list", "hint"
"""Styles of lines: paragraphs, a list, and paragraphs that explain what stands beside them."""


@dataclass(frozen=True)
class Value:
    """A figure in a table, with those of the runs behind it."""

    value: float | None
    runs: Sequence[float] = ()
    how: str = ""
    """Formula and source, or the reason why `value` is unknown."""
    label: str = ""
    """Name of the figure for screen readers, if it has a formula."""
    digits: int = DIGITS

    @property
    def text(self) -> str:
        """The figure alone; `unknown` or a dash for none."""
        if self.value is None:
            return "unknown" if self.how else "-"
        return number(self.value, self.digits, "#")

    @property
    def range(self) -> str:
        """`1.05 to 1.12`, the smallest and the largest run; empty if both print alike."""
        ends = [number(end, self.digits, "#") for end in (min(self.runs), max(self.runs))] if self.runs else ["", ""]
        return "" if ends[0] == ends[1] else " to ".join(ends)


Cell = str | Value


@dataclass(frozen=True)
class Heading:
    """A title; one with an anchor is in the navigation of a page if it is of level 2."""

    text: str
    level: int = 2
    anchor: str = ""


@dataclass(frozen=True)
class Lines:
    """Lines of one style."""

    lines: Sequence[str]
    style: str = TEXT


@dataclass(frozen=True)
class Card:
    """A verdict on one subject, with what it rests on."""

    word: str
    statement: str
    title: str = ""
    basis: str = ""
    doubts: Sequence[str] = ()
    """Observations that weaken the verdict."""
    support: Sequence[str] = ()
    kind: str = "plain"
    """Class of the card in page.css."""
    sign: str = ""
    """Sign before the word on a page, so that no verdict is told by its colour alone."""
    figure: Sequence[str] = ()
    """The number that decides, in large letters on a page, and its interval."""
    is_claim: bool = True
    """True if the word opens the statement; otherwise the statement holds it."""
    is_proven: bool = True
    anchor: str = ""
    more: str = ""
    """Anchor of more about the subject."""

    @property
    def opening(self) -> str:
        """Word and statement; the statement alone if it holds the word itself."""
        return f"{self.word}: {self.statement}" if self.is_claim else self.statement

    @property
    def rest(self) -> str:
        """Title and basis."""
        return ": ".join(filter(None, (self.title, self.basis)))


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it, and columns from `first_number` on hold numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    first_number: int = 100
    words: Sequence[int] = ()
    """Columns from `first_number` on that hold words all the same."""


@dataclass(frozen=True)
class Picture:
    """One panel: `draw` draws into axes of matplotlib, which are `height` inches high."""

    label: str
    """What the picture shows, for those who cannot see it."""
    height: float
    draw: Callable[[Any], None]


@dataclass(frozen=True)
class Pictures:
    """Panels that stand side by side where they have room; `lines` say what they show."""

    title: str
    lines: Sequence[str]
    panels: Callable[[], Sequence[Picture]]
    """Makes the panels: terminal and Markdown have none, and do not load matplotlib."""


@dataclass(frozen=True)
class Folded:
    """Blocks that a page shows on request; Markdown has the summary alone, the terminal nothing."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Details:
    """Blocks that the terminal leaves out."""

    blocks: Sequence[Block]


Block = Heading | Lines | Card | Table | Pictures | Folded | Details


def flat(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield the blocks with those that the terminal leaves out in their place."""
    for block in blocks:
        if isinstance(block, Details):
            yield from block.blocks
        else:
            yield block
