"""A small Megatron `.bin/.idx` pair for the tests: learnable token sequences over the tiny vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from utils.dataset.indexed import bin_path, idx_path, write_index

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
