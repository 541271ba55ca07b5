"""Tables and numbers for the terminal and for markdown, with untrusted text made harmless. Standard library only."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import TextIO

from utils import redact
from utils.errors import counted as counted, in_one_line

_GAP = "  "
_UNBROKEN = 20
"""Longest word, such as a number, that is never broken to make a table narrower."""
_COLOURS = {"REJECTED": "31", "valid": "32", "ok": "32", "oom": "31", "failed": "31", "timeout": "31", "nan": "31"}
_COLOURS |= {"NOT COMPARABLE": "31", "not comparable": "31", "undecided": "33"}
BOLD, NORMAL = "\x1b[1m", "\x1b[0m"
"""Sequences around a word that only a terminal shows; no text of a result can hold them, see `plain`."""

LONGEST = 10_000
"""Characters of a text in a report; compare.json has the whole of it."""
MARGIN = 2000
"""Characters after them that are searched too, so that a secret at the end is recognised as a whole."""
_MARKED = re.compile(r"[\\`*\[\]~$]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that markdown interprets; an underscore only where it is not inside a word."""
_BLOCK = re.compile(r"^(\d{1,9}(?=[.)](?:\s|$))|(?=#{1,6}(?:\s|$)|[-+=]\s|-[\s-]*-\s*$|=+\s*$))")
"""Place at the start of a text where a heading, a list, a line or a number would begin."""
_REFERENCES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "&#124;",
    "://": ":&#47;/",
    "www.": "www&#46;",
}
"""Character references in place of characters that renderers treat differently; the ampersand comes first."""


def plain(text: object) -> str:
    """Return `text` on one line, without secrets.

    Control and invisible characters become escapes such as `\\n` and `\\x1b`.
    """
    return _plain(str(text))


@lru_cache(maxsize=1 << 15)
def _plain(text: str) -> str:
    """Cached: a report repeats names and reasons many times, and a search for secrets takes 20 microseconds."""
    # a log may have put a token into a reason
    shown = redact.text(text[: LONGEST + MARGIN])
    if len(text) > LONGEST:
        shown = f"{shown[:LONGEST]}... ({len(text):,} characters)"
    return in_one_line(shown)


def not_written(place: Path, error: Exception, advice: str = "") -> int:
    """Print why the output at `place` cannot be written; return the exit code of a command for it."""
    print(f"error: {plain(place)}: cannot be written: {plain(error)}{advice}", file=sys.stderr)
    return 1


def number(value: float, digits: int = 4, flag: str = "") -> str:
    """Return `value` with so many significant digits; from 1000 on as a whole number with thousands separators.

    `flag` is one of Python's format specification: `+` for a sign before every number, `#` for zeros at its end.
    """
    return format(value, f"{flag},.0f" if abs(value) >= 1000 else f"{flag}.{digits}g").rstrip(".")


def cut(text: str, characters: int = 60) -> str:
    """Return `text`, shortened to `characters`."""
    return text if len(text) <= characters else text[: characters - 3] + "..."


def wrapped(text: str, lines: int, characters: int) -> list[str]:
    """Return `text` as at most `lines` lines of `characters`."""
    return textwrap.wrap(plain(text), characters, max_lines=lines, placeholder=" ...")


def markdown_text(text: object) -> str:
    """Return `text` escaped, so that markdown, its tables and HTML show it literally, also at the start of a line."""
    shown = _MARKED.sub(lambda match: "\\" + match[0], plain(text).lstrip())
    shown = _BLOCK.sub(r"\1\\", shown, count=1)
    # Renderers disagree on a backslash before a pipe, and agree on a character reference. An address becomes no link.
    for characters, reference in _REFERENCES.items():
        shown = shown.replace(characters, reference)
    return shown


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a markdown table; every cell is escaped, also those of the header."""
    lines = [" | ".join(map(markdown_text, row)) for row in (header, *rows)]
    lines.insert(1, " | ".join(["---"] * len(header)))
    return "\n".join(f"| {line} |" for line in lines)


def bullets(lines: Sequence[str]) -> str:
    """Return a markdown list; every line is escaped."""
    return "\n".join(f"- {markdown_text(line)}" for line in lines)


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> str:
    """Return a table `width` characters wide, or wider where numbers need it; long cells are wrapped."""
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    widths = _fitted(list(zip(*cells, strict=True)), width)
    cells.insert(1, ["-" * size for size in widths])
    lines = []
    for row in cells:
        columns = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*columns, fillvalue=""):
            lines.append(_GAP.join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)


def shown_on(stream: TextIO, text: str) -> str:
    """Return `text` with its status words in colour and bold words as they are, or without both.

    Colour is for a terminal that shows it where NO_COLOR (no-color.org) is not set.
    """
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text.replace(BOLD, "").replace(NORMAL, "")
    words = "|".join(_COLOURS)
    return re.sub(rf"(?<![\w/])({words})(?![\w/])", lambda m: f"\x1b[{_COLOURS[m[0]]}m{m[0]}{NORMAL}", text)


def _fitted(columns: Sequence[Sequence[str]], total: int) -> list[int]:
    """Return the widths of columns of these cells; the widest that can still shrink is narrowed until all fit."""
    widths, narrowest = [], []
    for column in columns:
        widths.append(max(map(len, column)))
        words = " ".join(column).split()
        narrowest.append(min(_UNBROKEN, max(map(len, words), default=0)))
    # one column at a time: the widest can lose most
    while sum(widths) + len(_GAP) * (len(widths) - 1) > total and widths != narrowest:
        shrinking = [place for place, least in enumerate(narrowest) if widths[place] > least]
        widths[max(shrinking, key=lambda place: widths[place])] -= 1
    return widths
