"""Encoding of one part in any process: the ids go into part files, and only counts are returned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.encoding.parts import PART_VERSION, Part, Span, digest, finish, lines_before, load_part, save
from data.reading.jsonl import BOM, text_of
from data.reading.tokenizer import dtype_for, row_of
from utils.errors import DataError, in_one_line


@dataclass(frozen=True)
class EncodeJob:
    """Settings that all parts of one run share; small, because they are sent to every worker."""

    folder: Path
    """Folder of the part files."""
    tokenizer: Path
    """Argument of `data.reading.tokenizer.row_of`."""
    tokenizer_folder: Path
    """Named in error messages."""
    vocabulary_size: int
    eod: int
    text_key: str
    skips_bad_lines: bool
    identity: str
    """Digest of the tokenizer and everything else that determines the bytes; see `data.encoding.pair`."""

    def __call__(self, span: Span) -> Part:
        """Encode a part, or reuse it from an earlier run.

        Raises DataError with file and line for the first bad line, and for ids that the vocabulary does not have.
        """
        data = span.read()
        # the origin of a part, which identifies it; it does not depend on the number of workers
        made_from = {
            "version": PART_VERSION,
            "number": span.number,
            "start": span.start,
            "end": span.end,
            "text_digest": digest(data),
            "job": self.identity,
        }
        return load_part(self.folder, span.number, made_from) or self._encode(span, data, made_from)

    def _encode(self, span: Span, data: bytes, made_from: dict[str, Any]) -> Part:
        texts, faults = self._read(span, data)
        rows = self._rows(texts)
        lengths = np.array([len(row) for row in rows], dtype="<i8")
        part = Part(
            number=span.number,
            bad_lines=len(faults),
            first_bad=faults[0] if faults else None,
            bytes_of_text=sum(len(text.encode("utf8")) for text in texts),
            text_digest=made_from["text_digest"],
            bin_digest=save(self.folder, span.number, "bin", self._in_type_of_bin(rows)),
            lengths_digest=save(self.folder, span.number, "lengths", lengths),
        )
        finish(self.folder, part, made_from)
        return part

    def _read(self, span: Span, data: bytes) -> tuple[list[str], list[str]]:
        """Return the texts of a part, and the faults of its skipped lines, each after its number in the part."""
        content = data.removeprefix(BOM) if span.start == 0 else data
        lines = content.split(b"\n")
        # what follows the last line end is no line
        if not lines[-1]:
            lines.pop()
        texts: list[str] = []
        faults: list[str] = []
        for number, line in enumerate(lines, 1):
            try:
                texts.append(text_of(line, span.path, number, self.text_key))
            except DataError as error:
                fault = str(error).removeprefix(in_one_line(f"{span.path}:{number}: "))
                if not self.skips_bad_lines:
                    raise DataError(f"{span.path}:{lines_before(span) + number}: {fault}") from error
                faults.append(f"{number}: {fault}")
        return texts, faults

    def _rows(self, texts: list[str]) -> list[npt.NDArray[np.uint32]]:
        """Return the ids of each text with its end-of-document token; a text without tokens has none."""
        encode = _loaded(self)
        rows = []
        for text in texts:
            ids = encode(text)
            if ids:
                ids.append(self.eod)
            # an array, because a list takes eight times the memory
            rows.append(np.array(ids, dtype=np.uint32))
        return rows

    def _in_type_of_bin(self, rows: list[npt.NDArray[np.uint32]]) -> npt.NDArray[Any]:
        """Return all ids back to back in the integer type of `.bin`."""
        tokens = np.concatenate([np.zeros(0, dtype=np.uint32), *rows])
        largest = int(tokens.max(initial=0))
        if largest >= self.vocabulary_size:
            raise DataError(
                f"{self.tokenizer_folder}: produces id {largest}, but has {self.vocabulary_size} entries; its ids have "
                "gaps, and an embedding of that size cannot hold them: use a repaired tokenizer"
            )
        return tokens.astype(dtype_for(self.vocabulary_size).newbyteorder("<"))


@lru_cache(maxsize=1)
def _loaded(job: EncodeJob) -> Callable[[str], list[int]]:
    """Return the tokenizer of a job, loaded once per process. The path alone is no key: another run may write there."""
    return row_of(job.tokenizer)
