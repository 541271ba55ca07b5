"""Guard of the fast engine: documents that it may not encode, and library versions that it was compared with.

`python -m data.engines.make_guard` writes data/engines/guard.json for one version of each library. The fast engine is
not used with any other version.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.engines.backend import Backend
from data.engines.schemes import SCHEMES, byte_letters, scheme_of

GUARD_PATH = Path(__file__).with_name("guard.json")
RARE = b"|"
"""A byte of most special tokens that is rare in text."""
CUT = re.compile(rb"(?<=[A-Za-z])(?=[ \n])")
"""Places where a text can be cut without a change of its ids: after an ASCII letter, before a space or line feed.

In a match of the regular expressions of data/engines/schemes.py only letters follow a letter, so none goes over such a
place. None looks back, and the only one that looks ahead does so from white space, which a letter follows in the text
before the place. NFC joins neither character with another. `pieces_by_engine` checks the added tokens.
"""
INSTALL = "python -m pip install gigatoken=={}"
FIRST_OF_MANY = 0xC2
"""Smallest first byte of a character of more than one byte in UTF-8 (RFC 3629)."""


@dataclass(frozen=True)
class Guard:
    """Conditions that send a document to the reference engine: a guarded code point, or the text of an added token
    that the tokenizer does not simply cut out of the text."""

    scheme: str
    cut_out: tuple[tuple[str, int], ...]
    """Added tokens, with their ids, that replace their text wherever it occurs, whatever is next to it."""
    others: tuple[str, ...]
    """Texts of the other added tokens."""
    wraps: tuple[tuple[int, ...], tuple[int, ...]]
    """Ids that the tokenizer puts before and after each text."""

    def risky(self, texts: list[bytes]) -> list[int]:
        """Return the numbers of the texts (UTF-8), in order, that the fast engine could encode differently."""
        beyond_ascii = [number for number, text in enumerate(texts) if not text.isascii()]
        found = set(_with_guarded_characters(texts, beyond_ascii, self.scheme))
        return sorted(found | _holding(texts, self._others_by_start))

    def to_cut(self, texts: list[bytes]) -> set[int]:
        """Return the numbers of the texts that contain the text of a token to cut out."""
        return _holding(texts, self._cut_by_start)

    def pieces_by_engine(self, text: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield a risky text in pieces that can be encoded one by one, with True if the reference has to do it."""
        if self._has_a_token_to_cut or _holding([text], self._others_by_start):
            yield text, True
            return
        words = CUT.split(text)
        risky = set(_with_guarded_characters(words, range(len(words)), self.scheme))
        for is_risky, numbers in groupby(range(len(words)), risky.__contains__):
            yield b"".join(words[number] for number in numbers), is_risky

    def pieces(self, text: bytes) -> Iterator[tuple[bytes, int | None]]:
        """Yield a text in pieces: the text before each token to cut out with the token's id, then the rest with None.

        The leftmost token wins, and of those that begin at one place the longest, as in the library `tokenizers`
        (`AddedVocabulary`, MatchKind::LeftmostLongest), which then encodes every piece as a separate text.
        """
        start = 0
        for found in self._pattern.finditer(text):
            yield text[start : found.start()], self._ids[found.group()]
            start = found.end()
        yield text[start:], None

    @cached_property
    def _has_a_token_to_cut(self) -> bool:
        return any(CUT.search(token.encode("utf8")) for token in (*dict(self.cut_out), *self.others))

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {token.encode("utf8"): number for token, number in self.cut_out}

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(map(re.escape, sorted(self._ids, key=len, reverse=True))))

    @cached_property
    def _cut_by_start(self) -> dict[bytes, list[bytes]]:
        return _by_start(self._ids)

    @cached_property
    def _others_by_start(self) -> dict[bytes, list[bytes]]:
        return _by_start(token.encode("utf8") for token in self.others)


def guard_of(backend: Backend) -> Guard | str:
    """Return the guard of a tokenizer, or the reason why the fast engine cannot be used for it."""
    reason = why_unusable()
    if reason is not None:
        return reason
    if backend.content is None:
        return f"{backend.folder} needs {backend.class_name} of transformers, which gigatoken does not implement"
    scheme = scheme_of(backend.parsed)
    if scheme is None:
        known = ", ".join(scheme.name for scheme in SCHEMES)
        return f"{backend.folder} does not normalise and split text in one of the compared ways ({known})"
    reason, around = _why_unproven(backend.parsed), wraps(backend.parsed)
    if reason is not None or around is None:
        return f"{backend.folder}: {reason or 'its post-processor is not supported'}"
    vocabulary, added = backend.parsed["model"]["vocab"], backend.parsed["added_tokens"]
    cut_out = {token["content"]: token["id"] for token in added if _is_cut_out(token, vocabulary)}
    others = tuple(token["content"] for token in added if token["content"] not in cut_out)
    return Guard(scheme.name, tuple(cut_out.items()), others, around)


def why_unusable() -> str | None:
    """Return the reason why gigatoken cannot be used on this machine, None if it can."""
    wanted = stored()["versions"]
    for name, version in wanted.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"{name} is not installed ({INSTALL.format(wanted['gigatoken'])})"
        if found != version:
            return f"{name} is {found}, but {version} was compared (python -m data.engines.make_guard compares again)"
    return None


