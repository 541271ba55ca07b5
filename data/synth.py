"""Generate text for training without a network: the same bytes on every machine for the same seed and size.

    python -m data.synth --output FILE.jsonl --words N --seed S [--tokenizer-output FOLDER]

The documents of a seed are numbered: the first n are the same for every size. data/language/language.py describes the
structure that a model can learn from them.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from data.command_lines import SYNTH

if __name__ == "__main__":
    SYNTH.parse_first()

import numpy as np

from data.language.language import (
    DRAWS_PER_DOCUMENT,
    PUNCTUATION,
    SAMPLE_BYTES,
    draws_of,
    is_written_tokenizer,
    language,
    sentences,
    train_tokenizer,
)
from data.reading.unchanged import progress_bar, text_written_whole
from utils.arguments import refusing, run
from utils.errors import DataError, UnusableError
from utils.own_files import require_ours

MIN_SENTENCES, SPREAD = 6, 54
_BLOCK_DOCUMENTS = 256


def generate(seed: int) -> Iterator[tuple[str, int]]:
    """Yield text and number of words of each document, without end; `seed` is 0 or more."""
    for number in itertools.count():
        yield from _block(seed, number)


def write_documents(path: Path, *, seed: int, documents: int | None = None, words: int | None = None) -> dict[str, int]:
    """Write a JSONL file with the key `text`, whole or not at all; exactly one of `documents` and `words` is given.

    With `words`, writing ends after the document in which the running total reaches it, so a training run that needs
    this many tokens sees no document twice. Returns the numbers of documents, of words (separated by spaces; each is at
    least one token for a tokenizer that never joins words) and of bytes of text in UTF-8.
    Raises UnusableError for an invalid size or seed, and ForeignFileError as `text_written_whole`.
    """
    for name, value, least in (("documents", documents, 1), ("words", words, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise UnusableError(f"{name}: got {value}, wanted a whole number from {least}")
    with text_written_whole(path) as temporary, temporary.open("w", encoding="utf8", newline="\n") as file:
        done = written = size = 0
        with progress_bar(f"generate {path.name}", documents or words, "words" if words else "documents") as bar:
            for text, count in generate(seed):
                file.write(json.dumps({"text": text}) + "\n")
                done, written, size = done + 1, written + count, size + len(text)
                bar.update(count if words else 1)
                if done == documents or (words is not None and written >= words):
                    break
    return {"documents": done, "words": written, "bytes": size}


def write_tokenizer(folder: Path, *, seed: int, vocabulary_size: int = 4096) -> None:
    """Train the tokenizer of a seed's text; it depends only on seed and vocabulary size, not on the amount of text."""
    with tempfile.TemporaryDirectory() as temporary:
        sample = Path(temporary) / "sample.jsonl"
        # a word with its space has at least 4 bytes on average, so this fills the sample that the training reads
        write_documents(sample, seed=seed, words=SAMPLE_BYTES // 4)
        train_tokenizer(sample, folder, vocabulary_size)


def _block(seed: int, number: int) -> Iterator[tuple[str, int]]:
    # each block has its own random stream, so a document depends on its number and not on the requested size
    generator = np.random.PCG64([seed, number])
    draws = draws_of(generator, _BLOCK_DOCUMENTS, DRAWS_PER_DOCUMENT)
    lengths = MIN_SENTENCES + np.minimum(draws[:, 0] % SPREAD, draws[:, 1] % SPREAD)
    ids = sentences(generator, lengths, draws)
    ends = np.cumsum(lengths)
    # words have ids above those of an empty slot (0) and of punctuation
    words = np.add.reduceat((ids > len(PUNCTUATION)).sum(axis=1), ends - lengths)
    spelled = language().spellings
    for start, end, count in zip((ends - lengths).tolist(), ends.tolist(), words.tolist(), strict=True):
        used = ids[start:end]
        yield "".join(spelled[used[used > 0]])[1:], count


@refusing((UnusableError,), (OSError, DataError), interrupted="")
def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = SYNTH.parse_args(arguments)
    if options.tokenizer_output is not None:
        require_ours(is_written_tokenizer, options.tokenizer_output, is_folder=True)
    counts = write_documents(options.output, seed=options.seed, documents=options.documents, words=options.words)
    if options.tokenizer_output is not None:
        write_tokenizer(options.tokenizer_output, seed=options.seed, vocabulary_size=options.vocabulary_size)
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
