"""Lines of JSON of every kind, good and hostile, and what the library json alone makes of them."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

MARK = b"\xef\xbb\xbf"
GOOD = b'{"text": "fine words"}'
NEARLY_GOOD = [
    *(
        b"",
        b"\r",
        b" ",
        b"{}",
        b"null",
        b"[]",
        b'"text"',
        b'["text"]',
        b'{"Text": "a"}',
        b'{"text": "a"} {"text": "b"}',
    ),
    *(b'{"text": null}', b'{"text": 1}', b'{"text": {"text": "a"}}', b'{"text": "\\ud800"}', b'{"text": "\xff"}'),
    *(b'{"text": "\\ud83d\\ude42"}', b'{"text": "\xe2\x82', b'{"text": "cut', b"\x00", b"\x1f\x8b\x08", b"[" * 5000),
    *(b'{"text": "\\u0000"}', b'{"text": "tab\tand nul\x00"}', b'{"text": "a", "text": "b"}', b'  {"text" : "a" }  '),
    *(b'{"a": NaN, "text": "b"}', b'{"a": "\\ud800", "text": "b"}', b'{"n": 1e999, "m": -Infinity, "text": "b"}'),
    *(b'{"text": "' + b"long " * 3000 + b'"}', MARK + GOOD, MARK),
]
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("text"), inner, max_size=3),
    max_leaves=8,
)
_lines = st.one_of(
    st.just(GOOD),
    st.sampled_from(NEARLY_GOOD),
    st.text(max_size=20).map(lambda text: json.dumps({"text": text}).encode()),
    st.text(max_size=20).map(lambda text: json.dumps({"text": text}, ensure_ascii=False).encode("utf8", "replace")),
    st.binary(max_size=60),
    _values.map(lambda value: json.dumps(value).encode()),
    # JSON with a piece changed
    st.builds(
        lambda text, place, piece: (whole := json.dumps({"text": text}).encode())[:place] + piece + whole[place + 1 :],
        st.text(max_size=20),
        st.integers(0, 40),
        st.binary(max_size=3) | st.sampled_from([b"\\ud800", b"\\udc00", b"\xed\xa0\x80", b"\x00", b"\r", b"\x7f"]),
    ),
).map(lambda line: line.replace(b"\n", b" "))
contents = st.builds(
    lambda lines, ends, last: b"".join(line + end for line, end in zip(lines, ends, strict=False)) + last,
    st.lists(_lines, max_size=6),
    st.lists(st.sampled_from([b"\n", b"\n", b"\r\n"]), min_size=6, max_size=6),
    st.just(b"") | _lines,
)
"""Strategy: the bytes of a file."""


def texts_by_json(content: bytes) -> list[str | None]:
    """Return the text of each line of a file by json alone, None for a bad one."""
    content = content.removeprefix(MARK)
    return [_text(line) for line in (content.removesuffix(b"\n").split(b"\n") if content else [])]


def _text(line: bytes) -> str | None:
    try:
        text = json.loads(line.decode("utf8"))["text"]
        return text if isinstance(text, str) and text.encode("utf8") is not None else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def write_jsonl(path: Path, texts: list[str]) -> Path:
    """Write one document a line."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf8")
    return path
