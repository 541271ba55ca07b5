"""`python -m evaluate.fingerprint` prints digests and counts of a pair, and compares them with its manifest."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from manifests import write_manifest
from toydata import write_toy_data

from evaluate.fingerprint import fingerprint, main
from utils.dataset.indexed import bin_path, check, write_index
from utils.provenance.digests import sha256_tokenizer
from utils.settings.config import RunConfig, load


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    (tmp_path / "text.bin").write_bytes(b"\1\0\2\0\3\0")
    write_index(tmp_path / "text.idx", np.dtype(np.uint16), [1, 2], [0, 1, 1, 2])
    return tmp_path / "text"


def test_digests_and_counts_are_printed(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(prefix)
    assert main([str(prefix)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bin_sha256"] == hashlib.sha256(b"\1\0\2\0\3\0").hexdigest()
    assert (found["documents"], found["sequences"], found["tokens"]) == (3, 2, 3)
    assert found["manifest_differs"] == []


def test_a_pair_without_manifest_is_not_reported_as_equal(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(prefix)]) == 0
    assert json.loads(capsys.readouterr().out)["manifest_differs"] is None


def test_a_manifest_of_another_pair_is_an_error(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(prefix, bin_sha256="0" * 64)
    assert main([str(prefix)]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["manifest_differs"] == ["bin_sha256"]
    assert output.err.startswith("error: ") and "bin_sha256" in output.err


def test_a_missing_pair_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "gone")]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "gone.bin" in output.err


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    return tmp_path / "tokenizer"


def test_the_tokenizer_is_that_of_the_manifest_or_of_the_named_folder(prefix: Path, tokenizer: Path) -> None:
    assert fingerprint(prefix)["tokenizer_sha256"] is None
    assert "--tokenizer" in fingerprint(prefix)["reasons"]["tokenizer_sha256"]
    assert fingerprint(prefix, tokenizer)["tokenizer_sha256"] == sha256_tokenizer(tokenizer)
    write_manifest(prefix, tokenizer={"class": "X", "sha256": "5" * 64})
    assert fingerprint(prefix)["tokenizer_sha256"] == "5" * 64
    assert fingerprint(prefix)["manifest_differs"] == []
    assert fingerprint(prefix, tokenizer)["manifest_differs"] == ["tokenizer_sha256"]


def test_without_settings_the_order_of_the_tokens_is_unknown(prefix: Path) -> None:
    found = fingerprint(prefix)
    assert found["token_stream_sha256"] is None and found["token_stream_batches"] is None
    assert "--platform" in found["reasons"]["token_stream_sha256"]


SETTINGS = ("GBS=4", "MBS=1", "SL=64", "TRAIN_ITERS=30", "WARMUP_ITERS=1", "SEED=11")


def config_for(folder: Path, *more: str) -> RunConfig:
    return load("cpu", arguments=[f"DATA_DIR={folder}", f"OUTPUT_DIR={folder}", *SETTINGS, *more], environ={})


def stream_by_hand(prefix: Path, samples: int, sequence_length: int, seed: int) -> str:
    """Digest the order of GPTDataset for less than one epoch: shuffled documents, cut into samples, shuffled again."""
    index = check(prefix)
    tokens = np.fromfile(bin_path(prefix), dtype=index.dtype).astype("<i8")
    documents = np.split(tokens, np.cumsum(index.sequence_lengths)[:-1])
    random = np.random.RandomState(seed)
    order = np.arange(index.documents, dtype=np.int32)
    random.shuffle(order)
    text = np.concatenate([documents[number] for number in order])
    numbers = np.arange((len(text) - 1) // sequence_length, dtype=np.uint32)
    random.shuffle(numbers)
    digest = hashlib.sha256()
    for number in numbers[:samples].tolist():
        digest.update(text[number * sequence_length : (number + 1) * sequence_length].tobytes())
    return digest.hexdigest()


def test_the_token_stream_is_that_of_the_first_global_batches_in_training_order(tmp_path: Path) -> None:
    prefix = write_toy_data(tmp_path / "text", documents=60)
    two = fingerprint(prefix, config=config_for(tmp_path / "data"))
    assert two["token_stream_batches"] == 2
    assert two["token_stream_sha256"] == stream_by_hand(prefix, samples=8, sequence_length=64, seed=11)
    three = fingerprint(prefix, config=config_for(tmp_path / "data"), batches=3)
    assert three["token_stream_sha256"] == stream_by_hand(prefix, samples=12, sequence_length=64, seed=11)
    other = fingerprint(prefix, config=config_for(tmp_path / "data", "SEED=12"))
    assert other["token_stream_sha256"] == stream_by_hand(prefix, samples=8, sequence_length=64, seed=12)
    assert "token_stream_sha256" not in two["reasons"]


def test_a_training_shorter_than_the_batches_is_digested_whole(tmp_path: Path) -> None:
    prefix = write_toy_data(tmp_path / "text", documents=60)
    config = config_for(tmp_path / "data", "TRAIN_ITERS=1", "WARMUP_ITERS=0")
    assert fingerprint(prefix, config=config)["token_stream_batches"] == 1


def test_the_command_takes_the_settings_of_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = write_toy_data(tmp_path / "text", documents=60)
    assert main([str(prefix), "--platform", "cpu", f"DATA_DIR={tmp_path / 'data'}", *SETTINGS]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["token_stream_sha256"] == stream_by_hand(prefix, samples=8, sequence_length=64, seed=11)
    assert main([str(prefix), "SEED=1"]) == 2
    assert "add --platform" in capsys.readouterr().err
    assert main([str(prefix), "--platform", "cpu", "SEED=x"]) == 2
    assert "SEED=x" in capsys.readouterr().err


def test_without_megatron_core_the_rest_is_still_printed(
    tmp_path: Path, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "megatron.core.datasets.gpt_dataset", None)
    found = fingerprint(prefix, config=config_for(tmp_path / "data"))
    assert found["token_stream_sha256"] is None and "megatron-core" in found["reasons"]["token_stream_sha256"]
    assert found["tokens"] == 3
