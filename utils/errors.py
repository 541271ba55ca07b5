"""Errors that several rooms raise and catch: bad settings and bad training data; and parts of their messages.

Bad input is quoted, and the known word that a mistyped one is closest to is suggested. Standard library only.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any

from utils import redact

QUOTED_CHARACTERS = 200
"""Limit of a quotation of bad input in an error message."""
_STRING_CHARACTERS = 70
_BLANK_LETTERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and signs that Unicode counts as printable, and that show nothing."""


class _Quotation(reprlib.Repr):
    """Representation that visits only the first elements and levels, and keeps only the start of a string."""

    def repr_str(self, x: str, level: int) -> str:
        # never the end alone: without its first letters a secret is not recognised
        return repr(shortened(x, _STRING_CHARACTERS))


def quoted(value: Any) -> str:
    """Return the representation of a bad value of any size and depth, shortened for an error message."""
    return shortened(_Quotation().repr(value))


def shortened(text: str, limit: int = QUOTED_CHARACTERS) -> str:
    """Return a text for an error message, without what exceeds `limit` characters."""
    if len(text) <= limit:
        return text
    return text[:limit] + "..."


def in_one_line(text: str) -> str:
    """Return a text with control and invisible characters, also those of a file name, as escapes such as `\\n`."""
    if text.isprintable() and not _BLANK_LETTERS.intersection(text):
        return text
    letters = []
    for letter in text:
        if not letter.isprintable() or letter in _BLANK_LETTERS:
            letter = letter.encode("unicode_escape").decode("ascii")
        letters.append(letter)
    return "".join(letters)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which gets an s unless the number is 1: `1 run`, `3 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from or in the handling of, each once."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


class _UsersError(ValueError):
    """An error whose message is for users: one line that controls no terminal and shows no secret."""

    def __str__(self) -> str:
        return in_one_line(redact.text(super().__str__()))


class DataError(_UsersError):
    """Training data are not as required; the message states where, what was got and wanted, and what to do."""


class UnusableError(DataError):
    """An input cannot be used at all: a missing file, a tokenizer without an end-of-text token."""


class ForeignFileError(UnusableError):
    """A file that the suite did not write is where an output belongs; it stays as it is."""


class ConfigError(_UsersError):
    """A setting is not allowed; the message states where, key, value, allowed values and what to do."""


CLOSE_ENOUGH = 0.6
"""Least similarity of a suggestion (difflib's ratio, 0 to 1). It admits two swapped letters in a word of three."""


def closest(got: str, known: Iterable[str], least: float = CLOSE_ENOUGH) -> str | None:
    """Return the known word that is closest to `got`, None if none is as similar as `least`.

    Case, leading dashes, `-` for `_`, and an `=...` at the end make no difference.
    """
    by_form = {_form(word): word for word in reversed([*known])}  # of two words of one form the first
    near = difflib.get_close_matches(_form(got), by_form, n=1, cutoff=least)
    return by_form[near[0]] if near else None


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """Return `; did you mean TRAIN_ITERS?`, the end of an error message, or an empty text if no known word is close."""
    near = closest(got, known)
    if near is None or near == got:
        return ""
    return f"; did you mean {near}?"


def _form(word: str) -> str:
    return word.casefold().removesuffix("=...").strip("-_").replace("-", "_")
