"""Reader and checks of the `.bin/.idx` pair that Megatron trains from, and of the manifest beside it.

The format is that of megatron/core/datasets/indexed_dataset.py in megatron-core 0.16.1, without its multimodal modes.
`.bin` holds the token ids of all sequences back to back; `.idx`, little endian, holds

    9 bytes magic, u64 version 1, u8 dtype code, u64 S sequences, u64 D + 1 (documents, plus one),
    int32[S] tokens of each sequence, int64[S] its first byte in .bin, int64[D + 1] sequences before each document.

A prefix is the path without `.bin`, `.idx` or `.json` (the manifest, written last: a pair without one is unfinished).
megatron-core checks only magic and version; it would notice a cut `.bin` or a wrong dtype late or never.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from utils.dataset import manifest
from utils.dataset.manifest import bin_path as bin_path, idx_path as idx_path, manifest_path as manifest_path
from utils.errors import DataError, UnusableError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int8),
    3: np.dtype(np.int16),
    4: np.dtype(np.int32),
    5: np.dtype(np.int64),
    8: np.dtype(np.uint16),
}
"""Codes of the integer types (`DType` of the source above); 6 and 7 are floats and hold no token ids."""
HEADER = struct.Struct("<9sQBQQ")
_CHUNK_ENTRIES = 1 << 20
"""Entries of the index that are checked together: the index can be larger than the memory."""
_AGAIN = "encode the text again (python -m data.encode) or copy the files again"


@dataclass(frozen=True)
class Index:
    """The content of an `.idx`; the arrays are views of the mapped file and read-only."""

    dtype: np.dtype[Any]
    """Type of the ids in `.bin`."""
    sequence_lengths: npt.NDArray[np.int32]
    """Tokens of each sequence."""
    sequence_pointers: npt.NDArray[np.int64]
    """First byte of each sequence in `.bin`."""
    document_indices: npt.NDArray[np.int64]
    """0, then the number of sequences up to the end of each document; an empty document repeats a number."""

    @property
    def documents(self) -> int:
        """Number of documents, including empty ones."""
        return len(self.document_indices) - 1

    @property
    def sequences(self) -> int:
        """Number of sequences; `data.encode` writes one for each document that is not empty."""
        return len(self.sequence_lengths)

    @property
    def tokens(self) -> int:
        """Number of tokens in `.bin`."""
        return int(self.sequence_lengths.sum(dtype=np.int64))


def pointers(sequence_lengths: npt.NDArray[np.int32], itemsize: int) -> npt.NDArray[np.int64]:
    """Return the first byte of each sequence in `.bin`, given the bytes of one token."""
    ends = np.cumsum(sequence_lengths, dtype=np.int64)
    return (ends - sequence_lengths) * itemsize


def read_index(prefix: Path) -> Index:
    """Return the index of a pair, mapped and not copied.

    Raises UnusableError if there is none, and DataError for a file that is not an `.idx` or has the wrong size.
    """
    path = idx_path(prefix)
    _require(prefix, path)
    size = path.stat().st_size
    if size < HEADER.size:
        raise DataError(f"{path}: got {size} bytes, wanted at least the {HEADER.size} of its header; {_AGAIN}")
    # mapped: an index of a large corpus has gigabytes
    content = np.memmap(path, dtype=np.uint8, mode="r")
    magic, version, code, sequences, entries = HEADER.unpack(content[: HEADER.size].tobytes())
    wanted = HEADER.size + 12 * sequences + 8 * entries
    if magic != MAGIC:
        raise DataError(f"{path}: starts with {magic!r}, an .idx of Megatron with {MAGIC!r}; name another prefix")
    if version != VERSION:
        raise DataError(f"{path}: got version {version}, wanted {VERSION}; {_AGAIN}")
    if code not in DTYPES:
        names = ", ".join(f"{code} ({dtype})" for code, dtype in DTYPES.items())
        raise DataError(f"{path}: got dtype code {code}, wanted one of {names}; {_AGAIN}")
    if size != wanted:
        raise DataError(
            f"{path}: got {size:,} bytes, wanted {wanted:,} for {sequences:,} sequences and {entries:,} document "
            f"indices; it was cut short or belongs to something else: {_AGAIN}"
        )
    lengths_end = HEADER.size + 4 * sequences
    pointers_end = lengths_end + 8 * sequences
    return Index(
        dtype=DTYPES[code],
        sequence_lengths=content[HEADER.size : lengths_end].view("<i4"),
        sequence_pointers=content[lengths_end:pointers_end].view("<i8"),
        document_indices=content[pointers_end:].view("<i8"),
    )


def check(prefix: Path) -> Index:
    """Check that the `.idx` of a pair agrees with itself and with the size of `.bin`, and return the index.

    Reads no token, so it is fast even for a large file; `python -m data.verify` reads all tokens.
    Raises UnusableError if a file is missing and DataError for every disagreement.
    """
    data, path = bin_path(prefix), idx_path(prefix)
    _require(prefix, data, path)
    index = read_index(prefix)
    _check_documents(path, index)
    _check_sequences(path, index)
    # megatron-core maps the file without looking at its size and would read beyond its end
    got, wanted = data.stat().st_size, index.tokens * index.dtype.itemsize
    if got != wanted:
        fault = "shorter" if got < wanted else "longer"
        raise DataError(
            f"{data}: got {got:,} bytes, {fault} than the {wanted:,} that {path.name} requires "
            f"({index.tokens:,} tokens of {index.dtype}); they are not of one run or one is damaged: {_AGAIN}"
        )
    if not got:
        raise DataError(f"{data}: holds no token, and Megatron cannot open an empty file; take other text")
    return index


def _check_documents(path: Path, index: Index) -> None:
    indices = index.document_indices
    is_right = len(indices) > 0 and indices[0] == 0 and indices[-1] == index.sequences
    for start in range(0, len(indices), _CHUNK_ENTRIES):
        # one more, so that the step into the next chunk is looked at too
        if (np.diff(indices[start : start + _CHUNK_ENTRIES + 1]) < 0).any():
            is_right = False
    if not is_right:
        raise DataError(f"{path}: document indices do not rise from 0 to the {index.sequences:,} sequences; {_AGAIN}")


def _check_sequences(path: Path, index: Index) -> None:
    first_byte = 0
    for start in range(0, index.sequences, _CHUNK_ENTRIES):
        lengths = index.sequence_lengths[start : start + _CHUNK_ENTRIES]
        if (lengths < 0).any():
            number = start + int((lengths < 0).argmax())
            raise DataError(f"{path}: sequence {number} has a negative length; {_AGAIN}")
        # pointers within the chunk start from 0
        wanted = first_byte + pointers(lengths, index.dtype.itemsize)
        wrong = index.sequence_pointers[start : start + _CHUNK_ENTRIES] != wanted
        if wrong.any():
            raise DataError(
                f"{path}: sequence {start + int(wrong.argmax())} does not start where the one before it ends; "
                f"its lengths or pointers are damaged: {_AGAIN}"
            )
        first_byte += int(lengths.sum(dtype=np.int64)) * index.dtype.itemsize


def load_manifest(prefix: Path) -> dict[str, Any]:
    """Return the manifest that `data.encode` wrote beside a pair.

    Raises UnusableError if there is none, and DataError for one that is damaged, incomplete, of another version or
    contradicts itself.
    """
    path = manifest_path(prefix)
    _require(prefix, path)
    return manifest.read(path)


def require_counts(prefix: Path, index: Index, recorded: dict[str, Any]) -> None:
    """Raise DataError if the manifest of a pair records other counts, sizes or types than its files have."""
    found = {
        "documents": index.documents,
        "sequences": index.sequences,
        "tokens": index.tokens,
        "dtype": str(index.dtype),
        "bin_bytes": bin_path(prefix).stat().st_size,
    }
    for key, value in found.items():
        manifest.require_recorded(manifest_path(prefix), recorded, key, value)


def _require(prefix: Path, *paths: Path) -> None:
    missing = [str(path) for path in paths if not path.is_file()]
    if missing and prefix.suffix in (".bin", ".idx", ".json") and prefix.is_file():
        raise UnusableError(f"{prefix}: got a file, wanted a prefix; leave out {prefix.suffix}")
    if missing:
        raise UnusableError(
            f"{' and '.join(missing)}: no such file; name a prefix that data.encode wrote, without .bin"
        )
