"""Guard of the fast engine: documents that it may not encode, and library versions that it was compared with.

`python -m data.engines.make_guard` writes data/engines/guard.json for one version of each library. The fast engine is
not used with any other version. docs/data.md explains both.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.engines.plain import Backend
from data.engines.schemes import SCHEMES, byte_letters, scheme_of

GUARD_PATH = Path(__file__).with_name("guard.json")
CUT = re.compile(rb"(?<=[A-Za-z])(?=[ \n])")
"""Places where a text can be cut without a change of its ids: after an ASCII letter, before a space or line feed.

In a match of the regular expressions of data/engines/schemes.py only letters follow a letter, so none goes over such a
place. None looks back, and the only one that looks ahead does so from white space, which a letter follows in the text
before the place. NFC joins neither character with another. `pieces_by_engine` checks the added tokens.
"""
INSTALL = "python -m pip install gigatoken=={}"
FIRST_BEYOND_ASCII, FIRST_OF_MANY = 0x80, 0xC2
"""In UTF-8, the smallest byte of a character of several bytes, and the smallest first byte of one (RFC 3629)."""


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
        return sorted(found | _holding(texts, self._others))

    def to_cut(self, texts: list[bytes]) -> set[int]:
        """Return the numbers of the texts that contain the text of a token to cut out."""
        return _holding(texts, self._cut)

    def pieces_by_engine(self, text: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield a risky text in pieces that can be encoded one by one, with True if the reference has to do it."""
        if self._has_a_token_to_cut or _holding([text], self._others):
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
        for found in self._cut.finditer(text) if self._cut else ():
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
    def _cut(self) -> re.Pattern[bytes] | None:
        return _any_of(list(dict(self.cut_out)))

    @cached_property
    def _others(self) -> re.Pattern[bytes] | None:
        return _any_of(self.others)


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
    single, specials = templates[0]["single"], templates[0]["special_tokens"]
    texts = [place for place, piece in enumerate(single) if "SpecialToken" not in piece]
    if len(texts) != 1:
        return None
    before, behind = (
        tuple(number for piece in some for number in specials[piece["SpecialToken"]["id"]]["ids"])
        for some in (single[: texts[0]], single[texts[0] + 1 :])
    )
    return before, behind


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
    spelled = set("".join(token for token in vocabulary if token not in added))
    different_merges = {tuple(merge) if isinstance(merge, list) else merge for merge in merges}
    is_odd = (len(text) < 2 or not text.isascii() or token["single_word"] for text, token in added.items())
    faults = {
        "a byte has no token of its own": not letters <= vocabulary.keys(),
        "a token of its vocabulary is not a sequence of bytes": not spelled <= letters,
        "two tokens share an id": len(set(vocabulary.values())) != len(vocabulary),
        "a merge is listed twice": len(different_merges) != len(merges),
        "an added token is a single character, not ASCII, or for whole words only": any(is_odd),
    }
    return next((fault for fault, is_found in faults.items() if is_found), None)


def _is_cut_out(token: dict[str, Any], vocabulary: dict[str, int]) -> bool:
    """Check that a token is searched for in the original text and absorbs nothing next to it."""
    is_plain = not any(token[flag] for flag in ("normalized", "single_word", "lstrip", "rstrip"))
    return is_plain and vocabulary.get(token["content"], token["id"]) == token["id"]


def _any_of(tokens: Sequence[str]) -> re.Pattern[bytes] | None:
    """Return a pattern of some texts, of which it finds the longest at a place; None if there are none."""
    longest_first = sorted((token.encode("utf8") for token in tokens), key=len, reverse=True)
    return re.compile(b"|".join(map(re.escape, longest_first))) if tokens else None


def _holding(texts: list[bytes], pattern: re.Pattern[bytes] | None) -> set[int]:
    """Return the numbers of the texts that contain a pattern."""
    return {number for number, text in enumerate(texts) if pattern.search(text)} if pattern else set()


@lru_cache(maxsize=len(SCHEMES))
def _table(scheme: str) -> npt.NDArray[np.bool_]:
    """Return a table of all code points, true for the guarded ones."""
    table = np.zeros(sys.maxunicode + 1, dtype=bool)
    for first, last in stored()["schemes"][scheme]:
        table[first : last + 1] = True
    return table


def _with_guarded_characters(texts: list[bytes], numbers: Sequence[int], scheme: str) -> list[int]:
    """Return those of `numbers` whose text contains a guarded code point. ASCII is never guarded, and not looked at."""
    if not numbers:
        return []
    chosen = [texts[number] for number in numbers]
    data = np.frombuffer(b"".join(chosen), dtype=np.uint8)
    beyond_ascii = data[data >= FIRST_BEYOND_ASCII].tobytes().decode("utf8")
    is_guarded = _table(scheme)[np.frombuffer(beyond_ascii.encode("utf-32-le"), dtype="<u4")]
    if not is_guarded.any():
        return []
    places = np.flatnonzero(data >= FIRST_OF_MANY)[is_guarded]
    ends = np.cumsum([len(text) for text in chosen])
    return [numbers[number] for number in np.unique(np.searchsorted(ends, places, side="right")).tolist()]
