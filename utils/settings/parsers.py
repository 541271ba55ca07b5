"""Readers of the text of one setting. Each returns a parse function and a text that describes the allowed values.

A parse function raises ValueError or KeyError for a text that is not allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any


def integer(minimum: int, maximum: int | None = None) -> tuple[Callable[[str], int], str]:
    """Return the reader of a whole number from `minimum`, to `maximum` if there is one."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text) or int(text) < minimum or int(text) > (maximum or int(text)):
            raise ValueError
        return int(text)

    return parse, f"a whole number from {minimum}" + (f" to {maximum}" if maximum else "")


def number(minimum: float, *, above: bool = False, below: float = math.inf) -> tuple[Callable[[str], float], str]:
    """Return the reader of a number from `minimum` (with `above`, greater than it) and less than `below`."""

    def parse(text: str) -> float:
        number = float(text)
        if not minimum <= number < below or (above and number == minimum) or "_" in text:
            raise ValueError
        return number

    limit = "" if below == math.inf else f" and below {below:g}"
    return parse, f"a number {'above' if above else 'from'} {minimum:g}{limit}"


def choice(*allowed: str) -> tuple[Callable[[str], str], str]:
    """Return the reader of one of the words in `allowed`."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return parse, ", ".join(allowed)


def list_of(*allowed: str) -> tuple[Callable[[str], tuple[str, ...]], str]:
    """Return the reader of a comma list of the words in `allowed`, each at most once; `all` only alone."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if not set(names) <= set(allowed) or len(set(names)) != len(names) or ("all" in names and len(names) > 1):
            raise ValueError
        return names

    return parse, f"all, or a comma list of {', '.join(name for name in allowed if name != 'all')}"


def numbers() -> tuple[Callable[[str], tuple[int, ...]], str]:
    """Return the reader of a comma list of whole numbers from 0, each at most once; it sorts them."""

    def parse(text: str) -> tuple[int, ...]:
        if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
            raise ValueError
        found = tuple(sorted(map(int, text.split(","))))
        if len(set(found)) != len(found):
            raise ValueError
        return found

    return parse, "a comma list of whole numbers from 0"


def flag() -> tuple[Callable[[str], bool], str]:
    """Return the reader of true or false."""

    def parse(text: str) -> bool:
        return {"true": True, "1": True, "false": False, "0": False}[text]

    return parse, "true, false, 1 or 0"


def flag_or(yes: str, no: str, *others: str) -> tuple[Callable[[str], str], str]:
    """Return the reader of true (`yes`), false (`no`), or one of the words in `others`."""
    known = {"true": yes, "1": yes, "false": no, "0": no} | {word: word for word in others}

    def parse(text: str) -> str:
        return known[text]

    return parse, f"true, false, {', '.join(others)}, 1 or 0"


def matching(pattern: str, allowed: str) -> tuple[Callable[[str], str], str]:
    """Return the reader of a text that matches the regular expression `pattern` whole."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return parse, allowed


def or_none(word: str, inner: tuple[Callable[[str], Any], str]) -> tuple[Callable[[str], Any], str]:
    """Return the reader of `word`, which gives None, or of what `inner` reads."""

    def parse(text: str) -> Any:
        return None if text == word else inner[0](text)

    return parse, f"{word or 'empty'}, or {inner[1]}"


def flags() -> tuple[Callable[[str], tuple[str, ...]], str]:
    """Return the reader of a comma list of command-line options, e.g. `--exclusive,--mem=0`."""

    def parse(text: str) -> tuple[str, ...]:
        flags = tuple(re.split(r",(?=--)", text)) if text else ()
        if not all(re.fullmatch(r"--[a-z][a-z-]*(=[^\s]+)?", flag) for flag in flags):
            raise ValueError
        return flags

    return parse, "empty, or a comma list of --flag and --flag=value"


_OF_PATH = r"[^\s$'\"\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
PATH = matching(rf"{_OF_PATH}(?: +{_OF_PATH})*", "a path in UTF-8 without quotes, $ and control characters")
"""A settings file takes one without spaces: bash and `docker --env-file` read it too."""
REPO = matching(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", "owner/name on the hub")
HOST = matching(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*", "a host name or address")
WORD = matching(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*", "a name of Slurm")
TIME = matching(r"[0-9][0-9:-]*", "a time of Slurm, e.g. 04:00:00")
NAME = matching(r"[A-Za-z0-9_][\w./-]*", "letters, digits, . _ / -")
