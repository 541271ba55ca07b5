"""A file that another program changes while it is read is one line with the kind of change, and nothing is written."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import data.clean
import data.encode
from data.cleaning import text
from data.cleaning.documents import clean, level
from data.encoding import join, parts
from data.reading.records import Record, records
from data.reading.unchanged import unchanged
from utils.errors import DataError

LINES = [json.dumps({"text": f"{number} some words of it"}) + "\n" for number in range(500)]


def grow(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"text": "half a li')


def grow_much(path: Path) -> None:
    with path.open("a") as file:
        file.write("".join(LINES) * 20)


def shrink(path: Path) -> None:
    os.truncate(path, 30)


def replace(path: Path) -> None:
    """Put another file of the same size and time in its place."""
    state, other = path.stat(), path.with_name("other")
    other.write_text("".join(LINES).replace("some", "many"))
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(path)


def rewrite(path: Path) -> None:
    """Write other bytes of the same size and put its time back."""
    state = path.stat()
    path.write_bytes(path.read_bytes().replace(b"some", b"many"))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


CHANGES: list[tuple[Callable[[Path], None], str]] = [
    (grow, "it grew from"),
    (grow_much, "it grew from"),
    (shrink, "it shrank from"),
    (Path.unlink, "it vanished"),
    (replace, "another file has its name"),
    (rewrite, "other bytes were encoded"),
]
NAMES = ("grow", "grow much", "shrink", "vanish", "replace", "rewrite")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(LINES))
    return path


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(("change", "message"), CHANGES, ids=NAMES)
def test_an_input_that_changes_is_not_encoded(
    source: Path,
    plain_tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], None],
    message: str,
    workers: str,
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 2000)
    changed_once(monkeypatch, source, change)
    arguments = ["--input", str(source), "--tokenizer", str(plain_tokenizer), "--workers", workers]
    assert data.encode.main([*arguments, "--output-prefix", str(source.with_name("out"))]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert f"in.jsonl: changed while being read: {message}" in said.err
    assert {path.name for path in source.parent.iterdir()} <= {"in.jsonl"}


def changed_once(monkeypatch: pytest.MonkeyPatch, source: Path, change: Callable[[Path], None]) -> None:
    """Change the input after its first part was hashed, before it is encoded."""
    real, done = join.digest, Counter[str]()

    def digest(text: bytes) -> str:
        found = real(text)
        if not done["changes"]:
            change(source)
        done["changes"] += 1
        return found

    monkeypatch.setattr(join, "digest", digest)


@pytest.mark.parametrize(("change", "message"), CHANGES[:5], ids=NAMES[:5])
def test_an_input_that_changes_is_not_cleaned(
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], None],
    message: str,
) -> None:
    real = data.clean.clean

    def changing(found: Iterator[Record], *rest: Any) -> Iterator[str]:
        first = next(found)
        change(source)
        return real((record for part in ([first], found) for record in part), *rest)

    monkeypatch.setattr(data.clean, "clean", changing)
    assert data.clean.main([str(source), "--output", str(source.with_name("out.jsonl"))]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert f"in.jsonl: changed while being read: {message}" in said.err
    assert {path.name for path in source.parent.iterdir()} <= {"in.jsonl"}


@pytest.mark.parametrize("change", [shrink, Path.unlink, replace], ids=["shrink", "vanish", "replace"])
def test_a_parquet_file_that_changes_ends_no_process(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "in.parquet"
    texts = [os.urandom(500).hex() for _ in range(20_000)]
    parquet.write_table(pa.table({"text": texts}), path, row_group_size=1000, compression="none")
    found = records([path])
    next(found)
    change(path)
    with pytest.raises(DataError, match=r"in\.parquet: changed while being read"):
        list(found)


def test_the_recorded_files_of_a_text_are_those_that_were_read(source: Path) -> None:
    files = text.LocalFiles([source], "text")
    list(clean(records(iter(files)), level("none"), Counter()))
    assert files.as_dict()["files"][0]["bytes"] == source.stat().st_size
    replace(source)
    with pytest.raises(DataError, match=r"in\.jsonl: changed while being read: another file has its name"):
        files.as_dict()


def test_an_error_of_the_disk_is_not_blamed_on_a_file_that_is_as_it_was(source: Path) -> None:
    with pytest.raises(OSError, match="no space"), unchanged(source):
        raise OSError("no space left")
