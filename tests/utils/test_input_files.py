"""A folder that anybody has filled stops no command and blocks none: each odd file is one line."""

import os
import socket
import stat

import pytest
from nasty import no_hang

from utils import input_files
from utils.input_files import InputFileError, content_of, files_below, json_of, parse_json

ODD = {  # names, and the words with which each is refused
    **dict.fromkeys(("loop", "first", "second"), "Too many levels of symbolic links"),
    "gone": "No such file or directory",
    "device": "is a device, wanted a regular file",
    "pipe": "is a named pipe, wanted a regular file",
    "folder": "is a folder, wanted a regular file",
    "socket": "is a socket, wanted a regular file",
    "large": "has 1,099,511,627,776 bytes, wanted .* at most 134,217,728",
}


def test_only_regular_files_of_a_size_of_the_suite_are_opened(tmp_path, monkeypatch):
    for name, target in (("loop", "loop"), ("first", "second"), ("second", "first"), ("gone", "no"), ("link", "file")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_named(tmp_path):
    (tmp_path / "closed").touch(mode=0)
    with pytest.raises(InputFileError, match="Permission denied"):
        content_of(tmp_path / "closed")


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
    for name in ("train_b.json", "deep/train_a.json", "deep/other.json", "train_d.json/train_e.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "train_c.json")
    (tmp_path / "train_f.json").symlink_to("train_f.json")
    (tmp_path / "up").symlink_to("..")
    with no_hang():
        found, unreadable = files_below(tmp_path, "train_*.json")
    names = ["deep/train_a", "train_b", "train_c", "train_d", "train_d.json/train_e", "train_f"]
    assert [str(path.relative_to(tmp_path)) for path in found] == [f"{name}.json" for name in names]
    assert not unreadable


def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_searched(tmp_path, monkeypatch):
    for name in ("closed", "open", "lost+found"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train_a.json").touch()
    (tmp_path / "lost+found").chmod(stat.S_IRWXU)
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
