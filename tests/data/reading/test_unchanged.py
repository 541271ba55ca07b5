"""A file that another program changes while it is read is one line with the kind of change, and nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from pyarrow import parquet

import data.clean
import data.encode

LINES = [json.dumps({"text": f"{number} some words of it"}) + "\n" for number in range(500)]


def replace(path: Path) -> None:
    """Put another file of the same size and time in its place."""
    state, other = path.stat(), path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b"some", b"many"))
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    os.replace(other, path)  # noqa: PTH105 the renames of Path are watched


def rewrite(path: Path) -> None:
    """Write other bytes of the same size and put its time back."""
    state = path.stat()
    path.write_bytes(path.read_bytes().replace(b"some", b"many"))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "grow": (lambda path: path.write_bytes(path.read_bytes() + b'{"text": "half a li'), "it grew from"),
    "grow much": (lambda path: path.write_text("".join(LINES) * 20), "it grew from"),
    "shrink": (lambda path: os.truncate(path, 30), "it shrank from"),
    "vanish": (Path.unlink, "it vanished"),
    "replace": (replace, "another file has its name"),
    "touch": (lambda path: os.utime(path, ns=(1, 1)), "it was written to"),
    "rewrite": (rewrite, "other bytes were encoded"),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(LINES))
    return path


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_an_input_that_changes_is_not_encoded(
    source: Path, plain_tokenizer: Path, commands, part_bytes, monkeypatch, name: str, workers: int
) -> None:
    change, message = CHANGES[name]
    part_bytes(2000)
    changes = [change]
    real = xxhash.xxh3_128_hexdigest

    def digest(content: bytes) -> str:
        """Change the input after its first part was hashed, before it is encoded."""
        found = real(content)
        if changes:
            changes.pop()(source)
        return found

    monkeypatch.setattr(xxhash, "xxh3_128_hexdigest", digest)
    given = ("--input", source, "--tokenizer", plain_tokenizer, "--output-prefix", source.with_name("out"))
    error = commands.error(data.encode.main, *given, "--workers", workers)
    assert f"in.jsonl: changed while being read: {message}" in error
    assert {path.name for path in source.parent.iterdir()} <= {"in.jsonl"}


OF_JSONL = [("in.jsonl", name) for name in CHANGES if name != "rewrite"]


@pytest.mark.parametrize(("file", "name"), [*OF_JSONL, *(("in.parquet", n) for n in ("shrink", "vanish", "replace"))])
def test_an_input_that_changes_is_not_cleaned_and_ends_no_process(
    source: Path, commands, monkeypatch, file: str, name: str
) -> None:
    change, message = CHANGES[name]
    path = source.rename(source.with_name(file))
    if file == "in.parquet":
        texts = [os.urandom(500).hex() for _ in range(20_000)]
        parquet.write_table(pa.table({"text": texts}), path, row_group_size=1000, compression="none")
    real = data.clean.clean

    def changing(found: Iterator[Any], *rest: Any) -> Iterator[str]:
        first = next(found)
        change(path)
        return real(chain([first], found), *rest)

    monkeypatch.setattr(data.clean, "clean", changing)
    error = commands.error(data.clean.main, path, "--output", path.with_name("out.jsonl"))
    assert f"{file}: changed while being read: {message}" in error
    assert {path.name for path in path.parent.iterdir()} <= {file}
