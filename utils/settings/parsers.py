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


def _reader(is_allowed: Callable[[str], object], convert: Callable[[str], Value], allowed: str) -> Reader[Value]:
    def parse(text: str) -> Value:
        if not is_allowed(text):
            raise ValueError
        return convert(text)

    return parse, allowed


def integer(minimum: int, maximum: int | None = None) -> Reader[int]:
    """Return the reader of a whole number from `minimum`, to `maximum` if there is one."""
    return _reader(
        lambda text: re.fullmatch(r"\d{1,18}", text) and minimum <= int(text) <= (maximum or int(text)),
        int,
        f"a whole number from {minimum}" + (f" to {maximum}" if maximum else ""),
    )


def number(minimum: float, *, above: bool = False, below: float = math.inf) -> Reader[float]:
    """Return the reader of a number from `minimum` (with `above`, greater than it) and less than `below`."""
    limit = "" if below == math.inf else f" and below {below:g}"
    return _reader(
        lambda text: minimum <= float(text) < below and not (above and float(text) == minimum) and "_" not in text,
        float,
        f"a number {'above' if above else 'from'} {minimum:g}{limit}",
    )


def choice(*allowed: str) -> Reader[str]:
    """Return the reader of one of the words in `allowed`."""
    return _reader(lambda text: text in allowed, str, ", ".join(allowed))


def list_of(*allowed: str) -> Reader[tuple[str, ...]]:
    """Return the reader of a comma list of the words in `allowed`, each at most once; `all` only alone."""

    def is_allowed(text: str) -> bool:
        names = text.split(",")
        return set(names) <= set(allowed) and len(set(names)) == len(names) and ("all" not in names or names == ["all"])

    words = ", ".join(name for name in allowed if name != "all")
    return _reader(is_allowed, lambda text: tuple(text.split(",")), f"all, or a comma list of {words}")


def numbers() -> Reader[tuple[int, ...]]:
    """Return the reader of a comma list of whole numbers from 0, each at most once; it sorts them."""
    return _reader(
        lambda text: (
            re.fullmatch(r"\d{1,9}(,\d{1,9})*", text) and len(set(map(int, text.split(",")))) == len(text.split(","))
        ),
        lambda text: tuple(sorted(map(int, text.split(",")))),
        "a comma list of whole numbers from 0",
    )


def flag() -> Reader[bool]:
    """Return the reader of true or false."""
    return {"true": True, "1": True, "false": False, "0": False}.__getitem__, "true, false, 1 or 0"


def flag_or(yes: str, no: str, *others: str) -> Reader[str]:
    """Return the reader of true (`yes`), false (`no`), or one of the words in `others`."""
    known = {"true": yes, "1": yes, "false": no, "0": no} | {word: word for word in others}
    return known.__getitem__, f"true, false, {', '.join(others)}, 1 or 0"


def matching(pattern: str, allowed: str) -> Reader[str]:
    """Return the reader of a text that matches the regular expression `pattern` whole."""
    return _reader(re.compile(pattern).fullmatch, str, allowed)


def or_none(word: str, inner: Reader[Value]) -> Reader[Value | None]:
    """Return the reader of `word`, which gives None, or of what `inner` reads."""
    parse, allowed = inner
    return lambda text: None if text == word else parse(text), f"{word or 'empty'}, or {allowed}"


def flags() -> Reader[tuple[str, ...]]:
    """Return the reader of a comma list of command-line options, e.g. `--exclusive,--mem=0`."""

    def convert(text: str) -> tuple[str, ...]:
        return tuple(re.split(r",(?=--)", text)) if text else ()

    return _reader(
        lambda text: all(re.fullmatch(r"--[a-z][a-z-]*(=[^\s]+)?", one) for one in convert(text)),
        convert,
        "empty, or a comma list of --flag and --flag=value",
    )


_OF_PATH = r"[^\s$'\"\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
PATH = matching(rf"{_OF_PATH}(?: +{_OF_PATH})*", "a path in UTF-8 without quotes, $ and control characters")
"""A settings file takes one without spaces: bash and `docker --env-file` read it too."""
REPO = matching(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", "owner/name on the hub")
HOST = matching(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*", "a host name or address")
WORD = matching(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*", "a name of Slurm")
TIME = matching(r"[0-9][0-9:-]*", "a time of Slurm, e.g. 04:00:00")
NAME = matching(r"[A-Za-z0-9_][\w./-]*", "letters, digits, . _ / -")
