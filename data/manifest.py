"""The manifest beside a `.bin/.idx` pair: what it holds and what made it. Reading it is utils.indexed.load_manifest."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from data.encoder import Encoder
from utils.fingerprint import sha256_tokenizer
from utils.indexed import MANIFEST_VERSION

LIBRARIES = ("numpy", "tokenizers", "transformers")


def manifest_of(
    encoder: Encoder,
    *,
    documents: int,
    sequences: int,
    tokens: int,
    bytes_of_text: int | None,
    source: dict[str, Any] | None,
    bin_sha256: str,
    idx_sha256: str,
) -> dict[str, Any]:
    """Return the manifest of a pair whose documents end with `encoder`'s end-of-document token.

    `source` is name, sha256 and size of the input; it and `bytes_of_text` are None where another program read it.
    The same pair has the same manifest: no time, no path and no machine is in it.
    """
    return {
        "format_version": MANIFEST_VERSION,
        "documents": documents,
        "sequences": sequences,
        "tokens": tokens,
        "bytes_of_text": bytes_of_text,
        "dtype": str(encoder.dtype),
        "vocab_size": encoder.vocabulary_size,
        "eod_token_id": encoder.eod,
        "append_eod": True,
        "tokenizer": {"class": type(encoder.tokenizer).__name__, "sha256": sha256_tokenizer(encoder.folder)},
        "input": source,
        "bin_sha256": bin_sha256,
        "idx_sha256": idx_sha256,
        "bin_bytes": tokens * encoder.dtype.itemsize,
        "versions": {name: metadata.version(name) for name in LIBRARIES},
    }
