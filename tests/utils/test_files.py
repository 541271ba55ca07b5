"""Files appear whole or not at all."""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from checkout import ROOT
from housekeeping import make, tree
from processes import no_hang

from evaluate.inputs.discover import files_below
from utils import input_files
from utils.arguments import Parser
from utils.errors import DataError, ForeignFileError, quoted, shortened
from utils.files import folder_written_whole, write_whole, written_whole
from utils.input_files import InputFileError, content_of, json_of, parse_json
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
    before = os.umask(0o077)
    for content in ("é", "é".encode(), memoryview("é".encode())):
        write_whole(tmp_path / "deep" / "a", content, is_ours=anything)
        assert (tmp_path / "deep" / "a").read_bytes() == b"\xc3\xa9"
    os.umask(before)
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

    monkeypatch.setattr(*breaking, Mock(side_effect=OSError("no space left on device")))
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
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        (held,) = tmp_path.glob(".a.*.tmp")
        write(path)
        assert held.exists() and capsys.readouterr().err == ""
        process.send_signal(signal.SIGKILL)
    write(path, "newer", is_ours=anything)
    assert not held.exists() and other.exists() and path.exists()
    assert capsys.readouterr().err == f"{tmp_path}: removed {held.name}, left by a run that was killed\n"


# A folder that anybody has filled stops no command and blocks none: each odd file is one line.

ODD = {  # names, and the words with which each is refused
    "loop": "Too many levels of symbolic links",
    "first": "Too many levels of symbolic links",
    "second": "Too many levels of symbolic links",
    "gone": "No such file or directory",
    "device": "is a device, wanted a regular file",
    "pipe": "is a named pipe, wanted a regular file",
    "folder": "is a folder, wanted a regular file",
    "socket": "is a socket, wanted a regular file",
    "large": "has 1,099,511,627,776 bytes, wanted .* at most 134,217,728",
}


def test_only_regular_files_of_a_size_of_the_suite_are_opened(tmp_path, monkeypatch):
    links = {"loop": "loop", "first": "second", "second": "first", "gone": "no", "link": "file", "device": "/dev/zero"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # the path of a socket may have 107 characters only
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)
    for name, words in ODD.items():
        with no_hang(), pytest.raises(InputFileError, match=words):
            json_of(tmp_path / name)
    (tmp_path / "file").write_bytes(b"content")
    assert content_of(tmp_path / "link") == b"content", "a link to a file is one"
    monkeypatch.setattr(input_files, "require_regular", lambda *_: None)
    with no_hang():
        assert content_of(tmp_path / "pipe") == b"", "also where it takes the place of a file after that was checked"


REFUSED = {
    b"": "is empty",
    b" \n": "is empty",
    b"{": "Expecting property name",
    b"\xff": "can't decode byte",
    b'{"a": NaN}': "NaN is no finite number",
    b"[-Infinity]": "-Infinity is no finite number",
    b"[1e400, 1.0]": "too large for a float",
    b'{"a": [null, -1e400]}': "too large for a float",
    b"9" * 5000: "an integer of 5,000 digits, wanted at most 308",
    b'{"a": 1, "a": 1}': "the key 'a' stands twice",
    b'[{"x": {"b": 1, "a": 1, "b": 2}}]': "the key 'b' stands twice",
    b"[" * 100_000 + b"]" * 100_000: "deeper than 40",
    b'{"a":' * 41 + b"1" + b"}" * 41: "deeper than 40",
    b'"\\ud800"': "is no Unicode",
    b'{"\\udfff": 1}': "is no Unicode",
    b'{"a": ["x", {"b": "y\\uDBFFz"}]}': "is no Unicode",
}


@pytest.mark.parametrize("data", REFUSED, ids=lambda data: data[:20].decode("latin1"))
def test_json_that_no_writer_of_the_suite_makes_is_refused_in_a_short_line(data):
    with no_hang(), pytest.raises(InputFileError, match=REFUSED[data]) as found:
        parse_json(data)
    assert len(str(found.value)) < 300


@pytest.mark.parametrize(
    ("data", "content", "options"),
    [
        (b'{"a": [1, 2.5, null, true], "b": {"a": "\\u00e4"}}', {"a": [1, 2.5, None, True], "b": {"a": "\u00e4"}}, {}),
        (b'["\\ud83d\\ude00", -0.0, 1e-310]', ["\U0001f600", -0.0, 1e-310], {}),
        (b"[" * 40 + b"]" * 40, None, {}),
        (b'["' + b"[" * 41 + b'\\\\", "\\"' + b"[" * 41 + b'", 1e308]', None, {}),
        # what others could not measure is null where that is wanted
        (b'{"a": NaN, "b": [1.0, Infinity, -Infinity]}', {"a": None, "b": [1.0, None, None]}, {"nan_is_null": True}),
    ],
)
def test_every_other_json_is_read(data, content, options):
    assert parse_json(data, **options) == content or content is None


