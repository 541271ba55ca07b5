"""The reference encoder: text to token ids exactly as in Megatron's preprocess_data.py, through transformers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from utils.dataset.indexed import dtype_for
from utils.errors import UnusableError


class Encoder:
    """A Hugging Face tokenizer with Megatron's rules for documents.

    On first use, raises UnusableError for a folder without a tokenizer and for a tokenizer without an eos_token.
    """

    def __init__(self, folder: Path, text_key: str = "text") -> None:
        self.folder = folder
        self.text_key = text_key

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer that `transformers.AutoTokenizer` loads."""
        if not self.folder.is_dir():
            raise UnusableError(f"{self.folder}: no such folder; name the folder with the tokenizer's files")
        # imported on use: the import takes seconds, and neither --help nor a wrong path should wait for it
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
                f"{self.folder}: the tokenizer has no eos_token, which must end each document; "
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

    @property
    def class_name(self) -> str:
        """Name of the class that transformers created."""
        return type(self.tokenizer).__name__

    def rows(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text with the tokenizer's special tokens, without an end-of-document token."""
        if not texts:
            return []
        rows: list[list[int]] = self.tokenizer(
            texts, return_attention_mask=False, return_token_type_ids=False, verbose=False
        ).input_ids
        return rows

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text with an end-of-document token; a text without tokens gives an empty list."""
        return [[*ids, self.eod] if ids else [] for ids in self.rows(texts)]
