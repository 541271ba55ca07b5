"""Both engines normalise every text alike that contains no guarded code point; the comparison sees a difference."""

from __future__ import annotations

import sys
import unicodedata
from itertools import islice

import pytest
from tokenizers import normalizers

from data.engines import guard, make_guard, schemes

pytestmark = pytest.mark.skipif(guard.why_unusable() is not None, reason=str(guard.why_unusable()))
EVERY = 307
"""Share of the combinations that are tested here; data/engines/make_guard.py tests all of them."""
QWEN = next(scheme for scheme in schemes.SCHEMES if scheme.normalizes)
GUARDED = {point for first, last in guard.stored()["schemes"]["qwen2"] for point in range(first, last + 1)}


@pytest.fixture(scope="module")
def differ() -> make_guard.Differ:
    return make_guard.comparison(QWEN)


def test_engines_and_python_agree_on_combinations_that_normalisation_changes(differ: make_guard.Differ) -> None:
    texts = list(islice(make_guard.texts_to_agree(GUARDED, 30_000), 0, None, EVERY))
    assert len(texts) > 900
    assert [ascii(texts[number]) for number in differ(texts)] == []
    # the second source: Python's own tables
    normalize = normalizers.NFC().normalize_str
    assert [ascii(text) for text in texts if normalize(text) != unicodedata.normalize("NFC", text)] == []
    assert sum(text != unicodedata.normalize("NFC", text) for text in texts) > 50


def test_the_comparison_sees_characters_and_pairs_that_the_reference_does_not_know(differ: make_guard.Differ) -> None:
    # Unicode 14: combining classes 230 and 218; Unicode 13 and 16: compose
    for text in ("a\u0334\u1ac1b a\u1ac1\u0334b", "a\u0316\u1dfab", "\U00011935\U00011930", "\U000105d2\u0307"):
        assert differ(["e\u0301\u0316", text]) == [1] and {ord(character) for character in text} & GUARDED
    known = make_guard.pairs()
    different = {known[number] for number in differ([chr(first) + chr(second) for first, second in known])}
    assert (0x11935, 0x11930) in different
    assert {pair for pair in different if not GUARDED & {*pair}} == set()


def test_a_mark_that_another_engine_orders_otherwise_is_found_and_the_unassigned_are_never_proven() -> None:
    """An engine that does not know U+0327 changes nothing in a text with it; all other texts are equal."""

    def differ(texts: list[str]) -> list[int]:
        return [number for number, text in enumerate(texts) if "\u0327" in unicodedata.normalize("NFD", text)[:1]]

    found = make_guard.unproven(differ)
    unassigned = {p for p in range(sys.maxunicode + 1) if unicodedata.category(chr(p)) == "Cn"}
    assert found - unassigned == {0x0327}
