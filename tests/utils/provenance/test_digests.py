"""Fingerprints change with what decides a run, and with nothing else."""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from utils.errors import DataError, UnusableError
from utils.provenance.digests import sha256_code, sha256_file, sha256_json, sha256_token_stream, sha256_tokenizer


@pytest.mark.parametrize(
    ("content", "digest"),
    [  # FIPS 180-4 example vectors of NIST
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"a" * 1_000_000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
    ],
)
def test_file_digest_is_the_published_one(tmp_path: Path, content: bytes, digest: str) -> None:
    (tmp_path / "file").write_bytes(content)
    assert sha256_file(tmp_path / "file") == digest


def test_a_file_of_several_pieces_is_read_whole(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "file").write_bytes(content)
    assert sha256_file(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="gone: no such file"):
        sha256_file(tmp_path / "gone")


def test_json_digest_is_of_the_canonical_text() -> None:
    expected = hashlib.sha256('{"a":[1,2.5,null],"é":{"x":true,"y":"z"}}'.encode()).hexdigest()
    assert sha256_json({"é": {"y": "z", "x": True}, "a": [1, 2.5, None]}) == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Path("x")])
def test_what_json_cannot_hold_has_no_digest(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        sha256_json({"a": value})


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "merges.txt").write_text("a b")
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "tokenizer.json").write_text("{ }"),
        lambda folder: (folder / "merges.txt").rename(folder / "vocab.txt"),
        lambda folder: (folder / "merges.txt").rename(folder / "added_tokens.json"),  # in the same place of the order
        lambda folder: (folder / "merges.txt").unlink(),
        lambda folder: (folder / "special_tokens_map.json").write_text(""),
    ],
)
def test_tokenizer_digest_sees_contents_names_and_files(tokenizer: Path, change: Callable[[Path], Any]) -> None:
    before = sha256_tokenizer(tokenizer)
    change(tokenizer)
    assert sha256_tokenizer(tokenizer) != before


def test_tokenizer_digest_ignores_where_it_lies_and_what_lies_beside(tokenizer: Path) -> None:
    before = sha256_tokenizer(tokenizer)
    (tokenizer / "README.md").write_text("a card")
    (tokenizer / "model.safetensors").write_text("weights")
    assert sha256_tokenizer(tokenizer.rename(tokenizer.with_name("moved"))) == before


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="no tokenizer in it"):
        sha256_tokenizer(tmp_path)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in ("utils/a.py", "train/b.py", "train/deep/c.sh", "data/d.py", "cpu-requirements.txt", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


@pytest.mark.parametrize("name", ["utils/a.py", "train/b.py", "train/deep/c.sh", "cpu-requirements.txt"])
def test_code_digest_sees_what_trains(checkout: Path, name: str) -> None:
    before = sha256_code(checkout)
    (checkout / name).write_text("changed")
    assert sha256_code(checkout) != before


@pytest.mark.parametrize("name", ["train/a.py", "utils/z.py"])
def test_code_digest_sees_a_file_that_moved(checkout: Path, name: str) -> None:
    before = sha256_code(checkout)
    (checkout / "utils/a.py").rename(checkout / name)
    assert sha256_code(checkout) != before


def test_code_digest_ignores_place_and_everything_else(checkout: Path) -> None:
    before = sha256_code(checkout)
    (checkout / "README.md").write_text("changed")
    (checkout / "data/d.py").write_text("changed")
    (checkout / "utils/__pycache__").mkdir()
    (checkout / "utils/__pycache__/a.pyc").write_text("cache")
    copy = shutil.copytree(checkout, checkout.with_name("elsewhere"))
    assert sha256_code(copy) == before


def test_a_folder_without_our_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="none of our code"):
        sha256_code(tmp_path)


SAMPLES = [[1, 2], [3, 70_000], [5, 6], [7, 8]]


def stream(samples: list[list[int]], kind: Callable[[list[int]], Any]) -> list[dict[str, Any]]:
    return [{"tokens": kind(sample)} for sample in samples]


@pytest.mark.parametrize("kind", [torch.tensor, np.array, lambda ids: np.array(ids, dtype=np.int32)])
def test_token_stream_digest_is_of_int64_ids_in_order_whatever_holds_them(kind: Callable[[list[int]], Any]) -> None:
    expected = hashlib.sha256(struct.pack("<6q", 1, 2, 3, 70_000, 5, 6)).hexdigest()
    assert sha256_token_stream(stream(SAMPLES, kind), global_batch_size=3, batches=1) == expected
    assert sha256_token_stream(stream(SAMPLES, kind), global_batch_size=1, batches=3) == expected


def test_token_stream_digest_sees_the_order_of_samples() -> None:
    swapped = [SAMPLES[1], SAMPLES[0], *SAMPLES[2:]]
    assert sha256_token_stream(stream(SAMPLES, np.array), 2, 1) != sha256_token_stream(stream(swapped, np.array), 2, 1)


def test_token_stream_of_too_little_data_is_refused() -> None:
    with pytest.raises(DataError, match="got 4 samples, wanted 6"):
        sha256_token_stream(stream(SAMPLES, np.array), global_batch_size=3, batches=2)
