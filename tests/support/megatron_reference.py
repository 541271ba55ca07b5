"""Text encoded by megatron-core itself: the second source for every byte of the pairs that we write."""

from __future__ import annotations

from pathlib import Path

import numpy

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
