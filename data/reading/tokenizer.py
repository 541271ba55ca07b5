"""Token ids of texts, as `transformers.AutoTokenizer` and Megatron's preprocess_data.py give them."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from data.reading import tokenizer_json
from utils.errors import UnusableError, shortened

TOKENIZER_FILES = ("tokenizer*.json", "*.model", "vocab.*", "merges.txt", "*.tiktoken", "tekken.json")
"""Names of which transformers.AutoTokenizer needs one."""
SMALL_VOCABULARY = 65500
"""Smallest vocabulary whose ids are int32 (megatron-core 0.16.1, indexed_dataset.py, `DType.optimal_dtype`)."""


def dtype_for(vocabulary_size: int) -> np.dtype[Any]:
    """Return the type of ids below `vocabulary_size` (added tokens included): uint16 below 65,500, else int32."""
    return np.dtype(np.uint16) if vocabulary_size < SMALL_VOCABULARY else np.dtype(np.int32)


class Encoder:
    """A tokenizer of transformers with the rules for documents of Megatron's preprocess_data.py.

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
        names = [path.name for path in self.folder.iterdir()]
        if not any(fnmatchcase(name, pattern) for name in names for pattern in TOKENIZER_FILES):
            raise UnusableError(
                f"{self.folder}: holds no tokenizer, wanted tokenizer.json; name the folder of a Hugging Face tokenizer"
            )
        content = tokenizer_json.read(self.folder)
        # imported on use: the import takes seconds, and neither --help nor a wrong path should wait for it
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(self.folder), local_files_only=True)
        except Exception as error:  # noqa: BLE001 the Rust side raises bare Exception for a damaged tokenizer.json
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnusableError(
                f"{self.folder}: AutoTokenizer cannot load it ({shortened(reason)}); name another folder"
            ) from error
        if content:
            tokenizer_json.require_certain_ids(self.folder / "tokenizer.json", content)
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

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the ids in `.bin`."""
        return dtype_for(self.vocabulary_size)

    @cached_property
    def eod(self) -> int:
        """Id of the end-of-document token: the tokenizer's eos_token."""
        return int(self.tokenizer.eos_token_id)

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

    def for_tokenizers(self) -> str | None:
        """Return the tokenizer.json from which the library `tokenizers` gives the same ids.

        None for a tokenizer that only transformers can run.
        """
        rust = getattr(self.tokenizer, "backend_tokenizer", None)
        # the one setting of the Rust tokenizer that tokenizer.json does not contain
        if rust is None or getattr(self.tokenizer, "split_special_tokens", False):
            return None
        return str(rust.to_str())


def row_of(path: Path) -> Callable[[str], list[int]]:
    """Return the function that gives the ids of a text as `Encoder.rows` does.

    `path` is a file with the text of `Encoder.for_tokenizers`, or the folder of a tokenizer that only transformers can
    run. A process that reads the file need not import transformers.
    """
    if path.is_dir():
        encoder = Encoder(path)
        return lambda text: encoder.rows([text])[0]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def row(text: str) -> list[int]:
        # a batch of one: only `encode_batch_fast` does not also compute the place of each token in the text
        (encoding,) = tokenizer.encode_batch_fast([text])
        ids: list[int] = encoding.ids
        return ids

    return row
