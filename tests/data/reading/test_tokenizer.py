"""Every tokenizer gives the ids of AutoTokenizer for any text, and one whose ids are not certain is refused."""

from __future__ import annotations

import functools
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from standins import (
    changed,
    scripts,
    write_gpt2,
    write_jsonl,
    write_llama3,
    write_mistral,
    write_qwen2,
    write_sentencepiece,
)

from data import encode, verify

TRICKY = [
    "",
    " ",
    "\n",
    "\r\n \n\n  x",
    "'s 'S 'T 'LL 're 'RE x's x'S '\u017f a'\u017f '\u212a",
    "12345678 1 22 333 \u0664\u0665\u0666\u0667 \u2167\u2168",
    "<|begin_of_text|>",
    "\u2581a \u2581 <0x41>",
    "a<|end_of_text|> <|endoftext|>b <|im_start|><|im_end|>",
    "x" + " \n" * 70,
    "<s></s><unk>",
    "<|end_of_text <|endoftext| > <tool_call>x</tool_call> </tool_call",
    "e\u0301 \u00e9 \u1100\u1161\u11a8 \uac01 A\u030a \u212b \u0344 \u0958 \ufb1d \u2126",
    "\u0916\u093c \u0e40\u0e01\u0e48 \u05e9\u05c1\u05d0 \u0627\u064e\u0654",
    "\u088f\u0c5c\ua7ce\U00010940\U000323b0 \u0897\u1adb\U0001e6e3",
    "\x00\x01\x7f\x80\x85\xa0\u2028\u3000\ufeff\uffff",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "a" * 1000 + " " * 100 + "=" * 333 + "\t" * 50 + "ha" * 99,
]
PIECES = [*TRICKY, "'", " ", "\n", "\r", "1", "word", "\u00e9", "\u4e2d", "\u0301", "<|", "|>"]
ADDED = ("<|im|>", "<|im|><|x", "<|im", "im|>", "|><|", "<tool>")
"""They overlap, and one begins with another: only one way of looking for them is that of transformers."""
WRITERS = {
    "llama3": write_llama3,
    "qwen2": write_qwen2,
    "gpt2": write_gpt2,
    "mistral": write_mistral,
    "always": functools.partial(write_sentencepiece, prepend="always"),
    "first": functools.partial(write_sentencepiece, prepend="first"),
}


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {kind: write(folder / kind) for kind, write in WRITERS.items()}


def drawn(pieces: list[str], count: int) -> list[str]:
    """Return texts of pieces drawn at random, the same on every machine."""
    pick = random.Random(len(pieces))
    return ["".join(pick.choices(pieces, k=pick.randrange(12))) for _ in range(count)]


@pytest.mark.parametrize("kind", WRITERS)
def test_ids_are_those_of_transformers_for_any_text(sources, like_transformers, kind: str) -> None:
    made = like_transformers(sources[kind], [*TRICKY, *list(scripts())[::8], *drawn(PIECES, 500)])
    assert made["engine"] == {"name": "hf"}


def with_added_tokens(config: Any, content: Any, **flags: bool) -> None:
    usual = content["added_tokens"][0] | {"special": False} | flags
    names = {token["content"] for token in content["added_tokens"]}
    first = len(names.union(content["model"]["vocab"]))
    for number, text in enumerate((*ADDED, "ax b"), first):
        content["added_tokens"].append(usual | {"id": number, "content": text})
    config.pop("added_tokens_decoder", None)  # it would have to name them too


CHANGES: dict[str, Any] = {
    "added tokens": with_added_tokens,
    "added tokens, normalized": functools.partial(with_added_tokens, normalized=True),
    "added tokens, lstrip": functools.partial(with_added_tokens, lstrip=True),
    "added tokens, rstrip": functools.partial(with_added_tokens, rstrip=True),
    "added tokens, single_word": functools.partial(with_added_tokens, single_word=True),
    # only transformers can run it
    "specials are split": lambda c, t: c.update(split_special_tokens=True),
    "a space before": lambda c, t: c.update(add_prefix_space=True),
    "a token that is new": lambda c, t: c.update(pad_token="<|pad|>"),
    "another normalizer": lambda c, t: t.update(normalizer={"type": "NFKC"}),
    "a beginning of text that the file adds": lambda c, t: c.update(add_bos_token=False),
    "truncation": lambda c, t: t.update(
        truncation={"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["llama3", "qwen2"])
def test_a_setting_of_the_tokenizer_counts_as_it_does_in_transformers(
    tmp_path, sources, like_transformers, kind: str, change: str
) -> None:
    folder = changed(sources[kind], tmp_path / "changed", CHANGES[change])
    pieces = [*ADDED, "<|", "|>", "<", "im", " ", "\n", "word", "'s", "\u00e9", "<|endoftext|>", "<|end_of_text|>"]
    like_transformers(folder, [*TRICKY, *drawn(pieces, 300)])


# A tokenizer that gives other ids each time, or whose files are damaged, is refused by every command, in one line.

TWO_TEXTS = ["a text", ""]


@pytest.fixture
def folder(plain_tokenizer: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_tokenizer, tmp_path / "tokenizer"))


NEW = {"content": "<|new|>"}
CANNOT = "AutoTokenizer cannot load it"
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
    ("model", [], CANNOT),
    ("model vocab er", True, CANNOT),
    ("model merges 0", ["a", []], CANNOT),
    ("added_tokens +", NEW | {"id": 600, "special": "yes"}, CANNOT),
    ("version", [], CANNOT),
    ("decoder", 5, CANNOT),
    ("post_processor", {"type": "TemplateProcessing", "single": [1]}, CANNOT),
]


def damage(folder: Path, place: str, value: Any) -> None:
    if place.endswith(".json"):
        (folder / place).write_text(value)
        return
    content = json.loads((folder / "tokenizer.json").read_text())
    *path, last = place.split()
    node = content
    for key in path:
        node = node[key]
    if last == "+":
        node.append(node[0] | value)
    elif isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value
    (folder / "tokenizer.json").write_text(json.dumps(content))


WAYS = [(encode.main, ()), (encode.main, ("--workers", "2")), (verify.main, ())]


@pytest.mark.parametrize(("place", "value", "message"), UNSOUND, ids=[message[:50] for *_, message in UNSOUND])
@pytest.mark.parametrize(("main", "more"), WAYS, ids=["one", "workers", "verify"])
def test_an_unsound_tokenizer_is_refused(
    folder, tmp_path, commands, encoded, place, value, message, main, more
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", TWO_TEXTS)
    given = ("--input", source, "--tokenizer", folder, "--output-prefix", tmp_path / "out", *more)
    if main is verify.main:
        encoded(source, folder, tmp_path / "out")
        (tmp_path / "out.json").unlink()
        given = (tmp_path / "out", "--tokenizer", folder)
    before = sorted(tmp_path.iterdir())
    damage(folder, place, value)
    error = commands.error(main, *given, wanted=2)
    assert re.search(message, error) and len(error) < 900
    assert sorted(tmp_path.iterdir()) == before


END_OF_TEXT = {
    "id": 2,
    "content": "<|endoftext|>",
    "special": True,
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
}
UNIGRAM = {
    "version": "1.0",
    "added_tokens": [END_OF_TEXT],
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
