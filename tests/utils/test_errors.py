"""A quotation of bad input is short, whatever the input is, and never the end of a secret without its start."""

from __future__ import annotations

import pytest

from utils.errors import DataError, quoted, shortened


def nested(depth: int) -> object:
    found: object = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value",
    ["x" * 10**7, ["x" * 1000] * 10**5, {str(number): "y" for number in range(10**5)}, nested(50_000), 10**4000],
)
def test_a_quotation_of_anything_is_short(value: object) -> None:
    assert len(quoted(value)) <= 203


@pytest.mark.parametrize("value", [None, True, 5, -1.5, "text", ["a", 1], {"a": None}, "5" * 64])
def test_a_short_value_and_a_digest_are_quoted_whole(value: object) -> None:
    assert quoted(value) == repr(value)


@pytest.mark.parametrize("before", [0, 15, 30])
def test_a_secret_that_is_cut_is_still_replaced(before: int) -> None:
    token = "hf_" + "Ab1" * 11 + "z"
    said = str(DataError(f"got {quoted('x ' * before + token + ' more' * 100)}"))
    assert token[:12] not in said or token[:30] not in said
    assert token[-12:] not in said


def test_the_start_of_a_long_text_is_kept() -> None:
    assert shortened("a" * 300) == "a" * 200 + "..." and shortened("abc", 3) == "abc"
