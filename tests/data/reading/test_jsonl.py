"""A line gives its text or an error with file and line; nothing is guessed, nothing is skipped silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data.reading.jsonl import text_of
from utils.errors import DataError

FILE = Path("some/text.jsonl")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text": "a"}\n', "a"),
        (b'{"text": "a"}\r\n', "a"),
        (b'{"text": "a"}', "a"),
        (b'{"id": 1, "text": "", "more": [{}]}', ""),
        (b'{"text": "x", "text": "the last one counts"}', "the last one counts"),
        ('{"text": "Gr\u00fc\u00dfe \U0001f642"}'.encode(), "Gr\u00fc\u00dfe \U0001f642"),
        (b'{"text": "\\ud83d\\ude42"}', "\U0001f642"),
    ],
)
def test_text_is_what_json_says(line: bytes, text: str) -> None:
    assert text_of(line, FILE, 1) == text


def test_another_key_can_be_asked_for() -> None:
    assert text_of(b'{"text": "a", "content": "b"}', FILE, 1, "content") == "b"


BAD_LINES = [
    (b"\n", "a blank line"),
    (b"{", "invalid JSON, '{'"),
    (b'{"text": "a"} {"text": "b"}', "Extra data"),
    (b'["text"]', "a JSON list"),
    (b"{}", "an object without keys"),
    (b'{"Text": "a", "id": 1}', r"the keys \['Text', 'id'\]"),
    (b'{"text": null}', r"text = None \(NoneType\)"),
    (b'{"text": 12}', r"text = 12 \(int\)"),
    (b'{"text": ["a"]}', r"text = \['a'\] \(list\)"),
    (b'{"text": "\xff"}', "bytes that are not UTF-8 at byte 10"),
    (b'{"text": "ab\\ud800"}', "half a surrogate pair at character 2"),
    (b'\xef\xbb\xbf{"text": "a"}', "invalid JSON"),
    (b"\x1f\x8b\x08\x00", "not UTF-8"),
    (b"[" * 100_000, "invalid JSON"),
    (b'{"text": "a", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid JSON"),
    (b'{"text": ' + b"[" * 900 + b"]" * 900 + b"}", r"text = \[\[.*\(list\)"),
    (json.dumps(dict.fromkeys(map(str, range(200_000)))).encode(), r"the keys \['0', '1', .*\.\.\.\], wanted"),
    (json.dumps({"a" * 2_000_000: 1}).encode(), r"the keys \['aaa"),
    (json.dumps({"text": {"a" * 2_000_000: 1}}).encode(), r"text = {'aaa"),
    (json.dumps({"text": list(range(200_000))}).encode(), r"text = \[0, 1, 2"),
    (b'{"text": ' + b"9" * 4000 + b"}", "text = 999.*int"),
    (b'{"text": ' + b"x" * 2_000_000, 'invalid JSON, \'{"text": xxx'),
    ('\ufeff{"text": "a"}\n'.encode("utf-16-le"), "UTF-16 or UTF-32, .* iconv -f UTF-16 -t UTF-8"),
    ('\ufeff{"text": "a"}\n'.encode("utf-16-be"), "UTF-16 or UTF-32"),
    ('\ufeff{"text": "a"}\n'.encode("utf-32-le"), "UTF-16 or UTF-32"),
    ('{"text": "a"}\n'.encode("utf-16-le"), "UTF-16 or UTF-32"),
    (b"\0" * 100, r"invalid JSON, '\\x00"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=[message[:30] for _, message in BAD_LINES])
def test_a_bad_line_is_named_with_file_number_and_what_it_is(line: bytes, message: str) -> None:
    with pytest.raises(DataError, match=rf"^some/text\.jsonl:7: got .*{message}") as caught:
        text_of(line, FILE, 7)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)
