"""Lines of a log that may describe a training: found quickly, cleaned, with their position; and the numbers in them.

A file is read in small pieces, so that memory does not grow with the log. Most lines of a training log are not
iteration lines: a few words are searched in a whole piece, and only lines that hold one of them are parsed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

WORDS = (
    b"iteration",
    b"loss",
    b"....",
    b"exited with code",
    b"of parameters",
    b"padded vocab",
    b"ut of memory",
    b"world size:",
    b"initialized with",
    b"device mesh",
    b"_TFLOP/s/GPU",
)
"""Every line that a format of `utils/logs/reader.py` uses holds one of these."""
PIECE_BYTES = 1 << 17
"""Read at once: a size that stays in the cache of a core during the search for WORDS."""
LONGEST_LINE_BYTES = 1 << 20
"""A longer line is read in parts; no line of a trainer is nearly as long."""
_ANSI = re.compile(r"\x1b?\[[0-9;]*m")
"""Colours; some log shippers remove only the ESC."""
_NUMBER = re.compile(r"(-?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d*))?(?:[eE]([-+]?\d+))?")
_LARGEST_EXPONENT = 300


class Line(NamedTuple):
    """One line of a log without colours; `is_whole` is false if the file ends before the line does."""

    text: str
    path: Path
    number: int
    """From 1; carriage returns do not count."""
    is_whole: bool

    @property
    def where(self) -> str:
        """Return `name:number` for messages."""
        return f"{self.path.name}:{self.number}"


class Printed(NamedTuple):
    """A number as printed: the true value is from `value - half_unit` to `value + half_unit`."""

    value: float
    half_unit: float
    digits: int
    """Significant digits."""


def lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file that hold one of WORDS; a carriage return ends a line as well.

    Bytes that are not UTF-8 are replaced. Raises OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        first = 1
        for piece, is_last in _pieces(file):
            yield from _chosen(piece, path, first, is_last)
            first += piece.count(b"\n")


def _pieces(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield pieces that end with a line, and whether it is the last piece, which may end within a line."""
    rest = b""
    while read := file.read(PIECE_BYTES):
        piece = rest + read
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if not end and len(piece) > LONGEST_LINE_BYTES:
            end = len(piece)
        rest = piece[end:]
        if end:
            yield piece[:end], False
    if rest:
        yield rest, True


def _chosen(piece: bytes, path: Path, first: int, is_last: bool) -> Iterator[Line]:
    counted_to, number = 0, first
    for start in sorted(_starts(piece)):
        end = piece.find(b"\n", start)
        end = len(piece) if end < 0 else end
        number += piece.count(b"\n", counted_to, start)
        counted_to = start
        *parts, last = piece[start:end].rstrip(b"\r").split(b"\r")
        for part in parts:
            yield Line(_clean(part), path, number, True)
        yield Line(_clean(last), path, number, not (is_last and end == len(piece)))


def _starts(piece: bytes) -> set[int]:
    """Return the starts of the lines that hold one of WORDS."""
    starts = set()
    for word in WORDS:
        at = piece.find(word)
        while at >= 0:
            starts.add(piece.rfind(b"\n", 0, at) + 1)
            end = piece.find(b"\n", at)
            at = piece.find(word, end) if end >= 0 else -1
    return starts


def _clean(line: bytes) -> str:
    text = line.decode("utf8", "replace")
    return _ANSI.sub("", text) if "[" in text else text


def between(text: str, starts: Iterable[re.Match[str]]) -> Iterator[tuple[str, re.Match[str], str, bool]]:
    """Yield each start in a text, with what is before it and up to the next one, and whether it is the last."""
    found = list(starts)
    ends = [0, *(start.end() for start in found)]
    for place, start in enumerate(found):
        is_last = start is found[-1]
        body = text[start.end() : None if is_last else found[place + 1].start()]
        yield text[ends[place] : start.start()], start, body, is_last


def number(text: str | None, power: int = 0) -> Printed | None:
    """Return the number in `text`, times ten to the `power`; thousands commas are allowed.

    Returns None for anything else, also for NaN.
    """
    match = _NUMBER.fullmatch(text.strip()) if text else None
    if match is None:
        return None
    sign, whole, fraction, exponent_text = match.groups("")
    whole = whole.replace(",", "") if "," in whole else whole
    exponent = (int(exponent_text[:6]) if exponent_text else 0) + power
    if not -_LARGEST_EXPONENT <= exponent <= _LARGEST_EXPONENT or len(whole) > _LARGEST_EXPONENT:
        return None
    value = float(f"{sign}{whole}.{fraction}e{exponent}")
    if not math.isfinite(value):
        return None
    return Printed(value, 0.5 * 10.0 ** (exponent - len(fraction)), len((whole + fraction).lstrip("0")) or 1)


def rounded_to(digits: int, printed: Printed | None) -> Printed | None:
    """Return a number that was printed with `digits` significant digits and without trailing zeros (`{:.4}`)."""
    if printed is None or printed.value == 0:
        return printed
    magnitude = math.floor(math.log10(abs(printed.value)))
    return Printed(printed.value, 0.5 * 10.0 ** (magnitude - digits + 1), digits)


def whole_number(text: str | None) -> int | None:
    """Return the integer in `text`, thousands commas allowed; None for anything else."""
    printed = number(text)
    return int(printed.value) if printed and "." not in (text or "") and printed.value < 2**53 else None
