"""Checks of a pair: digests, token ids, ends of documents and lengths, in constant memory, and samples of the text.

A sample of documents is decoded and encoded again, and a sample of the input is encoded again.
"""

from __future__ import annotations

import hashlib
import os
import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
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
    lengths, digest, tokens = Lengths(), hashlib.sha256(), index.tokens
    largest = documents = done = 0
    with bin_path(prefix).open("rb") as file, progress_bar("check tokens", tokens, "tokens") as bar:
        for start in range(0, tokens, CHUNK_TOKENS):
            # read, not mapped: mapped pages count as memory of this process until the kernel reclaims them
            piece = np.fromfile(file, dtype=index.dtype, count=CHUNK_TOKENS)
            digest.update(piece.data)
            largest = max(largest, _largest_id(prefix, piece, start, vocabulary_size))
            ends = _ends(index, documents, start + len(piece), tokens)
            of_each = np.diff(ends, prepend=done)
            lengths.add(of_each)
            filled = np.flatnonzero(of_each)
            _require_eod(prefix, piece[ends[filled] - 1 - start], documents + filled, eod)
            documents, done = documents + len(ends), done + int(of_each.sum())
            bar.update(len(piece))
    return TokenCheck(largest, lengths, digest.hexdigest())


def _ends(index: Index, first: int, end: int, tokens: int) -> npt.NDArray[np.int64]:
    """Return the ends of the documents from `first` on that end at token `end` of all `tokens` or before."""
    size, indices = index.dtype.itemsize, index.document_indices
    # a document ends where the sequence behind it begins; bisect, because searchsorted would copy the mapped index
    behind = bisect_right(index.sequence_pointers, end * size) if end < tokens else index.sequences + 1
    sequences = indices[first + 1 : bisect_left(indices, behind)]
    begins = index.sequence_pointers[np.minimum(sequences, index.sequences - 1)] // size
    return np.where(sequences < index.sequences, begins, tokens)


def _largest_id(prefix: Path, piece: npt.NDArray[Any], start: int, vocabulary_size: int) -> int:
    largest = int(piece.max())
    if int(piece.min()) < 0 or largest >= vocabulary_size:
        where = int(((piece < 0) | (piece >= vocabulary_size)).argmax())
        raise DataError(
            f"{bin_path(prefix)}: token {start + where:,} is {piece[where]}, wanted below {vocabulary_size:,}; "
            f"the file is damaged, of another tokenizer, or of another dtype than in its .idx: {AGAIN}"
        )
    return largest


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
    """Yield the texts of JSONL files; bad lines are counted in `skipped`, and an error without it."""
    for item in chain.from_iterable(json_lines(path, text_key) for path in sources):
        if isinstance(item, Record):
            yield item
        elif skipped is None:
            raise item
        else:
            skipped["bad"] += 1
