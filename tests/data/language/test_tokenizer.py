"""The trained tokenizer: exact size, the same bytes in every process, no other tokens than requested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from megatron_reference import write_jsonl
from transformers import AutoTokenizer

from data import synth
from data.language import tokenizer
from data.language.tokenizer import train_tokenizer
from utils.errors import DataError, UnusableError
from utils.settings.config import ROOT

FILES = ["tokenizer.json", "tokenizer_config.json"]


def test_processes_train_the_same_bytes_with_exactly_the_asked_size(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from data import synth; synth.write_tokenizer(Path(sys.argv[1]), seed=5)"
    )
    for name, threads in (("first", "true"), ("second", "false")):
        # hash seeds and thread counts are what could make two trainings differ
        environment = {**os.environ, "PYTHONHASHSEED": str(len(name)), "TOKENIZERS_PARALLELISM": threads}
        command = [sys.executable, "-c", code, str(tmp_path / name)]
        subprocess.run(command, check=True, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)})
    for file in FILES:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    loaded = AutoTokenizer.from_pretrained(tmp_path / "first")
    assert len(loaded) == 4096
    assert sorted(loaded.get_vocab().values()) == list(range(4096))


def test_it_loads_with_an_end_of_text_and_neither_padding_nor_beginning(plain_tokenizer: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(plain_tokenizer)
    assert loaded.eos_token == "<|endoftext|>"
    assert loaded.convert_ids_to_tokens(loaded.eos_token_id) == "<|endoftext|>"
    assert loaded.bos_token is None and loaded.pad_token is None and loaded.unk_token is None
    assert loaded("").input_ids == []


@pytest.mark.parametrize("text", ["The pot fled.", " two  spaces\n\n", "Grüße, 東京 🙂 \u0000", "a ?! b , c"])
def test_text_comes_back_from_its_ids(plain_tokenizer: Path, text: str) -> None:
    loaded = AutoTokenizer.from_pretrained(plain_tokenizer)
    assert loaded.decode(loaded(text).input_ids) == text


def test_text_beyond_the_sample_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "SAMPLE_BYTES", 50_000)
    synth.write_documents(tmp_path / "short.jsonl", seed=5, words=12_000)
    synth.write_documents(tmp_path / "long.jsonl", seed=5, words=20_000)
    train_tokenizer(tmp_path / "short.jsonl", tmp_path / "short", 500)
    train_tokenizer(tmp_path / "long.jsonl", tmp_path / "long", 500)
    assert (tmp_path / "short" / FILES[0]).read_bytes() == (tmp_path / "long" / FILES[0]).read_bytes()


def test_text_too_poor_for_the_vocabulary_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "poor.jsonl", ["a b a b"])
    with pytest.raises(DataError, match=r"poor\.jsonl: its text gives \d+ tokens, wanted 4096"):
        train_tokenizer(source, tmp_path / "tokenizer")
    assert list(tmp_path.iterdir()) == [source]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": 3}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2: got text = 3 \(int\)"):
        train_tokenizer(tmp_path / "bad.jsonl", tmp_path / "tokenizer", 300)


def test_an_earlier_tokenizer_is_replaced_and_anything_else_is_left_alone(tmp_path: Path) -> None:
    folder, source = tmp_path / "tokenizer", tmp_path / "text.jsonl"
    synth.write_documents(source, seed=1, words=2000)
    train_tokenizer(source, folder, 300)
    train_tokenizer(source, folder, 310)
    assert len(AutoTokenizer.from_pretrained(folder)) == 310
    assert sorted(path.name for path in tmp_path.iterdir()) == [".text.jsonl.tprimat", "text.jsonl", "tokenizer"]
    (folder / "weights").write_text("precious")
    with pytest.raises(UnusableError, match="this suite has not written it"):
        train_tokenizer(source, folder, 300)
    assert (folder / "weights").read_text() == "precious"


@pytest.mark.parametrize(("size", "name"), [(256, "text.jsonl"), (300, "gone.jsonl")])
def test_what_cannot_be_worked_with_is_refused(tmp_path: Path, size: int, name: str) -> None:
    write_jsonl(tmp_path / "text.jsonl", ["a"])
    with pytest.raises(UnusableError):
        train_tokenizer(tmp_path / name, tmp_path / "tokenizer", size)
