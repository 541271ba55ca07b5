"""Reading of files that anybody may have written: regular files of a sane size, and JSON of a sane form.

A folder of results may hold links that lead to themselves, named pipes, devices, folders with the name of a file, and
JSON that no writer of this suite makes. None of them may stop or block a command. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, NoReturn

from utils.errors import quoted

LARGEST_BYTES = 1 << 27
"""A result of a million steps has 85 MB."""
DEEPEST = 40
"""Largest number of objects and lists inside one another; the suite's own files have fewer than 10."""
MOST_DIGITS = 308
"""Digits of a number before the point; a float has no more (IEEE 754 binary64)."""
_NO_BRACKETS = bytes(set(range(256)) - set(b'"[]{}'))
_SUSPECT = re.compile(rb"[eE]\+?[0-9]{3}|\\u[dD][89a-fA-F]")
"""A number with a large exponent, and the escape of half a surrogate pair."""
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
    Raises InputFileError for anything else, and for objects and lists that are too deep in one another.
    """
    if not data.strip():
        raise InputFileError("is empty")
    _require_shallow(data)
    try:
        content = json.loads(
            data.decode("utf8"),
            parse_int=_integer,
            parse_constant=_null if nan_is_null else _no_number,
            object_pairs_hook=_object_of_unique_keys,
        )
        # json reads 1e400 as infinite, and half of a surrogate pair as a text that no file can hold. Writing finds
        # both; it takes as long as reading, and nearly no file has what might be one.
        if _SUSPECT.search(data):
            json.dumps(content, allow_nan=False, ensure_ascii=False).encode("utf8")
    except InputFileError:
        raise
    except UnicodeEncodeError as error:
        raise InputFileError(f"the text {quoted(error.object)} is no Unicode: half of a surrogate pair") from error
    except ValueError as error:
        reason = str(error)
        if reason.startswith("Out of range float"):
            reason = "a number is too large for a float"
        raise InputFileError(reason) from error
    return content


def _require_shallow(data: bytes) -> None:
    """Raise InputFileError if JSON is too deep for the functions that walk through it."""
    without_escapes = data.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = re.sub(rb'"[^"]*"', b"", without_escapes.translate(None, _NO_BRACKETS))  # without those in strings
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST:
            raise InputFileError(f"objects and lists are deeper than {DEEPEST} in one another")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise InputFileError(f"got an integer of {len(text):,} digits, wanted at most {MOST_DIGITS}")
    return int(text)


def _null(_: str) -> None:
    return None


def _no_number(text: str) -> NoReturn:
    raise InputFileError(f"{text} is no finite number")


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputFileError(f"the key {quoted(twice)} stands twice in one object")
    return found
