"""A tokenizer as the engines use it: its tokenizer.json, the number of its entries, its end-of-document token.

`transformers.AutoTokenizer` is the reference (`Encoder`), but importing it takes seconds. A folder is read without
transformers if AutoTokenizer is certain to load the same tokenizer (data/engines/plain.py).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from data.engines.plain import Backend, read_plain
from data.engines.sound import cannot_load, read_sound
from utils.errors import UnusableError

TOKENIZER_FILES = ("tokenizer*.json", "*.model", "vocab.*", "merges.txt", "*.tiktoken", "tekken.json")
"""Names of which transformers.AutoTokenizer needs one."""


class Encoder:
    """The reference: a tokenizer of transformers with the rules for documents of Megatron's preprocess_data.py.

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
        if not any(fnmatchcase(path.name, name) for path in self.folder.iterdir() for name in TOKENIZER_FILES):
            raise UnusableError(
                f"{self.folder}: holds no tokenizer, wanted tokenizer.json; name the folder of a Hugging Face tokenizer"
            )
        read_sound(self.folder)
        # imported on use: the import takes seconds, and neither --help nor a wrong path should wait for it
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(self.folder), local_files_only=True)
        except Exception as error:  # noqa: BLE001 the Rust side raises bare Exception for a damaged tokenizer.json
            raise cannot_load(self.folder, "AutoTokenizer", error) from error
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


def load_backend(folder: Path) -> Backend:
    """Return the tokenizer in a folder; raises UnusableError as `Encoder` does."""
    return read_plain(folder) or _through_transformers(Encoder(folder))


def _through_transformers(encoder: Encoder) -> Backend:
    tokenizer = encoder.tokenizer
    rust = getattr(tokenizer, "backend_tokenizer", None)
    # the one setting of the Rust tokenizer that tokenizer.json does not contain
    is_whole = not getattr(tokenizer, "split_special_tokens", False)
    content = rust.to_str().encode("utf8") if rust is not None and is_whole else None
    parsed = orjson.loads(content) if content is not None else {}
    return Backend(encoder.folder, content, parsed, encoder.vocabulary_size, encoder.eod, type(tokenizer).__name__)
