"""Check that files stay the same while they are read: the bytes that were read are then those that are hashed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from utils.errors import DataError, UnusableError


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
    size = f"{before.bytes:,} to {now.bytes:,} bytes"
    if now.bytes > before.bytes:
        return f"it grew from {size}"
    return f"it shrank from {size}" if now.bytes < before.bytes else "it was written to"
