"""Files appear whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from housekeeping import tree

from utils.errors import ForeignFileError
from utils.files import folder_written_whole, temporary_beside, write_whole, written_whole
from utils.own_files import anything
from utils.settings.config import ROOT

ERRORS = pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])


def test_one_file_is_readable_by_everybody_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        for content in ("é", "é".encode(), memoryview("é".encode())):
            assert write_whole(tmp_path / "deep" / "a", content, is_ours=anything)
            assert (tmp_path / "deep" / "a").read_bytes() == b"\xc3\xa9"
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "deep" / "a").stat().st_mode) == 0o644


def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a", "first", replace=False)
    assert not write_whole(tmp_path / "a", "second", replace=False)
    assert (tmp_path / "a").read_text() == "first"
    assert write_whole(tmp_path / "a", "third", is_ours=anything)
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
        write_whole(tmp_path / "a", "after", is_ours=anything)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "before"


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append((tmp_path / "a").exists()))
    write_whole(tmp_path / "a", "text")
    with written_whole(tmp_path / "a", tmp_path / "b", is_ours=anything) as temporaries:
        (tmp_path / "a").unlink()
        for temporary in temporaries:
            temporary.touch()
    assert flushed == [False, False, False]
    write_whole(tmp_path / "b", "text", is_ours=anything, fsync=False)
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
    with pytest.raises(error), written_whole(path, tmp_path / "a.idx", is_ours=anything) as (one, _):
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
        with folder_written_whole(folder, is_ours=anything) as temporary:
            (temporary / "a").write_text(content)
            assert not folder.exists() or (folder / "a").read_text() == "1"
        assert (folder / "a").read_text() == content
    assert list(tmp_path.iterdir()) == [folder]


@ERRORS
def test_after_an_error_the_earlier_folder_is_untouched(tmp_path: Path, error: type[BaseException]) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    with pytest.raises(error), folder_written_whole(folder, is_ours=anything) as temporary:
        (temporary / "a").write_text("half")
        raise error
    assert list(tmp_path.rglob("*")) == [folder]


def write_one(path: Path) -> None:
    write_whole(path, "new")


def write_several(path: Path) -> None:
    with written_whole(path.with_name("b"), path) as temporaries:
        for temporary in temporaries:
            temporary.write_text("new")


def write_folder(path: Path) -> None:
    with folder_written_whole(path) as temporary:
        (temporary / "a").write_text("new")


@pytest.mark.parametrize("write", [write_one, write_several, write_folder])
@pytest.mark.parametrize("kind", ["text", "empty", "read-only", "folder", "link", "dangling link"])
def test_what_nobody_recognises_is_never_replaced(tmp_path: Path, write: Callable[[Path], None], kind: str) -> None:
    path, other = tmp_path / "a", tmp_path / "other"
    if kind == "folder":
        path.mkdir()
        (path / "file").write_text("of a user")
    elif "link" in kind:
        path.symlink_to(other)
        if kind == "link":
            other.write_text("of a user")
    else:
        path.write_text("of a user" if kind != "empty" else "")
        path.chmod(0o444 if kind == "read-only" else 0o644)
    before = tree(tmp_path)
    with pytest.raises(ForeignFileError, match="a: exists, and this suite has not written it; name another output"):
        write(path)
    assert tree(tmp_path) == before


def test_a_file_that_appears_while_the_new_one_is_written_stays(tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError), written_whole(tmp_path / "a") as (temporary,):
        temporary.write_text("new")
        (tmp_path / "a").write_text("of a user")
    assert tree(tmp_path) == {"a": "file of b'of a user'"}


KILLED = """
import os, signal, sys, time
from pathlib import Path
from utils.files import folder_written_whole, written_whole
if sys.argv[1] == "folder":
    context = folder_written_whole(Path(sys.argv[2]))
else:
    context = written_whole(Path(sys.argv[2]))
with context as temporary:
    if sys.argv[1] == "folder":
        (temporary / "half").write_text("half")
    print("writing", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leftovers_of_a_killed_writer_go_and_those_of_a_living_one_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "a"
    write = write_several if kind == "file" else write_folder
    other = path.with_name(".ab.0123456789ab.tmp")
    other.touch()  # of another target
    command = [sys.executable, "-c", KILLED, kind, str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "writing\n"
        (held,) = tmp_path.glob(".a.*.tmp")
        write(path)
        assert held.exists() and capsys.readouterr().err == ""
        process.send_signal(signal.SIGKILL)
        process.wait()
    for made in (path, path.with_name("b")):
        if made.is_dir():
            (made / "a").unlink()
            made.rmdir()
        else:
            made.unlink(missing_ok=True)
    assert held.exists()
    write(path)
    assert not held.exists() and other.exists() and path.exists()
    said = capsys.readouterr().err
    assert said == f"{tmp_path}: removed {held.name}, left by a run that was killed\n"


def test_a_leftover_of_an_earlier_version_goes_too(tmp_path: Path) -> None:
    temporary_beside(tmp_path / "a").write_text("half")
    write_one(tmp_path / "a")
    assert tree(tmp_path) == {"a": "file of b'new'"}


def test_a_new_file_is_not_truncated_because_ext4_writes_such_a_file_to_the_disk_when_it_is_closed(
    tmp_path: Path,
) -> None:
    flags: list[int] = []
    folder = str(tmp_path)

    def note(event: str, given: tuple[object, ...]) -> None:
        if event == "open" and str(given[0]).startswith(folder):
            assert isinstance(given[2], int)
            flags.append(given[2])

    sys.addaudithook(note)  # it stays, and notes what is opened in the folder of this test only
    assert write_whole(tmp_path / "out", b"content") and write_whole(tmp_path / "empty", b"")
    assert len(flags) > 2 and not any(flag & os.O_TRUNC for flag in flags)
    assert (tmp_path / "out").read_bytes() == b"content" and (tmp_path / "empty").read_bytes() == b""
