"""Tokenizer folders that are read without transformers, because AutoTokenizer is certain to load the same tokenizer.

Importing transformers and torch takes seconds. The rules here follow the source of the versions in PROVEN
(tokenization_utils_base.py, tokenization_utils_tokenizers.py, models/auto/tokenization_auto.py and the classes below);
a test compares them with the library. Everything else is left to transformers: `read_plain` returns None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from data.engines.schemes import byte_letters, scheme_of
from data.engines.sound import read_sound

BACKEND = "TokenizersBackend"
PROVEN = {
    "5.20.2": {"PreTrainedTokenizer", BACKEND},
    "5.23.0": {"PreTrainedTokenizer", BACKEND, "LlamaTokenizer"},
}
"""Versions of transformers, and the classes (without "Fast") for which each loads a byte-level tokenizer.json unchanged
as a TokenizersBackend."""
REBUILT = {
    "Qwen2Tokenizer": ("qwen2", ("unk_token", "eos_token", "pad_token")),
    "GPT2Tokenizer": ("gpt2", ("unk_token", "bos_token", "eos_token")),
}
"""Classes that build a tokenizer of one scheme around the vocabulary, and their tokens that are DEFAULT if not set."""
DEFAULT = "<|endoftext|>"
OTHER_TOKENIZER_FILES = {
    *("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "processor_config.json"),
    "preprocessor_config.json",
}
"""Files that can change the ids. Others have no influence beside a tokenizer.json (vocab.json, merges.txt,
tokenizer.model) or none at all (cards, chat templates, weights); added_tokens.json and config.json are checked."""
MODEL_TYPES = {"llama": None, "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "gpt2": "GPT2Tokenizer"}
"""Values of `model_type` in config.json, and the only class for which each changes nothing; None: every class."""
WITHOUT_INFLUENCE = {
    *("tokenizer_class", "model_max_length", "clean_up_tokenization_spaces", "chat_template", "model_input_names"),
    *("errors", "padding_side", "truncation_side", "processor_class", "spaces_between_special_tokens"),
    *("use_default_system_prompt", "sp_model_kwargs", "legacy"),
    *("backend", "is_local", "local_files_only"),  # transformers 5 writes these three and replaces them when it loads
    *("add_bos_token", "add_eos_token"),  # ignored beside a tokenizer.json, whose post-processor decides
}
SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTS = ("additional_special_tokens", "extra_special_tokens")
CHECKED = {*SPECIAL_KEYS, *LISTS, "added_tokens_decoder", "add_prefix_space", "split_special_tokens"}
SMALL_VOCABULARY = 65500
"""Smallest vocabulary whose ids are int32 (megatron-core 0.16.1, indexed_dataset.py, `DType.optimal_dtype`)."""
TOKEN_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


def dtype_for(vocabulary_size: int) -> np.dtype[Any]:
    """Return the type of ids below `vocabulary_size` (added tokens included): uint16 below 65,500, else int32."""
    return np.dtype(np.uint16) if vocabulary_size < SMALL_VOCABULARY else np.dtype(np.int32)


@dataclass(frozen=True)
class Backend:
    """A loaded tokenizer; see `data.engines.backend.load_backend`."""

    folder: Path
    content: bytes | None
    """The tokenizer.json that the library `tokenizers` loads; None for a tokenizer that only transformers can run."""
    parsed: dict[str, Any]
    """The parsed tokenizer.json; empty if there is none."""
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


def read_plain(folder: Path) -> Backend | None:
    """Return the tokenizer of a folder if AutoTokenizer is certain to load the same one, else None."""
    try:
        content, parsed = read_sound(folder)
        config = _settings(folder)
        class_name = _class_of(config, parsed)
        if class_name is None or not _has_no_other_influence(folder, config, class_name):
            return None
        if not (_numbers_follow(parsed) and _tokens_are_known(config, parsed)):
            return None
        ids = {**parsed["model"]["vocab"], **{token["content"]: token["id"] for token in parsed["added_tokens"]}}
        return Backend(folder, content, parsed, len(ids), ids[_text(config["eos_token"])], class_name)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # then transformers, or `read_sound` before it, reports the fault


def _settings(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, with the special tokens of special_tokens_map.json where these are used."""
    config = dict(json.loads((folder / "tokenizer_config.json").read_bytes()))
    specials = folder / "special_tokens_map.json"
    if "added_tokens_decoder" not in config and specials.exists():
        config |= json.loads(specials.read_bytes())
    return config


