"""Blocks as text for the terminal and as Markdown."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evaluate.report.blocks import HINT, LIST, Block, Card, Cell, Folded, Heading, Lines, Table, Value, flat
from evaluate.report.tables import BOLD, NORMAL, bullets, markdown_table, markdown_text, plain, text_table
from utils.arguments import VERSION
from utils.own_files import Recogniser, content_of, is_png, json_with

WIDEST, UNBROKEN = 100, 100_000
"""Columns of text on a wide terminal, or on none; and of lines that other programs read, or that are to be copied."""
HOW = "Formula and source, or why unknown"


def terminal_width() -> int:
    """Return the columns of the terminal, at most WIDEST; that too where there is none."""
    return min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)


def terminal(blocks: Sequence[Block], width: int) -> str:
    """Return the blocks as plain text, about `width` characters wide."""
    return "\n\n".join(filter(None, (_terminal(block, width) for block in blocks)))


def markdown(blocks: Sequence[Block]) -> str:
    """Return the blocks as Markdown."""
    texts: list[str] = []
    for block in flat(blocks):
        texts += filter(None, _markdown(block))
    return "\n\n".join([*texts, f"Made by tprimat {VERSION}.\n"])


def _terminal(block: Block, width: int) -> str:
    match block:
        case Heading(text=text, level=level):
            return plain(text) if level > 1 else ""
        case Lines(lines=lines, style=style):
            mark = "- " if style == LIST else ""
            below = "  " if style in (LIST, HINT) else ""
            return "\n".join(_filled(line, width, mark, below) for line in lines)
        case Card():
            return "\n".join(_card(block, width))
        case Table() if block.rows:
            cells = [[cell.text if isinstance(cell, Value) else cell for cell in row] for row in block.rows]
            return _fitting_table(block.header, cells, width)
    return ""


def _card(card: Card, width: int) -> Iterator[str]:
    # the sequences take no column
    if card.is_claim and card.is_proven:
        yield _filled(f": {card.statement}", width, card.word).replace(card.word, f"{BOLD}{card.word}{NORMAL}", 1)
    else:
        yield _filled(card.opening, width)
    if card.rest:
        yield _filled(card.rest, width, "  ", "  ")
    doubts = [f"weakened: {doubt}" for doubt in card.doubts]
    # a terminal has room for one
    if len(doubts) > 1:
        doubts = [f"weakened by {len(doubts)} observations, listed in the report"]
    for line in (*doubts, *card.support):
        yield _filled(line, width, "  - ", "    ")


def _fitting_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Return a table without the last columns that have no room; the first two always stay."""
    # the columns are ordered by what a reader needs first
    for count in range(len(header), 2, -1):
        text = text_table(header[:count], [row[:count] for row in rows], width)
        if max(map(len, text.splitlines())) <= width:
            return text
    return text_table(header[:2], [row[:2] for row in rows], width)


def _filled(line: str, width: int, first: str = "", below: str = "  ") -> str:
    return textwrap.fill(plain(line), width, initial_indent=first, subsequent_indent=below, break_on_hyphens=False)


def _markdown(block: Block) -> Iterator[str]:
    match block:
        case Heading(text=text, level=level):
            yield f"{'#' * level} {markdown_text(text)}"
        case Lines(lines=lines, style=style):
            yield bullets(lines) if style == LIST else "\n\n".join(map(markdown_text, lines))
        case Card():
            if block.is_claim and block.is_proven:
                yield f"**{block.word}:** {markdown_text(block.statement)}."
            else:
                yield f"{markdown_text(block.opening)}."
            lines = [f"weakened: {doubt}" for doubt in block.doubts] + list(block.support)
            if block.rest:
                lines.insert(0, block.rest)
            yield bullets(lines)
        case Table() if block.rows:
            yield _table(block)
        case Folded():
            yield markdown_text(f"{block.summary}.")


def _table(table: Table) -> str:
    """Return a table; figures with a formula have a last column for it."""
    rows, with_formulas = [], []
    for row in table.rows:
        formulas = dict.fromkeys(cell.how for cell in row if isinstance(cell, Value))
        cells = list(map(_cell, row))
        rows.append(cells)
        with_formulas.append([*cells, "; or ".join(formulas)])
    if any(row[-1] for row in with_formulas):
        return markdown_table([*table.header, HOW], with_formulas)
    return markdown_table(table.header, rows)


def _cell(cell: Cell) -> str:
    if not isinstance(cell, Value):
        return cell
    return f"{cell.text}, {cell.range}" if cell.range else cell.text


# Recognition of compare.{json,md,html,png}, also of earlier versions: only these are replaced.

TITLE = "Comparison of training runs"
"""Title of every compare.html."""
HEADING, ADVICE = "Comparison", "shows every rule it breaks"
"""Title of every compare.md, and words of its last section, the method."""


def _is_markdown(path: Path) -> bool:
    content = content_of(path)
    return content.startswith(f"# {HEADING}\n\n".encode()) and ADVICE.encode() in content


def html_titled(title: str) -> Recogniser:
    """Return a recogniser of pages with this title."""
    return lambda path: f"<title>{title}</title>".encode() in content_of(path)


RECOGNISERS: Mapping[str, Recogniser] = {
    "json": json_with("comparison_version", "groups"),
    "md": _is_markdown,
    "html": html_titled(TITLE),
    "png": is_png,
}
"""Recogniser of each format."""
