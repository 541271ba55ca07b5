"""Every record of every kind of file is read unchanged or reported as bad: none is lost or guessed."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from backports import zstd
from housekeeping import make
from hypothesis import example, given, settings, strategies as st
from pyarrow import parquet
from standins import MARK, contents, parquet_of, texts_by_json

import data.clean
import data.encode
from data import clean

PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}
TEXTS = ["first", "", "Grüße 東京 🙂", "nul \x00 and \u2028 line", 'quote " and \\', "x" * 100_000]
OUT = "out of clean.jsonl"


def json_lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"id": 1, "text": text}).encode() + b"\n" for text in texts)


@pytest.fixture
def read(commands, tmp_path: Path) -> Callable[..., tuple[list[str], dict[str, int]]]:
    """Return what reads a source and gives back its documents and the counts of records."""

    def run(source: Path, *more: object) -> tuple[list[str], dict[str, int]]:
        output = tmp_path / OUT
        said = commands.run(clean.main, source, "--output", output, "--clean", "none", *more)
        return [json.loads(line)["text"] for line in output.open(encoding="utf8")], json.loads(said.out)["counts"]

    return run


def refused(commands, source: Path, *more: object, wanted: int = 1) -> str:
    before = sorted(source.parent.rglob("*"))
    given = (source, "--output", source.parent / OUT, "--clean", "none", *more)
    error = commands.error(clean.main, *given, wanted=wanted)
    assert before == sorted(source.parent.rglob("*"))
    return error


PROSE = "\ufeffone\r\ntwo\n\n \t\nthr\u00e9e\n\n\n".encode()
FILES: list[tuple[str, bytes, tuple[str, ...], list[str]]] = [
    ("a.jsonl", json_lines(TEXTS), (), TEXTS),
    ("a.v2.ndjson", json_lines(TEXTS), (), TEXTS),
    ("c4-train.00000-of-01024.json", json_lines(TEXTS), (), TEXTS),
    ("column.jsonl", b'{"text": 1, "body": "b"}', ("--column", "body"), ["b"]),
    ("open.jsonl", b'{"text": "a"}\n{"text": "b"}', (), ["a", "b"]),
    ("dos.jsonl", MARK + b'{"text": "a"}\r\n{"text": "b\\r\\n"}\r\n', (), ["a", "b\r\n"]),
    ("long.jsonl", json_lines(["a", "fifty " * 3_000_000, "b"]), (), ["a", "fifty " * 3_000_000, "b"]),
    ("book.txt", PROSE, (), ["one\ntwo\n\n \t\nthr\u00e9e\n\n\n"]),
    ("lines.txt", PROSE, ("--text-unit", "line"), ["one", "two", "", " \t", "thr\u00e9e", "", ""]),
    ("paragraphs.txt", PROSE, ("--text-unit", "paragraph"), ["one\ntwo", "thr\u00e9e"]),
    ("open.txt", b"a\n\nb", ("--text-unit", "line"), ["a", "", "b"]),
    ("open.txt", b"a\n\nb", ("--text-unit", "paragraph"), ["a", "b"]),
    ("empty.txt", b"", (), [""]),  # a file is a document, an empty one an empty document
]


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize(("name", "content", "more", "wanted"), FILES, ids=[" ".join([n, *m]) for n, _, m, _ in FILES])
def test_a_file_is_read_packed_or_not(tmp_path, read, name, content, more, wanted, ending) -> None:
    (tmp_path / f"{name}{ending}").write_bytes(PACK[ending](content))
    assert read(tmp_path / f"{name}{ending}", *more) == (wanted, {"records": len(wanted), "documents": len(wanted)})


NUMBERED = [f"row {number}" for number in range(1000)]
PARQUET = {
    "string": parquet_of(pa.array(TEXTS, pa.string()), row_group_size=4),
    "large_string": parquet_of(pa.array(TEXTS, pa.large_string())),
    "string_view": parquet_of(pa.array(TEXTS, pa.string_view())),
    "dictionary": parquet_of(pa.array(TEXTS).dictionary_encode()),
    "several groups of rows": parquet_of(NUMBERED, row_group_size=300),
}


@pytest.mark.parametrize("kind", PARQUET)
def test_parquet_is_read_whatever_its_kind_of_string(tmp_path: Path, read, kind: str) -> None:
    (tmp_path / "a.parquet").write_bytes(PARQUET[kind])
    assert read(tmp_path / "a.parquet")[0] == (NUMBERED if "groups" in kind else TEXTS)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "line.txt"])
def test_a_file_without_a_record_is_an_error(tmp_path: Path, commands, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".parquet":
        path.write_bytes(parquet_of(pa.array([], pa.string())))
    else:
        path.write_bytes(PACK.get(path.suffix, bytes)(MARK))
    assert "no document is left" in refused(commands, path, "--text-unit", "line")


def test_packed_files_behind_one_another_are_one_file_and_any_window_is_read(tmp_path: Path, read) -> None:
    for ending, pack in PACK.items():
        (tmp_path / f"a.txt{ending}").write_bytes(pack(b"") + pack(b"some text and ") + pack(b"the end"))
        assert read(tmp_path / f"a.txt{ending}")[0] == ["some text and the end"]
    content = random.Random(1).randbytes(3 << 19).hex().encode() * 2
    window = {zstd.CompressionParameter.window_log: 28, zstd.CompressionParameter.enable_long_distance_matching: 1}
    # written as a stream of unknown size: the frame then demands the whole window of 256 MiB, more than zstd's default
    with zstd.ZstdFile(tmp_path / "long.txt.zst", "w", options=window) as file:
        file.write(content)
    assert read(tmp_path / "long.txt.zst")[0] == [content.decode()]


def test_a_damaged_file_is_an_error_even_where_bad_records_are_skipped(tmp_path: Path, commands) -> None:
    """The files were cut short, changed, or are of another format than their name."""
    content = json_lines([f"line {number} of a few" for number in range(500)])
    pick = random.Random(3)
    flipped = bytearray(PACK[".gz"](content))  # the checksum of a .zst is optional, and these files have none
    flipped[len(flipped) // 2] ^= 16
    damaged = {"empty.parquet": b"", "cut.parquet": parquet_of(TEXTS)[:-5], "flipped.jsonl.gz": bytes(flipped)}
    for ending in (".gz", ".zst"):
        packed = PACK[ending](content)
        damaged[f"behind.jsonl{ending}"] = packed + b"oops"
        damaged[f"plain.jsonl{ending}"] = content
        for place in (0, 1, len(packed) - 1, *pick.sample(range(len(packed)), 12)):
            damaged[f"cut{place}.jsonl{ending}"] = packed[:place]
    for name, file in damaged.items():
        (tmp_path / name).write_bytes(file)
        assert f"{name}: " in refused(commands, tmp_path / name)
        assert f"{name}: " in refused(commands, tmp_path / name, "--on-bad", "skip")


JSON, TEXT, UTF8 = "no JSON", "no text in the column", "no UTF-8"
WIDE = '\ufeff{"text": "a"}'
BAD_LINES: list[tuple[bytes, str, str]] = [
    (b"", "got a blank line", JSON),
    (b"{", "got invalid JSON, '{'", JSON),
    (b'{"text": "a"} {"text": "b"}', "Extra data", JSON),
    (b'{"text": "tab\tand nul\x00"}', "Invalid control character", JSON),
    (MARK + b'{"text": "a"}', "got invalid JSON", JSON),  # only the start of a file can have the mark
    (b'{"text": "a", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "got invalid JSON", JSON),
    (b"\0" * 100, r"got invalid JSON, '\x00", JSON),
    (b'["text"]', "got a JSON list", TEXT),
    (b"{}", "got an object without keys", TEXT),
    (b'{"Text": "a", "id": 1}', "got the keys ['Text', 'id']", TEXT),
    (b'{"text": null}', "got text = None (NoneType)", TEXT),
    (b'{"text": 12}', "got text = 12 (int)", TEXT),
    (json.dumps(dict.fromkeys(map(str, range(200_000)))).encode(), "got the keys ['0', '1', ", TEXT),
    (json.dumps({"text": {"a" * 2_000_000: 1}}).encode(), "got text = {'aaa", TEXT),
    (b'{"text": ' + b"9" * 4000 + b"}", "got text = 999", TEXT),
    (b'{"text": "\xff"}', "not UTF-8 at byte 10", UTF8),
    (b'{"text": "cut \xe6\x9d', "not UTF-8 at byte 14", UTF8),
    (b"\x1f\x8b\x08\x00", "not UTF-8", UTF8),
    (b'{"text": "ab\\ud800"}', "half a surrogate pair at character 2", "half a surrogate pair"),
]


@pytest.mark.parametrize(("line", "message", "reason"), BAD_LINES, ids=[message[:30] for _, message, _ in BAD_LINES])
def test_a_bad_line_is_an_error_with_file_and_line_or_counted(tmp_path, commands, read, line, message, reason) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines(["one"]) + line + b"\n" + json_lines(["three"]))
    error = refused(commands, path)
    assert error.startswith(f"error: {path}:2: ") and message in error and len(error) < 400 + len(str(path))
    counts = {"records": 2, "documents": 2, f"unreadable: {reason}": 1}
    assert read(path, "--on-bad", "skip") == (["one", "three"], counts)


PLACES = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0")
NO_UTF8 = pa.Array.from_buffers(pa.string(), 2, [None, PLACES, pa.py_buffer(b"a\xff")])
OTHER_BAD: list[tuple[str, bytes, tuple[str, ...], str, list[str]]] = [
    ("a.jsonl", WIDE.encode("utf-16-be"), (), ":1: got UTF-16", []),
    ("a.txt", WIDE.encode("utf-32-le"), (), ":1: got UTF-16", []),
    ("a.jsonl", WIDE[1:].encode("utf-16-le"), (), ":1: got UTF-16", []),
    ("a.txt", b"one\ntwo \xff\n\nthree\n", (), ":2: got bytes that are not UTF-8", []),
    ("a.txt", b"one\ntwo \xff\n\n3", ("--text-unit", "line"), ":2: got bytes that are not UTF-8", ["one", "", "3"]),
    ("a.txt", b"one\ntwo \xff\n\n3", ("--text-unit", "paragraph"), ":2: got bytes that are not UTF-8", ["3"]),
    ("a.parquet", parquet_of(["a", None, "c"]), (), ":2: got null", ["a", "c"]),
    ("a.parquet", parquet_of(NO_UTF8), (), ":2: got bytes that are not UTF-8", ["a"]),
]


@pytest.mark.parametrize(("name", "content", "more", "message", "kept"), OTHER_BAD)
def test_a_bad_record_of_another_kind_is_named_with_its_line_or_row(
    tmp_path, commands, read, name, content, more, message, kept
) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"{name}{message}" in refused(commands, tmp_path / name, *more)
    if kept:
        texts, counts = read(tmp_path / name, *more, "--on-bad", "skip")
        assert texts == kept and sum(count for key, count in counts.items() if "unreadable" in key) == 1


@pytest.mark.parametrize("unit", ["jsonl", "line", "paragraph", "file"])
def test_a_record_without_an_end_does_not_fill_the_memory(tmp_path, commands, read, monkeypatch, unit) -> None:
    monkeypatch.setattr("data.reading.records.MAX_RECORD_BYTES", 100)
    if unit == "jsonl":
        path, more = tmp_path / "a.jsonl", ()
        path.write_bytes(json_lines(["a", "x" * 1000, "b"]))
    else:
        path, more = tmp_path / "a.txt", ("--text-unit", unit)
        path.write_bytes(b"a\n\n" + b"x" * 1000 + b"\n\nb")
    assert "got more than 100 bytes" in refused(commands, path, *more)
    if unit != "file":
        texts, counts = read(path, *more, "--on-bad", "skip")
        assert counts["unreadable: longer than 1 GiB"] == 1
        assert [text for text in texts if text] == ["a", "b"]


TREE = ("b.jsonl", "a/z.jsonl.gz", "a/1.jsonl", "README.md", ".cache/x.jsonl", ".hidden.jsonl", "a/card.png")
FOUND = {
    "a folder": (TREE, ".", ["a/1.jsonl", "a/z.jsonl.gz", "b.jsonl"]),
    "a glob": (("3.jsonl", "1.jsonl", "deep/2.jsonl", "other.txt"), "*.jsonl", ["1.jsonl", "3.jsonl"]),
    "two stars": (("3.jsonl", "deep/2.jsonl"), "**/*.jsonl", ["3.jsonl", "deep/2.jsonl"]),
    "a name that looks like a glob": (("a[1].jsonl", "a1.jsonl"), "a[1].jsonl", ["a[1].jsonl"]),
    "nothing": ((), "gone.jsonl", "gone.jsonl: no such file or folder"),
    "a folder of other things": (("README.md",), ".", "contains no file that can be read"),
    "another ending": (("a.md",), "a.md", "a.md: unknown file ending"),
    "another ending in a glob": (("a.md", "b.jsonl"), "*", "a.md: unknown file ending"),
    "packed Parquet": (("a.parquet.gz",), "a.parquet.gz", "a.parquet.gz: unknown file ending"),
    "two kinds": (("a.jsonl", "README.txt"), ".", "plain text (README.txt) and JSON lines (a.jsonl); choose one kind"),
    "a copy": (("a.jsonl", "a.jsonl.gz"), ".", "a.jsonl.gz: a.jsonl beside it would be read too"),
    "a link in a glob": (("a.jsonl", "b.jsonl -> in/a.jsonl"), "*.jsonl", "b.jsonl: is the same file as"),
    "a linked folder in a glob": (("a/a.jsonl", "b -> in/a"), "*/*.jsonl", "b/a.jsonl: is the same file as"),
    "a link in a folder": (("a.jsonl", "deep/b.jsonl -> in/a.jsonl"), ".", "deep/b.jsonl: is the same file as"),
    "a link to another file": (("a/a.jsonl", "b.jsonl -> in/a/a.jsonl"), "*.jsonl", ["a/a.jsonl"]),
    "a copy in a glob": (("a.jsonl", "a.jsonl.zst"), "*", "a.jsonl.zst: a.jsonl beside it would"),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_source_is_a_list_of_files_in_a_fixed_order_and_refused_where_it_is_not_plain(
    tmp_path, commands, read, case: str
) -> None:
    names, source, wanted = FOUND[case]
    for name in names:
        name, _, target = name.partition(" -> ")
        if target:
            make(tmp_path, tmp_path / "in" / name, "link", target)
        else:
            content = PACK.get(Path(name).suffix, bytes)(json_lines([name]))
            make(tmp_path, tmp_path / "in" / name, "file", content)
    if isinstance(wanted, list):
        assert read(tmp_path / "in" / source)[0] == wanted
    else:
        assert wanted in refused(commands, tmp_path / "in" / source, wanted=2)


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ((), 2, "got the columns ['id', 'body'], wanted 'text'"),
        (("--column", "id"), 1, "column 'id' holds int64, wanted string"),
        (("--on-bad", "ignore"), 2, "--on-bad"),
        (("--text-unit", "word"), 2, "--text-unit"),
        (("--group-rows", "0"), 2, "--group-rows"),
    ],
)
def test_a_column_or_an_option_that_cannot_be_is_refused(tmp_path, commands, more, code, message) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet_of(["a"], name="body"))
    assert message in refused(commands, tmp_path / "a.parquet", *more, wanted=code)


def test_two_columns_of_one_name_are_refused(tmp_path: Path, commands) -> None:
    table = pa.Table.from_arrays([pa.array(["a", "b"])] * 2, names=["text", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert "a.parquet: " in refused(commands, tmp_path / "a.parquet", wanted=2)


def test_any_bytes_give_the_records_of_json_and_the_rest_is_counted(tmp_path: Path, capfd) -> None:
    @settings(max_examples=150, deadline=None)
    @given(contents, st.sampled_from(list(PACK)))
    @example(MARK + b'{"text": "a"}\r\n' + MARK + b"{}\n", ".gz")
    def check(content: bytes, ending: str) -> None:
        path, output = tmp_path / f"fuzz.jsonl{ending}", tmp_path / OUT
        path.write_bytes(PACK[ending](content))
        wanted = texts_by_json(content)
        kept = [text for text in wanted if text is not None]
        given = [str(path), "--output", str(output), "--clean", "none"]
        if None in wanted:
            assert clean.main(given) == 1
            assert f"{path.name}:{wanted.index(None) + 1}: " in capfd.readouterr().err
        code = clean.main([*given, "--on-bad", "skip"])
        said = capfd.readouterr()
        assert code == (0 if kept else 1)
        if kept:
            assert [json.loads(line)["text"] for line in output.open(encoding="utf8")] == kept
            counts = json.loads(said.out)["counts"]
            assert sum(n for key, n in counts.items() if "unreadable" in key) == wanted.count(None)

    check()


# A file that another program changes while it is read is one line with the kind of change, and nothing is written.

LINES = [json.dumps({"text": f"{number} some words of it"}) + "\n" for number in range(500)]


def rewrite(path: Path, *, is_same_file: bool) -> None:
    """Write other bytes of the same size and put its time back, or put another such file in its place."""
    state, other = path.stat(), path if is_same_file else path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b"some", b"many"))
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    os.replace(other, path)  # noqa: PTH105 the renames of Path are watched


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "grow": (lambda path: path.write_bytes(path.read_bytes() + b'{"text": "half a li'), "it grew from"),
    "grow much": (lambda path: path.write_text("".join(LINES) * 20), "it grew from"),
    "shrink": (lambda path: os.truncate(path, 30), "it shrank from"),
    "vanish": (Path.unlink, "it vanished"),
    "replace": (partial(rewrite, is_same_file=False), "another file has its name"),
    "touch": (lambda path: os.utime(path, ns=(1, 1)), "it was written to"),
    "rewrite": (partial(rewrite, is_same_file=True), "other bytes were encoded"),
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
    changes, real = [change], xxhash.xxh3_128_hexdigest

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
