"""A tokenizer that gives other ids each time, or whose files are damaged, is refused by every command, in one line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_reference import TEXTS, write_jsonl
from standins import write_qwen2, write_sentencepiece

import data.encode
import data.verify
from data.engines.backend import load_backend
from data.engines.engines import EngineSpec
from data.engines.sound import read_sound
from utils.errors import UnusableError


@pytest.fixture
def folder(plain_tokenizer: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_tokenizer, tmp_path / "tokenizer"))


def change(folder: Path, name: str, *path: str | int, to: Any) -> None:
    content = json.loads((folder / name).read_text())
    node = content
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = to
    (folder / name).write_text(json.dumps(content))


def add_token(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], **changes})
    (folder / "tokenizer.json").write_text(json.dumps(content))


def share_an_id(folder: Path) -> None:
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    change(folder, "tokenizer.json", "model", "vocab", to=vocabulary | {"er": 5})


UNSOUND: list[tuple[Callable[[Path], None], str]] = [
    (lambda f: change(f, "tokenizer.json", "model", "dropout", to=0.1), r"model\.dropout is 0\.1, .* set it to null"),
    (share_an_id, "the entries '.*' and 'er' have the same id 5; .* use a repaired tokenizer"),
    (lambda f: add_token(f, content="<|new|>", id=7), r"the entries .* and '<\|new\|>' have the same id 7"),
    (lambda f: add_token(f, content="<|new|>", id=0), r"the entries '<\|endoftext\|>' and '<\|new\|>' have"),
    (lambda f: (f / "tokenizer.json").write_text("[]"), r"tokenizer\.json: got content \[\], wanted a JSON object"),
    (lambda f: (f / "tokenizer.json").write_text("[" * 100_000), r"tokenizer\.json: is not JSON"),
    (lambda f: (f / "tokenizer.json").write_text('{"a": "' + "x" * 10**6), r"tokenizer\.json: is not JSON"),
    (lambda f: (f / "tokenizer_config.json").write_text("[1]"), r"tokenizer_config\.json: got content \[1\], wanted"),
    (lambda f: (f / "tokenizer_config.json").write_text("[" * 100_000), r"tokenizer_config\.json: is not JSON"),
    (lambda f: (f / "special_tokens_map.json").write_text("3"), r"special_tokens_map\.json: got content 3, wanted"),
    (lambda f: change(f, "tokenizer_config.json", "eos_token", to=5), "tokenizer"),
    (lambda f: change(f, "tokenizer_config.json", "eos_token", to=["a"] * 10**5), "tokenizer"),
    (lambda f: change(f, "tokenizer_config.json", "added_tokens_decoder", to=[1]), "tokenizer"),
    (lambda f: change(f, "tokenizer.json", "model", to=[]), r"got model \[\], wanted an object with a vocab"),
    (lambda f: change(f, "tokenizer.json", "model", "vocab", to=None), "wanted an object with a vocab"),
    (lambda f: change(f, "tokenizer.json", "model", "vocab", to=[["x"]]), r"got model {.*}, wanted an object with a"),
    (lambda f: change(f, "tokenizer.json", "model", "vocab", "er", to="5"), r"got model\.vocab '5', wanted a whole"),
    (lambda f: change(f, "tokenizer.json", "model", "vocab", "er", to=True), r"got model\.vocab True, wanted a whole"),
    (lambda f: change(f, "tokenizer.json", "model", "vocab", "er", to=-1), r"got model\.vocab -1, wanted a whole"),
    (
        lambda f: change(f, "tokenizer.json", "model", "merges", to={"a": 1}),
        r"got model\.merges {'a': 1}, wanted a list",
    ),
    (lambda f: change(f, "tokenizer.json", "model", "merges", 0, to=["a"]), r"got model\.merges"),
    (lambda f: change(f, "tokenizer.json", "model", "merges", 0, to=["a", []]), r"got model\.merges"),
    (lambda f: change(f, "tokenizer.json", "model", "dropout", to="1"), r"got model\.dropout '1', wanted null"),
    (lambda f: change(f, "tokenizer.json", "model", "ignore_merges", to=1), "cannot load it"),
    (lambda f: change(f, "tokenizer.json", "added_tokens", to={}), r"got added_tokens {}, wanted a list"),
    (lambda f: add_token(f, id="600", content="<|new|>"), r"got added_tokens {.*}, wanted a list of objects"),
    (lambda f: add_token(f, id=600, content="<|new|>", special="yes"), "got added_tokens"),
    (lambda f: change(f, "tokenizer.json", "version", to=[]), r"got version \[\], wanted 1\.0"),
    (lambda f: change(f, "tokenizer.json", "truncation", to={}), r"got truncation {}, wanted an object or null"),
    (lambda f: change(f, "tokenizer.json", "decoder", to=5), "got decoder 5, wanted an object or null"),
    (lambda f: change(f, "tokenizer.json", "post_processor", to=[1]), r"got post_processor \[1\], wanted"),
    (
        lambda f: change(f, "tokenizer.json", "post_processor", to={"type": "TemplateProcessing", "single": [1]}),
        "got post_processor",
    ),
]


@pytest.mark.parametrize(("damage", "message"), UNSOUND, ids=[message[:50] for _, message in UNSOUND])
@pytest.mark.parametrize("engine", ["hf", "gigatoken"])
def test_an_unsound_tokenizer_is_refused(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    message: str,
    engine: str,
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", TEXTS)
    damage(folder)
    arguments = ["--input", str(source), "--tokenizer", str(folder), "--output-prefix", str(tmp_path / "out")]
    assert data.encode.main([*arguments, "--engine", engine]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and len(said.err) < 900
    assert_refused(said.err, message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "tokenizer"]


def assert_refused(said: str, message: str) -> None:
    assert said.startswith("error: ") and re.search(message, said), said


@pytest.mark.parametrize("number", [0, 1, 2, 5, 16])
def test_two_workers_and_verify_refuse_it_alike(
    folder: Path, tmp_path: Path, plain_tokenizer: Path, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    damage, message = UNSOUND[number]
    source, prefix = write_jsonl(tmp_path / "in.jsonl", TEXTS), tmp_path / "out"
    given = ["--input", str(source), "--output-prefix", str(prefix)]
    assert data.encode.main([*given, "--tokenizer", str(plain_tokenizer)]) == 0
    damage(folder)
    capfd.readouterr()
    assert data.encode.main([*given, "--tokenizer", str(folder), "--workers", "2"]) == 2
    assert_refused(capfd.readouterr().err, message)
    prefix.with_suffix(".json").unlink()
    assert data.verify.main([str(prefix), "--tokenizer", str(folder)]) == 2
    assert_refused(capfd.readouterr().err, message)


def test_dropout_of_zero_and_tokens_listed_twice_with_one_id_are_sound(folder: Path) -> None:
    change(folder, "tokenizer.json", "model", "dropout", to=0.0)
    add_token(folder)
    assert read_sound(folder)[1]["model"]["dropout"] == 0.0


@pytest.mark.parametrize("kind", ["qwen", "sentencepiece", "bos", "large"])
def test_tokenizers_in_use_are_sound(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    if kind in ("bos", "large"):
        folder = request.getfixturevalue(f"{kind}_tokenizer")
    else:
        folder = write_qwen2(tmp_path / "t") if kind == "qwen" else write_sentencepiece(tmp_path / "t", "first")
    content, parsed = read_sound(folder)
    assert content == (folder / "tokenizer.json").read_bytes() and parsed == json.loads(content)


def test_an_entry_of_a_list_has_its_place_as_its_id(tmp_path: Path) -> None:
    # the vocabulary of a Unigram model
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]], "byte_fallback": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    assert read_sound(tmp_path)[1]["model"] == model


def test_a_library_that_refuses_a_tokenizer_is_quoted_in_one_line(tmp_path: Path, plain_tokenizer: Path) -> None:
    backend = load_backend(plain_tokenizer)
    assert backend.content is not None
    path = tmp_path / "tokenizer.json"
    path.write_bytes(backend.content.replace(b'"ByteLevel"', b'"Unknown"'))
    with pytest.raises(UnusableError, match=r"tokenizer\.json: the library tokenizers cannot load it \("):
        list(EngineSpec("hf", path).build().guarded_rows([b"a"]))
