"""A tokenizer as the engines use it: its tokenizer.json, the number of its entries, its end-of-document token.

`transformers.AutoTokenizer` is the reference (`Encoder`), but importing it takes seconds. A folder is read without
transformers if AutoTokenizer is certain to use its tokenizer.json unchanged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from data.engines.schemes import scheme_of
from data.engines.sound import cannot_load, read_sound
from utils.dataset.indexed import dtype_for
from utils.errors import UnusableError


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


PLAIN_CLASSES = {
    "PreTrainedTokenizerFast": "TokenizersBackend",
    "TokenizersBackend": "TokenizersBackend",
    "Qwen2Tokenizer": "Qwen2Tokenizer",
    "Qwen2TokenizerFast": "Qwen2Tokenizer",
}
"""Classes of tokenizer_config.json that use tokenizer.json unchanged (Qwen2's only for scheme qwen2), and the class
that transformers creates for each. From the source of transformers 5.20 and 5.23; a test compares with the library."""
OTHER_TOKENIZER_FILES = {
    *("config.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model"),
    *("sentencepiece.bpe.model", "tekken.json", "processor_config.json", "preprocessor_config.json"),
}
"""Files that can change the ids; a folder with one of them is read by transformers. Others (cards, chat templates,
weights) have no influence."""
WITHOUT_INFLUENCE = {
    *("tokenizer_class", "model_max_length", "clean_up_tokenization_spaces", "chat_template", "model_input_names"),
    *("errors", "padding_side", "added_tokens_decoder", "bos_token", "eos_token", "pad_token", "unk_token"),
    *("additional_special_tokens", "add_prefix_space", "split_special_tokens", "add_bos_token", "add_eos_token"),
}
"""Known keys of tokenizer_config.json; the values of the last seven are checked."""
SPECIAL_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")
TOKEN_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class Backend:
    """A loaded tokenizer; see `load_backend`."""

    folder: Path
    content: bytes | None
    """The tokenizer.json that the library `tokenizers` loads; None for a tokenizer that only transformers can run."""
    vocabulary_size: int
    """`len(tokenizer)` of transformers: number of entries, added tokens included."""
    eod: int
    """Id of the end-of-document token: the tokenizer's eos_token."""
    class_name: str
    """Name of the class that transformers creates."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the ids in `.bin`."""
        return dtype_for(self.vocabulary_size)

    @cached_property
    def parsed(self) -> dict[str, Any]:
        """The parsed tokenizer.json; empty if there is none."""
        return dict(orjson.loads(self.content)) if self.content is not None else {}


def load_backend(folder: Path) -> Backend:
    """Return the tokenizer in a folder; raises UnusableError as `Encoder` does."""
    return _read_plain(folder) or _through_transformers(Encoder(folder))


def _through_transformers(encoder: Encoder) -> Backend:
    tokenizer = encoder.tokenizer
    rust = getattr(tokenizer, "backend_tokenizer", None)
    # the one setting of the Rust tokenizer that tokenizer.json does not contain
    is_whole = not getattr(tokenizer, "split_special_tokens", False)
    return Backend(
        encoder.folder,
        rust.to_str().encode("utf8") if rust is not None and is_whole else None,
        encoder.vocabulary_size,
        encoder.eod,
        type(tokenizer).__name__,
    )


def _read_plain(folder: Path) -> Backend | None:
    """Return the tokenizer of a folder whose tokenizer.json AutoTokenizer is certain to use unchanged, else None."""
    try:
        content, parsed = read_sound(folder)
        config = json.loads((folder / "tokenizer_config.json").read_bytes())
        specials = folder / "special_tokens_map.json"
        config |= json.loads(specials.read_bytes()) if specials.exists() else {}
        names = {path.name for path in folder.iterdir()}
        if names & OTHER_TOKENIZER_FILES or not _is_plain(config, parsed):
            return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # then transformers, or `read_sound` before it, reports the fault
    vocabulary, added = parsed["model"]["vocab"], parsed["added_tokens"]
    ids = {**vocabulary, **{token["content"]: token["id"] for token in added}}
    backend = Backend(
        folder, content, len(ids), ids[_text(config["eos_token"])], PLAIN_CLASSES[config["tokenizer_class"]]
    )
    backend.__dict__["parsed"] = parsed  # fill the cached property, so that it is not parsed again
    return backend


def _is_plain(config: dict[str, Any], parsed: dict[str, Any]) -> bool:
    scheme = scheme_of(parsed)
    added = {token["content"]: token for token in parsed["added_tokens"]}
    named = [config[key] for key in SPECIAL_KEYS if config.get(key) is not None]
    if config["tokenizer_class"].startswith("Qwen2") and not _is_as_qwen2_builds_it(config, parsed):
        return False
    return (
        scheme is not None
        and config["tokenizer_class"] in PLAIN_CLASSES
        and set(config) <= WITHOUT_INFLUENCE
        and config.get("eos_token") is not None
        and not any(config.get(key) for key in ("add_prefix_space", "split_special_tokens"))
        and _keeps_post_processor(config, parsed)
        and all(_is_known(token, added) for token in (*named, *config.get("additional_special_tokens", ())))
        and all(
            _is_known(token, added) and added[token["content"]]["id"] == int(number)
            for number, token in config.get("added_tokens_decoder", {}).items()
        )
    )


def _is_as_qwen2_builds_it(config: dict[str, Any], parsed: dict[str, Any]) -> bool:
    """Check that the class Qwen2Tokenizer, which rebuilds a tokenizer around the vocabulary, rebuilds this one."""
    scheme, model = scheme_of(parsed), parsed["model"]
    decoder = config.get("added_tokens_decoder") or {}
    return (
        scheme is not None
        and scheme.name == "qwen2"
        and not model.get("ignore_merges")
        and {token["content"] for token in decoder.values()} == {token["content"] for token in parsed["added_tokens"]}
    )


def _keeps_post_processor(config: dict[str, Any], parsed: dict[str, Any]) -> bool:
    """Check that transformers does not change the special tokens that tokenizer.json puts around a text."""
    if not {"add_bos_token", "add_eos_token"} & set(config):
        return True
    post = parsed.get("post_processor") or {"type": "ByteLevel"}
    return post["type"] == "ByteLevel" and not (config.get("add_bos_token") or config.get("add_eos_token"))


def _is_known(token: Any, added: dict[str, dict[str, Any]]) -> bool:
    """Check that a token of the settings is already an added token, so that transformers changes nothing."""
    if isinstance(token, str):
        return token in added
    known = added.get(token["content"])
    return known is not None and all(token[flag] == known[flag] for flag in TOKEN_FLAGS if flag in token)


def _text(token: Any) -> str:
    return str(token if isinstance(token, str) else token["content"])
