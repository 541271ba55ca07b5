"""Checked reading of a JSON object: each value is taken by its key, and a bad one is an error that names it.

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from utils.errors import quoted
from utils.input_files import InputFileError, json_of
from utils.results.schema import time_of

LARGEST_COUNT = 1 << 63


def json_in(path: Path, error: type[ValueError]) -> Any:
    """Return the JSON in a file; raise `error`, which names it, if it cannot be read."""
    try:
        return json_of(path)
    except InputFileError as fault:
        raise error(f"{path}: cannot be read as JSON: {fault}") from fault


def is_number(value: Any) -> bool:
    """Check for a finite number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any, least: int) -> bool:
    """Check for a whole number from `least`."""
    return type(value) is int and value >= least


def is_text(value: Any) -> bool:
    """Check for a text that is not empty."""
    return isinstance(value, str) and value != ""


@dataclass(frozen=True)
class Fields:
    """The values of one object; a bad one raises `error` with the message `<where>: <key>: got ..., wanted ...`."""

    content: Any
    where: str
    error: type[ValueError]

    def __post_init__(self) -> None:
        if not isinstance(self.content, dict):
            raise self.error(f"{self.where}: got {quoted(self.content)}, wanted an object")

    def take(self, key: str, is_good: Callable[[Any], bool], wanted: str) -> Any:
        """Return the value of a key, None for a missing one, if it is good."""
        value = self.content.get(key)
        if not is_good(value):
            raise self.error(f"{self.where}: {key}: got {quoted(value)}, wanted {wanted}")
        return value

    def text(self, key: str) -> str:
        """Return a text that is not empty."""
        return str(self.take(key, is_text, "a text"))

    def number(self, key: str, *, above_zero: bool = False) -> float:
        """Return a finite number from 0, or above it."""
        if above_zero:
            return float(self.take(key, lambda value: is_number(value) and value > 0, "a number above 0"))
        return float(self.take(key, lambda value: is_number(value) and value >= 0, "a number from 0"))

    def whole(self, key: str, most: int = LARGEST_COUNT) -> int:
        """Return a whole number from 1."""
        return int(self.take(key, lambda value: is_whole(value, 1) and value <= most, "a whole number from 1"))

    def objects(self, key: str) -> dict[str, Any]:
        """Return an object."""
        return dict(self.take(key, lambda value: isinstance(value, dict), "an object"))

    def items(self, key: str) -> list[Any]:
        """Return a list."""
        return list(self.take(key, lambda value: isinstance(value, list), "a list"))

    def time(self, key: str) -> datetime:
        """Return a time in UTC."""
        try:
            return time_of(self.content.get(key))
        except ValueError as fault:
            raise self.error(f"{self.where}: {key}: got {quoted(self.content.get(key))}, wanted a UTC time") from fault
