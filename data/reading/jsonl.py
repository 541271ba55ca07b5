"""One line of a JSONL file to its text, strictly: what cannot be read is said with file and line, never passed over."""

from __future__ import annotations

import json
from pathlib import Path

import orjson

from utils.errors import DataError

_SHOWN_CHARACTERS = 60


def text_of(line: bytes, path: Path, number: int, text_key: str = "text") -> str:
    """Return the text under `text_key` of line `number` (from 1) of `path`; it may be empty.

    Raises DataError for a line that is blank, no UTF-8, no JSON object, without the key, or whose text is no string or
    holds half of a surrogate pair (JSON can spell one, no tokenizer takes it).
    """
    try:
        # many times as fast, and stricter than json: what it takes, json takes with the same result
        record = orjson.loads(line)
        if isinstance(record, dict) and isinstance(record.get(text_key), str):
            return str(record[text_key])
    except ValueError:
        pass  # json says what is wrong, or takes it (NaN, half a surrogate pair under another key)
    return _text_by_json(line, path, number, text_key)


def _text_by_json(line: bytes, path: Path, number: int, text_key: str) -> str:
    def wrong(got: str) -> DataError:
        return DataError(
            f"{path}:{number}: got {got}, wanted a JSON object with a text under {text_key!r}; mend or remove the line"
        )

    try:
        record = json.loads(line.decode("utf8"))
    except UnicodeDecodeError as error:
        raise wrong(f"bytes that are no UTF-8 at byte {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        shown = line[:_SHOWN_CHARACTERS].decode("utf8", "replace").strip()
        raise wrong(f"no JSON, {shown!r} ({error})" if shown else "a blank line") from error
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
