"""Reading of files that anybody may have written: regular files of a sane size, and JSON of a sane form.

A folder of results may hold links that lead to themselves, named pipes, devices, folders with the name of a file, and
JSON that no writer of this suite makes. None of them may stop or block a command. Standard library only.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from utils.errors import quoted

LARGEST_BYTES = 1 << 27
"""A result of a million steps has 85 MB."""
DEEPEST = 40
"""Largest number of objects and lists inside one another; the suite's own files have fewer than 10."""
LONGEST_TEXT = 1 << 17
"""Characters of one text; the longest honest one is an environment variable, of which Linux allows 131,072 bytes."""
MOST_DIGITS = 40
"""Digits of an integer; a count has 19 at most."""
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class InputFileError(ValueError):
    """A file cannot be used as input; the message states the reason, without the path."""


def require_regular(path: Path, largest: int | None = None) -> None:
    """Raise InputFileError unless `path` leads to a regular file, of at most `largest` bytes.

    The file is not opened, so nothing can block.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        raise InputFileError(_reason(error)) from error
    if not stat.S_ISREG(found.st_mode):
        raise InputFileError(f"is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no file')}, wanted a regular file")
    if largest is not None and found.st_size > largest:
        raise InputFileError(f"has {found.st_size:,} bytes, wanted a regular file of at most {largest:,}")


def content_of(path: Path, largest: int = LARGEST_BYTES) -> bytes:
    """Return the content of a regular file of at most `largest` bytes; raise InputFileError for anything else."""
    require_regular(path, largest)
    try:
        # without blocking, should the file have become a named pipe meanwhile
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            # never more than it has now, should it grow; a larger number would allocate that much
            return file.read(min(largest, os.fstat(file.fileno()).st_size))
    except OSError as error:
        raise InputFileError(_reason(error)) from error


def json_of(path: Path) -> Any:
    """Return the JSON in a file; raise InputFileError as `content_of` and `parse_json` do."""
    return parse_json(content_of(path))


def parse_json(data: bytes, *, nan_is_null: bool = False) -> Any:
    """Return JSON whose numbers are finite, whose keys are unique and whose texts are Unicode.

    With `nan_is_null`, NaN and Infinity are read as null: other suites write them for what they could not measure.
    Raises InputFileError for anything else, and for a form in which no file of this kind comes: too deep, a number of
    too many digits, a text that is too long.
    """
    try:
        text = data.decode("utf8")
        content = json.loads(
            text,
            parse_constant=(lambda _: None) if nan_is_null else _no_number,
            parse_int=_integer,
            object_pairs_hook=_object_of_unique_keys,
        )
    except RecursionError as error:
        raise InputFileError(f"objects and lists are deeper than {DEEPEST} in one another") from error
    except InputFileError:
        raise
    except ValueError as error:
        raise InputFileError(str(error) if data.strip() else "is empty") from error
    _check(content, may_have_surrogates=bool(_ESCAPED_SURROGATE.search(data)))
    return content


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _no_number(text: str) -> NoReturn:
    raise InputFileError(f"{text} is no finite number")


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise InputFileError(f"got an integer of {len(text):,} digits, wanted at most {MOST_DIGITS}")
    return int(text)


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputFileError(f"the key {quoted(twice)} stands twice in one object")
    return found


def _check(content: Any, *, may_have_surrogates: bool) -> None:
    """Raise InputFileError for an infinite number, a text that is no Unicode or too long, and for too deep JSON."""
    pending = [(content, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > DEEPEST:
            raise InputFileError(f"objects and lists are deeper than {DEEPEST} in one another")
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InputFileError("a number is too large for a float")
        elif isinstance(value, str):
            if len(value) > LONGEST_TEXT:
                raise InputFileError(f"got a text of {len(value):,} characters, wanted at most {LONGEST_TEXT:,}")
            if may_have_surrogates and re.search("[\ud800-\udfff]", value):
                raise InputFileError(f"the text {quoted(value)} is no Unicode: it holds half of a surrogate pair")
        elif isinstance(value, (dict, list)):
            pending += [(inner, depth + 1) for inner in _to_check(value)]


def _to_check(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    """Yield the values of an object or a list that have to be checked one by one."""
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif set(map(type, value)) <= {int, float, bool, type(None)}:  # the samples of a run, quickly
        yield from (end for end in (math.inf, -math.inf) if end in value)
    else:
        yield from value
