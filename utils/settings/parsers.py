"""Readers of the text of one setting. Each returns a parse function and a text that describes the allowed values.

A parse function raises ValueError or KeyError for a text that is not allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
Reader = tuple[Callable[[str], Value], str]
"""Parse function of a text, and the description of the allowed values."""


def integer(minimum: int, maximum: int | None = None) -> Reader[int]:
    """Return the reader of a whole number from `minimum`, to `maximum` if there is one."""
    limit = "" if maximum is None else f" to {maximum}"

    def parse(text: str) -> int:
        # int() takes 1_000, blanks and digits of other scripts, and 18 digits fit every reader
        if re.fullmatch(r"\d{1,18}", text) is None:
            raise ValueError
        value = int(text)
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError
        return value

    return parse, f"a whole number from {minimum}{limit}"


def number(minimum: float, *, above: bool = False, below: float = math.inf) -> Reader[float]:
    """Return the reader of a number from `minimum` (with `above`, greater than it) and less than `below`."""
    limit = "" if below == math.inf else f" and below {below:g}"

    def parse(text: str) -> float:
        value = float(text)
        # bash and docker --env-file read the settings too, and know no 1_000
        if "_" in text or not minimum <= value < below or (above and value == minimum):
            raise ValueError
        return value

    return parse, f"a number {'above' if above else 'from'} {minimum:g}{limit}"


def choice(*allowed: str) -> Reader[str]:
    """Return the reader of one of the words in `allowed`."""
    return {word: word for word in allowed}.__getitem__, ", ".join(allowed)


def list_of(*allowed: str) -> Reader[tuple[str, ...]]:
    """Return the reader of a comma list of the words in `allowed`, each at most once; `all` only alone."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if not set(names) <= set(allowed) or len(set(names)) < len(names):
            raise ValueError
        if "all" in names and len(names) > 1:
            raise ValueError
        return names

    words = ", ".join(name for name in allowed if name != "all")
    return parse, f"all, or a comma list of {words}"


def numbers() -> Reader[tuple[int, ...]]:
    """Return the reader of a comma list of whole numbers from 0, each at most once; it sorts them."""

    def parse(text: str) -> tuple[int, ...]:
        if re.fullmatch(r"\d{1,9}(,\d{1,9})*", text) is None:
            raise ValueError
        values = sorted(int(part) for part in text.split(","))
        if len(set(values)) < len(values):
            raise ValueError
        return tuple(values)

    return parse, "a comma list of whole numbers from 0"


def flag() -> Reader[bool]:
    """Return the reader of true or false."""
    return {"true": True, "1": True, "false": False, "0": False}.__getitem__, "true, false, 1 or 0"


def flag_or(yes: str, no: str, *others: str) -> Reader[str]:
    """Return the reader of true (`yes`), false (`no`), or one of the words in `others`."""
    known = {"true": yes, "1": yes, "false": no, "0": no} | {word: word for word in others}
    return known.__getitem__, f"true, false, {', '.join(others)}, 1 or 0"


def matching(pattern: str, allowed: str) -> Reader[str]:
    """Return the reader of a text that matches the regular expression `pattern` whole."""

    def parse(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError
        return text

    return parse, allowed


def or_none(word: str, inner: Reader[Value]) -> Reader[Value | None]:
    """Return the reader of `word`, which gives None, or of what `inner` reads."""
    parse_inner, allowed = inner

    def parse(text: str) -> Value | None:
        return None if text == word else parse_inner(text)

    return parse, f"{word or 'empty'}, or {allowed}"


def flags() -> Reader[tuple[str, ...]]:
    """Return the reader of a comma list of command-line options, e.g. `--exclusive,--mem=0`."""

    def parse(text: str) -> tuple[str, ...]:
        # a comma may stand inside of a value: --mail-type=END,FAIL
        options = tuple(re.split(r",(?=--)", text)) if text else ()
        for option in options:
            if re.fullmatch(r"--[a-z][a-z-]*(=[^\s]+)?", option) is None:
                raise ValueError
        return options

    return parse, "empty, or a comma list of --flag and --flag=value"


_OF_PATH = r"[^\s$'\"\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
PATH = matching(rf"{_OF_PATH}(?: +{_OF_PATH})*", "a path in UTF-8 without quotes, $ and control characters")
"""A settings file takes one without spaces: bash and `docker --env-file` read it too."""
REPO = matching(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", "owner/name on the hub")
HOST = matching(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*", "a host name or address")
WORD = matching(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*", "a name of Slurm")
TIME = matching(r"[0-9][0-9:-]*", "a time of Slurm, e.g. 04:00:00")
NAME = matching(r"[A-Za-z0-9_][\w./-]*", "letters, digits, . _ / -")
