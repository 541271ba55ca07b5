"""Small tokenizers for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from data import synth


@pytest.fixture(scope="session")
def plain_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a byte-level BPE tokenizer with 600 entries, without a beginning-of-text token."""
    folder = tmp_path_factory.mktemp("tokenizers") / "plain"
    synth.write_tokenizer(folder, seed=1, vocabulary_size=600)
    return folder


@pytest.fixture(scope="session")
def bos_tokenizer(plain_tokenizer: Path) -> Path:
    """The same with a beginning-of-text token before each document, as Llama 3 has it."""

    def add_bos(tokenizer: Tokenizer) -> None:
        tokenizer.add_special_tokens([AddedToken("<|begin|>", special=True)])
        tokenizer.post_processor = TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
        )

    return _variant(plain_tokenizer, "bos", add_bos, {"bos_token": "<|begin|>"})


@pytest.fixture(scope="session")
def large_tokenizer(plain_tokenizer: Path) -> Path:
    """The same with 65,500 entries: the smallest vocabulary whose ids are int32; <|last|> has the largest id."""
    folder = plain_tokenizer.with_name("large")
    folder.mkdir()
    content = json.loads((plain_tokenizer / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"filler{number}": number for number in range(len(vocabulary), 65499)}
    content["added_tokens"].append({**content["added_tokens"][0], "id": 65499, "content": "<|last|>"})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text((plain_tokenizer / "tokenizer_config.json").read_text())
    return folder


def _variant(source: Path, name: str, change: Callable[[Tokenizer], None], settings: dict[str, str]) -> Path:
    folder = source.with_name(name)
    folder.mkdir()
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    change(tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    content = json.loads((source / "tokenizer_config.json").read_text()) | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder
