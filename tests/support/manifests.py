"""Manifests for the tests of everything that reads one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from utils.dataset.indexed import bin_path, check, idx_path, manifest_path, write_index


def write_pair(prefix: Path, documents: Sequence[Sequence[int]], dtype: Any = np.uint16) -> Path:
    """Write a pair of these documents, of which an empty one has no sequence."""
    bin_path(prefix).write_bytes(np.array([token for ids in documents for token in ids], dtype=dtype).tobytes())
    lengths = [len(ids) for ids in documents if ids]
    write_index(idx_path(prefix), np.dtype(dtype), lengths, np.cumsum([0] + [bool(ids) for ids in documents]))
    return prefix


def manifest_of_pair(prefix: Path, **changes: Any) -> dict[str, Any]:
    """Return a manifest that fits a pair, whose last token counts as its end-of-document token, with some changes."""
    index = check(prefix)
    tokens = np.fromfile(bin_path(prefix), dtype=index.dtype)
    return {
        "format_version": 1,
        "documents": index.documents,
        "sequences": index.sequences,
        "tokens": index.tokens,
        "bytes_of_text": 3,
        "dtype": str(index.dtype),
        "vocab_size": int(tokens.max()) + 1,
        "eod_token_id": int(tokens[-1]),
        "append_eod": True,
        "tokenizer": {"class": "PreTrainedTokenizerFast", "sha256": "5" * 64},
        "input": {"name": "in.jsonl", "sha256": "6" * 64, "bytes": 30},
        "engine": {"name": "hf"},
        "bad_lines": 0,
        "bin_sha256": hashlib.sha256(bin_path(prefix).read_bytes()).hexdigest(),
        "idx_sha256": hashlib.sha256(idx_path(prefix).read_bytes()).hexdigest(),
        "bin_bytes": len(tokens) * index.dtype.itemsize,
        "versions": {"numpy": "2.4.6", "tokenizers": "0.23.3", "transformers": "5.23.0"},
        **changes,
    }


def write_manifest(prefix: Path, **changes: Any) -> dict[str, Any]:
    """Write such a manifest beside the pair and return it."""
    manifest = manifest_of_pair(prefix, **changes)
    manifest_path(prefix).write_text(json.dumps(manifest))
    return manifest
