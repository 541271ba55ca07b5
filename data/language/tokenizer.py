"""Train a small byte-level BPE tokenizer for generated text, which has no published one.

The same input gives the same bytes in every process. The only special token is `<|endoftext|>`, for end of text and end
of document. There is no padding token and no beginning-of-text token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from data.reading.jsonl import text_of
from utils.errors import DataError, UnusableError
from utils.files import folder_written_whole, write_whole
from utils.own_files import require_ours

END_OF_TEXT = "<|endoftext|>"
SAMPLE_BYTES = 2 << 20
"""Amount of text, from the start of the input, to train on; more changes little and takes longer."""
SMALLEST_VOCABULARY = 257
"""The 256 bytes and the special token."""
FILES = ("tokenizer.json", "tokenizer_config.json")
SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END_OF_TEXT,
    "model_max_length": 1_000_000_000,  # no limit: documents are cut into samples later
    "clean_up_tokenization_spaces": False,
}
"""Content of the second file, by which a tokenizer of this suite is recognised."""


def train_tokenizer(input: Path, output: Path, vocabulary_size: int = 4096) -> None:
    """Train on the first 2 MiB of text (key `text`) of a JSONL file; `transformers.AutoTokenizer` loads the folder.

    `output` appears whole or not at all; an earlier tokenizer written by this function is replaced.
    Raises UnusableError for a vocabulary below 257 or a missing input, ForeignFileError for any other folder or file at
    `output`, and DataError if the text is too small or uniform for the vocabulary.
    """
    if vocabulary_size < SMALLEST_VOCABULARY:
        raise UnusableError(f"vocabulary size: got {vocabulary_size}, wanted at least {SMALLEST_VOCABULARY}")
    if not input.is_file():
        raise UnusableError(f"{input}: no such file; name a .jsonl file")
    require_ours(is_written_tokenizer, output, is_folder=True)
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
    tokenizer.train_from_iterator(_sample(input), trainer)
    if tokenizer.get_vocab_size() != vocabulary_size:
        raise DataError(
            f"{input}: its text gives {tokenizer.get_vocab_size()} tokens, wanted {vocabulary_size}; "
            "use more text or a smaller vocabulary"
        )
    _save(tokenizer, output)


def is_written_tokenizer(folder: Path) -> bool:
    """Recognise a folder of `train_tokenizer`, or one with nothing in it."""
    names = {path.name for path in folder.iterdir()}
    return not names or (names <= set(FILES) and json.loads((folder / FILES[1]).read_bytes()) == SETTINGS)


def _sample(path: Path) -> Iterator[str]:
    taken = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = text_of(line, path, number)
            yield text
            taken += len(text.encode("utf8"))
            if taken >= SAMPLE_BYTES:
                return


def _save(tokenizer: Tokenizer, output: Path) -> None:
    with folder_written_whole(output, is_ours=is_written_tokenizer) as temporary:
        write_whole(temporary / FILES[0], tokenizer.to_str(pretty=True))
        write_whole(temporary / FILES[1], json.dumps(SETTINGS, indent=1) + "\n")
