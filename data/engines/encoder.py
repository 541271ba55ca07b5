"""From text to token ids exactly as Megatron's preprocess_data.py does it, through transformers: the reference."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from utils.dataset.indexed import dtype_for
from utils.errors import UnusableError


class Encoder:
    """A Hugging Face tokenizer with Megatron's rules around it.

    Raises UnusableError, when first used, for a folder that holds no tokenizer or one without an end-of-text token.
    """

    def __init__(self, folder: Path, text_key: str = "text") -> None:
        self.folder = folder
        self.text_key = text_key

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

    @property
    def class_name(self) -> str:
        """Name of the class that transformers chose."""
        return type(self.tokenizer).__name__

    def rows(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, with what the tokenizer puts around it and without an end of document."""
        if not texts:
            return []
        rows: list[list[int]] = self.tokenizer(
            texts, return_attention_mask=False, return_token_type_ids=False, verbose=False
        ).input_ids
        return rows

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text with the end of document; a text without tokens has none."""
        return [[*ids, self.eod] if ids else [] for ids in self.rows(texts)]
