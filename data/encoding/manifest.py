"""The manifest beside a `.bin/.idx` pair: its counts, digests and origin.

`utils.dataset.indexed.load_manifest` reads it.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from data.engines.backend import Backend
from data.engines.encoder import Encoder
from utils.dataset.indexed import MANIFEST_VERSION
from utils.provenance.digests import sha256_tokenizer

LIBRARIES = ("numpy", "tokenizers", "transformers")


def manifest_of(
    tokenizer: Backend | Encoder,
    *,
    documents: int,
    sequences: int,
    tokens: int,
    bytes_of_text: int | None,
    source: dict[str, Any] | None,
    bin_sha256: str,
    idx_sha256: str,
    engine: dict[str, Any] | None = None,
    bad_lines: int | None = None,
) -> dict[str, Any]:
    """Return the manifest of a pair whose documents end with the tokenizer's end-of-document token.

    `source` is name, sha256 and size of the input, `bad_lines` the number of skipped lines. These two, `bytes_of_text`
    and `engine` are None if another program encoded the pair.
    The same pair has the same manifest: it contains no time, no path and no name of a machine.
    """
    return {
        "format_version": MANIFEST_VERSION,
        "documents": documents,
        "sequences": sequences,
        "tokens": tokens,
        "bytes_of_text": bytes_of_text,
        "dtype": str(tokenizer.dtype),
        "vocab_size": tokenizer.vocabulary_size,
        "eod_token_id": tokenizer.eod,
        "append_eod": True,
        "tokenizer": {"class": tokenizer.class_name, "sha256": sha256_tokenizer(tokenizer.folder)},
        "input": source,
        "engine": engine,
        "bad_lines": bad_lines,
        "bin_sha256": bin_sha256,
        "idx_sha256": idx_sha256,
        "bin_bytes": tokens * tokenizer.dtype.itemsize,
        "versions": _versions(engine),
    }


def _versions(engine: dict[str, Any] | None) -> dict[str, str]:
    names = [*LIBRARIES, *([engine["name"]] if engine and engine["name"] != "hf" else [])]
    return {name: metadata.version(name) for name in names}
