"""Recognition of files that the suite wrote, by their content: only these may be replaced. Standard library only.

A recogniser takes a path and returns True if the file there was written by the suite. An error of its reading and
looking into the file has the meaning of False. A format has its recogniser beside its writer; this file has what
several of them need.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from utils import input_files
from utils.errors import ForeignFileError, UnusableError

Recogniser = Callable[[Path], bool]

LARGEST_BYTES = 1 << 28
"""A result of a million steps is smaller."""
content_of = partial(input_files.content_of, largest=LARGEST_BYTES)
"""Reader of a file that the suite may have written; it raises InputFileError for a larger one."""
PNG_MARK = {"Software": "tprimat"}
"""Text of every PNG of the suite, in matplotlib's form."""
PNG_CHUNK = b"tEXtSoftware\0tprimat"  # W3C, Portable Network Graphics, 11.3.4.3


def none(_: Path) -> bool:
    """Recognise no file: an existing one stays."""
    return False


def anything(_: Path) -> bool:
    """Recognise every file: for names in folders that the suite makes for itself."""
    return True


def json_with(*keys: str) -> Recogniser:
    """Return a recogniser of JSON objects that have all of `keys`."""

    def is_ours(path: Path) -> bool:
        content = json.loads(content_of(path))
        return isinstance(content, dict) and all(key in content for key in keys)

    return is_ours


def is_png(path: Path) -> bool:
    """Recognise a PNG that was written with PNG_MARK."""
    return content_of(path).startswith(b"\x89PNG") and PNG_CHUNK in content_of(path)


def require_ours(is_ours: Recogniser, *paths: Path, is_folder: bool = False) -> None:
    """Raise ForeignFileError if one of `paths` exists and `is_ours` does not recognise what it leads to.

    Anything but a regular file, or a folder if `is_folder`, is never the suite's, and neither is a link to nothing.
    """
    for path in paths:
        if os.path.lexists(path) and not _is_recognised(path, is_ours, is_folder):
            raise ForeignFileError(
                f"{path}: exists, and this suite has not written it; name another output, or remove it"
            )


def require_apart(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Raise UnusableError if a file to be written is also one that is read, under any name: a link, another path."""
    sources = {key: path for path in read for key in _keys(path)}
    for output in written:
        if both := [sources[key] for key in _keys(output) if key in sources]:
            raise UnusableError(f"{output}: would be written, and is also an input ({both[0]}); name another output")


def _is_recognised(path: Path, is_ours: Recogniser, is_folder: bool) -> bool:
    try:
        mode = path.stat().st_mode
        return (stat.S_ISDIR(mode) if is_folder else stat.S_ISREG(mode)) and is_ours(path)
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return False


def _keys(path: Path) -> list[object]:
    """Return what identifies a file: its resolved path and, if it exists, device and inode."""
    try:
        status = path.stat()
    except OSError:
        return [os.path.realpath(path)]
    return [os.path.realpath(path), (status.st_dev, status.st_ino)]
