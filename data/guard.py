"""Which documents the fast engine must not see, and whether the libraries here are those that this was worked out for.

data/guard.json is written by `python -m data.make_guard`. It belongs to one version of each library: with any other
nothing is known, and nothing is guessed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.backend import Backend
from data.schemes import SCHEMES, byte_letters, scheme_of

GUARD_PATH = Path(__file__).with_name("guard.json")
INSTALL = "python -m pip install gigatoken=={}"


@dataclass(frozen=True)
class Guard:
    """What sends a document to the reference engine: a code point of a table, or the text of an added token."""

    scheme: str
    added_tokens: tuple[str, ...]
    wraps: tuple[tuple[int, ...], tuple[int, ...]]
    """Ids that the tokenizer puts before and behind each text."""

    def risky(self, texts: list[str]) -> list[int]:
        """Return the numbers of the texts, in order, that the fast engine could get wrong."""
        others = [number for number, text in enumerate(texts) if not text.isascii()]
        found = set(_holding(texts, others, _table(self.scheme)))
        for start, tokens in self._by_start.items():
            # few texts hold a start (`<|`), so few are looked through for each token
            suspects = (number for number, text in enumerate(texts) if start in text)
            found.update(number for number in suspects if any(token in texts[number] for token in tokens))
        return sorted(found)

    @cached_property
    def _by_start(self) -> dict[str, list[str]]:
        by_start: dict[str, list[str]] = {}
        for token in self.added_tokens:
            by_start.setdefault(token[:2], []).append(token)
        return by_start


def guard_of(backend: Backend) -> Guard | str:
    """Return the guard of a tokenizer, or why the fast engine cannot be used for it or here."""
    reason = why_unusable()
    if reason is not None:
        return reason
    if backend.content is None:
        return f"{backend.folder} is run by {backend.class_name} of transformers, which no other engine follows"
    scheme = scheme_of(backend.parsed)
    if scheme is None:
        known = ", ".join(scheme.name for scheme in SCHEMES)
        return f"{backend.folder} normalises or splits text in none of the ways that were compared ({known})"
    reason, around = _why_unproven(backend.parsed), wraps(backend.parsed)
    if reason is not None or around is None:
        return f"{backend.folder}: {reason or 'its post-processor is unknown here'}"
    return Guard(scheme.name, tuple(token["content"] for token in backend.parsed["added_tokens"]), around)


def why_unusable() -> str | None:
    """Return why gigatoken cannot be used on this machine, None where it can."""
    wanted = stored()["versions"]
    for name, version in wanted.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"{name} is not installed ({INSTALL.format(wanted['gigatoken'])})"
        if found != version:
            return f"{name} is {found}, compared was {version} (python -m data.make_guard compares anew)"
    return None


def wraps(parsed: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the ids that a tokenizer puts before and behind each text, None for a post-processor unknown here."""
    post = parsed.get("post_processor")
    steps = post["processors"] if post and post["type"] == "Sequence" else [post] if post else []
    templates = [step for step in steps if step["type"] != "ByteLevel"]  # that one moves offsets only
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
    """Return the content of data/guard.json."""
    return dict(json.loads(path.read_text(encoding="utf8")))


def _why_unproven(parsed: dict[str, Any]) -> str | None:
    """Return what in the vocabulary is not as the comparison of the engines takes it to be, None where all is.

    That BPE merges alike needs no more than this. Of two merges that make the same token only one is ever possible:
    the steps inside a piece of text are those of that piece alone, whatever stands around it, and they pass through
    one pair at the end. So a priority by list (reference) and one by id of the product (gigatoken, which takes the list
    where ids do not follow it) choose alike.
    """
    vocabulary, merges = parsed["model"]["vocab"], parsed["model"]["merges"]
    letters = set(byte_letters())
    added = {token["content"]: token for token in parsed["added_tokens"]}
    if not letters <= vocabulary.keys():
        return "a byte has no token of its own"
    if not set("".join(token for token in vocabulary if token not in added)) <= letters:
        return "a token of its vocabulary is no sequence of bytes"
    if len(set(vocabulary.values())) != len(vocabulary):
        return "two tokens share an id"
    if len({tuple(merge) if isinstance(merge, list) else merge for merge in merges}) != len(merges):
        return "a merge stands there twice"
    if any(len(text) < 2 or not text.isascii() or token["single_word"] for text, token in added.items()):
        return "an added token is a single character, not ASCII, or for whole words only"
    return None


@lru_cache(maxsize=len(SCHEMES))
def _table(scheme: str) -> npt.NDArray[np.bool_]:
    """Return for each code point whether it is guarded."""
    table = np.zeros(sys.maxunicode + 1, dtype=bool)
    for first, last in stored()["schemes"][scheme]:
        table[first : last + 1] = True
    return table


def _holding(texts: list[str], numbers: list[int], table: npt.NDArray[np.bool_]) -> list[int]:
    """Return those of `numbers` whose text holds a code point of the table."""
    if not numbers:
        return []
    chosen = [texts[number] for number in numbers]
    code_points = np.frombuffer("".join(chosen).encode("utf-32-le"), dtype="<u4")
    hits = np.flatnonzero(table[code_points])
    if not hits.size:
        return []
    ends = np.cumsum([len(text) for text in chosen])
    return [numbers[place] for place in np.unique(np.searchsorted(ends, hits, side="right")).tolist()]
