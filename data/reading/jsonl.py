"""Strict reading of one line of a JSONL file: return its text, or raise an error with file and line.

A byte order mark (BOM) at the start of a file is not part of the text and is skipped, by every command alike. RFC 8259
lets a parser ignore it; preprocess_data.py of Megatron-LM, which would count it to the first line, hangs there. The
pair of such a file has the bytes of the pair without the mark. Digests and sizes of inputs include it.
"""

from __future__ import annotations

import json
from pathlib import Path

import orjson

from utils.errors import DataError, quoted

BOM = b"\xef\xbb\xbf"
"""The byte order mark in UTF-8."""
_EXCERPT_BYTES = 200
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of UTF-16; the first also begins that of UTF-32."""


NO_TEXT, NO_UTF8 = "no text in the column", "no UTF-8"


class BadRecordError(DataError):
    """A record that cannot be used; `reason` is the same for all of one kind, as counted in the manifest."""

    def __init__(self, message: str, reason: str = NO_TEXT) -> None:
        super().__init__(message)
        self.reason = reason


def is_utf_16(content: bytes) -> bool:
    """Return True for the start of a file in UTF-16 or UTF-32, with its mark or without."""
    return content.startswith(_UTF_16) or content[:2].count(0) == 1


def text_of(line: bytes, path: Path, number: int, text_key: str = "text") -> str:
    """Return the text under `text_key` of line `number` (from 1) of `path`; it may be empty.

    Raises BadRecordError for a line that is blank, not UTF-8, not a JSON object or without the key, and for a text that
    is not a string or contains half a surrogate pair (valid in JSON, rejected by every tokenizer).
    """
    try:
        # many times as fast as json, and stricter: json accepts whatever it accepts, with the same result
        record = orjson.loads(line)
        if isinstance(record, dict) and isinstance(record.get(text_key), str):
            return str(record[text_key])
    except ValueError:
        # json names the fault, or accepts the line (NaN, half a surrogate pair under another key)
        pass
    return _text_by_json(line, path, number, text_key)


def _text_by_json(line: bytes, path: Path, number: int, text_key: str) -> str:
    def wrong(got: str, reason: str = NO_TEXT, remedy: str = "fix or remove the line") -> BadRecordError:
        wanted = f"wanted a JSON object with a text under {text_key!r}; {remedy}"
        return BadRecordError(f"{path}:{number}: got {got}, {wanted}", reason)

    try:
        record = json.loads(line.decode("utf8"))
    except (ValueError, RecursionError) as error:
        reason = NO_UTF8 if isinstance(error, UnicodeDecodeError) else "no JSON"
        if is_utf_16(line):
            remedy = "convert the file, for instance with iconv -f UTF-16 -t UTF-8"
            raise wrong("UTF-16 or UTF-32", reason, remedy) from error
        if isinstance(error, UnicodeDecodeError):
            raise wrong(f"bytes that are not UTF-8 at byte {error.start} of the line", reason) from error
        excerpt = line[:_EXCERPT_BYTES].decode("utf8", "replace").strip()
        if not excerpt:
            raise wrong("a blank line", reason) from error
        raise wrong(f"invalid JSON, {quoted(excerpt)} ({error})", reason) from error
    if not isinstance(record, dict):
        raise wrong(f"a JSON {type(record).__name__}")
    if not record:
        raise wrong("an object without keys")
    if text_key not in record:
        raise wrong(f"the keys {quoted(sorted(record))}")
    text = record[text_key]
    if not isinstance(text, str):
        raise wrong(f"{text_key} = {quoted(text)} ({type(text).__name__})")
    try:
        # JSON may contain half a surrogate pair, UTF-8 may not
        text.encode("utf8")
    except UnicodeEncodeError as error:
        raise wrong(f"half a surrogate pair at character {error.start} of the text", "half a surrogate pair") from error
    return text
