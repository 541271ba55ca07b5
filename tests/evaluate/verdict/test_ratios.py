"""A ratio is written in one form, and rounding never puts it outside its own interval."""

from __future__ import annotations

import random

import pytest

from evaluate.verdict.ratios import with_interval, written


@pytest.mark.parametrize(
    ("ratio", "low", "high", "text"),
    [
        (1.1037, 1.0806, 1.1211, "1.10x (1.08 to 1.12)"),
        (1.112, 1.1118, 1.1124, "1.1120x (1.1118 to 1.1124)"),
        (0.998, 0.995, 1.001, "0.998x (0.995 to 1.001)"),
        (152.9, 140.0, 160.0, "153x (140 to 160)"),
        (0.00123, 0.0011, 0.0013, "0.00123x (0.00110 to 0.00130)"),
        (1.0, 1.0, 1.0, "1.00x (1.00 to 1.00)"),
        (1.104, None, None, "1.10x"),
        (0.0004, None, None, "0.000400x"),
    ],
)
def test_a_ratio_has_three_digits_and_more_where_its_interval_is_narrow(
    ratio: float, low: float | None, high: float | None, text: str
) -> None:
    assert with_interval(ratio, low, high) == text


def test_a_rounded_ratio_lies_in_its_rounded_interval() -> None:
    """The case of two decimals beside three: 1.1118 printed as 1.11 lies below 1.1115 printed as 1.112."""
    draw = random.Random(15)
    for _ in range(2000):
        ratio = 10 ** draw.uniform(-3, 3)
        low, high = ratio * (1 - draw.random() ** 4), ratio * (1 + draw.random() ** 4)
        middle, start, end = map(float, written(ratio, low, high))
        assert start <= middle <= end, (ratio, low, high)
