"""`python -m evaluate.fingerprint`: what a pair is, and whether its manifest says the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from evaluate.fingerprint import main
from utils.indexed import MANIFEST_KEYS, write_index


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    (tmp_path / "text.bin").write_bytes(b"\1\0\2\0\3\0")
    write_index(tmp_path / "text.idx", np.dtype(np.uint16), [1, 2], [0, 1, 1, 2])
    return tmp_path / "text"


def write_manifest(prefix: Path, **changes: object) -> None:
    facts = {
        "format_version": 1,
        "bin_sha256": hashlib.sha256(b"\1\0\2\0\3\0").hexdigest(),
        "idx_sha256": hashlib.sha256(prefix.with_suffix(".idx").read_bytes()).hexdigest(),
        "documents": 3,
        "sequences": 2,
        "tokens": 3,
        "dtype": "uint16",
    }
    prefix.with_suffix(".json").write_text(json.dumps({**dict.fromkeys(MANIFEST_KEYS), **facts, **changes}))


def test_digests_and_counts_are_printed(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(prefix)
    assert main([str(prefix)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bin_sha256"] == hashlib.sha256(b"\1\0\2\0\3\0").hexdigest()
    assert (found["documents"], found["sequences"], found["tokens"]) == (3, 2, 3)
    assert found["manifest_differs"] == []


def test_a_pair_without_manifest_is_not_said_to_agree(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
