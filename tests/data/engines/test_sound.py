"""A tokenizer that gives other ids each time, or whose files are damaged, is refused by every command, in one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from json_lines import write_jsonl

from data import encode, verify

TEXTS = ["a text", ""]


@pytest.fixture
def folder(plain_tokenizer: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_tokenizer, tmp_path / "tokenizer"))


NEW = {"content": "<|new|>"}
DEEP, LONG = "[" * 100_000, '{"a": "' + "x" * 10**6
UNSOUND: list[tuple[str, Any, str]] = [
    # the place of a value in tokenizer.json, or the file itself; the value, or the content; what is said
    ("model dropout", 0.1, r"model\.dropout is 0\.1, .* set it to null"),
    ("model vocab er", 5, "the entries '.*' and 'er' have the same id 5; .* use a repaired tokenizer"),
    ("added_tokens +", NEW | {"id": 7}, r"the entries .* and '<\|new\|>' have the same id 7"),
    ("added_tokens +", NEW | {"id": 0}, r"the entries '<\|endoftext\|>' and '<\|new\|>' have"),
    ("tokenizer.json", "[]", r"tokenizer\.json: got content \[\], wanted a JSON object"),
    ("tokenizer.json", DEEP, r"tokenizer\.json: is not JSON"),
    ("tokenizer.json", LONG, r"tokenizer\.json: is not JSON"),
    ("tokenizer_config.json", "[1]", r"tokenizer_config\.json: got content \[1\], wanted"),
    ("tokenizer_config.json", DEEP, r"tokenizer_config\.json: is not JSON"),
    ("special_tokens_map.json", "3", r"special_tokens_map\.json: got content 3, wanted"),
    ("tokenizer_config.json", '{"eos_token": 5}', "tokenizer"),
    ("tokenizer_config.json", "{}", "no eos_token"),
    ("tokenizer_config.json", json.dumps({"eos_token": ["a"] * 10**5}), "tokenizer"),
    ("tokenizer_config.json", '{"eos_token": "<|endoftext|>", "added_tokens_decoder": [1]}', "tokenizer"),
    ("model", [], r"got model \[\], wanted an object with a vocab"),
    ("model vocab", None, "wanted an object with a vocab"),
    ("model vocab", [["x"]], r"got model {.*}, wanted an object with a"),
    ("model vocab er", "5", r"got model\.vocab '5', wanted a whole"),
    ("model vocab er", True, r"got model\.vocab True, wanted a whole"),
    ("model vocab er", -1, r"got model\.vocab -1, wanted a whole"),
    ("model merges", {"a": 1}, r"got model\.merges {'a': 1}, wanted a list"),
    ("model merges 0", ["a"], r"got model\.merges"),
    ("model merges 0", ["a", []], r"got model\.merges"),
    ("model dropout", "1", r"got model\.dropout '1', wanted null"),
    ("model ignore_merges", 1, "cannot load it"),
    ("added_tokens", {}, r"got added_tokens {}, wanted a list"),
    ("added_tokens +", NEW | {"id": "600"}, r"got added_tokens {.*}, wanted a list of objects"),
    ("added_tokens +", NEW | {"id": 600, "special": "yes"}, "got added_tokens"),
    ("version", [], r"got version \[\], wanted 1\.0"),
    ("truncation", {}, r"got truncation {}, wanted an object or null"),
    ("decoder", 5, "got decoder 5, wanted an object or null"),
    ("post_processor", [1], r"got post_processor \[1\], wanted"),
    ("post_processor", {"type": "TemplateProcessing", "single": [1]}, "got post_processor"),
]


def damage(folder: Path, place: str, value: Any) -> None:
    if place.endswith(".json"):
        (folder / place).write_text(value)
        return
    content = json.loads((folder / "tokenizer.json").read_text())
    node: Any = content
    *path, last = (int(key) if key.isdigit() else key for key in place.split())
    for key in path:
        node = node[key]
    if last == "+":
        node.append({**node[0], **value})
    else:
        node[last] = value
    (folder / "tokenizer.json").write_text(json.dumps(content))


@pytest.mark.parametrize(("place", "value", "message"), UNSOUND, ids=[message[:50] for *_, message in UNSOUND])
@pytest.mark.parametrize("more", [("--engine", "hf"), ("--workers", "2")], ids=" ".join)
def test_an_unsound_tokenizer_is_refused(folder, tmp_path, commands, place, value, message, more) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", TEXTS)
    damage(folder, place, value)
    given = ("--input", source, "--tokenizer", folder, "--output-prefix", tmp_path / "out")
    error = commands.error(encode.main, *given, *more, wanted=2)
    assert re.search(message, error) and len(error) < 900
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "tokenizer"]


@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_verify_refuses_it_alike(folder, tmp_path, commands, encoded, number: int) -> None:
    place, value, message = UNSOUND[number]
    encoded(write_jsonl(tmp_path / "in.jsonl", TEXTS), folder, tmp_path / "out")
    (tmp_path / "out.json").unlink()
    damage(folder, place, value)
    assert re.search(message, commands.error(verify.main, tmp_path / "out", "--tokenizer", folder, wanted=2))


UNIGRAM = {
    "version": "1.0",
    "added_tokens": [
        {
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            **{"id": 2, "content": "<|endoftext|>", "special": True},
        }
    ],
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["<|endoftext|>", 0.0]]},
}
"""An entry of a list has its place as its id."""


@pytest.mark.parametrize(
    ("place", "value"),
    [("model dropout", 0.0), ("added_tokens +", {}), ("tokenizer.json", json.dumps(UNIGRAM))],
    ids=["dropout of zero", "a token listed twice with one id", "Unigram"],
)
def test_what_only_looks_unsound_is_encoded_as_transformers_does(folder, like_transformers, place, value) -> None:
    damage(folder, place, value)
    like_transformers(folder, ["a a", "", "aa"])
