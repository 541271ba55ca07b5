"""Values that no honest result has, and the places of a result where they may stand."""

from __future__ import annotations

import copy
import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DIGITS = "@a number of 5,000 digits@"
LARGE = "@a number that no float holds@"
DEEP = "@100,000 brackets@"
TWICE = "@an object with a key twice@"
LITERALS = {DIGITS: "9" * 5000, LARGE: "1e400", DEEP: "[" * 100_000 + "]" * 100_000, TWICE: '{"a": 1, "a": 2}'}
"""JSON that json.dumps does not write, by the text that stands for it."""
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -0.0, 0.5, 7, 1_000_000, 10**12, 2**63 - 1, 2**63, 10**300),
    *(1e-310, 5e-324, 1e-12, 1e18, 1e308, -1e308, math.nan, math.inf, -math.inf),
    *("", " ", "x", "N/A", "-1", "1e400", "\0", "\ud800", "\x1b[31mred", "a\nb", "\u202eabc", "x" * 5000),
    *(
        "2026-11-21T00:00:00",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "<script>",
        "$x^2$",
        "| a | b |",
    ),
    *([], [[]], [None], ["x"], [{}], [1, "x"], [1e308] * 3, {}, {"x": None}, {"x": {"x": []}}, {"": 0}),
    {"reasons": 1},
    *LITERALS,
)
NAMES = (
    "<script>alert(1)</script> | `x` *y* $\\frac{1\nend",
    "\x1b[31mred\x1b[0m\u202eabc",
    "\u0410MD Instinct",
    "| a | b |",
    "x" * 300,
)
"""Names of devices, hosts and labels that break a table, a page or a terminal, where they are not shown as text."""
Place = tuple[Any, ...]


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Yield the place of each value inside an object or a list; of a list only its ends and its middle."""
    inside = list(value) if isinstance(value, dict) else []
    if isinstance(value, list) and value:
        inside = sorted({0, len(value) // 2, len(value) - 1})
    for key in inside:
        yield (*here, key)
        yield from places(value[key], (*here, key))


def changed(result: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """Return a copy of a result with the value at a place replaced."""
    copied = copy.deepcopy(result)
    inside = copied
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return copied


def without(result: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return a copy of a result without the key or the element at a place."""
    copied = copy.deepcopy(result)
    inside = copied
    for key in place[:-1]:
        inside = inside[key]
    del inside[place[-1]]
    return copied


def as_text(content: Any) -> str:
    """Return the JSON of nasty content."""
    text = json.dumps(content)
    for name, literal in LITERALS.items():
        text = text.replace(json.dumps(name), literal)
    return text


@contextmanager
def no_hang(seconds: int = 60) -> Iterator[None]:
    """Raise an error in a block that does not end; it guards against waiting forever and measures nothing."""

    def stop(*_: object) -> None:
        raise AssertionError(f"nothing ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
