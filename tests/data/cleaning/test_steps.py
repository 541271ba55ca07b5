"""Each step of cleaning changes its own targets and nothing else."""

from __future__ import annotations

import hashlib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.cleaning import steps
from data.cleaning.steps import DigestSet, composed, repaired, without_controls, without_front_matter

any_text = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext\r\nwith lines\n", "plain\ttext\r\nwith lines\n"),
        ("a\x00b\x07c\x1bd\x7fe", "abcde"),
        ("page one\x0cpage two\x0bline\x85end", "page one\npage two\nline\nend"),
        ("\u00a0\u00bb\u00e9\u0080\u009f\u00c2", "\u00a0\u00bb\u00e9\u00c2"),
        ("zero\u200bwidth \ufeffmark \u2028 soft\u00adhyphen", "zero\u200bwidth \ufeffmark \u2028 soft\u00adhyphen"),
    ],
)
def test_control_characters_go_and_those_that_part_lines_part_lines(text: str, expected: str) -> None:
    assert without_controls(text) == expected


@given(any_text)
def test_control_characters_are_those_that_unicode_calls_so(text: str) -> None:
    kept = "".join(c for c in text if unicodedata.category(c) != "Cc" or c in "\t\n\r\v\f\x85")
    assert without_controls(text) == kept.replace("\v", "\n").replace("\f", "\n").replace("\x85", "\n")


@given(any_text)
def test_composed_text_is_in_normal_form_c(text: str) -> None:
    assert unicodedata.is_normalized("NFC", composed(text))
    assert unicodedata.normalize("NFD", composed(text)) == unicodedata.normalize("NFD", text)


# The examples of ftfy's own documentation and of the Unicode standard's definition of mojibake, decoded by hand.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("schÃ¶n und fÃ¼r", "schön und für"),
        ("the more you know â€” really", "the more you know — really"),
        ("caf\u00e9 stays", "caf\u00e9 stays"),
        ("AT&amp;T", "AT&T"),
        ("<p>AT&amp;T</p>", "<p>AT&amp;T</p>"),
        ("\x1b[36mcolour\x1b[0m", "colour"),
        ("\u201cquotes\u201d, \u2019, \ufb01 and \uff21 stay", "\u201cquotes\u201d, \u2019, \ufb01 and \uff21 stay"),
        ("cafe\u0301 is not composed", "cafe\u0301 is not composed"),
        ("dos\r\nline", "dos\r\nline"),
    ],
)
def test_wrongly_decoded_text_is_repaired_and_style_stays(text: str, expected: str) -> None:
    assert repaired(text) == expected


@given(st.text(st.characters(max_codepoint=127)))
def test_the_short_cut_for_ascii_is_what_ftfy_would_answer(text: str) -> None:
    from data.cleaning.steps import _ftfy

    fix, config = _ftfy()
    assert repaired(text) == fix(text, config)


@given(any_text)
def test_repaired_text_can_be_written_and_read_again(text: str) -> None:
    found = repaired(text + "&#xD800;")
    assert found.encode("utf8").decode("utf8") == found


@pytest.mark.parametrize(
    "line",
    [
        "isbn : 978-0-306-40615-7",
        "ISBN 0306406152",
        "ISBN13: 9780306406157",
        "copyright 2012 by jane roe",
        "Copyright (c) Jane Roe",
        "copyright â© 2011 jane roe .",
        "copyrighted by the author",
        "\u00a9 jane roe , 2013",
        "all rights reserved .",
        "The moral right of the author is asserted. All rights reserved.",
    ],
)
def test_a_line_of_imprint_goes(line: str) -> None:
    assert without_front_matter(line) is None
    assert without_front_matter(f"the title\n{line}\nchapter one") == "the title\nchapter one"


@pytest.mark.parametrize(
    "line",
    [
        "he lost the lawsuit about the copyright .",
        "she had reserved all rights of way",
        "a disbnfall and copyrights in general",
        "\u00e9 \u00ae 2012",
        "",
        "two\n\nparagraphs",
    ],
)
def test_a_line_of_a_novel_stays(line: str) -> None:
    assert without_front_matter(line) == line


@given(st.lists(st.binary(max_size=2)))
def test_it_remembers_as_a_set_does(texts: list[bytes]) -> None:
    seen, known = DigestSet(), set[bytes]()
    for text in texts:
        assert seen.add(text) == (text in known)
        known.add(text)


def test_every_one_of_many_is_known_again() -> None:
    seen = DigestSet()
    texts = [b"%d" % number for number in range(200_000)]  # three in each bucket
    assert not any(map(seen.add, texts))
    assert all(map(seen.add, texts))


def test_a_hash_that_appears_only_across_two_others_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = b"A" * 7 + b"B" * 7, b"B" * 7 + b"C" * 7
    across = b"B" * 14
    digests = {text: b"\0\0" + digest for text, digest in zip((b"1", b"2", b"3"), (*halves, across), strict=True)}

    class Digest:
        def __init__(self, text: bytes, digest_size: int) -> None:
            assert digest_size == 16
            self.text = text

        def digest(self) -> bytes:
            return digests[self.text]

    assert hashlib.blake2b(b"x", digest_size=16).digest()  # what stands in for it below has its form
    monkeypatch.setattr(steps.hashlib, "blake2b", Digest)
    seen = DigestSet()
    assert [seen.add(text) for text in (b"1", b"2", b"3", b"3", b"1")] == [False, False, False, True, True]
