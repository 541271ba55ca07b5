"""Verify a `.bin/.idx` pair: structure, every token id, ends of documents, digests, and text from the tokens.

    python -m data.verify PREFIX [--tokenizer FOLDER [--input FILE.jsonl] [--write-manifest]]

A pair that another program wrote has no manifest; then the tokenizer says what the ids may be, and --write-manifest
makes one. With the input a random sample of its lines is encoded again and compared id by id.
Exits 0; 1 for a pair that is wrong; 2 for missing files.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from data.encoder import Encoder, one_thread_each
from data.jsonl import text_of
from data.manifest import manifest_of
from utils.fingerprint import sha256_file, sha256_tokenizer
from utils.indexed import (
    DataError,
    Index,
    UnusableError,
    bin_path,
    check,
    idx_path,
    load_manifest,
    manifest_path,
)
from utils.results import write_json

SAMPLE_DOCUMENTS = 64
SAMPLE_SEED = 0
LEAST_KEPT_SHARE = 0.01
"""Of the sampled tokens. A tokenizer that loses something (case, unknown characters) keeps more, a wrong one less."""
EXCERPT_CHARACTERS = 200
_CHUNK_TOKENS = 1 << 22
_BAR_DELAY_SECONDS = 2
_AGAIN = "encode the text again with python -m data.encode"


@dataclass(frozen=True)
class TextCheck:
    """What decoding a sample of documents showed."""

    sampled: int
    kept: int
    """Documents that give the same ids after decoding and encoding. Text that a tokenizer normalises need not."""
    excerpt: str
    """Start of the first sampled document."""


@dataclass(frozen=True)
class Summary:
    """What a pair holds and what was checked; None for what was not, for want of manifest, tokenizer or input."""

    documents: int
    empty_documents: int
    tokens: int
    dtype: str
    vocabulary_size: int
    largest_id: int
    eod: int
    has_manifest: bool
    """Its digests and counts have been checked; one that differs is an error."""
    text: TextCheck | None
    lines_encoded_again: int | None
    """Sampled lines of the input whose ids are those of the pair; one that differs is an error."""

    def __str__(self) -> str:
        """Return the summary for people."""
        filled = self.documents - self.empty_documents
        text, again = self.text, self.lines_encoded_again
        lines = (
            f"documents   {self.documents:,} ({self.empty_documents:,} empty)",
            f"tokens      {self.tokens:,} of {self.dtype}, {self.tokens / filled:.1f} in a document that has any",
            f"ids         up to {self.largest_id:,}, below the {self.vocabulary_size:,} of the vocabulary",
            f"ends        every document that has tokens ends with {self.eod}",
            f"manifest    {'agrees, digests too' if self.has_manifest else 'none; digests not checked'}",
            f"round trip  {f'{text.kept} of {text.sampled} documents' if text else 'not checked: no --tokenizer'}",
            f"input       {'not checked: no --input' if again is None else f'{again} sampled lines have these ids'}",
        )
        return "\n".join(lines) + (f"\ntext        {text.excerpt!r}" if text else "")


def verify(prefix: Path, tokenizer: Path | None = None, source: Path | None = None, text_key: str = "text") -> Summary:
    """Return what a pair holds; `tokenizer` is the folder and `source` the JSONL file that it was made with.

    Raises UnusableError for files that are missing and DataError for the first thing that does not agree.
    """
    if source is not None and tokenizer is None:
        raise UnusableError(f"{source}: can be compared only with its tokenizer; name that with --tokenizer")
    index = check(prefix)
    manifest = load_manifest(prefix) if manifest_path(prefix).exists() else None
    encoder = Encoder(tokenizer, text_key) if tokenizer else None
    if manifest:
        _check_manifest(prefix, index, manifest, encoder)
    vocabulary_size, eod = _vocabulary(prefix, manifest, encoder)
    tokens = np.memmap(bin_path(prefix), dtype=index.dtype, mode="r")
    largest = _check_ids(prefix, tokens, vocabulary_size)
    _check_ends(prefix, index, tokens, eod)
    return Summary(
        documents=index.documents,
        empty_documents=int((np.diff(index.document_indices) == 0).sum()),
        tokens=index.tokens,
        dtype=str(index.dtype),
        vocabulary_size=vocabulary_size,
        largest_id=largest,
        eod=eod,
        has_manifest=manifest is not None,
        text=_check_text(prefix, index, tokens, encoder) if encoder else None,
        lines_encoded_again=_encode_again(prefix, index, tokens, encoder, source) if encoder and source else None,
    )


def write_manifest(prefix: Path, tokenizer: Path) -> dict[str, Any]:
    """Write and return a manifest for a pair that `verify` has passed and that has none, made by another program."""
    index = check(prefix)
    manifest = manifest_of(
        Encoder(tokenizer),
        documents=index.documents,
        sequences=index.sequences,
        tokens=index.tokens,
        bytes_of_text=None,
        source=None,
        bin_sha256=sha256_file(bin_path(prefix)),
        idx_sha256=sha256_file(idx_path(prefix)),
    )
    manifest |= {"dtype": str(index.dtype), "bin_bytes": index.tokens * index.dtype.itemsize}
    write_json(manifest, manifest_path(prefix))
    return manifest


def _vocabulary(prefix: Path, manifest: dict[str, Any] | None, encoder: Encoder | None) -> tuple[int, int]:
    if encoder:
        return encoder.vocabulary_size, encoder.eod
    if manifest:
        return manifest["vocab_size"], manifest["eod_token_id"]
    raise UnusableError(
        f"{manifest_path(prefix)}: no such file, so the vocabulary is not known; name the tokenizer with --tokenizer, "
        "or encode again if data.encode was stopped before it wrote this last file"
    )


def _check_manifest(prefix: Path, index: Index, manifest: dict[str, Any], encoder: Encoder | None) -> None:
    path = manifest_path(prefix)
    found: dict[str, Any] = {
        "documents": index.documents,
        "sequences": index.sequences,
        "tokens": index.tokens,
        "dtype": str(index.dtype),
        "bin_bytes": bin_path(prefix).stat().st_size,
        "idx_sha256": sha256_file(idx_path(prefix)),
        "bin_sha256": sha256_file(bin_path(prefix)),
    }
    for key, value in found.items():
        if manifest[key] != value:
            raise DataError(f"{path}: {key} is {manifest[key]}, the files have {value}; they changed: {_AGAIN}")
    if encoder and (digest := sha256_tokenizer(encoder.folder)) != manifest["tokenizer"]["sha256"]:
        raise DataError(
            f"{encoder.folder}: sha256 of the tokenizer is {digest}, the data was encoded with "
            f"{manifest['tokenizer']['sha256']} ({path.name}); name that tokenizer or {_AGAIN}"
        )


def _check_ids(prefix: Path, tokens: npt.NDArray[Any], vocabulary_size: int) -> int:
    """Return the largest id; ids are looked at in pieces, so that memory stays small."""
    largest = 0
    with tqdm(
        desc="check ids", total=len(tokens), unit="tokens", unit_scale=True, delay=_BAR_DELAY_SECONDS, disable=None
    ) as bar:
        for start in range(0, len(tokens), _CHUNK_TOKENS):
            chunk = tokens[start : start + _CHUNK_TOKENS]
            wrong = (chunk < 0) | (chunk >= vocabulary_size)
            if wrong.any():
                where = int(wrong.argmax())
                raise DataError(
                    f"{bin_path(prefix)}: token {start + where:,} is {chunk[where]}, wanted below {vocabulary_size:,}; "
                    f"damaged, of another tokenizer, or of another dtype than its .idx says: {_AGAIN}"
                )
            largest = max(largest, int(chunk.max()))
            bar.update(len(chunk))
    return largest


def _check_ends(prefix: Path, index: Index, tokens: npt.NDArray[Any], eod: int) -> None:
    is_filled = np.diff(index.document_indices) > 0
    last_sequences = index.document_indices[1:][is_filled] - 1
    lasts = index.sequence_pointers[last_sequences] // index.dtype.itemsize + index.sequence_lengths[last_sequences] - 1
    wrong = tokens[lasts] != eod
    if wrong.any():
        where = int(wrong.argmax())
        raise DataError(
            f"{prefix}: document {int(np.flatnonzero(is_filled)[where]):,} ends with {tokens[lasts[where]]}, "
            f"wanted the end of document {eod} ({int(wrong.sum()):,} such); encoded without --append-eod, or damaged: "
            f"{_AGAIN}"
        )


def _check_text(prefix: Path, index: Index, tokens: npt.NDArray[Any], encoder: Encoder) -> TextCheck:
    filled = np.flatnonzero(np.diff(index.document_indices)).tolist()
    sample = random.Random(SAMPLE_SEED).sample(filled, min(SAMPLE_DOCUMENTS, len(filled)))
    documents = [_document(index, tokens, number) for number in sample]
    texts = [encoder.tokenizer.decode(ids[:-1], skip_special_tokens=True) for ids in documents]
    kept = [ids for again, ids in zip(encoder.ids(texts), documents, strict=True) if again == ids]
    # a document of a token or two survives any tokenizer, so tokens are counted and not documents
    kept_tokens, sampled_tokens = sum(map(len, kept)), sum(map(len, documents))
    if kept_tokens < LEAST_KEPT_SHARE * sampled_tokens:
        raise DataError(
            f"{prefix}: of {sampled_tokens:,} sampled tokens {kept_tokens:,} are in documents that keep their ids when "
            f"decoded and encoded with {encoder.folder}; that is not its tokenizer: name the right one or {_AGAIN}"
        )
    return TextCheck(sampled=len(sample), kept=len(kept), excerpt=texts[0][:EXCERPT_CHARACTERS])


def _encode_again(prefix: Path, index: Index, tokens: npt.NDArray[Any], encoder: Encoder, source: Path) -> int:
    if not source.is_file():
        raise UnusableError(f"{source}: no such file; name the .jsonl file that {prefix.name} was encoded from")
    size = min(SAMPLE_DOCUMENTS, index.documents)
    sample = set(random.Random(SAMPLE_SEED).sample(range(index.documents), size))
    texts: dict[int, str] = {}
    lines = 0
    with source.open("rb") as file:
        for line in file:
            if lines in sample:
                texts[lines] = text_of(line, source, lines + 1, encoder.text_key)
            lines += 1
    if lines != index.documents:
        raise DataError(
            f"{source}: got {lines:,} lines, {prefix} has {index.documents:,} documents; name its own input"
        )
    for number, ids in zip(texts, encoder.ids(list(texts.values())), strict=True):
        if ids != _document(index, tokens, number):
            raise DataError(f"{source}:{number + 1}: has other ids than document {number:,} of {prefix}; {_AGAIN}")
    return len(texts)


def _document(index: Index, tokens: npt.NDArray[Any], number: int) -> list[int]:
    first, end = index.document_indices[number : number + 2].tolist()
    if first == end:
        return []
    start = int(index.sequence_pointers[first]) // index.dtype.itemsize
    ids: list[int] = tokens[start : start + int(index.sequence_lengths[first:end].sum())].tolist()
    return ids


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m data.verify", description=__doc__.splitlines()[0])
    parser.add_argument("prefix", type=Path, help="path of the pair without .bin / .idx")
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer: documents are decoded as well")
    parser.add_argument("--input", type=Path, help="JSONL file that was encoded: a sample is encoded again")
    parser.add_argument("--text-key", default="text", help="key of the text in each line (default: text)")
    parser.add_argument(
        "--write-manifest", action="store_true", help="write the manifest of a pair that has none (needs --tokenizer)"
    )
    options = parser.parse_args(arguments)
    if options.write_manifest and options.tokenizer is None:
        parser.error("--write-manifest needs --tokenizer: name the folder of the tokenizer that the pair was made with")
    one_thread_each()
    try:
        summary = verify(options.prefix, options.tokenizer, options.input, options.text_key)
        if options.write_manifest and not summary.has_manifest:
            write_manifest(options.prefix, options.tokenizer)
    except (UnusableError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
