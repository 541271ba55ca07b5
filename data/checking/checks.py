"""Checks of a pair: digests, token ids, ends of documents and lengths, in constant memory, and samples of the text.

A sample of documents is decoded and encoded again, and a sample of the input is encoded again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from data.checking.pair_summary import Lengths, TextCheck
from data.engines.backend import Encoder
from data.reading.jsonl import text_of
from data.reading.progress import progress_bar
from utils.dataset.indexed import Index, bin_path, idx_path, manifest_path
from utils.errors import DataError, UnusableError
from utils.provenance.digests import sha256_file, sha256_tokenizer

CHUNK_TOKENS = 1 << 22
CHUNK_DOCUMENTS = 1 << 18
AGAIN = "encode the text again with python -m data.encode"


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
    with bin_path(prefix).open("rb") as file, progress_bar("check tokens", index.tokens, "tokens") as bar:
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


SAMPLE_DOCUMENTS = 64
SAMPLE_SEED = 0
LEAST_KEPT_SHARE = 0.01
"""Share of the sampled tokens. A lossy tokenizer (case, unknown characters) keeps more than this, a wrong one less."""
EXCERPT_CHARACTERS = 200


def decode_sample(prefix: Path, index: Index, encoder: Encoder) -> TextCheck:
    """Decode a random sample of documents and encode the text again.

    Raises DataError if hardly any token is kept: then the pair was encoded with another tokenizer.
    """
    sample = random.Random(SAMPLE_SEED).sample(range(index.documents), min(index.documents, 4 * SAMPLE_DOCUMENTS))
    documents = [ids for number in sample if (ids := document(prefix, index, number))][:SAMPLE_DOCUMENTS]
    texts = [encoder.tokenizer.decode(ids[:-1], skip_special_tokens=True) for ids in documents]
    kept = [ids for again, ids in zip(encoder.ids(texts), documents, strict=True) if again == ids]
    # tokens are counted, not documents, because a document of a token or two keeps its ids with any tokenizer
    kept_tokens, sampled_tokens = sum(map(len, kept)), sum(map(len, documents))
    if kept_tokens < LEAST_KEPT_SHARE * sampled_tokens:
        raise DataError(
            f"{prefix}: {kept_tokens:,} of {sampled_tokens:,} sampled tokens are in documents that keep their ids when "
            f"decoded and encoded with {encoder.folder}; the pair has another tokenizer: name that one or {AGAIN}"
        )
    return TextCheck(sampled=len(documents), kept=len(kept), excerpt=texts[0][:EXCERPT_CHARACTERS] if texts else "")


def encode_sample(
    prefix: Path, index: Index, manifest: dict[str, Any] | None, encoder: Encoder, sources: Sequence[Path]
) -> int:
    """Encode a random sample of the input's lines with transformers and compare all ids; return the number of lines.

    `sources` are the JSONL files in the order of encoding. Raises UnusableError for a missing file, and DataError for
    other files than the manifest's, another number of lines, or a line with other ids.
    """
    for path in sources:
        if not path.is_file():
            raise UnusableError(f"{path}: no such file; name the .jsonl file from which {prefix.name} was encoded")
    if manifest and manifest["input"]:
        _check_digests(prefix, manifest["input"], sources)
    skips = bool(manifest and manifest.get("bad_lines"))
    sample = set(random.Random(SAMPLE_SEED).sample(range(index.documents), min(index.documents, SAMPLE_DOCUMENTS)))
    lines: dict[int, tuple[str, str]] = {}
    count = 0
    for path, number, line in _lines(sources, encoder.text_key, skips):
        if count in sample:
            lines[count] = (f"{path}:{number}", text_of(line, path, number, encoder.text_key))
        count += 1
    if count != index.documents:
        named = " ".join(map(str, sources))
        raise DataError(f"{named}: got {count:,} lines, {prefix} has {index.documents:,} documents; name its input")
    texts = [text for _, text in lines.values()]
    for (found, (where, _)), ids in zip(lines.items(), encoder.ids(texts), strict=True):
        if ids != document(prefix, index, found):
            raise DataError(f"{where}: has other ids than document {found:,} of {prefix}; {AGAIN}")
    return len(lines)


def document(prefix: Path, index: Index, number: int) -> list[int]:
    """Return the ids of a document."""
    first, end = index.document_indices[number : number + 2].tolist()
    if first == end:
        return []
    count = int(index.sequence_lengths[first:end].sum(dtype=np.int64))
    ids = np.fromfile(bin_path(prefix), dtype=index.dtype, count=count, offset=int(index.sequence_pointers[first]))
    return [int(token) for token in ids]


def _check_digests(prefix: Path, known: dict[str, Any], sources: Sequence[Path]) -> None:
    files = known.get("files", [known])
    if len(files) != len(sources):
        raise DataError(
            f"{manifest_path(prefix)}: number of input files is {len(files)}, got {len(sources)}; name all in order"
        )
    for path, file in zip(sources, files, strict=True):
        if (digest := sha256_file(path)) != file["sha256"]:
            raise DataError(
                f"{path}: sha256 is {digest}, {prefix} was encoded from {file['name']} with {file['sha256']}; name its "
                f"input or {AGAIN}"
            )


def _lines(sources: Sequence[Path], text_key: str, skips: bool) -> Iterator[tuple[Path, int, bytes]]:
    for path in sources:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not skips or _is_good(line, path, number, text_key):
                    yield path, number, line


def _is_good(line: bytes, path: Path, number: int, text_key: str) -> bool:
    try:
        text_of(line, path, number, text_key)
    except DataError:
        return False
    return True
