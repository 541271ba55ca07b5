"""Checks of a pair: digests, token ids, ends of documents and lengths, in constant memory, and samples of the text.

A sample of documents is decoded and encoded again, and a sample of the input is encoded again.
"""

from __future__ import annotations

import hashlib
import os
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data.checking.pair_summary import Lengths, TextCheck
from data.reading.records import Record, json_lines
from data.reading.tokenizer import Encoder
from data.reading.unchanged import progress_bar, unchanged
from utils.dataset.indexed import Index, bin_path, idx_path, manifest_path, require_counts
from utils.dataset.manifest import AGAIN, require_recorded, require_tokenizer
from utils.errors import DataError, UnusableError
from utils.provenance.digests import sha256_file, sha256_tokenizer

CHUNK_TOKENS = 1 << 22


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
    digest = hashlib.sha256()
    largest_id = 0
    # number of the documents that end in earlier pieces, and the end of the last one of them
    documents = last_end = 0
    with bin_path(prefix).open("rb") as file, progress_bar("check tokens", index.tokens, "tokens") as bar:
        for start in range(0, index.tokens, CHUNK_TOKENS):
            # read, not mapped: mapped pages count as memory of this process until the kernel reclaims them
            piece = np.fromfile(file, dtype=index.dtype, count=CHUNK_TOKENS)
            digest.update(piece.data)
            largest_id = max(largest_id, _largest_id(prefix, piece, start, vocabulary_size))
            ends = _ends(index, documents, start + len(piece))
            lengths_here = np.diff(ends, prepend=last_end)
            lengths.add(lengths_here)
            filled = np.flatnonzero(lengths_here)
            _require_eod(prefix, piece[ends[filled] - 1 - start], documents + filled, eod)
            documents += len(ends)
            last_end += int(lengths_here.sum())
            bar.update(len(piece))
    return TokenCheck(largest_id, lengths, digest.hexdigest())


def _ends(index: Index, first: int, end: int) -> npt.NDArray[np.int64]:
    """Return the ends of the documents from `first` on that end at token `end` or before."""
    size = index.dtype.itemsize
    indices = index.document_indices
    # a document ends where the sequence behind it begins
    behind = index.sequences + 1
    if end < index.tokens:
        # bisect, because searchsorted would copy the mapped index
        behind = bisect_right(index.sequence_pointers, end * size)
    sequences = indices[first + 1 : bisect_left(indices, behind)]
    # no sequence is behind the last one
    begins = index.sequence_pointers[np.minimum(sequences, index.sequences - 1)] // size
    return np.where(sequences < index.sequences, begins, index.tokens)


def _largest_id(prefix: Path, piece: npt.NDArray[Any], start: int, vocabulary_size: int) -> int:
    largest_id = int(piece.max())
    if int(piece.min()) < 0 or largest_id >= vocabulary_size:
        is_wrong = (piece < 0) | (piece >= vocabulary_size)
        place = int(is_wrong.argmax())
        raise DataError(
            f"{bin_path(prefix)}: token {start + place:,} is {piece[place]}, wanted below {vocabulary_size:,}; "
            f"the file is damaged, of another tokenizer, or of another dtype than in its .idx: {AGAIN}"
        )
    return largest_id


