"""Verify a `.bin/.idx` pair: structure, every token id, ends of documents, digests, and text from the tokens.

    python -m data.verify PREFIX [--tokenizer FOLDER [--input FILE.jsonl ...] [--write-manifest]] [--plot FILE.png]

A pair that another program wrote has no manifest; then the tokenizer gives the range of the ids, and --write-manifest
writes a manifest. With --tokenizer, a random sample of the documents is decoded, special tokens included, and encoded
again. With --input, transformers encodes a random sample of the input's lines again, and every id is compared; size,
digest and bytes of text of the input are compared with the manifest. `.bin` is read whole once. Verification ends at
the first fault, with its meaning and what to do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.command_lines import VERIFY

if __name__ == "__main__":
    VERIFY.parse_first()

from data.checking.checks import (
    TokenCheck,
    check_manifest,
    check_tokens,
    decode_sample,
    encode_sample,
)
from data.checking.pair_summary import PairSummary
from data.checking.plot import write_plot
from data.encoding.pair import manifest_of
from data.encoding.workers import one_thread_each
from data.reading.tokenizer import Encoder
from utils.arguments import refusing, run
from utils.dataset.indexed import Index, bin_path, check, idx_path, load_manifest, manifest_path
from utils.dataset.manifest import require_recorded
from utils.errors import DataError, UnusableError
from utils.own_files import is_png, require_ours
from utils.provenance.digests import sha256_file
from utils.results.store import write_json


def verify(
    prefix: Path, tokenizer: Path | None = None, source: Path | Sequence[Path] | None = None, text_key: str = "text"
) -> PairSummary:
    """Verify a pair and return its summary; `tokenizer` (a folder) and `source` (JSONL) are those it was encoded with.

    Several files of `source` are given in the order of encoding.
    Raises UnusableError for missing files and DataError for the first fault.
    """
    sources = [source] if isinstance(source, Path) else list(source or ())
    if sources and tokenizer is None:
        raise UnusableError(f"{sources[0]}: comparing the input needs the tokenizer; name it with --tokenizer")
    index = check(prefix)
    manifest = load_manifest(prefix) if manifest_path(prefix).exists() else None
    encoder = Encoder(tokenizer, text_key) if tokenizer else None
    if manifest:
        check_manifest(prefix, index, manifest, encoder)
    vocabulary_size, eod = _vocabulary(prefix, manifest, encoder)
    tokens = _check_tokens(prefix, index, manifest, vocabulary_size, eod)
    lines_encoded_again = text = None
    if encoder and sources:
        lines_encoded_again = encode_sample(prefix, index, manifest, encoder, sources)
    if encoder:
        text = decode_sample(prefix, index, encoder, is_proven=bool(lines_encoded_again))
    return PairSummary(
        documents=index.documents,
        empty_documents=tokens.lengths.empty,
        tokens=index.tokens,
        bytes_of_text=manifest["bytes_of_text"] if manifest else None,
        dtype=str(index.dtype),
        vocabulary_size=vocabulary_size,
        largest_id=tokens.largest_id,
        eod=eod,
        lengths=tokens.lengths,
        bin_sha256=tokens.sha256,
        has_manifest=manifest is not None,
        text=text,
        lines_encoded_again=lines_encoded_again,
    )


def write_manifest(prefix: Path, tokenizer: Path, bin_sha256: str) -> dict[str, Any]:
    """Write and return a manifest for a pair of another program, which `verify` has accepted; it gives the digest."""
    index = check(prefix)
    manifest = manifest_of(
        Encoder(tokenizer),
        documents=index.documents,
        sequences=index.sequences,
        tokens=index.tokens,
        bytes_of_text=None,
        source=None,
        bin_sha256=bin_sha256,
        idx_sha256=sha256_file(idx_path(prefix)),
    )
    # of the files: other programs choose int32 for small vocabularies too
    manifest["dtype"] = str(index.dtype)
    manifest["bin_bytes"] = index.tokens * index.dtype.itemsize
    write_json(manifest, manifest_path(prefix))
    return manifest


def _check_tokens(
    prefix: Path, index: Index, manifest: dict[str, Any] | None, vocabulary_size: int, eod: int
) -> TokenCheck:
    """Check tokens and digest of `.bin` in one pass."""
    try:
        tokens = check_tokens(prefix, index, vocabulary_size, eod)
    except DataError:
        # a file that was changed since is reported as such
        if manifest:
            require_recorded(manifest_path(prefix), manifest, "bin_sha256", sha256_file(bin_path(prefix)))
        raise
    if manifest:
        require_recorded(manifest_path(prefix), manifest, "bin_sha256", tokens.sha256)
    return tokens


def _vocabulary(prefix: Path, manifest: dict[str, Any] | None, encoder: Encoder | None) -> tuple[int, int]:
    if encoder:
        return encoder.vocabulary_size, encoder.eod
    if manifest:
        return manifest["vocab_size"], manifest["eod_token_id"]
    raise UnusableError(
        f"{manifest_path(prefix)}: no such file, so the vocabulary is unknown; name the tokenizer with --tokenizer, "
        "or encode again if data.encode was stopped before it wrote this file, its last one"
    )


@refusing((UnusableError, OSError), (DataError,), interrupted="")
def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = VERIFY.parse_args(arguments)
    if options.write_manifest and options.tokenizer is None:
        VERIFY.error("--write-manifest needs --tokenizer: name the folder of the tokenizer of the pair")
    one_thread_each()
    if options.plot:
        require_ours(is_png, options.plot)
    summary = verify(options.prefix, options.tokenizer, options.input, options.text_key)
    if options.write_manifest and not summary.has_manifest:
        write_manifest(options.prefix, options.tokenizer, summary.bin_sha256)
    if options.plot:
        write_plot(options.plot, summary, f"{options.prefix.parent.name}/{options.prefix.name}")
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
