"""Checks that need only the files of a pair: digests, token ids, ends of documents, lengths. Memory is constant."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from data.checking.pair_summary import Lengths
from data.engines.encoder import Encoder
from utils.dataset.indexed import Index, bin_path, idx_path, manifest_path
from utils.errors import DataError
from utils.provenance.digests import sha256_file, sha256_tokenizer

CHUNK_TOKENS = 1 << 22
CHUNK_DOCUMENTS = 1 << 18
AGAIN = "encode the text again with python -m data.encode"
_BAR_DELAY_SECONDS = 2


class TokenCheck(NamedTuple):
    """Findings of one pass over `.bin`."""

    largest_id: int
    lengths: Lengths
    sha256: str


def check_manifest(prefix: Path, index: Index, manifest: dict[str, Any], encoder: Encoder | None) -> None:
    """Raise DataError for the first difference between manifest and files: counts, digest of `.idx`, tokenizer.

    The digest of `.bin` is compared by `require_recorded`, after `check_tokens` has read the file.
    """
    require_recorded(prefix, manifest, "documents", index.documents)
    require_recorded(prefix, manifest, "sequences", index.sequences)
    require_recorded(prefix, manifest, "tokens", index.tokens)
    require_recorded(prefix, manifest, "dtype", str(index.dtype))
    require_recorded(prefix, manifest, "bin_bytes", bin_path(prefix).stat().st_size)
    require_recorded(prefix, manifest, "idx_sha256", sha256_file(idx_path(prefix)))
    if encoder and (digest := sha256_tokenizer(encoder.folder)) != manifest["tokenizer"]["sha256"]:
        raise DataError(
            f"{encoder.folder}: sha256 of the tokenizer is {digest}, the data was encoded with "
            f"{manifest['tokenizer']['sha256']} ({manifest_path(prefix).name}); name that tokenizer or {AGAIN}"
        )


def require_recorded(prefix: Path, manifest: dict[str, Any], key: str, value: Any) -> None:
    """Raise DataError if the manifest of a pair records another value than its files have."""
    if manifest[key] != value:
        raise DataError(
            f"{manifest_path(prefix)}: {key} is {manifest[key]}, the files have {value}; they changed, or the manifest "
            f"belongs to another pair: {AGAIN}"
        )


def check_tokens(prefix: Path, index: Index, vocabulary_size: int, eod: int) -> TokenCheck:
    """Check every token and hash `.bin` in the same pass.

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
    return TokenCheck(tokens.largest, lengths, tokens.digest.hexdigest())


class _Tokens:
    """The ids of a `.bin`, read from its start in pieces; each piece is checked and hashed when it is read."""

    def __init__(self, prefix: Path, file: BinaryIO, dtype: np.dtype[Any], vocabulary_size: int, bar: Any) -> None:
        self._path = bin_path(prefix)
        self._file = file
        self._dtype = dtype
        self._vocabulary_size = vocabulary_size
        self._bar = bar
        self._piece: npt.NDArray[Any] = np.zeros(0, dtype=dtype)
        self.end = 0
        """Number of the first token after the piece."""
        self.largest = 0
        self.digest = hashlib.sha256()

    def go_to(self, number: int) -> None:
        """Read pieces until the current one contains the token of this number."""
        while number >= self.end:
            # read, not mapped: mapped pages count as memory of this process until the kernel reclaims them
            self._piece = np.fromfile(self._file, dtype=self._dtype, count=CHUNK_TOKENS)
            self.digest.update(self._piece.data)
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
                f"{self._vocabulary_size:,}; the file is damaged, of another tokenizer, or of another dtype than in "
                f"its .idx: {AGAIN}"
            )
        self.largest = max(self.largest, largest)
        self._bar.update(len(piece))


def _documents(index: Index) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield, for each chunk of documents, numbers and ends (exclusive) of the filled ones, and lengths of all."""
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
            f"{prefix}: document {int(numbers[first]):,} ends with {found[first]}, wanted the end-of-document token "
            f"{eod}; it was encoded without --append-eod or is damaged: {AGAIN}"
        )
