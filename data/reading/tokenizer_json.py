"""Refusal of a tokenizer.json whose ids are not certain: random merges, and entries that share an id.

transformers does not see either. It applies `dropout` in every encoding, so each run gets other ids; and of two entries
with one id it keeps the one that it happens to read last. Values of wrong types it refuses by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from utils.errors import UnusableError, quoted


def read(folder: Path) -> dict[str, Any]:
    """Return the content of a tokenizer.json, empty without one; transformers may not return from a damaged file.

    Raises UnusableError for it, or for settings beside it, if they are not a JSON object.
    """
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        # not orjson, because a setting may be Infinity
        _object(folder / name, json.loads)
    return _object(folder / "tokenizer.json", orjson.loads)


def _object(path: Path, parse: Callable[[bytes], Any]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        parsed = parse(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"{path}: is not JSON ({error}); repair it or name another tokenizer") from error
    if not isinstance(parsed, dict):
        raise UnusableError(
            f"{path}: got content {quoted(parsed)}, wanted a JSON object; repair it or name another tokenizer"
        )
    return parsed


def require_certain_ids(path: Path, content: dict[str, Any]) -> None:
    """Raise UnusableError if a text can have other ids each time; `content` is one that transformers has loaded."""
    dropout = content["model"].get("dropout")
    if dropout:
        raise UnusableError(
            f"{path}: model.dropout is {quoted(dropout)}, so each encoding of a text gives other ids; set it to null"
        )
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):
        # a Unigram model: the place of an entry is its id
        return
    entries = list(vocabulary.items())
    for token in content.get("added_tokens", []):
        entries.append((token["content"], token["id"]))
    first_entries: dict[int, str] = {}
    for entry, number in entries:
        other = first_entries.setdefault(number, entry)
        if other != entry:
            raise UnusableError(
                f"{path}: the entries {quoted(other)} and {quoted(entry)} have the same id {number}; one of them would "
                "never occur: use a repaired tokenizer"
            )
