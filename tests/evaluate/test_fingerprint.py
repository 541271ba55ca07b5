"""`python -m evaluate.fingerprint` prints digests and counts of a pair, and compares them with its manifest."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports import refused
from toydata import END_OF_TEXT, write_manifest, write_pair, write_toy_data

from evaluate.fingerprint import main

Capture = pytest.CaptureFixture[str]


def told(capsys: Capture, prefix: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """Return what the command prints of a pair."""
    assert main([str(prefix), *options]) == code
    return dict(json.loads(capsys.readouterr().out))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return write_pair(tmp_path / "text", [[1], [], [2, 3]])


def test_digests_and_counts_are_printed(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, prefix)
    assert found["manifest_differs"] is None, "without a manifest nothing is reported as equal"
    assert found["token_stream_sha256"] is None and "--platform" in found["reasons"]["token_stream_sha256"]
    write_manifest(prefix)
    wanted = {"bin_sha256": hashlib.sha256(b"\1\0\2\0\3\0").hexdigest(), "manifest_differs": []}
    wanted |= {"documents": 3, "sequences": 2, "tokens": 3}
    found = told(capsys, prefix)
    assert {key: found[key] for key in wanted} == wanted


def test_a_manifest_of_another_pair_is_an_error(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(prefix, bin_sha256="0" * 64)
    assert told(capsys, prefix, code=1)["manifest_differs"] == ["bin_sha256"]


def test_the_tokenizer_is_that_of_the_manifest_or_of_the_named_folder(
    prefix: Path, tmp_path: Path, capsys: Capture
) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    named = told(capsys, prefix, "--tokenizer", str(tokenizer))["tokenizer_sha256"]
    write_manifest(prefix, tokenizer={"class": "X", "sha256": "5" * 64})
    assert told(capsys, prefix)["tokenizer_sha256"] == "5" * 64
    differing = told(capsys, prefix, "--tokenizer", str(tokenizer), code=1)
    assert (differing["tokenizer_sha256"], differing["manifest_differs"]) == (named, ["tokenizer_sha256"])


SETTINGS = ("GBS=4", "MBS=1", "SL=64", "TRAIN_ITERS=30", "WARMUP_ITERS=1", "SEED=11")


def options_of(folder: Path, *more: str) -> tuple[str, ...]:
    return ("--platform", "cpu", f"DATA_DIR={folder}", f"OUTPUT_DIR={folder}", *SETTINGS, *more)


@pytest.mark.parametrize(
    ("more", "batches", "samples", "seed"),
    [
        ((), 2, 8, 11),
        (("--batches", "3"), 3, 12, 11),
        (("SEED=12",), 2, 8, 12),
        (("TRAIN_ITERS=1", "WARMUP_ITERS=0"), 1, 4, 11),  # a training that is shorter than the batches
    ],
)
def test_the_token_stream_is_that_of_the_first_global_batches_in_training_order(
    tmp_path: Path, capsys: Capture, more: tuple[str, ...], batches: int, samples: int, seed: int
) -> None:
    prefix = write_toy_data(tmp_path / "text", documents=60)
    found = told(capsys, prefix, *options_of(tmp_path / "data", *more))
    assert found["token_stream_batches"] == batches and "token_stream_sha256" not in found["reasons"]
    # the order of GPTDataset for less than one epoch: shuffled documents, cut into samples, shuffled again
    tokens = np.fromfile(f"{prefix}.bin", dtype="<u2").astype("<i8")
    documents = np.split(tokens, np.flatnonzero(tokens == END_OF_TEXT)[:-1] + 1)
    random, order = np.random.RandomState(seed), np.arange(len(documents), dtype=np.int32)
    random.shuffle(order)
    text = np.concatenate([documents[number] for number in order])
    numbers = np.arange((len(text) - 1) // 64, dtype=np.uint32)
    random.shuffle(numbers)
    by_hand = b"".join(text[number * 64 : (number + 1) * 64].tobytes() for number in numbers[:samples].tolist())
    assert found["token_stream_sha256"] == hashlib.sha256(by_hand).hexdigest()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("{}/text", "SEED=1"), "add --platform"),
        (("{}/text", "--platform", "cpu", "SEED=x"), "SEED=x"),
        (("{}/gone",), "gone.bin"),
    ],
)
def test_a_missing_pair_or_settings_that_cannot_be_used_are_bad_input(
    prefix: Path, options: tuple[str, ...], said: str
) -> None:
    assert said in refused(main, *(option.format(prefix.parent) for option in options))


def test_without_megatron_core_the_rest_is_still_printed(
    tmp_path: Path, prefix: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "megatron.core.datasets.gpt_dataset", None)
    found = told(capsys, prefix, *options_of(tmp_path / "data"))
    assert found["token_stream_sha256"] is None and "megatron-core" in found["reasons"]["token_stream_sha256"]
    assert found["tokens"] == 3