def test_names_are_found_whatever_stands_there_and_links_to_folders_are_not_followed(tmp_path):
    for name in ("train_b.json", "deep/train_a.json", "deep/other.json", "train_d.json/train_e.json"):
        make(tmp_path, tmp_path / name, "file", b"")
    odd = {"train_c.json": ("pipe", None), "train_f.json": ("link", "train_f.json"), "up": ("link", ".")}
    for name, (what, detail) in odd.items():
        make(tmp_path, tmp_path / name, what, detail)
    with no_hang():
        found, unreadable = files_below(tmp_path, "train_*.json")
    names = ["deep/train_a", "train_b", "train_c", "train_d", "train_d.json/train_e", "train_f"]
    assert [str(path.relative_to(tmp_path)) for path in found] == [f"{name}.json" for name in names]
    assert not unreadable


def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_searched(tmp_path, monkeypatch):
    for name in ("closed", "open", "lost+found"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train_a.json").touch()
    scan = os.scandir

    def refusing(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    closed, gone = tmp_path / "closed", tmp_path / "gone"
    wanted = [(closed, f"{closed}: folder cannot be read: Permission denied")]
    assert files_below(tmp_path, "train_*.json") == ([tmp_path / "open" / "train_a.json"], wanted)
    assert files_below(gone, "*") == ([], [(gone, f"{gone}: folder cannot be read: No such file or directory")])


# A command line with a secret in it ends before anything is made, with one line that does not repeat it.

TOKEN = "hf_" + "aB3dE5gH7jK9" * 3


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["--output", f"a/{TOKEN}.json"], "--output"),
        ([f"--output={TOKEN}"], "--output"),
        (["--runs", TOKEN], "--runs"),
        (["LABEL=mine", f"LABEL={TOKEN}"], "LABEL"),
        (["TOKENIZER=https://ann:pass@host/x"], "TOKENIZER"),
        (["NCCL_PW=hunter2"], "NCCL_PW"),
        ([TOKEN], "argument"),
        ([f"{TOKEN}=1"], "argument"),
        (["--password", "hunter2"], None),  # a secret that two arguments make is in an error only
    ],
)
def test_an_argument_with_a_secret_is_refused_and_not_repeated(arguments, place, capsys):
    parser = Parser(prog="x")
    parser.add_argument("--output")
    parser.add_argument("--runs", type=int)
    parser.add_argument("settings", nargs="*")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert place is None or said.err.startswith(f"error: {place}: looks like a secret")
    assert not any(secret in said.err for secret in (TOKEN[:20], "pass@", "hunter2"))


def test_every_command_has_this_parser():
    rooms = ("utils", "data", "train", "evaluate", "benchmarks")
    files = {path: path.read_text(encoding="utf8") for room in rooms for path in (ROOT / room).rglob("*.py")}
    own = [path for path in files if re.search(r"argparse\.ArgumentParser\b|import ArgumentParser", files[path])]
    assert own == [ROOT / "utils" / "arguments.py"]


PROGRAMS = {  # `main` of a command, its environment, what it prints, and how it ends, without a traceback
    "a reader that goes away": ("print('x' * 10**7) or 0", {}, None, 128 + signal.SIGPIPE),
    "a character that the terminal cannot show": (
        "print('\\u4e2d') or 3",
        {"PYTHONIOENCODING": "ascii"},
        b"\\u4e2d\n",
        3,
    ),
    "Ctrl-C": ("__import__('signal').raise_signal(2)", {}, b"", 128 + signal.SIGINT),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_command_ends_without_a_traceback(name) -> None:
    main, environ, printed, exit_code = PROGRAMS[name]
    program = f"import sys; from utils.arguments import run; sys.exit(run(lambda: {main}))"
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, env=os.environ | environ) as started:
        if printed is None:
            started.stdout.read(1)
            started.stdout.close()
        else:
            assert started.stdout.read() == printed
        assert started.stderr.read() == b""
    assert started.returncode == exit_code


# A quotation of bad input is short, whatever the input is, and never the end of a secret without its start.


NESTED = functools.reduce(lambda inner, _: [inner], range(50_000), [])


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**7,
        ["x" * 1000] * 10**5,
        {str(number): "y" for number in range(10**5)},
        NESTED,
        10**4000,
    ],
)
def test_a_quotation_of_anything_is_short(value: object) -> None:
    assert len(quoted(value)) <= 203
    assert shortened("a" * 300) == "a" * 200 + "..."


@pytest.mark.parametrize("value", [None, True, 5, -1.5, "text", ["a", 1], {"a": None}, "5" * 64])
def test_a_short_value_and_a_digest_are_quoted_whole(value: object) -> None:
    assert quoted(value) == repr(value)


@pytest.mark.parametrize("before", [0, 15, 30])
def test_a_secret_that_is_cut_is_still_replaced(before: int) -> None:
    said = str(DataError(f"got {quoted('x ' * before + TOKEN + ' more' * 100)}"))
    assert TOKEN[:12] not in said and TOKEN[-12:] not in said
