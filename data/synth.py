"""Generate text for training without a network: the same bytes on every machine for the same seed and size.

    python -m data.synth --output FILE.jsonl --words N --seed S [--tokenizer-output FOLDER]

The documents of a seed are numbered: the first n are the same for every size. data/language/language.py describes the
structure that a model can learn from them.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from data.command_lines import SYNTH

if __name__ == "__main__":
    SYNTH.parse_first()

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from data.language.language import DRAWS_PER_DOCUMENT, PUNCTUATION, draws_of, language, sentences
from data.reading.unchanged import progress_bar, text_written_whole
from utils.arguments import refusing, run
from utils.errors import DataError, UnusableError
from utils.files import folder_written_whole, write_whole
from utils.own_files import require_ours

MIN_SENTENCES, SPREAD = 6, 54
_BLOCK_DOCUMENTS = 256
END_OF_TEXT = "<|endoftext|>"
SAMPLE_BYTES = 2 << 20
"""Amount of text, from the start, to train a tokenizer on; more changes little and takes longer."""
SMALLEST_VOCABULARY = 257
"""The 256 bytes and the special token."""
TOKENIZER_FILE, SETTINGS_FILE = "tokenizer.json", "tokenizer_config.json"
SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END_OF_TEXT,
    # no limit: documents are cut into samples later
    "model_max_length": 1_000_000_000,
    "clean_up_tokenization_spaces": False,
}
"""Content of the second file, by which a tokenizer of this suite is recognised."""


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
    _require_least("documents", documents, 1)
    _require_least("words", words, 1)
    _require_least("seed", seed, 0)
    counts = {"documents": 0, "words": 0, "bytes": 0}
    unit, wanted = ("documents", documents) if words is None else ("words", words)
    with (
        text_written_whole(path) as temporary,
        temporary.open("w", encoding="utf8", newline="\n") as file,
        progress_bar(f"generate {path.name}", wanted, unit) as bar,
    ):
        for text, words_of_text in generate(seed):
            file.write(json.dumps({"text": text}) + "\n")
            before = counts[unit]
            counts["documents"] += 1
            counts["words"] += words_of_text
            counts["bytes"] += len(text)
            bar.update(counts[unit] - before)
            if wanted is not None and counts[unit] >= wanted:
                break
    return counts


def _require_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UnusableError(f"{name}: got {value}, wanted a whole number from {least}")


def write_tokenizer(folder: Path, *, seed: int, vocabulary_size: int = 4096) -> None:
    """Train a byte-level BPE tokenizer of a seed's text; `transformers.AutoTokenizer` loads the folder.

    It depends only on seed and vocabulary size, not on the amount of text, and has the same bytes in every process. The
    only special token is `<|endoftext|>`, for end of text and end of document: there is no padding token and no
    beginning-of-text token. `folder` appears whole or not at all; an earlier tokenizer of this function is replaced.
    Raises UnusableError for a vocabulary below 257, ForeignFileError for any other folder or file at `folder`, and
    DataError if the text is too uniform for the vocabulary.
    """
    if vocabulary_size < SMALLEST_VOCABULARY:
        raise UnusableError(f"vocabulary size: got {vocabulary_size}, wanted at least {SMALLEST_VOCABULARY}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=[AddedToken(END_OF_TEXT, special=True, normalized=False)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(seed), trainer)
    if tokenizer.get_vocab_size() != vocabulary_size:
        raise DataError(
            f"{folder}: the generated text gives {tokenizer.get_vocab_size()} tokens, wanted {vocabulary_size}; "
            "use a smaller vocabulary"
        )
    with folder_written_whole(folder, is_ours=is_written_tokenizer) as temporary:
        write_whole(temporary / TOKENIZER_FILE, tokenizer.to_str(pretty=True))
        write_whole(temporary / SETTINGS_FILE, json.dumps(SETTINGS, indent=1) + "\n")


def is_written_tokenizer(folder: Path) -> bool:
    """Recognise a folder of `write_tokenizer`, or one with nothing in it."""
    names = {path.name for path in folder.iterdir()}
    if not names:
        return True
    return names <= {TOKENIZER_FILE, SETTINGS_FILE} and json.loads((folder / SETTINGS_FILE).read_bytes()) == SETTINGS


def _sample(seed: int) -> Iterator[str]:
    taken = 0
    for text, _ in generate(seed):
        yield text
        taken += len(text)
        if taken >= SAMPLE_BYTES:
            return


def _block(seed: int, number: int) -> Iterator[tuple[str, int]]:
    # each block has its own random stream, so a document depends on its number and not on the requested size
    generator = np.random.PCG64([seed, number])
    draws = draws_of(generator, _BLOCK_DOCUMENTS, DRAWS_PER_DOCUMENT)
    lengths = MIN_SENTENCES + np.minimum(draws[:, 0] % SPREAD, draws[:, 1] % SPREAD)
    ids = sentences(generator, lengths, draws)
    spellings = language().spellings
    for document in np.split(ids, np.cumsum(lengths)[:-1]):
        # words have ids above those of an empty slot (0) and of punctuation
        words = int((document > len(PUNCTUATION)).sum())
        text = "".join(spellings[document[document > 0]])
        # without the space before the first word
        yield text[1:], words


@refusing((UnusableError,), (OSError, DataError), interrupted="")
def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = SYNTH.parse_args(arguments)
    folder = options.tokenizer_output
    if folder is not None:
        require_ours(is_written_tokenizer, folder, is_folder=True)
    counts = write_documents(options.output, seed=options.seed, documents=options.documents, words=options.words)
    if folder is not None:
        write_tokenizer(folder, seed=options.seed, vocabulary_size=options.vocabulary_size)
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
