"""Checked reading of a JSON object by a table of its keys: a bad value is an error that names its key.

Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from utils.errors import quoted
from utils.input_files import InputFileError, json_of
from utils.results.schema import is_text, time_of

LARGEST_COUNT = 1 << 63


class Wanted(NamedTuple):
    """Rule for the value of one key; a missing key has the value None."""

    is_good: Callable[[Any], bool]
    words: str
    """Description of a good value, for messages."""
    convert: Callable[[Any], Any] = lambda value: value


def json_in(path: Path, error: type[ValueError], advice: str = "") -> Any:
    """Return the JSON in a file; raise `error`, which names it and ends with `advice`, if it cannot be read."""
    try:
        return json_of(path)
    except InputFileError as fault:
        raise error(f"{path}: cannot be read as JSON: {fault}{advice}") from fault


def checked(
    content: Any, where: str, error: type[ValueError], wanted: Mapping[str, Wanted], advice: str = ""
) -> dict[str, Any]:
    """Return the values of the keys in `wanted`, converted.

    The first bad value raises `error` with the message `<where>: <key>: got ..., wanted ...` and `advice`.
    """
    if not isinstance(content, dict):
        raise error(f"{where}: got {quoted(content)}, wanted an object{advice}")
    values = {}
    for key, rule in wanted.items():
        value = content.get(key)
        if not rule.is_good(value):
            raise error(f"{where}: {key}: got {quoted(value)}, wanted {rule.words}{advice}")
        values[key] = rule.convert(value)
    return values


def is_number(value: Any) -> bool:
    """Check for a finite number; True and False are none."""
    # True is an int of 1 in Python, and no measurement
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    """Check for a whole number from `least` to `most`."""
    return type(value) is int and least <= value <= most


def is_digest(value: Any) -> bool:
    """Check for the 64 hexadecimal digits of a SHA-256 digest."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def is_time(value: Any) -> bool:
    """Check for a time in UTC."""
    if not is_text(value):
        return False
    try:
        time_of(value)
    except ValueError:
        return False
    return True


def _is_from_zero(value: Any) -> bool:
    return is_number(value) and value >= 0


def _is_above_zero(value: Any) -> bool:
    return is_number(value) and value > 0


TEXT = Wanted(is_text, "a text")
FROM_ZERO = Wanted(_is_from_zero, "a number from 0", float)
ABOVE_ZERO = Wanted(_is_above_zero, "a number above 0", float)
WHOLE = Wanted(lambda value: is_whole(value, 1, LARGEST_COUNT), "a whole number from 1")
OBJECT = Wanted(lambda value: isinstance(value, dict), "an object")
LIST = Wanted(lambda value: isinstance(value, list), "a list")
TIME = Wanted(is_time, "a UTC time", time_of)