def _class_of(config: dict[str, Any], parsed: dict[str, Any]) -> str | None:
    """Return the class that transformers creates, None if this class could change the tokenizer.

    Sets the default tokens of the class in `config`.
    """
    unchanged = PROVEN.get(metadata.version("transformers"))
    name, scheme = config["tokenizer_class"].removesuffix("Fast"), scheme_of(parsed)
    if unchanged is None or scheme is None or config["tokenizer_class"] == "PreTrainedTokenizer":
        return None
    if name in unchanged:
        return BACKEND
    built, defaults = REBUILT.get(name, ("", ()))
    model = parsed["model"]
    if scheme.name != built or model.get("ignore_merges") or not set(byte_letters()) <= model["vocab"].keys():
        return None
    config.update({key: DEFAULT for key in defaults if key not in config})
    return name if _adds_the_same(config, parsed) else None


def _adds_the_same(config: dict[str, Any], parsed: dict[str, Any]) -> bool:
    """Check that a class that adds the tokens of the settings to an empty list adds those of tokenizer.json."""
    added = {token["content"]: token for token in parsed["added_tokens"]}
    decoder = config.get("added_tokens_decoder")
    # Qwen2Tokenizer adds its special tokens a second time, without these flags
    flags = ("single_word", "lstrip", "rstrip", "normalized") if config["tokenizer_class"].startswith("Qwen2") else ()
    return (decoder is None or {token["content"] for token in decoder.values()} == added.keys()) and not any(
        added[_text(token)][flag] for token in _named(config) for flag in flags
    )


def _has_no_other_influence(folder: Path, config: dict[str, Any], class_name: str) -> bool:
    """Check the files and settings that could make transformers change the tokenizer."""
    names = {path.name for path in folder.iterdir()}
    if names & OTHER_TOKENIZER_FILES or ("added_tokens.json" in names and "added_tokens_decoder" not in config):
        return False
    if "config.json" in names:
        model = json.loads((folder / "config.json").read_bytes())
        only = MODEL_TYPES[model["model_type"]]
        if only not in (None, class_name) or "model_name" in model:
            return False
    return (
        set(config) <= WITHOUT_INFLUENCE | CHECKED
        and config.get("eos_token") is not None
        and not config.get("split_special_tokens")
        and not config.get("add_prefix_space")
    )


def _numbers_follow(parsed: dict[str, Any]) -> bool:
    """Check that the added tokens have the ids that the library `tokenizers` gives them, whatever the file says."""
    vocabulary = parsed["model"]["vocab"]
    new = [token["id"] for token in parsed["added_tokens"] if token["content"] not in vocabulary]
    old = [token for token in parsed["added_tokens"] if token["content"] in vocabulary]
    return (
        max(vocabulary.values()) < len(vocabulary)
        and new == [*range(len(vocabulary), len(vocabulary) + len(new))]
        and all(vocabulary[token["content"]] == token["id"] for token in old)
    )


def _tokens_are_known(config: dict[str, Any], parsed: dict[str, Any]) -> bool:
    """Check that all tokens of the settings are added tokens with the same flags, so that none is added or changed."""
    added = {token["content"]: token for token in parsed["added_tokens"]}
    decoder = config.get("added_tokens_decoder") or {}
    if any(isinstance(config.get(key), dict) and config[key] for key in LISTS):
        return False
    return all(_text(token) in added and added[_text(token)]["special"] for token in _named(config)) and all(
        int(number) == added[token["content"]]["id"]
        and all(token[flag] == added[token["content"]][flag] for flag in TOKEN_FLAGS)
        for number, token in decoder.items()
    )


def _named(config: dict[str, Any]) -> list[Any]:
    """Return the special tokens of the settings, each a text or a mapping with flags."""
    single = [config[key] for key in SPECIAL_KEYS if config.get(key) is not None]
    return single + [token for key in LISTS for token in config.get(key) or ()]


def _text(token: Any) -> str:
    return str(token if isinstance(token, str) else token["content"])
