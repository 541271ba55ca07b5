"""A folder that anybody has filled stops no command and blocks none: each odd file is one line."""

import os
import socket
import stat
from pathlib import Path

import pytest
from nasty import no_hang

from utils import input_files
from utils.input_files import InputFileError, content_of, files_below, json_of, parse_json


def odd_places(folder):
    """Make something odd under each of these names, and return the words with which it is refused."""
    (folder / "loop").symlink_to("loop")
    (folder / "first").symlink_to("second")
    (folder / "second").symlink_to("first")
    (folder / "gone").symlink_to("nowhere")
    (folder / "device").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket may have 107 characters only
        made.bind("socket")
        os.chdir(here)
    return {
        **dict.fromkeys(("loop", "first", "second"), "Too many levels of symbolic links"),
        "gone": "No such file or directory",
        "device": "is a device, wanted a regular file",
        "pipe": "is a named pipe, wanted a regular file",
        "folder": "is a folder, wanted a regular file",
        "socket": "is a socket, wanted a regular file",
    }


def test_only_regular_files_are_opened(tmp_path):
    for name, words in odd_places(tmp_path).items():
        with no_hang(), pytest.raises(InputFileError, match=words):
            content_of(tmp_path / name)
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert content_of(tmp_path / "link") == b"content", "a link to a file is one"


def test_a_pipe_that_takes_the_place_of_a_file_blocks_nobody(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(input_files, "require_regular", lambda *_: None)
    with no_hang():
        assert content_of(tmp_path / "pipe") == b""


def test_a_file_larger_than_any_of_the_suite_is_refused_unread(tmp_path):
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 1 << 40)
    with (
        no_hang(),
        pytest.raises(InputFileError, match="has 1,099,511,627,776 bytes, wanted .* at most 134,217,728"),
    ):
        json_of(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_named(tmp_path):
    path = tmp_path / "closed"
    path.touch(mode=0)
    with pytest.raises(InputFileError, match="Permission denied"):
        content_of(path)


REFUSED = {
    b"": "is empty",
    b" \n": "is empty",
    b"{": "Expecting property name",
    b"\xff": "can't decode byte",
    b'{"a": NaN}': "NaN is no finite number",
    b"[-Infinity]": "-Infinity is no finite number",
    b"[1e400, 1.0]": "too large for a float",
    b'{"a": [null, -1e400]}': "too large for a float",
    b"9" * 5000: "an integer of 5,000 digits, wanted at most 40",
    b'{"a": 1, "a": 1}': "the key 'a' stands twice",
    b'[{"x": {"b": 1, "a": 1, "b": 2}}]': "the key 'b' stands twice",
    b"[" * 100_000 + b"]" * 100_000: "deeper than 40",
    b'{"a":' * 41 + b"1" + b"}" * 41: "deeper than 40",
    b'"\\ud800"': "is no Unicode",
    b'{"\\udfff": 1}': "is no Unicode",
    b'{"a": ["x", {"b": "y\\uDBFFz"}]}': "is no Unicode",
    b'"' + b"x" * (1 << 17) + b'x"': "a text of 131,073 characters",
}


@pytest.mark.parametrize("data", REFUSED, ids=lambda data: data[:20].decode("latin1"))
def test_json_that_no_writer_of_the_suite_makes_is_refused_in_a_short_line(data):
    with no_hang(), pytest.raises(InputFileError, match=REFUSED[data]) as found:
        parse_json(data)
    assert len(str(found.value)) < 300


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b'{"a": [1, 2.5, null, true], "b": {"a": "\\u00e4"}}', {"a": [1, 2.5, None, True], "b": {"a": "\u00e4"}}),
        (b'["\\ud83d\\ude00", -0.0, 1e-310]', ["\U0001f600", -0.0, 1e-310]),
        (b"[" * 40 + b"]" * 40, None),
    ],
)
def test_every_other_json_is_read(data, content):
    assert parse_json(data) == content or content is None


def test_what_others_could_not_measure_is_null_where_that_is_wanted():
    data = b'{"a": NaN, "b": [1.0, Infinity, -Infinity]}'
    assert parse_json(data, nan_is_null=True) == {"a": None, "b": [1.0, None, None]}


def test_names_are_found_whatever_stands_there_and_links_to_folders_are_not_followed(tmp_path):
    for name in ("train_b.json", "deep/train_a.json", "deep/other.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "train_c.json")
    (tmp_path / "train_d.json").mkdir()
    (tmp_path / "train_d.json" / "train_e.json").touch()
    (tmp_path / "train_f.json").symlink_to("train_f.json")
    (tmp_path / "up").symlink_to("..")
    with no_hang():
        found, unreadable = files_below(tmp_path, "train_*.json")
    names = ["deep/train_a", "train_b", "train_c", "train_d", "train_d.json/train_e", "train_f"]
    assert [str(path.relative_to(tmp_path)) for path in found] == [f"{name}.json" for name in names]
    assert not unreadable


def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_searched(tmp_path, monkeypatch):
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train_a.json").touch()
    scan = os.scandir

    def refusing(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found, unreadable = files_below(tmp_path, "train_*.json")
    assert found == [tmp_path / "open" / "train_a.json"]
    closed = tmp_path / "closed"
    assert unreadable == [(closed, f"{closed}: folder cannot be read: Permission denied")]


def test_a_folder_that_vanished_holds_nothing(tmp_path):
    gone = tmp_path / "gone"
    assert files_below(gone, "*") == ([], [(gone, f"{gone}: folder cannot be read: No such file or directory")])


def test_the_folder_of_the_file_system_itself_is_passed_over(tmp_path):
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found").chmod(stat.S_IRWXU)
    (tmp_path / "lost+found" / "train_a.json").touch()
    assert files_below(tmp_path, "*") == ([], [])
