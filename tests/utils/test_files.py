"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from utils.files import folder_written_whole, write_whole, written_whole

ERRORS = pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])


def test_one_file_is_readable_by_everybody_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        for content in ("é", "é".encode(), memoryview("é".encode())):
            assert write_whole(tmp_path / "deep" / "a", content)
            assert (tmp_path / "deep" / "a").read_bytes() == b"\xc3\xa9"
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "deep" / "a").stat().st_mode) == 0o644


def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a", "first", replace=False)
    assert not write_whole(tmp_path / "a", "second", replace=False)
    assert (tmp_path / "a").read_text() == "first"
    assert write_whole(tmp_path / "a", "third")
    assert (tmp_path / "a").read_text() == "third"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("breaking", ["fsync", "replace"])
def test_a_write_that_breaks_off_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaking: str
) -> None:
    (tmp_path / "a").write_text("before")

    def no_space(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(*((os, "fsync") if breaking == "fsync" else (Path, "replace")), no_space)
    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "a", "after")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "before"


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append((tmp_path / "a").exists()))
    write_whole(tmp_path / "a", "text")
    with written_whole(tmp_path / "a", tmp_path / "b") as temporaries:
        (tmp_path / "a").unlink()
        for temporary in temporaries:
            temporary.touch()
    assert flushed == [False, False, False]
    write_whole(tmp_path / "b", "text", fsync=False)
    assert len(flushed) == 3


def test_files_get_their_names_only_at_the_end(tmp_path: Path) -> None:
    first, second = tmp_path / "deep" / "a.bin", tmp_path / "deep" / "a.idx"
    with written_whole(first, second) as (one, two):
        one.write_text("1")
        two.write_text("2")
        assert not first.exists() and not second.exists()
    assert (first.read_text(), second.read_text()) == ("1", "2")
    assert len(list(first.parent.iterdir())) == 2


@ERRORS
def test_after_an_error_nothing_is_left_and_what_was_there_stays(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.bin"
    path.write_text("before")
    with pytest.raises(error), written_whole(path, tmp_path / "a.idx") as (one, _):
        one.write_text("half")
        raise error
    assert [found.name for found in tmp_path.iterdir()] == ["a.bin"]
    assert path.read_text() == "before"


def test_a_file_that_was_not_written_names_none_of_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), written_whole(tmp_path / "a", tmp_path / "b") as (one, _):
        one.write_text("1")
    assert not list(tmp_path.iterdir())


def test_a_folder_replaces_the_earlier_one_only_when_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    for content in ("1", "2"):
        with folder_written_whole(folder) as temporary:
            (temporary / "a").write_text(content)
            assert not folder.exists() or (folder / "a").read_text() == "1"
        assert (folder / "a").read_text() == content
    assert list(tmp_path.iterdir()) == [folder]


@ERRORS
def test_after_an_error_the_earlier_folder_is_untouched(tmp_path: Path, error: type[BaseException]) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    with pytest.raises(error), folder_written_whole(folder) as temporary:
        (temporary / "a").write_text("half")
        raise error
    assert list(tmp_path.rglob("*")) == [folder]
