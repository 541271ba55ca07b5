"""From text to token ids exactly as Megatron's preprocess_data.py does it, for many lines at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.jsonl import text_of
from utils.indexed import DataError, UnusableError, dtype_for


@dataclass(frozen=True)
class Lines:
    """Some whole lines of a JSONL file, in order."""

    path: Path
    first_number: int
    """Number of the first line in its file, from 1."""
    lines: list[bytes]

    @property
    def bytes(self) -> int:
        """Size in the file."""
        return sum(map(len, self.lines))


@dataclass(frozen=True)
class Encoded:
    """The documents of some lines as tokens."""

    tokens: bytes
    """Ids back to back, as they stand in `.bin`."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each document, its end-of-document token included; 0 for an empty one."""
    bytes_of_text: int
    bytes_read: int


class Encoder:
    """A Hugging Face tokenizer with Megatron's rules around it. Cheap to send to another process: it loads there.

    Raises UnusableError, when first used, for a folder that holds no tokenizer or one without an end-of-text token.
    """

    def __init__(self, folder: Path, text_key: str = "text") -> None:
        self.folder = folder
        self.text_key = text_key

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "text_key": self.text_key}

    def load(self) -> None:
        """Load the tokenizer now, so that a bad one is known before anything is written."""
        _ = self.tokenizer

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer as `transformers.AutoTokenizer` gives it."""
        if not self.folder.is_dir():
            raise UnusableError(f"{self.folder}: no such folder; name the folder that holds the tokenizer's files")
        # imported on use: it takes seconds, and --help and a wrong path should not wait for it
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(self.folder), local_files_only=True)
        except Exception as error:  # noqa: BLE001 the Rust side raises bare Exception for a damaged tokenizer.json
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnusableError(
                f"{self.folder}: AutoTokenizer cannot load it ({reason}); name another folder"
            ) from error
        if tokenizer.eos_token_id is None:
            raise UnusableError(
                f"{self.folder}: the tokenizer has no eos_token, which ends each document; "
                "set eos_token in tokenizer_config.json"
            )
        return tokenizer

    @cached_property
    def vocabulary_size(self) -> int:
        """Number of entries, added tokens included."""
        return len(self.tokenizer)

    @cached_property
    def eod(self) -> int:
        """Id of the end-of-document token."""
        return int(self.tokenizer.eos_token_id)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the ids in `.bin`."""
        return dtype_for(self.vocabulary_size)

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text with the end of document; a text without tokens has none."""
        if not texts:
            return []
        documents: list[list[int]] = self.tokenizer(
            texts, return_attention_mask=False, return_token_type_ids=False, verbose=False
        ).input_ids
        return [[*ids, self.eod] if ids else [] for ids in documents]

    def __call__(self, part: Lines) -> Encoded:
        """Encode some lines; raises DataError with file and number for the first that cannot be read."""
        texts = [
            text_of(line, part.path, number, self.text_key) for number, line in enumerate(part.lines, part.first_number)
        ]
        documents = self.ids(texts)
        lengths = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
        tokens = np.fromiter(chain.from_iterable(documents), dtype=np.int64, count=int(lengths.sum()))
        if tokens.size and tokens.max() >= self.vocabulary_size:
            raise DataError(
                f"{self.folder}: gives id {tokens.max()}, but has {self.vocabulary_size} entries; its ids have gaps, "
                "which no embedding of that size can hold: use a repaired tokenizer"
            )
        return Encoded(
            tokens=tokens.astype(self.dtype.newbyteorder("<")).tobytes(),
            lengths=lengths,
            bytes_of_text=sum(len(text.encode("utf8")) for text in texts),
            bytes_read=part.bytes,
        )


def one_thread_each() -> None:
    """Make tokenizers single-threaded in this process, and in those it starts: the parallelism here is processes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
