"""Atomic writes: a file, several files or a folder get their names only when they are complete. Standard library only.

Everything is written under a hidden temporary name beside the target, `.<name>.<12 hex digits>.tmp`, and renamed.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODE = 0o644


def write_whole(path: Path, content: bytes | memoryview | str, *, replace: bool = True, fsync: bool = True) -> bool:
    """Write `path` with mode 0644 and return True; after an error it is as it was before.

    With `replace=False` an existing file is kept and False returned. With `fsync=False` the content may be lost in a
    power failure. Text is encoded as UTF-8. Raises OSError where the disk is full or the folder cannot be written.
    """
    temporary = temporary_beside(path)
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.chmod(MODE)
        if fsync:
            _flush_to_disk(temporary)
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def written_whole(*paths: Path) -> Iterator[list[Path]]:
    """Yield a temporary path beside each of `paths`; they are renamed when the block ends without an error.

    All content is on the disk before the first is renamed. After an error no temporary file is left, and the previous
    content of `paths` is untouched.
    """
    temporaries = [temporary_beside(path) for path in paths]
    try:
        yield temporaries
        for temporary in temporaries:
            _flush_to_disk(temporary)
        for temporary, path in zip(temporaries, paths, strict=True):
            temporary.replace(path)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`; it replaces `folder` when the block ends without an error."""
    temporary, earlier = temporary_beside(folder), temporary_beside(folder)
    temporary.mkdir()
    try:
        yield temporary
        if folder.exists():
            folder.rename(earlier)
        temporary.rename(folder)
        shutil.rmtree(earlier, ignore_errors=True)  # it may not exist
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # it was renamed, unless something failed


def temporary_beside(path: Path) -> Path:
    """Return an unused hidden name in the folder of `path`; the folder is created if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
