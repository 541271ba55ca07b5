"""Two engines that encode texts into the same ids: `hf`, the reference, and `gigatoken`, many times as fast.

The fast engine is used if the installed version was compared with the reference and the tokenizer has a proven scheme.
Even then the guard sends some documents to the reference.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.engines.backend import Encoder
from data.engines.fast import build
from data.engines.guard import Guard, guard_of
from data.engines.plain import Backend
from data.engines.sound import cannot_load
from utils.errors import UnusableError

ENGINES = ("auto", "hf", "gigatoken")
RENEW_BYTES = 1 << 28
"""gigatoken 0.10.0 caches every piece of text it encodes without limit; it is rebuilt after this much text."""

Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class EngineSpec:
    """Everything a process needs to build an engine; small, because it is sent with every part."""

    name: str
    tokenizer: Path
    """Path of the tokenizer.json; for a tokenizer that only transformers can run, of its folder."""
    guard: Guard | None = None

    def build(self) -> Engine:
        """Return the engine; the reference loads its tokenizer on first use."""
        reference = HfEngine(self.tokenizer)
        return reference if self.guard is None else GigatokenEngine(self.tokenizer, self.guard, reference)


def choose(name: str, backend: Backend) -> tuple[str, Guard | None]:
    """Return the engine to use for `--engine name`, and its guard; if `auto` falls back to hf, print why on stderr.

    Raises UnusableError for an unknown name, and for an explicit gigatoken that cannot be used.
    """
    if name not in ENGINES:
        raise UnusableError(f"engine: got {name!r}, wanted one of {', '.join(ENGINES)}")
    if name == "hf":
        return name, None
    guard = guard_of(backend)
    if isinstance(guard, Guard):
        return "gigatoken", guard
    if name == "gigatoken":
        raise UnusableError(f"engine gigatoken: {guard}; use --engine auto or hf")
    print(f"encode: using engine hf, many times slower than gigatoken: {guard}", file=sys.stderr)
    return "hf", None


class HfEngine:
    """The reference: the library `tokenizers`, or transformers for a tokenizer that only transformers can run."""

    def __init__(self, tokenizer: Path) -> None:
        self._path = tokenizer
        self.before = self.behind = np.zeros(0, dtype=np.uint32)
        """Special tokens to put before and after each row; empty, because the rows include them already."""

    def guarded_rows(self, texts: list[bytes]) -> Iterator[Ids]:
        """Yield the ids of each text (UTF-8) as the reference encodes it, without an end-of-document token; consume
        them one by one to save memory."""
        if not texts:
            return
        strings = [text.decode("utf8") for text in texts]
        if self._path.is_dir():
            lists = self._transformers.rows(strings)
        else:
            lists = [encoding.ids for encoding in self._rust.encode_batch_fast(strings)]
        for ids in lists:
            yield np.array(ids, dtype=np.uint32)

    unguarded_rows = guarded_rows
    """The same, but a text for which `guarded_rows` is needed has None; the reference has none."""

    @cached_property
    def _transformers(self) -> Encoder:
        return Encoder(self._path)

    @cached_property
    def _rust(self) -> Any:
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(self._path.read_text(encoding="utf8"))
        except Exception as error:  # noqa: BLE001 the Rust side raises bare Exception
            raise cannot_load(self._path.name, "the library tokenizers", error) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


class GigatokenEngine:
    """The fast engine, with the reference for the documents that its guard refuses."""

    def __init__(self, tokenizer: Path, guard: Guard, reference: HfEngine) -> None:
        self._content = tokenizer.read_bytes()
        self._guard = guard
        self._reference = reference
        before, behind = guard.wraps
        self.before, self.behind = np.array(before, np.uint32), np.array(behind, np.uint32)
        self._bytes = 0
        try:
            self._fast = build(self._content)
        except RuntimeError as error:
            raise cannot_load(tokenizer.name, "gigatoken", error) from error

    def guarded_rows(self, texts: list[bytes]) -> Iterator[Ids]:
        """See `HfEngine`."""
        self._renew(sum(map(len, texts)))
        for text in texts:
            pieces = self._guard.pieces_by_engine(text)
            rows = [self._by_reference(piece) if is_risky else self._joined(piece) for piece, is_risky in pieces]
            yield np.concatenate(rows, dtype=np.uint32)

    def _by_reference(self, text: bytes) -> Ids:
        (row,) = self._reference.guarded_rows([text])
        return row[len(self.before) : len(row) - len(self.behind)]

    def unguarded_rows(self, texts: list[bytes]) -> Iterator[Ids | None]:
        """See `HfEngine`."""
        self._renew(sum(map(len, texts)))
        guarded = set(self._guard.risky(texts))
        to_cut = self._guard.to_cut(texts)
        encode = self._fast.encode  # one text at a time on this thread is faster than batches, which build an Array
        for number, text in enumerate(texts):
            if number in guarded:
                yield None
            elif number in to_cut:
                yield self._joined(text)
            else:
                yield encode(text)

    def _joined(self, text: bytes) -> Ids:
        """Return the ids of a text of the fast engine, with the added tokens that are cut out of it."""
        rows = []
        for piece, token in self._guard.pieces(text):
            rows.append(self._fast.encode(piece))
            if token is not None:
                rows.append(np.array([token], dtype=np.uint32))
        return np.concatenate(rows, dtype=np.uint32)

    def _renew(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes > RENEW_BYTES:
            self._bytes = size_bytes
            del self._fast  # first, so that two are never in memory
            self._fast = build(self._content)


Engine = HfEngine | GigatokenEngine