def _require_eod(prefix: Path, last_tokens: npt.NDArray[Any], numbers: npt.NDArray[np.int64], eod: int) -> None:
    """Raise DataError unless `eod` is the last token of each of the documents with these numbers."""
    is_wrong = last_tokens != eod
    if is_wrong.any():
        first = int(is_wrong.argmax())
        raise DataError(
            f"{prefix}: document {int(numbers[first]):,} ends with {last_tokens[first]}, wanted the end-of-document "
            f"token {eod}; it was encoded without --append-eod or is damaged: {AGAIN}"
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
    before, behind = _around(encoder)
    added = {number: str(token) for number, token in encoder.tokenizer.added_tokens_decoder.items()}
    documents = _filled_documents(prefix, index)
    excerpt = ""
    kept = tokens = kept_tokens = 0
    for ids in documents:
        body = ids[before : len(ids) - 1 - behind]
        text = _decoded(encoder, body)
        excerpt = excerpt or text[:EXCERPT_CHARACTERS]
        spellings = encoder.ids([text, _decoded_in_pieces(encoder, body, added)])
        # tokens are counted, not documents, because a document of a token or two keeps its ids with any tokenizer
        size = sum(token not in added for token in body)
        tokens += size
        if ids in spellings:
            kept += 1
            kept_tokens += size
    if not is_proven and kept_tokens < LEAST_KEPT_SHARE * tokens:
        raise DataError(
            f"{prefix}: {kept_tokens:,} of {tokens:,} sampled tokens are in documents that keep their ids when decoded "
            f"and encoded with {encoder.folder}; the pair has another tokenizer: name that one, give the text with "
            f"--input, or {AGAIN}"
        )
    return TextCheck(sampled=len(documents), kept=kept, excerpt=excerpt)


def _filled_documents(prefix: Path, index: Index) -> list[list[int]]:
    """Return the ids of a random sample of the documents that have any."""
    # more than are wanted, as many may be empty
    documents = []
    for number in _sample(index.documents, 4 * SAMPLE_DOCUMENTS):
        ids = document(prefix, index, number)
        if ids:
            documents.append(ids)
    return documents[:SAMPLE_DOCUMENTS]


def _sample(documents: int, size: int) -> list[int]:
    return random.Random(SAMPLE_SEED).sample(range(documents), min(documents, size))


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
    for token, group in groupby(ids, added.get):
        piece = list(group)
        if token is None:
            texts.append(_decoded(encoder, piece))
        else:
            texts += [token] * len(piece)
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
    sample = set(_sample(index.documents, SAMPLE_DOCUMENTS))
    lines: dict[int, Record] = {}
    skips_bad_lines = manifest is not None and bool(manifest.get("bad_lines"))
    recorded = manifest["input"] if manifest else None
    documents = bad_lines = size = 0
    with unchanged(*sources):
        if recorded:
            _check_digests(prefix, recorded, sources)
        for line in chain.from_iterable(json_lines(path, encoder.text_key) for path in sources):
            if isinstance(line, Record):
                if documents in sample:
                    lines[documents] = line
                documents += 1
                size += len(line.text.encode("utf8"))
            elif skips_bad_lines:
                bad_lines += 1
            else:
                raise line
    if documents != index.documents:
        names = " ".join(str(path) for path in sources)
        raise DataError(f"{names}: got {documents:,} lines, {prefix} has {index.documents:,} documents; name its input")
    if manifest and recorded:
        require_recorded(manifest_path(prefix), manifest, "bytes_of_text", size, "the input has")
        if skips_bad_lines:
            require_recorded(manifest_path(prefix), manifest, "bad_lines", bad_lines, "the input has")
    rows = encoder.ids([line.text for line in lines.values()])
    for (number, line), ids in zip(lines.items(), rows, strict=True):
        if ids != document(prefix, index, number):
            raise DataError(f"{line.where}: has other ids than document {number:,} of {prefix}; {AGAIN}")
    return len(lines)


def document(prefix: Path, index: Index, number: int) -> list[int]:
    """Return the ids of a document."""
    first, end = index.document_indices[number : number + 2].tolist()
    if first == end:
        return []
    count = int(index.sequence_lengths[first:end].sum(dtype=np.int64))
    ids = np.fromfile(bin_path(prefix), dtype=index.dtype, count=count, offset=int(index.sequence_pointers[first]))
    tokens: list[int] = ids.tolist()
    return tokens


def _check_digests(prefix: Path, known: dict[str, Any], sources: Sequence[Path]) -> None:
    files = known.get("files", [known])
    if len(files) != len(sources):
        raise DataError(
            f"{manifest_path(prefix)}: number of input files is {len(files)}, got {len(sources)}; name all in order"
        )
    for path, file in zip(sources, files, strict=True):
        for key, value in (("sha256", sha256_file(path)), ("bytes", path.stat().st_size)):
            if value != file[key]:
                raise DataError(
                    f"{path}: {key} is {value}, {prefix} was encoded from {file['name']} with {file[key]}; name its "
                    f"input or {AGAIN}"
                )
