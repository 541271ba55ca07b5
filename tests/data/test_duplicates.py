"""A text is a copy exactly when it was there before."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import duplicates
from data.duplicates import Seen


@given(st.lists(st.binary(max_size=2)))
def test_it_remembers_as_a_set_does(texts: list[bytes]) -> None:
    seen, known = Seen(), set[bytes]()
    for text in texts:
        assert seen.add(text) == (text in known)
        known.add(text)


def test_every_one_of_many_is_known_again() -> None:
    seen = Seen()
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
    monkeypatch.setattr(duplicates.hashlib, "blake2b", Digest)
    seen = Seen()
    assert [seen.add(text) for text in (b"1", b"2", b"3", b"3", b"1")] == [False, False, False, True, True]
