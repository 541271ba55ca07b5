"""Strict reading of one line of a JSONL file: return its text, or raise an error with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import orjson

from utils.errors import DataError

_SHOWN_CHARACTERS = 60


def text_of(line: bytes, path: Path, number: int, text_key: str = "text") -> str:
    """Return the text under `text_key` of line `number` (from 1) of `path`; it may be empty.

    Raises DataError for a line that is blank, not UTF-8, not a JSON object or without the key, and for a text that is
    not a string or contains half a surrogate pair (valid in JSON, rejected by every tokenizer).
    """
    try:
        # many times as fast as json, and stricter: json accepts whatever it accepts, with the same result
        record = orjson.loads(line)
        if isinstance(record, dict) and isinstance(record.get(text_key), str):
            return str(record[text_key])
    except ValueError:
        pass  # json names the fault, or accepts the line (NaN, half a surrogate pair under another key)
    return _text_by_json(line, path, number, text_key)


def _text_by_json(line: bytes, path: Path, number: int, text_key: str) -> str:
    def wrong(got: str) -> DataError:
        return DataError(
            f"{path}:{number}: got {got}, wanted a JSON object with a text under {text_key!r}; fix or remove the line"
        )

    try:
        record = json.loads(line.decode("utf8"))
    except UnicodeDecodeError as error:
        raise wrong(f"bytes that are not UTF-8 at byte {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        shown = line[:_SHOWN_CHARACTERS].decode("utf8", "replace").strip()
        raise wrong(f"invalid JSON, {shown!r} ({error})" if shown else "a blank line") from error
    if not isinstance(record, dict):
        raise wrong(f"a JSON {type(record).__name__}")
    if text_key not in record:
        raise wrong(f"the keys {sorted(record)}" if record else "an object without keys")
    text = record[text_key]
    if not isinstance(text, str):
        raise wrong(f"{text_key} = {str(text)[:_SHOWN_CHARACTERS]} ({type(text).__name__})")
    try:
        text.encode("utf8")
    except UnicodeEncodeError as error:
        raise wrong(f"half a surrogate pair at character {error.start} of the text") from error
    return text
