"""Verify a `.bin/.idx` pair: structure, every token id, ends of documents, digests, and text from the tokens.

    python -m data.verify PREFIX [--tokenizer FOLDER [--input FILE.jsonl ...] [--write-manifest]] [--plot FILE.png]

A pair that another program wrote has no manifest; then the tokenizer says what the ids may be, and --write-manifest
makes one. With the input a random sample of its lines is encoded again, by transformers, and compared id by id.
--plot draws how long the documents are. Ends at the first thing that is wrong: what it is, what it means, what to do.
Exits 0; 1 for a pair that is wrong; 2 for missing files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.checking.checks import check_manifest, check_tokens
from data.checking.pair_summary import Summary
from data.checking.samples import decode_sample, encode_sample
from data.encoding.manifest import manifest_of
from data.encoding.workers import one_thread_each
from data.engines.encoder import Encoder
from utils.dataset.indexed import bin_path, check, idx_path, load_manifest, manifest_path
from utils.errors import DataError, UnusableError
from utils.provenance.digests import sha256_file
from utils.results.store import write_json


def verify(
    prefix: Path, tokenizer: Path | None = None, source: Path | Sequence[Path] | None = None, text_key: str = "text"
) -> Summary:
    """Return what a pair holds; `tokenizer` is the folder and `source` the JSONL that it was made with.

    Several files of `source` stand in the order in which they were encoded.
    Raises UnusableError for files that are missing and DataError for the first thing that does not agree.
    """
    sources = [source] if isinstance(source, Path) else list(source or ())
    if sources and tokenizer is None:
        raise UnusableError(f"{sources[0]}: can be compared only with its tokenizer; name that with --tokenizer")
    index = check(prefix)
    manifest = load_manifest(prefix) if manifest_path(prefix).exists() else None
    encoder = Encoder(tokenizer, text_key) if tokenizer else None
    if manifest:
        check_manifest(prefix, index, manifest, encoder)
    vocabulary_size, eod = _vocabulary(prefix, manifest, encoder)
    largest, lengths = check_tokens(prefix, index, vocabulary_size, eod)
    return Summary(
        documents=index.documents,
        empty_documents=lengths.empty,
        tokens=index.tokens,
        bytes_of_text=manifest["bytes_of_text"] if manifest else None,
        dtype=str(index.dtype),
        vocabulary_size=vocabulary_size,
        largest_id=largest,
        eod=eod,
        lengths=lengths,
        has_manifest=manifest is not None,
        text=decode_sample(prefix, index, encoder) if encoder else None,
        lines_encoded_again=encode_sample(prefix, index, manifest, encoder, sources) if encoder and sources else None,
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


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m data.verify", description=__doc__.splitlines()[0])
    parser.add_argument("prefix", type=Path, help="path of the pair without .bin / .idx")
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer: documents are decoded as well")
    parser.add_argument(
        "--input", type=Path, nargs="+", help="JSONL files that were encoded, in their order: a sample is encoded again"
    )
    parser.add_argument("--text-key", default="text", help="key of the text in each line (default: text)")
    parser.add_argument(
        "--write-manifest", action="store_true", help="write the manifest of a pair that has none (needs --tokenizer)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the lengths of the documents")
    options = parser.parse_args(arguments)
    if options.write_manifest and options.tokenizer is None:
        parser.error("--write-manifest needs --tokenizer: name the folder of the tokenizer that the pair was made with")
    one_thread_each()
    try:
        summary = verify(options.prefix, options.tokenizer, options.input, options.text_key)
        if options.write_manifest and not summary.has_manifest:
            write_manifest(options.prefix, options.tokenizer)
        if options.plot:
            # imported on use: it takes a second, and most verify without
            from data.checking.plot import write_plot

            write_plot(options.plot, summary, f"{options.prefix.parent.name}/{options.prefix.name}")
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
