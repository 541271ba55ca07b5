"""A small Megatron `.bin/.idx` pair for the tests: learnable token sequences over the tiny vocabulary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import numpy as np

from data.encoding.pair import write_index
from utils.dataset.indexed import bin_path, check, idx_path, manifest_path

VOCABULARY_SIZE = 4096
END_OF_TEXT = 0


def write_toy_data(prefix: Path, *, documents: int = 400, seed: int = 0) -> Path:
    """Write documents of 50 to 300 Zipf-distributed tokens, of which six in ten follow from the one before."""
    generator = np.random.default_rng(seed)
    chances = 1 / np.arange(1, VOCABULARY_SIZE)
    chances /= chances.sum()
    texts = []
    for _ in range(documents):
        tokens = generator.choice(np.arange(1, VOCABULARY_SIZE), size=int(generator.integers(50, 300)), p=chances)
        follows = generator.random(len(tokens)) < 0.6
        for place in range(1, len(tokens)):
            if follows[place]:
                tokens[place] = (tokens[place - 1] * 31 + 7) % (VOCABULARY_SIZE - 1) + 1
        texts.append(np.append(tokens, END_OF_TEXT).astype(np.uint16))
    prefix.parent.mkdir(parents=True, exist_ok=True)
    bin_path(prefix).write_bytes(np.concatenate(texts).tobytes())
    lengths = [len(text) for text in texts]
    write_index(idx_path(prefix), np.dtype(np.uint16), lengths, np.arange(documents + 1))
    return prefix


# Manifests for the tests of everything that reads one.


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


# Text encoded by megatron-core itself: the second source for every byte of the pairs that we write.

TEXTS = [
    "The pot fled near many vothes. Every washail pawondly jailed!",
    "",
    "Ends with the special token <|endoftext|> and goes on",
    "Grüße, 東京 🙂 \u0000 \t tabs\nand lines  ",
    "",
    " ",
    "word " * 3000,
    "x",
    "",
]


def assert_same_pair(one: Path, other: Path) -> None:
    """Check that two pairs have the same bytes."""
    for ending in (".bin", ".idx"):
        assert one.with_suffix(ending).read_bytes() == other.with_suffix(ending).read_bytes(), ending


def megatron_pair(prefix: Path, texts: list[str], tokenizer_folder: Path) -> None:
    """Write a pair with megatron-core's tokenizer and builder, following its preprocess_data.py --append-eod."""
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    from megatron.core.tokenizers.text.libraries.huggingface_tokenizer import HuggingFaceTokenizer

    tokenizer = HuggingFaceTokenizer(str(tokenizer_folder), include_special_tokens=True)
    dtype: type[numpy.number] = DType.optimal_dtype(tokenizer.vocab_size)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for text in texts:
        ids = list(tokenizer.text_to_ids(text))
        if ids:
            ids.append(tokenizer.eod)
        builder.add_document(ids, [len(ids)] if ids else [])
    builder.finalize(f"{prefix}.idx")
