"""Files that stay the same while they are read, and texts that are written whole or not at all.

The bytes that were read are then those that are hashed. A text is written only in the place of one that the suite
wrote. It looks like anybody's, so a hidden file beside it, `.<name>.tprimat`, records its size and the time of its last
change: one that was edited by hand is the user's. Records of earlier versions have the size only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from utils.errors import DataError, UnusableError
from utils.files import write_whole, written_whole
from utils.own_files import content_of, json_with, require_ours


class FileState(NamedTuple):
    """Identity of a file's content without reading it."""

    device: int
    inode: int
    bytes: int
    modified_ns: int


def state_of(path: Path) -> FileState:
    """Return the state of a file; raise UnusableError if there is no such file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnusableError(f"{path}: no such file; check the path") from error
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@contextmanager
def unchanged(*paths: Path) -> Iterator[list[FileState]]:
    """Yield the states of files; raise DataError if one has another state when the block ends, with or without error.

    A file that changes is the cause of most errors of the block: a last line that is half written, a missing part.
    """
    before = [state_of(path) for path in paths]
    try:
        yield before
    except (DataError, OSError) as error:
        require_unchanged(paths, before, error)
        raise
    require_unchanged(paths, before)


def require_unchanged(paths: Sequence[Path], before: list[FileState], cause: Exception | None = None) -> None:
    """Raise DataError for the first of the files that has another state than `before`."""
    for path, known in zip(paths, before, strict=True):
        change = _change(path, known)
        if change:
            raise changed(path, change) from cause


def changed(path: Path, change: str) -> DataError:
    """Return the error for a file that is not the same to the end."""
    return DataError(f"{path}: changed while being read: {change}; start again when nothing writes to it")


def _change(path: Path, before: FileState) -> str | None:
    try:
        now = state_of(path)
    except UnusableError:
        return "it vanished"
    if now == before:
        return None
    if (now.device, now.inode) != (before.device, before.inode):
        return "another file has its name"
    if now.bytes == before.bytes:
        return "it was written to"
    change = "grew" if now.bytes > before.bytes else "shrank"
    return f"it {change} from {before.bytes:,} to {now.bytes:,} bytes"


def progress_bar(title: str, total: int | None, unit: str) -> tqdm[Any]:
    """Return a bar that appears after two seconds, and only on a terminal."""
    return tqdm(desc=title, total=total, unit=unit, unit_scale=True, delay=2, disable=None)


_is_record = json_with("tool", "bytes")


def record_of(path: Path) -> Path:
    """Return the path of the record of a text."""
    return path.with_name(f".{path.name}.tprimat")


def is_written_text(path: Path) -> bool:
    """Recognise a text by its record, if it has not changed since."""
    status = path.stat()
    record = json.loads(content_of(record_of(path)))
    # an earlier version recorded the size only
    times = record.get("modified_ns", [status.st_mtime_ns])
    return status.st_size in record["bytes"] and status.st_mtime_ns in times


@contextmanager
def text_written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is renamed, with its record, when the block ends without an error.

    Raises ForeignFileError, before the block too, if a file that the suite did not write is there.
    """
    require_ours(_is_record, record_of(path))
    with written_whole(path, is_ours=is_written_text) as (temporary,):
        yield temporary
        # if this run is killed before the rename, the earlier text must be recognised too
        states = [text.stat() for text in (temporary, path) if text.exists()]
        record = {
            "tool": "tprimat",
            "bytes": [state.st_size for state in states],
            "modified_ns": [state.st_mtime_ns for state in states],
        }
        write_whole(record_of(path), json.dumps(record) + "\n", is_ours=_is_record)
