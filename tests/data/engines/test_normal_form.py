"""Both engines normalise every text alike that contains no guarded code point; the comparison sees a difference."""

from __future__ import annotations

import sys
import unicodedata
from itertools import islice

import pytest
from tokenizers import normalizers

from data.engines.guard import stored, why_unusable
from data.engines.normal_form import Differ, pairs, texts_to_agree, unproven
from data.engines.schemes import SCHEMES

pytestmark = pytest.mark.skipif(why_unusable() is not None, reason=str(why_unusable()))
EVERY = 307
"""Share of the combinations that are tested here; data/engines/make_guard.py tests all of them."""


@pytest.fixture(scope="module")
def differ() -> Differ:
    from data.engines.make_guard import comparison

    return comparison(next(scheme for scheme in SCHEMES if scheme.normalizes))


def guarded() -> set[int]:
    return {point for first, last in stored()["schemes"]["qwen2"] for point in range(first, last + 1)}


def test_engines_and_python_agree_on_combinations_that_normalisation_changes(differ: Differ) -> None:
    texts = list(islice(texts_to_agree(guarded(), 30_000), 0, None, EVERY))
    assert len(texts) > 900
    assert [ascii(texts[number]) for number in differ(texts)] == []
    # the second source: Python's own tables
    normalize = normalizers.NFC().normalize_str
    assert [ascii(text) for text in texts if normalize(text) != unicodedata.normalize("NFC", text)] == []
    assert sum(text != unicodedata.normalize("NFC", text) for text in texts) > 50


@pytest.mark.parametrize(
    "text",
    [
        "a\u0334\u1ac1b a\u1ac1\u0334b",  # Unicode 14: combining class 230
        "a\u0316\u1dfab",  # Unicode 14: class 218
        "\U00011935\U00011930",  # Unicode 13: compose
        "\U000105d2\u0307",  # Unicode 16: compose
    ],
)
def test_the_comparison_sees_characters_that_the_reference_does_not_know(differ: Differ, text: str) -> None:
    assert differ(["e\u0301\u0316", text]) == [1]
    assert {ord(character) for character in text} & guarded()


def test_every_pair_newer_than_the_reference_has_a_guarded_part(differ: Differ) -> None:
    texts = [chr(first) + chr(second) for first, second in pairs()]
    different = {pairs()[number] for number in differ(texts)}
    assert (0x11935, 0x11930) in different
    assert {pair for pair in different if not guarded() & {*pair}} == set()


def test_a_mark_that_another_engine_orders_otherwise_is_found_and_the_unassigned_are_never_proven() -> None:
    """An engine that does not know U+0327 changes nothing in a text with it; all other texts are equal."""

    def differ(texts: list[str]) -> list[int]:
        return [number for number, text in enumerate(texts) if "\u0327" in unicodedata.normalize("NFD", text)[:1]]

    found = unproven(differ)
    assert 0x0327 in found and 0x0301 not in found
    unassigned = {p for p in range(sys.maxunicode + 1) if unicodedata.category(chr(p)) == "Cn"}
    assert found - unassigned == {0x0327}