def wraps(parsed: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the ids that a tokenizer puts before and after each text, None for an unsupported post-processor."""
    post = parsed.get("post_processor")
    steps = post["processors"] if post and post["type"] == "Sequence" else [post] if post else []
    templates = [step for step in steps if step["type"] != "ByteLevel"]  # ByteLevel changes offsets only
    if not templates:
        return (), ()
    if len(templates) > 1 or templates[0]["type"] != "TemplateProcessing":
        return None
    specials = templates[0]["special_tokens"]
    sides: tuple[list[int], list[int]] = ([], [])
    texts = 0
    for piece in templates[0]["single"]:
        if "SpecialToken" in piece:
            sides[bool(texts)].extend(specials[piece["SpecialToken"]["id"]]["ids"])
        else:
            texts += 1
    return (tuple(sides[0]), tuple(sides[1])) if texts == 1 else None


@lru_cache(maxsize=1)
def stored(path: Path = GUARD_PATH) -> dict[str, Any]:
    """Return the content of data/engines/guard.json."""
    return dict(json.loads(path.read_text(encoding="utf8")))


def _why_unproven(parsed: dict[str, Any]) -> str | None:
    """Return the first assumption of the engine comparison that a vocabulary breaks, None if it meets all of them.

    These assumptions are enough for both engines to merge alike. Of two merges that produce the same token only one
    can ever occur: the merges inside a piece of text depend on that piece alone, whatever is around it, and end with
    one pair. So priority by position in the list (reference) and priority by id of the product (gigatoken, which uses
    the list if the ids do not follow it) choose the same merges.
    """
    vocabulary, merges = parsed["model"]["vocab"], parsed["model"]["merges"]
    letters = set(byte_letters())
    added = {token["content"]: token for token in parsed["added_tokens"]}
    if not letters <= vocabulary.keys():
        return "a byte has no token of its own"
    if not set("".join(token for token in vocabulary if token not in added)) <= letters:
        return "a token of its vocabulary is not a sequence of bytes"
    if len(set(vocabulary.values())) != len(vocabulary):
        return "two tokens share an id"
    if len({tuple(merge) if isinstance(merge, list) else merge for merge in merges}) != len(merges):
        return "a merge is listed twice"
    if any(len(text) < 2 or not text.isascii() or token["single_word"] for text, token in added.items()):
        return "an added token is a single character, not ASCII, or for whole words only"
    return None


def _is_cut_out(token: dict[str, Any], vocabulary: dict[str, int]) -> bool:
    """Check that a token is searched for in the original text and absorbs nothing next to it."""
    is_plain = not any(token[flag] for flag in ("normalized", "single_word", "lstrip", "rstrip"))
    return is_plain and vocabulary.get(token["content"], token["id"]) == token["id"]


def _by_start(tokens: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    by_start: dict[bytes, list[bytes]] = {}
    for token in tokens:
        by_start.setdefault(token[:2], []).append(token)
    return by_start


def _holding(texts: list[bytes], by_start: dict[bytes, list[bytes]]) -> set[int]:
    """Return the numbers of the texts that contain one of the tokens.

    Few texts contain the first two bytes of a token (`<|`), so few are searched for each token. Fewer still contain a
    single rare byte, and searching for one byte is many times as fast.
    """
    found: set[int] = set()
    for start, tokens in by_start.items():
        rare = RARE if all(RARE in token for token in tokens) else start[:1]
        suspects = (number for number, text in enumerate(texts) if rare in text and start in text)
        found.update(number for number in suspects if any(token in texts[number] for token in tokens))
    return found


@lru_cache(maxsize=len(SCHEMES))
def _table(scheme: str) -> npt.NDArray[np.bool_]:
    """Return a table of all code points, true for the guarded ones."""
    table = np.zeros(sys.maxunicode + 1, dtype=bool)
    for first, last in stored()["schemes"][scheme]:
        table[first : last + 1] = True
    return table


@lru_cache(maxsize=len(SCHEMES))
def _beginnings(scheme: str) -> npt.NDArray[np.bool_]:
    """Return a table by two bytes (first * 256 + second), true if a guarded code point begins with them."""
    found = np.zeros(1 << 16, dtype=bool)
    points = np.flatnonzero(_table(scheme))
    # a code point of three bytes shares its first two with 63 others, one of four bytes with 4,095 others
    blocks = np.where(points < 0x800, points, np.where(points < 0x10000, points >> 6 << 6, points >> 12 << 12))
    for point in np.unique(blocks).tolist():
        encoded = chr(point).encode("utf8", "surrogatepass")
        found[encoded[0] << 8 | encoded[1]] = True
    return found


def _with_guarded_characters(texts: list[bytes], numbers: Sequence[int], scheme: str) -> list[int]:
    """Return those of `numbers` whose text contains a guarded code point.

    The first two bytes of each character rule out nearly all of them; the rest are decoded.
    """
    if not numbers:
        return []
    chosen = [texts[number] for number in numbers]
    data = np.frombuffer(b"".join(chosen), dtype=np.uint8)
    firsts = np.flatnonzero(data >= FIRST_OF_MANY)
    beginnings = data[firsts].astype(np.uint16) << 8 | data[firsts + 1]
    suspects = firsts[_beginnings(scheme)[beginnings]]
    hits = suspects[_table(scheme)[_code_points(data, suspects)]]
    if not hits.size:
        return []
    ends = np.cumsum([len(text) for text in chosen])
    return [numbers[place] for place in np.unique(np.searchsorted(ends, hits, side="right")).tolist()]


def _code_points(data: npt.NDArray[np.uint8], firsts: npt.NDArray[np.intp]) -> npt.NDArray[np.uint32]:
    """Return the code points of the characters of 2 to 4 bytes that begin at `firsts` (UTF-8: RFC 3629, section 3)."""
    first = data[firsts].astype(np.uint32)
    sizes = 2 + (first >= 0xE0) + (first >= 0xF0)
    points = first & (0xFF >> (sizes + 1)).astype(np.uint32)
    for place in (1, 2, 3):
        following = data.take(firsts + place, mode="clip") & np.uint32(0x3F)
        points = np.where(place < sizes, points << np.uint32(6) | following, points)
    return points
