"""Compare the tokens of a pair with its text: decode a sample of documents, and encode a sample of the input again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.checking.checks import AGAIN
from data.checking.pair_summary import TextCheck
from data.engines.encoder import Encoder
from data.reading.jsonl import text_of
from utils.dataset.indexed import Index, bin_path, manifest_path
from utils.errors import DataError, UnusableError
from utils.provenance.digests import sha256_file

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
