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
from checkout import ROOT
from housekeeping import tree
from neighbourhood import make

from utils.errors import ForeignFileError
from utils.files import folder_written_whole, write_whole, written_whole
from utils.own_files import anything


def write_one(path: Path, text: str = "new", **options: object) -> None:
    write_whole(path, text, **options)


def write_several(path: Path, text: str = "new", **options: object) -> None:
    with written_whole(path.with_name("b"), path, **options) as temporaries:
        for temporary in temporaries:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() != text, "files get their names only at the end"


def write_folder(path: Path, text: str = "new", **options: object) -> None:
    with folder_written_whole(path, **options) as temporary:
        (temporary / "a").write_text(text)
        assert not path.exists() or (path / "a").read_text() != text


WRITERS = pytest.mark.parametrize("write", [write_one, write_several, write_folder])


def test_one_file_is_readable_by_everybody_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        for content in ("é", "é".encode(), memoryview("é".encode())):
            assert write_whole(tmp_path / "deep" / "a", content, is_ours=anything)
            assert (tmp_path / "deep" / "a").read_bytes() == b"\xc3\xa9"
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "deep" / "a").stat().st_mode) == 0o644


@WRITERS
def test_an_existing_file_or_folder_is_replaced_as_a_whole_and_only_on_request(tmp_path: Path, write) -> None:
    for text in ("first", "second"):
        write(tmp_path / "deep" / "a", text, is_ours=anything)
        path = tmp_path / "deep" / "a"
        assert (path / "a" if path.is_dir() else path).read_text() == text
    assert {found.name for found in path.parent.iterdir()} == ({"a", "b"} if write is write_several else {"a"})
    if write is write_one:
        assert not write_whole(path, "third", replace=False) and path.read_text() == "second"
        assert write_whole(path.with_name("c"), "third", replace=False)


@pytest.mark.parametrize("breaking", [(os, "fsync"), (Path, "replace")], ids=["fsync", "replace"])
def test_a_write_that_breaks_off_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch, breaking) -> None:
    (tmp_path / "a").write_text("before")

    def no_space(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(*breaking, no_space)
    with pytest.raises(OSError, match="no space"):
        write_one(tmp_path / "a", is_ours=anything)
    assert tree(tmp_path) == {"a": "file of b'before'"}


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append((tmp_path / "a").exists()))
    write_one(tmp_path / "a")
    (tmp_path / "a").unlink()
    write_several(tmp_path / "a", is_ours=anything)
    assert flushed == [False, False, False]
    write_one(tmp_path / "b", is_ours=anything, fsync=False)
    assert len(flushed) == 3


ERRORS = (ValueError, KeyboardInterrupt, SystemExit)


@pytest.mark.parametrize(
    ("kind", "error"),
    # a file that was not written names none of them
    [*((kind, error) for kind in ("file", "folder") for error in ERRORS), ("file", FileNotFoundError)],
)
def test_after_an_error_nothing_is_left_and_what_was_there_stays(tmp_path: Path, error, kind: str) -> None:
    path = tmp_path / "a"
    make(tmp_path, path, kind, b"before")
    before = tree(tmp_path)
    paths = [path] if kind == "folder" else [path, tmp_path / "b"]
    opened = (folder_written_whole if kind == "folder" else written_whole)(*paths, is_ours=anything)
    with pytest.raises(error), opened as made:
        (made / "a" if kind == "folder" else made[0]).write_text("half")
        if error in ERRORS:
            raise error
    assert tree(tmp_path) == before


USER = b"of a user"
FOREIGN = {  # what stands there, as steps of `make`
    "text": [("a", "file", USER)],
    "empty": [("a", "file", b"")],
    "read-only": [("a", "file", USER), ("a", "mode", 0o444)],
    "folder": [("a/file", "file", USER)],
    "link": [("other", "file", USER), ("a", "link", "other")],
    "dangling link": [("a", "link", "other")],
}


@WRITERS
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_nobody_recognises_is_never_replaced(tmp_path: Path, write: Callable[[Path], None], kind: str) -> None:
    for name, what, detail in FOREIGN[kind]:
        make(tmp_path, tmp_path / name, what, detail)
    before = tree(tmp_path)
    with pytest.raises(ForeignFileError, match="a: exists, and this suite has not written it; name another output"):
        write(tmp_path / "a")
    assert tree(tmp_path) == before


def test_a_file_that_appears_while_the_new_one_is_written_stays(tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError), written_whole(tmp_path / "a") as (temporary,):
        temporary.write_text("new")
        (tmp_path / "a").write_text("of a user")
    assert tree(tmp_path) == {"a": "file of b'of a user'"}


KILLED = """
import sys, time
from pathlib import Path
from utils.files import folder_written_whole, written_whole
with (folder_written_whole if sys.argv[1] == "write_folder" else written_whole)(Path(sys.argv[2])) as temporary:
    if sys.argv[1] == "write_folder":
        (temporary / "half").write_text("half")
    print("writing", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("write", [write_several, write_folder])
def test_leftovers_of_a_killed_writer_go_and_those_of_a_living_one_stay(tmp_path: Path, capsys, write) -> None:
    path, other = tmp_path / "a", tmp_path / ".ab.0123456789ab.tmp"
    other.touch()  # of another target
    command = [sys.executable, "-c", KILLED, write.__name__, str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "writing\n"
        (held,) = tmp_path.glob(".a.*.tmp")
        write(path)
        assert held.exists() and capsys.readouterr().err == ""
        process.send_signal(signal.SIGKILL)
        process.wait()
    write(path, "newer", is_ours=anything)
    assert not held.exists() and other.exists() and path.exists()
    assert capsys.readouterr().err == f"{tmp_path}: removed {held.name}, left by a run that was killed\n"
