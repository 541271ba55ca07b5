"""The manifest beside a `.bin/.idx` pair: what it holds and what made it. Reading it is
utils.dataset.indexed.load_manifest.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from utils.dataset.indexed import MANIFEST_VERSION
from utils.provenance.digests import sha256_tokenizer

LIBRARIES = ("numpy", "tokenizers", "transformers")


class Vocabulary(Protocol):
    """What a manifest says of a tokenizer; `data.engines.encoder.Encoder` and `data.engines.backend.Backend` are
    such.
    """

    @property
    def folder(self) -> Path:
        """Where its files lie."""

    @property
    def vocabulary_size(self) -> int:
        """Number of entries, added tokens included."""

    @property
    def eod(self) -> int:
        """Id of the end-of-document token."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the ids in `.bin`."""

    @property
    def class_name(self) -> str:
        """Name of the class of transformers."""


def manifest_of(
    encoder: Vocabulary,
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
    """Return the manifest of a pair whose documents end with `encoder`'s end-of-document token.

    `source` is name, sha256 and size of the input; it, `bytes_of_text`, `engine` and `bad_lines` (skipped ones) are
    None where another program read it.
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
        "tokenizer": {"class": encoder.class_name, "sha256": sha256_tokenizer(encoder.folder)},
        "input": source,
        "engine": engine,
        "bad_lines": bad_lines,
        "bin_sha256": bin_sha256,
        "idx_sha256": idx_sha256,
        "bin_bytes": tokens * encoder.dtype.itemsize,
        "versions": _versions(engine),
    }


def _versions(engine: dict[str, Any] | None) -> dict[str, str]:
    names = [*LIBRARIES, *([engine["name"]] if engine and engine["name"] != "hf" else [])]
    return {name: metadata.version(name) for name in names}
