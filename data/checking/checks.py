"""What the files of a pair say by themselves: digests, token ids, ends of documents, lengths. Memory stays flat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from data.checking.lengths import Lengths
from data.engines.encoder import Encoder
from utils.dataset.indexed import Index, bin_path, idx_path, manifest_path
from utils.errors import DataError
from utils.provenance.digests import sha256_file, sha256_tokenizer

CHUNK_TOKENS = 1 << 22
CHUNK_DOCUMENTS = 1 << 18
AGAIN = "encode the text again with python -m data.encode"
_BAR_DELAY_SECONDS = 2


def check_manifest(prefix: Path, index: Index, manifest: dict[str, Any], encoder: Encoder | None) -> None:
    """Raise DataError for the first thing that a manifest says otherwise: counts, digests, the tokenizer."""
    path = manifest_path(prefix)
    found: dict[str, Any] = {
        "documents": index.documents,
        "sequences": index.sequences,
        "tokens": index.tokens,
        "dtype": str(index.dtype),
        "bin_bytes": bin_path(prefix).stat().st_size,
    }
    # digests last, and only then read: they take the longest
    found_later = {"idx_sha256": idx_path(prefix), "bin_sha256": bin_path(prefix)}
    for key in (*found, *found_later):
        value = found[key] if key in found else sha256_file(found_later[key])
        if manifest[key] != value:
            raise DataError(
                f"{path}: {key} is {manifest[key]}, the files have {value}; they changed, or it is the manifest of "
                f"another pair: {AGAIN}"
            )
    if encoder and (digest := sha256_tokenizer(encoder.folder)) != manifest["tokenizer"]["sha256"]:
        raise DataError(
            f"{encoder.folder}: sha256 of the tokenizer is {digest}, the data was encoded with "
            f"{manifest['tokenizer']['sha256']} ({path.name}); name that tokenizer or {AGAIN}"
        )


def check_tokens(prefix: Path, index: Index, vocabulary_size: int, eod: int) -> tuple[int, Lengths]:
    """Read every token; return the largest id and the lengths of the documents.

    Raises DataError for an id that is not below `vocabulary_size`, and for a document that does not end with `eod`.
    """
    lengths = Lengths()
    with (
        bin_path(prefix).open("rb") as file,
        tqdm(
            desc="check tokens",
            total=index.tokens,
            unit="tokens",
            unit_scale=True,
            delay=_BAR_DELAY_SECONDS,
            disable=None,
        ) as bar,
    ):
        tokens = _Tokens(prefix, file, index.dtype, vocabulary_size, bar)
        for numbers, ends, of_each in _documents(index):
            lengths.add(of_each)
            lasts = ends - 1
            while len(lasts):
                tokens.go_to(int(lasts[0]))
                here = int(np.searchsorted(lasts, tokens.end))
                _require_eod(prefix, tokens.take(lasts[:here]), numbers[:here], eod)
                numbers, lasts = numbers[here:], lasts[here:]
    return tokens.largest, lengths


class _Tokens:
    """The ids of a `.bin`, read from its start in pieces; each piece is checked when it is read."""

    def __init__(self, prefix: Path, file: BinaryIO, dtype: np.dtype[Any], vocabulary_size: int, bar: Any) -> None:
        self._path = bin_path(prefix)
        self._file = file
        self._dtype = dtype
        self._vocabulary_size = vocabulary_size
        self._bar = bar
        self._piece: npt.NDArray[Any] = np.zeros(0, dtype=dtype)
        self.end = 0
        """Number of the token behind the piece."""
        self.largest = 0

    def go_to(self, number: int) -> None:
        """Read on until the piece holds the token of this number."""
        while number >= self.end:
            # read and not mapped: mapped pages count as memory of this process until the kernel wants them back
            self._piece = np.fromfile(self._file, dtype=self._dtype, count=CHUNK_TOKENS)
            self._check(self._piece)
            self.end += len(self._piece)

    def take(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the ids at these numbers of the piece."""
        return self._piece[numbers - (self.end - len(self._piece))]

    def _check(self, piece: npt.NDArray[Any]) -> None:
        smallest, largest = int(piece.min()), int(piece.max())
        if smallest < 0 or largest >= self._vocabulary_size:
            where = int(((piece < 0) | (piece >= self._vocabulary_size)).argmax())
            raise DataError(
                f"{self._path}: token {self.end + where:,} is {piece[where]}, wanted below "
                f"{self._vocabulary_size:,}; damaged, of another tokenizer, or of another dtype than its .idx says: "
                f"{AGAIN}"
            )
        self.largest = max(self.largest, largest)
        self._bar.update(len(piece))


def _documents(index: Index) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield of each so many documents: numbers and ends (the token behind) of the filled ones, lengths of all."""
    end = 0
    for start in range(0, index.documents, CHUNK_DOCUMENTS):
        indices = index.document_indices[start : start + CHUNK_DOCUMENTS + 1]
        in_tokens = np.cumsum(index.sequence_lengths[indices[0] : indices[-1]], dtype=np.int64)
        ends = end + np.append(0, in_tokens)[indices - indices[0]]
        filled = np.flatnonzero(np.diff(indices))
        yield start + filled, ends[1:][filled], np.diff(ends)
        end = int(ends[-1])


def _require_eod(prefix: Path, found: npt.NDArray[Any], numbers: npt.NDArray[np.int64], eod: int) -> None:
    wrong = found != eod
    if wrong.any():
        first = int(wrong.argmax())
        raise DataError(
            f"{prefix}: document {int(numbers[first]):,} ends with {found[first]}, wanted the end of document {eod}; "
            f"encoded without --append-eod, or damaged: {AGAIN}"
        )
