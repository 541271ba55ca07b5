"""The tokenizer of the generated text: exact size, the same bytes in every process, and what it may replace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from transformers import AutoTokenizer

from data import synth

FILES = ["tokenizer.json", "tokenizer_config.json"]


def trained(commands, folder: Path, *more: object, name: str = "tokenizer", wanted: int = 0) -> Path:
    given = ("--output", folder / "text.jsonl", "--words", "9", "--seed", "5", "--tokenizer-output", folder / name)
    if wanted:
        commands.error(synth.main, *given, *more, wanted=wanted)
    else:
        commands.run(synth.main, *given, *more)
    return folder / name


def test_processes_train_the_same_bytes_with_exactly_the_asked_size(tmp_path: Path, commands) -> None:
    here = trained(commands, tmp_path)
    # hash seeds and thread counts are what could make two trainings differ
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "data.synth", "--output", tmp_path / "more.jsonl", "--words", "20000"]
    command += ["--seed", "5", "--tokenizer-output", tmp_path / "there"]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    for file in FILES:  # the amount of text does not matter
        assert (here / file).read_bytes() == (tmp_path / "there" / file).read_bytes()
    loaded = AutoTokenizer.from_pretrained(here)
    assert sorted(loaded.get_vocab().values()) == list(range(4096))


def test_it_has_an_end_of_text_and_neither_padding_nor_beginning_and_text_comes_back(plain_tokenizer: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(plain_tokenizer)
    assert loaded.convert_ids_to_tokens(loaded.eos_token_id) == loaded.eos_token == "<|endoftext|>"
    assert loaded.bos_token is None and loaded.pad_token is None and loaded.unk_token is None
    for text in ("", "The pot fled.", " two  spaces\n\n", "Grüße, 東京 🙂 \u0000", "a ?! b , c"):
        assert loaded.decode(loaded(text).input_ids) == text


def test_an_earlier_tokenizer_is_replaced_and_anything_else_is_left_alone(tmp_path: Path, commands) -> None:
    for size in ("300", "310"):
        folder = trained(commands, tmp_path, "--vocabulary-size", size)
    assert len(AutoTokenizer.from_pretrained(folder)) == 310
    assert sorted(path.name for path in tmp_path.iterdir()) == [".text.jsonl.tprimat", "text.jsonl", "tokenizer"]
    (folder / "weights").write_text("precious")
    trained(commands, tmp_path, "--vocabulary-size", "300", wanted=2)
    assert (folder / "weights").read_text() == "precious" and len(AutoTokenizer.from_pretrained(folder)) == 310


@pytest.mark.parametrize(("size", "code"), [("256", 2), ("10000000", 1)])
def test_a_vocabulary_that_bytes_or_text_cannot_fill_is_refused_and_leaves_nothing(
    tmp_path: Path, commands, size: str, code: int
) -> None:
    assert not trained(commands, tmp_path, "--vocabulary-size", size, wanted=code).exists()
