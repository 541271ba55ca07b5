"""Refusal of a tokenizer.json that cannot be used: wrong types, random merges, shared ids.

transformers does not see such a file. It fails on wrong types in many ways, down to an abort of the process; it applies
`dropout` in every encoding, so each run gets other ids; and of two entries with one id it keeps the one that it happens
to read last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from utils.errors import UnusableError, quoted

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_ID_LIMIT = 1 << 32


def require_sound(folder: Path) -> None:
    """Raise UnusableError for a tokenizer.json that cannot be used, and for settings that are not a JSON object."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            _object(folder / name, json.loads)
    path = folder / "tokenizer.json"
    if not path.is_file():
        return
    parsed = _object(path, orjson.loads)
    _require_types(path, parsed)
    _require_own_ids(path, parsed)
    dropout = parsed["model"].get("dropout")
    if dropout:
        raise UnusableError(
            f"{path}: model.dropout is {quoted(dropout)}, so each encoding of a text gives other ids; set it to null"
        )


def _object(path: Path, parse: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        parsed = parse(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"{path}: is not JSON ({error}); repair it or name another tokenizer") from error
    if not isinstance(parsed, dict):
        raise _wrong(path, "content", parsed, "a JSON object")
    return parsed


def _require_types(path: Path, parsed: dict[str, Any]) -> None:
    model, added = parsed.get("model"), parsed.get("added_tokens", [])
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    # only a Unigram model has a list
    kinds = (dict, list) if isinstance(model, dict) and model.get("type", "Unigram") == "Unigram" else (dict,)
    if not isinstance(model, dict) or not isinstance(vocabulary, kinds):
        raise _wrong(path, "model", model, "an object with a vocab")
    if isinstance(vocabulary, dict) and not _are_ids(vocabulary.values()):
        raise _wrong(path, "model.vocab", _first(vocabulary.values(), _is_id), "a whole number from 0 as the id")
    if not _are_merges(model.get("merges", [])):
        raise _wrong(path, "model.merges", model["merges"], "a list of pairs of tokens")
    if type(model.get("dropout")) not in (type(None), int, float):
        raise _wrong(path, "model.dropout", model["dropout"], "null or a number")
    if not isinstance(added, list) or not all(map(_is_added_token, added)):
        wanted = f"a list of objects with id, content and {', '.join(FLAGS)}"
        raise _wrong(path, "added_tokens", _first(added, _is_added_token) if isinstance(added, list) else added, wanted)
    if parsed.get("version", "1.0") != "1.0":
        raise _wrong(path, "version", parsed["version"], "1.0")
    for key in ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if parsed.get(key) is not None and not (isinstance(parsed[key], dict) and parsed[key]):
            raise _wrong(path, key, parsed[key], "an object or null")
    _require_post_processor(path, parsed.get("post_processor"))


def _require_post_processor(path: Path, post: dict[str, Any] | None) -> None:
    steps = post.get("processors") if post and post.get("type") == "Sequence" else [post] if post else []
    if not isinstance(steps, list) or not all(isinstance(step, dict) and _is_step(step) for step in steps):
        raise _wrong(path, "post_processor", post, "an object of a type of the library tokenizers")


def _require_own_ids(path: Path, parsed: dict[str, Any]) -> None:
    """Raise UnusableError if two entries of the vocabulary, or an added token and another entry, have one id."""
    vocabulary = parsed["model"]["vocab"]
    if not isinstance(vocabulary, dict):
        return  # a list: the place of an entry is its id
    added = {(token["id"], token["content"]) for token in parsed.get("added_tokens", [])}
    ids = set(vocabulary.values())
    are_own = (
        len(ids) == len(vocabulary)
        and len({number for number, _ in added}) == len(added)
        and all(number not in ids or vocabulary.get(content) == number for number, content in added)
    )
    if not are_own:
        raise UnusableError(
            f"{path}: {_shared([*vocabulary.items(), *((content, number) for number, content in sorted(added))])}; "
            "one of them would never occur: use a repaired tokenizer"
        )


def _shared(entries: list[tuple[str, int]]) -> str:
    """Return the first two entries that have the same id."""
    first: dict[int, str] = {}
    for content, number in entries:
        other = first.setdefault(number, content)
        if other != content:
            break
    return f"the entries {quoted(other)} and {quoted(content)} have the same id {number}"


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < _ID_LIMIT  # True is an int too


def _are_ids(values: Iterable[Any]) -> bool:
    # map and set run in C: a vocabulary has 150,000 entries, and this is part of every start
    return set(map(type, values)) <= {int} and min(values, default=0) >= 0 and max(values, default=0) < _ID_LIMIT


def _are_merges(merges: Any) -> bool:
    if not isinstance(merges, list):
        return False
    kinds = set(map(type, merges))
    if kinds <= {str}:
        return True
    return kinds == {list} and set(map(len, merges)) == {2} and set(map(type, chain.from_iterable(merges))) == {str}


def _is_added_token(token: Any) -> bool:
    return (
        isinstance(token, dict)
        and _is_id(token.get("id"))
        and isinstance(token.get("content"), str)
        and all(isinstance(token.get(flag), bool) for flag in FLAGS)
    )


def _is_step(step: dict[str, Any]) -> bool:
    """Check what the library tokenizers takes for granted in a template: it aborts if a special token is missing."""
    if step.get("type") != "TemplateProcessing":
        return isinstance(step.get("type"), str)
    single, specials = step.get("single"), step.get("special_tokens")
    return (
        isinstance(single, list)
        and isinstance(specials, dict)
        and all(_is_piece(piece, specials) for piece in single)
        and all(isinstance(special, dict) and isinstance(special.get("ids"), list) for special in specials.values())
        and all(_is_id(number) for special in specials.values() for number in special["ids"])
    )


def _is_piece(piece: Any, specials: dict[str, Any]) -> bool:
    if not isinstance(piece, dict) or len(piece) != 1:
        return False
    ((kind, value),) = piece.items()
    name = value.get("id") if isinstance(value, dict) else None
    return isinstance(name, str) and (kind == "Sequence" or kind == "SpecialToken" and name in specials)


def _first(values: Iterable[Any], is_valid: Any) -> Any:
    return next(value for value in values if not is_valid(value))


def _wrong(path: Path, key: str, value: Any, wanted: str) -> UnusableError:
    return UnusableError(f"{path}: got {key} {quoted(value)}, wanted {wanted}; repair it or name another tokenizer")
