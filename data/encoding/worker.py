"""Encoding of one part in any process: the ids go into part files, and only counts are returned.

The documents that the guard sends to the reference are encoded after the others, perhaps in another process, so that
few processes load the reference, which takes half a second in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from data.encoding.parts import PART_VERSION, Part, Span, digest, file_of, lines_before, load_part, save, save_part
from data.encoding.workers import Deferred
from data.engines.engines import Engine, EngineSpec, Ids
from data.engines.plain import dtype_for
from data.reading.jsonl import BOM, text_of
from utils.errors import DataError, in_one_line
from utils.files import write_whole
from utils.own_files import anything

BATCH_BYTES = 1 << 20
"""Approximate size of the batches of text that an engine gets."""
HELD = -1
"""Length of a document that waits for the reference; any other has at least its end-of-document token, or is empty."""

Half = tuple[dict[str, Any], dict[str, Any]]
"""A part without the documents in its `.held`: the fields of Part that are known, and the origin of the part."""


@dataclass(frozen=True)
class EncodeJob:
    """Settings that all parts of one run share; small, because they are sent with every part."""

    folder: Path
    """Folder of the part files."""
    engine: EngineSpec
    tokenizer_folder: Path
    """Named in error messages."""
    vocabulary_size: int
    eod: int
    text_key: str
    skips_bad_lines: bool
    identity: str
    """Digest of the tokenizer and everything else that determines the bytes; see `data.encoding.pair`."""

    def __call__(self, span: Span) -> Part | Deferred:
        """Encode a part, or reuse it from an earlier run; `finish` is needed if documents are for the reference
        (`data.encoding.workers.in_order` calls it).

        Raises DataError with file and line for the first bad line, and for ids that the vocabulary does not have.
        """
        data = span.read()
        made_from = {  # the origin of a part, which identifies it; the number of workers is not included
            "version": PART_VERSION,
            "number": span.number,
            "start": span.start,
            "end": span.end,
            "text_digest": digest(data),
            "job": self.identity,
            "engine": self.engine.name,
        }
        return load_part(self.folder, span.number, made_from) or self._encode(span, data, made_from)

    def finish(self, half: Half) -> Part:
        """Encode the documents that were left to the reference; raises DataError as `__call__` does."""
        found, made_from = half
        number, engine, buffer = found["number"], _engine(self.engine), _buffer()
        path = file_of(self.folder, number, "held")
        held = orjson.loads(path.read_bytes())
        buffer.start(engine, self.eod)
        by_reference = list(map(buffer.add, engine.guarded_rows([text.encode("utf8") for text in held["texts"]])))
        lengths = np.array(held["lengths"], dtype=np.int64)
        lengths[lengths == HELD] = np.negative(by_reference)
        reference_digest = save(self.folder, number, "reference", self._checked(buffer.ids))
        path.unlink()
        return save_part(self.folder, found | {"reference_digest": reference_digest}, lengths, made_from)

    def _encode(self, span: Span, data: bytes, made_from: dict[str, Any]) -> Part | Deferred:
        engine, buffer = _engine(self.engine), _buffer()
        buffer.start(engine, self.eod)
        lengths: list[int] = []
        held: list[str] = []
        found: dict[str, Any] = {"number": span.number, "text_digest": made_from["text_digest"]}
        for texts in self._batches(span, data, found):
            new = list(map(buffer.add, engine.unguarded_rows(texts)))
            if HELD in new:
                held += [text.decode("utf8") for text, length in zip(texts, new, strict=True) if length == HELD]
            lengths += new
        bin_digest = save(self.folder, span.number, "bin", self._checked(buffer.ids))
        found |= {"guarded": len(held), "bin_digest": bin_digest}
        if not held:
            return save_part(self.folder, found, np.array(lengths, dtype=np.int64), made_from)
        content = orjson.dumps({"texts": held, "lengths": lengths})
        write_whole(file_of(self.folder, span.number, "held"), content, is_ours=anything, fsync=False)
        return Deferred((found, made_from), len(content))

    def _batches(self, span: Span, data: bytes, found: dict[str, Any]) -> Iterator[list[bytes]]:
        """Yield the texts of a part in UTF-8, a batch at a time; at the end, `found` has the counts of its lines."""
        lines = (data if span.start else data.removeprefix(BOM)).split(b"\n")
        if not lines[-1]:
            lines.pop()
        found |= {"bad_lines": 0, "first_bad": None, "bytes_of_text": 0}
        texts: list[bytes] = []
        size = 0
        for number, line in enumerate(lines, 1):
            try:
                text = text_of(line, span.path, number, self.text_key).encode("utf8")
            except DataError as error:
                reason = str(error).removeprefix(in_one_line(f"{span.path}:{number}: "))
                if not self.skips_bad_lines:
                    raise DataError(f"{span.path}:{lines_before(span) + number}: {reason}") from error
                found["bad_lines"] += 1
                found["first_bad"] = found["first_bad"] or f"{number}: {reason}"
                continue
            texts.append(text)
            size += len(text)
            if size >= BATCH_BYTES:
                found["bytes_of_text"] += size
                yield texts
                texts, size = [], 0
        found["bytes_of_text"] += size
        yield texts

    def _checked(self, tokens: Ids) -> npt.NDArray[Any]:
        """Return the ids in the integer type of `.bin`."""
        wanted = dtype_for(self.vocabulary_size).newbyteorder("<")
        largest = int(tokens.max(initial=0))
        if largest >= self.vocabulary_size:
            raise DataError(
                f"{self.tokenizer_folder}: produces id {largest}, but has {self.vocabulary_size} entries; its ids have "
                "gaps, and an embedding of that size cannot hold them: use a repaired tokenizer"
            )
        # ids of 32 bits are below 2^31 here, so they need no conversion
        return tokens.view(wanted) if wanted.itemsize == tokens.itemsize else tokens.astype(wanted)


class _Buffer:
    """Ids of a part back to back, in memory that is reused for the next part."""

    def __init__(self) -> None:
        self._memory = np.empty(1 << 20, dtype=np.uint32)
        self._size = 0

    def start(self, engine: Engine, eod: int) -> None:
        """Empty the buffer; from now on documents are added with the special tokens of `engine` and then `eod`."""
        self._size = 0
        self._before = engine.before
        self._behind = np.append(engine.behind, np.uint32(eod))
        self._around = len(engine.before) + len(engine.behind)

    def add(self, row: Ids | None) -> int:
        """Add a document; return its number of tokens with the end-of-document token, 0 for one without tokens.

        For None, a document that waits for the reference, nothing is added, and HELD returned.
        """
        if row is None:
            return HELD
        if not len(row) and not self._around:
            return 0
        first = self._size + len(self._before)
        last = first + len(row)
        end = last + len(self._behind)
        if end > len(self._memory):
            self._memory = np.concatenate((self._memory, np.empty(max(end, len(self._memory)), dtype=np.uint32)))
        self._memory[self._size : first] = self._before
        self._memory[first:last] = row
        self._memory[last:end] = self._behind
        length, self._size = end - self._size, end
        return length

    @property
    def ids(self) -> Ids:
        """The ids of all documents since `start`."""
        return self._memory[: self._size]


@lru_cache(maxsize=1)
def _buffer() -> _Buffer:
    return _Buffer()


@lru_cache(maxsize=1)
def _engine(spec: EngineSpec) -> Engine:
    """Return the engine, built once per process."""
    return spec.build()
