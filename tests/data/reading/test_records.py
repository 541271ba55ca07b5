"""Every record of a file is read unchanged or reported as bad: none is lost or guessed, and reading ends."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from backports import zstd
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from data.reading import records as read
from data.reading.records import Dropped, Record, records
from utils.errors import DataError, UnusableError

FUZZ_EXAMPLES = int(os.environ.get("TPRIMAT_FUZZ_EXAMPLES", "300"))
PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}
TEXTS = ["first", "", "Grüße 東京 🙂", "nul \x00 and \u2028 line", 'quote " and \\', "x" * 100_000]


def texts_of(path: Path, **more: Any) -> list[str]:
    return [record.text for record in records([path], **more)]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def json_lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"id": 1, "text": text}).encode() + b"\n" for text in texts)


def write_parquet(path: Path, values: Any, name: str = "text", **more: Any) -> Path:
    parquet.write_table(pa.table({"id": range(len(values)), name: values}), path, **more)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "c4-train.00000-of-01024.json"])
@pytest.mark.parametrize("ending", PACK)
def test_json_lines_are_read_packed_or_not(tmp_path: Path, name: str, ending: str) -> None:
    path = write(tmp_path / (name + ending), PACK[ending](json_lines(TEXTS)))
    assert list(records([path])) == [Record(f"{path}:{number}", text) for number, text in enumerate(TEXTS, 1)]


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_parquet_is_read_whatever_its_kind_of_string(tmp_path: Path, kind: str) -> None:
    types = {"string": pa.string(), "large_string": pa.large_string(), "string_view": pa.string_view()}
    values = pa.array(TEXTS).dictionary_encode() if kind == "dictionary" else pa.array(TEXTS, types[kind])
    path = write_parquet(tmp_path / "a.parquet", values, row_group_size=4)
    assert list(records([path])) == [Record(f"{path}:{number}", text) for number, text in enumerate(TEXTS, 1)]


def test_parquet_rows_beyond_one_batch_and_one_row_group_are_read_in_order(tmp_path: Path) -> None:
    texts = [f"row {number}" for number in range(1000)]
    assert texts_of(write_parquet(tmp_path / "a.parquet", texts, row_group_size=300)) == texts
    assert texts_of(write_parquet(tmp_path / "b.parquet", pa.array([], pa.string()))) == []


@pytest.mark.parametrize("ending", PACK)
def test_a_text_file_is_one_document_its_lines_or_its_paragraphs(tmp_path: Path, ending: str) -> None:
    content = "\ufeffone\r\ntwo\n\n \t\nthr\u00e9e\n\n\n".encode()
    path = write(tmp_path / f"a.txt{ending}", PACK[ending](content))
    assert list(records([path])) == [Record(f"{path}:1", "one\ntwo\n\n \t\nthr\u00e9e\n\n\n")]
    assert texts_of(path, text_unit="line") == ["one", "two", "", " \t", "thr\u00e9e", "", ""]
    paragraphs = list(records([path], text_unit="paragraph"))
    assert paragraphs == [Record(f"{path}:1", "one\ntwo"), Record(f"{path}:5", "thr\u00e9e")]


def test_a_last_line_without_an_end_counts(tmp_path: Path) -> None:
    assert texts_of(write(tmp_path / "a.jsonl", b'{"text": "a"}\n{"text": "b"}')) == ["a", "b"]
    for unit in ("line", "paragraph"):
        assert texts_of(write(tmp_path / "a.txt", b"a\n\nb"), text_unit=unit)[-1] == "b"


def test_line_ends_of_dos_and_a_byte_order_mark_are_no_part_of_the_text(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + b'{"text": "a"}\r\n{"text": "b\\r\\n"}\r\n'
    assert texts_of(write(tmp_path / "a.jsonl", content)) == ["a", "b\r\n"]
    with pytest.raises(DataError, match=r"a\.jsonl:2: got invalid JSON"):  # only the start of a file can have the mark
        texts_of(write(tmp_path / "a.jsonl", b'{"text": "a"}\n' + content))


@pytest.mark.parametrize(("content", "expected"), [(b"", []), (b"\xef\xbb\xbf", [])])
def test_an_empty_file_of_lines_has_no_record(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    assert texts_of(write(tmp_path / "a.jsonl", content)) == expected
    assert texts_of(write(tmp_path / "a.txt", content), text_unit="line") == expected
    assert texts_of(write(tmp_path / "a.txt", content)) == [""]  # a file is a document, an empty one an empty document


def test_files_follow_one_another(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{number}.jsonl", json_lines([str(number)] * 2)) for number in (1, 2)]
    assert [record.text for record in records(paths)] == ["1", "1", "2", "2"]


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "x", "text": "the last one counts"}',
        '{"text": "a", "score": NaN, "most": -Infinity}',
        '{"text": "a", "number": 1e999, "large": 123456789012345678901234567890}',
        '{"text": "a", "key of another": "\\ud800"}',
        '{"text": "\\ud83d\\ude42 \\u0000"}',
        '  {"text" : "a" }  ',
    ],
)
def test_what_json_accepts_is_read_as_json_reads_it(tmp_path: Path, line: str) -> None:
    assert texts_of(write(tmp_path / "a.jsonl", line.encode())) == [json.loads(line)["text"]]


BAD_LINES = [
    (b"\n", "got a blank line", "no JSON"),
    (b"{\n", "got invalid JSON", "no JSON"),
    (b'{"text": "a"} {"text": "b"}\n', "Extra data", "no JSON"),
    (b'{"text": "tab\tand nul\x00"}\n', "Invalid control character", "no JSON"),
    (b'["text"]\n', "got a JSON list", "no text in the column"),
    (b'"text"\n', "got a JSON str", "no text in the column"),
    (b'{"Text": "a"}\n', r"got the keys \['Text'\]", "no text in the column"),
    (b'{"text": null}\n', "got text = None", "no text in the column"),
    (b'{"text": 12}\n', "got text = 12", "no text in the column"),
    (b'{"text": {"text": "a"}}\n', "got text = ", "no text in the column"),
    (b'{"text": "\xff"}\n', "not UTF-8 at byte 10", "no UTF-8"),
    (b'{"text": "cut \xe6\x9d\n', "not UTF-8 at byte 14", "no UTF-8"),
    (b'{"text": "ab\\ud800"}\n', "half a surrogate pair at character 2", "half a surrogate pair"),
    (b"[" * 100_000 + b"\n", "got invalid JSON", "no JSON"),
]


@pytest.mark.parametrize(("line", "message", "reason"), BAD_LINES)
def test_a_bad_line_is_an_error_with_file_and_line_or_counted(
    tmp_path: Path, line: bytes, message: str, reason: str
) -> None:
    path = write(tmp_path / "a.jsonl", json_lines(["one"]) + line + json_lines(["three"]))
    with pytest.raises(DataError, match=rf"a\.jsonl:2: .*{message}"):
        texts_of(path)
    counts: Counter[str] = Counter()
    dropped: list[Dropped] = []
    assert texts_of(path, on_bad="skip", counts=counts, dropped=dropped.append) == ["one", "three"]
    assert counts == {f"unreadable: {reason}": 1}
    assert dropped[0].where == f"{path}:2" and message.replace("\\", "") in dropped[0].excerpt


def test_bytes_of_a_text_file_that_are_no_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"one\ntwo \xff\n\nthree\n")
    for unit in ("file", "line", "paragraph"):
        with pytest.raises(DataError, match=r"a\.txt:2: got bytes that are not UTF-8"):
            texts_of(path, text_unit=unit)
    counts: Counter[str] = Counter()
    assert texts_of(path, text_unit="line", on_bad="skip", counts=counts) == ["one", "", "three"]
    assert counts == {"unreadable: no UTF-8": 1}


def test_bad_rows_of_parquet_are_named_with_their_row(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["a", None, "c"])
    with pytest.raises(DataError, match=r"a\.parquet:2: got null"):
        texts_of(path)
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    with pytest.raises(DataError, match=r"b\.parquet:2: got bytes that are not UTF-8"):
        texts_of(write_parquet(tmp_path / "b.parquet", broken))
    counts: Counter[str] = Counter()
    assert [r.text for r in records([path, tmp_path / "b.parquet"], on_bad="skip", counts=counts)] == ["a", "c", "a"]
    assert counts == {"unreadable: no text in the column": 1, "unreadable: no UTF-8": 1}


def test_a_parquet_file_without_the_column_or_with_numbers_in_it_is_an_error(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["a"], name="content")
    with pytest.raises(DataError, match=r"a\.parquet: got the columns \['id', 'content'\], wanted 'text'"):
        texts_of(path)
    assert texts_of(path, column="content") == ["a"]
    with pytest.raises(DataError, match="column 'id' holds int64, wanted string"):
        texts_of(path, column="id")


def test_a_damaged_file_is_an_error_even_where_bad_records_are_skipped(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "a.parquet", TEXTS).read_bytes()
    for path in (
        write(tmp_path / "cut.parquet", whole[:-5]),
        write(tmp_path / "empty.parquet", b""),
        write(tmp_path / "a.jsonl.gz", gzip.compress(json_lines(TEXTS))[:-9]),
        write(tmp_path / "a.txt.zst", zstd.compress(json_lines(TEXTS))[:-1]),
    ):
        with pytest.raises(DataError, match=f"{path.name}: .*download or copy"):
            texts_of(path, on_bad="skip")


def test_a_line_of_50_mb_is_a_line(tmp_path: Path) -> None:
    text = "fifty " * (50_000_000 // 6)
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(json_lines(["a", text, "b"]), compresslevel=1))
    assert texts_of(path) == ["a", text, "b"]


@pytest.mark.parametrize("unit", ["jsonl", "line", "paragraph", "file"])
def test_a_record_without_an_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    monkeypatch.setattr(read, "MAX_RECORD_BYTES", 100)
    if unit == "jsonl":
        path, more = write(tmp_path / "a.jsonl", json_lines(["a", "x" * 1000, "b"])), {}
    else:
        path, more = write(tmp_path / "a.txt", b"a\n\n" + b"x" * 1000 + b"\n\nb"), {"text_unit": unit}
    with pytest.raises(DataError, match=r":\d: got more than 100 bytes"):
        texts_of(path, **more)
    counts: Counter[str] = Counter()
    kept = texts_of(path, on_bad="skip", counts=counts, **more)
    assert counts == {"unreadable: longer than 1 GiB": 1}
    assert kept == {"jsonl": ["a", "b"], "line": ["a", "", "", "b"], "paragraph": ["a", "b"], "file": []}[unit]


def test_progress_adds_up_to_the_size_of_the_files(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a.jsonl", json_lines(["some text"] * 3000)),
        write(tmp_path / "b.jsonl.gz", gzip.compress(json_lines(["some text"] * 3000))),
        write(tmp_path / "c.txt", b"text"),
        write_parquet(tmp_path / "d.parquet", ["some text"] * 1024),
    ]
    read_bytes: list[int] = []
    assert len(list(records(paths, progress=read_bytes.append))) == 3000 + 3000 + 1 + 1024
    assert sum(read_bytes) == sum(path.stat().st_size for path in paths)


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="on_bad='ignore'"):
        list(records([], on_bad="ignore"))
    with pytest.raises(UnusableError, match="text_unit='word'"):
        list(records([], text_unit="word"))
    for name in ("gone.jsonl", "a.md"):
        with pytest.raises(UnusableError, match=f"{name}: not a file of a supported kind"):
            list(records([tmp_path / name]))


def expected_of(line: bytes) -> str | None:
    """What a line holds by the rules of json alone, or None for a bad one."""
    try:
        text = json.loads(line.decode("utf8"))["text"]
        return text if isinstance(text, str) and text.encode("utf8") is not None else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("text"), inner, max_size=3),
    max_leaves=8,
)
without_end = st.one_of(
    st.binary(max_size=60),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(["text", "Text", "id"]), json_values, min_size=1).map(
        lambda value: json.dumps(value, ensure_ascii=False).encode("utf8", "surrogatepass")
    ),
    # JSON with a piece changed: nearly good lines
    st.builds(
        lambda text, place, piece: (whole := json.dumps({"text": text}).encode())[:place] + piece + whole[place + 1 :],
        st.text(max_size=20),
        st.integers(0, 40),
        st.binary(max_size=3) | st.sampled_from([b"\\ud800", b"\\udc00", b"\xed\xa0\x80", b"\x00", b"\r", b"\x7f"]),
    ),
).map(lambda line: line.replace(b"\n", b" "))


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(st.lists(without_end, max_size=4), st.sampled_from(list(PACK)), st.booleans())
@example([b'{"text": "a"}\r', b"\xef\xbb\xbf{}"], ".gz", True)
def test_any_bytes_give_the_records_of_json_and_the_rest_is_counted(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], ending: str, has_end: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzz.jsonl{ending}"
    joined = b"\n".join(content) + (b"\n" if has_end and content else b"")
    path.write_bytes(PACK[ending](joined))
    if content:
        content[0] = content[0].removeprefix(b"\xef\xbb\xbf")
    if content and content[-1] == b"" and not has_end:
        content.pop()  # nothing behind the last line end is no line
    if content == [b""] and joined == b"\xef\xbb\xbf":
        content.pop()
    counts: Counter[str] = Counter()
    kept = texts_of(path, on_bad="skip", counts=counts)
    expected = [expected_of(line) for line in content]
    assert kept == [text for text in expected if text is not None]
    assert counts.total() == expected.count(None)
    if None in expected:
        with pytest.raises(DataError, match=rf":{expected.index(None) + 1}: "):
            texts_of(path)
