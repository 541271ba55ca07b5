"""Suggestion of the known word that a mistyped one is closest to. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
    return "" if near is None or near == got else f"; did you mean {near}?"


def _form(word: str) -> str:
    return word.casefold().removesuffix("=...").strip("-_").replace("-", "_")
