"""Checks of a pair: digests, token ids, ends of documents and lengths, in constant memory, and samples of the text.

A sample of documents is decoded and encoded again, and a sample of the input is encoded again.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from data.checking.pair_summary import Lengths, TextCheck
from data.engines.backend import Encoder
from data.reading.jsonl import BOM, text_of
from data.reading.progress import progress_bar
from data.reading.records import Record
from data.reading.unchanged import unchanged
from utils.dataset.indexed import Index, bin_path, idx_path, manifest_path, require_counts
from utils.dataset.manifest import AGAIN, require_recorded, require_tokenizer
from utils.errors import DataError, UnusableError
from utils.provenance.digests import sha256_file, sha256_tokenizer

CHUNK_TOKENS = 1 << 22
CHUNK_DOCUMENTS = 1 << 18


class TokenCheck(NamedTuple):
    """Findings of one pass over `.bin`."""

    largest_id: int
    lengths: Lengths
    sha256: str


def check_manifest(prefix: Path, index: Index, manifest: dict[str, Any], encoder: Encoder | None) -> None:
    """Raise DataError for the first difference between manifest and files: counts, digest of `.idx`, tokenizer.

    The digest of `.bin` is compared by `require_recorded`, after `check_tokens` has read the file.
    """
    path = manifest_path(prefix)
    require_counts(prefix, index, manifest)
    require_recorded(path, manifest, "idx_sha256", sha256_file(idx_path(prefix)))
    if encoder is None:
        return
    require_tokenizer(encoder.folder, sha256_tokenizer(encoder.folder), path, manifest)
    require_recorded(path, manifest, "vocab_size", encoder.vocabulary_size, "the tokenizer has")
    require_recorded(path, manifest, "eod_token_id", encoder.eod, "the tokenizer has")


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


def decode_sample(prefix: Path, index: Index, encoder: Encoder, *, is_proven: bool = False) -> TextCheck:
    """Decode a random sample of documents and encode the text again.

    Special tokens in the text are decoded too; those that the tokenizer puts around each text are left out, because
    encoding puts them there again. Unless `is_proven` (the input was compared), raises DataError if hardly any token is
    kept: then the pair was encoded with another tokenizer. Added tokens prove nothing, so they are not counted.
    """
    sample = random.Random(SAMPLE_SEED).sample(range(index.documents), min(index.documents, 4 * SAMPLE_DOCUMENTS))
    documents = [ids for number in sample if (ids := document(prefix, index, number))][:SAMPLE_DOCUMENTS]
    before, behind = _around(encoder)
    bodies = [ids[before : len(ids) - 1 - behind] for ids in documents]
    added = {number: str(token) for number, token in encoder.tokenizer.added_tokens_decoder.items()}
    whole = [_decoded(encoder, ids) for ids in bodies]
    in_pieces = [_decoded_in_pieces(encoder, ids, added) for ids in bodies]
    is_kept = [
        ids in spellings for ids, *spellings in zip(documents, encoder.ids(whole), encoder.ids(in_pieces), strict=True)
    ]
    # tokens are counted, not documents, because a document of a token or two keeps its ids with any tokenizer
    sizes = [sum(token not in added for token in ids) for ids in bodies]
    kept_tokens = sum(size for size, is_one in zip(sizes, is_kept, strict=True) if is_one)
    if not is_proven and kept_tokens < LEAST_KEPT_SHARE * sum(sizes):
        raise DataError(
            f"{prefix}: {kept_tokens:,} of {sum(sizes):,} sampled tokens are in documents that keep their ids when "
            f"decoded and encoded with {encoder.folder}; the pair has another tokenizer: name that one, give the text "
            f"with --input, or {AGAIN}"
        )
    excerpt = whole[0][:EXCERPT_CHARACTERS] if whole else ""
    return TextCheck(sampled=len(documents), kept=sum(is_kept), excerpt=excerpt)


def _around(encoder: Encoder) -> tuple[int, int]:
    """Return the numbers of tokens that the tokenizer puts before and after each text."""
    nothing, something = encoder.rows(["", "a"])
    before = len(os.path.commonprefix([nothing, something]))
    return before, len(nothing) - before


def _decoded(encoder: Encoder, ids: list[int]) -> str:
    # transformers' clean-up would remove spaces before punctuation
    return str(encoder.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _decoded_in_pieces(encoder: Encoder, ids: list[int], added: dict[int, str]) -> str:
    """Return the text decoded in pieces between added tokens: some tokenizers put a space before each such piece."""
    texts = []
    for token, piece in groupby(ids, added.get):
        some = list(piece)
        texts.append(_decoded(encoder, some) if token is None else token * len(some))
    return "".join(texts)


def encode_sample(
    prefix: Path, index: Index, manifest: dict[str, Any] | None, encoder: Encoder, sources: Sequence[Path]
) -> int:
    """Encode a random sample of the input's lines with transformers and compare all ids; return the number of lines.

    `sources` are the JSONL files in the order of encoding; all lines are read, and what the manifest records of them is
    compared. Raises UnusableError for a missing file, and DataError for other files than the manifest's, another number
    of lines, a line with other ids, or a file that changes meanwhile.
    """
    for path in sources:
        if not path.is_file():
            raise UnusableError(f"{path}: no such file; name the .jsonl file from which {prefix.name} was encoded")
    sample = set(random.Random(SAMPLE_SEED).sample(range(index.documents), min(index.documents, SAMPLE_DOCUMENTS)))
    lines: dict[int, Record] = {}
    skipped: Counter[str] | None = Counter() if manifest and manifest.get("bad_lines") else None
    count = size = 0
    with unchanged(*sources):
        if manifest and manifest["input"]:
            _check_digests(prefix, manifest["input"], sources)
        for line in _texts(sources, encoder.text_key, skipped):
            if count in sample:
                lines[count] = line
            count, size = count + 1, size + len(line.text.encode("utf8"))
    if count != index.documents:
        named = " ".join(map(str, sources))
        raise DataError(f"{named}: got {count:,} lines, {prefix} has {index.documents:,} documents; name its input")
    if manifest and manifest["input"]:
        require_recorded(manifest_path(prefix), manifest, "bytes_of_text", size, "the input has")
        if skipped is not None:
            require_recorded(manifest_path(prefix), manifest, "bad_lines", skipped.total(), "the input has")
    for found, ids in zip(lines, encoder.ids([line.text for line in lines.values()]), strict=True):
        if ids != document(prefix, index, found):
            raise DataError(f"{lines[found].where}: has other ids than document {found:,} of {prefix}; {AGAIN}")
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
        found = {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        for key, value in found.items():
            if value != file[key]:
                raise DataError(
                    f"{path}: {key} is {value}, {prefix} was encoded from {file['name']} with {file[key]}; name its "
                    f"input or {AGAIN}"
                )


def _texts(sources: Sequence[Path], text_key: str, skipped: Counter[str] | None) -> Iterator[Record]:
    """Yield the texts of JSONL files as data/encoding/worker.py reads them; bad lines are counted in `skipped`, if any.

    Raises DataError for a bad line if none was skipped.
    """
    for path in sources:
        with path.open("rb") as file:
            file.seek(len(BOM) if file.read(len(BOM)) == BOM else 0)
            for number, line in enumerate(file, 1):
                try:
                    text = text_of(line, path, number, text_key)
                except DataError:
                    if skipped is None:
                        raise
                    skipped["bad"] += 1
                else:
                    yield Record(f"{path}:{number}", text)
