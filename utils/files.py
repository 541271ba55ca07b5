"""Atomic writes: a file, several files or a folder get their names only when they are complete. Standard library only.

Everything is written under a hidden temporary name beside the target, `.<name>.<12 hex digits>.tmp`, and renamed. A
target that exists is replaced only if its recogniser (utils/own_files.py) finds that the suite wrote it. A temporary
file is locked (flock) while its writer lives; the next writer of the same target removes those that nobody holds.
`utils/own_files.py` lists what is written into a folder of the suite.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from utils import own_files
from utils.own_files import Recogniser, require_ours

MODE = 0o644


def write_whole(
    path: Path,
    content: bytes | memoryview | str,
    *,
    is_ours: Recogniser = own_files.none,
    replace: bool = True,
    fsync: bool = True,
) -> bool:
    """Write `path` with mode 0644 and return True; after an error it is as it was before.

    With `replace=False` an existing file is kept and False returned. With `fsync=False` the content may be lost in a
    power failure, and leftovers of a killed writer stay. Text is encoded as UTF-8. Raises ForeignFileError for a file
    that `is_ours` does not recognise, and OSError where the disk is full or the folder cannot be written.
    """
    if fsync:
        _remove_leftovers(path)
    with _temporary(path) as temporary:
        temporary.touch()
        # without truncating it: ext4 begins to write a truncated file to the disk as soon as it is closed
        with temporary.open("r+b") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.chmod(MODE)
        if fsync:
            _flush_to_disk(temporary)
        if replace:
            require_ours(is_ours, path)
            temporary.replace(path)
        else:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
    own_files.note(path)
    return True


@contextmanager
def written_whole(*paths: Path, is_ours: Recogniser = own_files.none) -> Iterator[list[Path]]:
    """Yield a temporary path beside each of `paths`; they are renamed when the block ends without an error.

    All content is on the disk before the first is renamed. After an error no temporary file is left, and the previous
    content of `paths` is untouched. Raises ForeignFileError, before the block too, for a file in the place of one of
    `paths` that `is_ours` does not recognise, and FileNotFoundError if the block did not write one of the files.
    """
    require_ours(is_ours, *paths)
    _remove_leftovers(*paths)
    with ExitStack() as stack:
        temporaries = [stack.enter_context(_temporary(path)) for path in paths]
        yield temporaries
        for temporary in temporaries:
            _flush_to_disk(temporary)
        require_ours(is_ours, *paths)
        for temporary, path in zip(temporaries, paths, strict=True):
            temporary.replace(path)
            own_files.note(path)


@contextmanager
def folder_written_whole(folder: Path, *, is_ours: Recogniser = own_files.none) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`; it replaces `folder` when the block ends without an error.

    Raises ForeignFileError, before the block too, if `folder` exists and `is_ours` does not recognise it.
    """
    require_ours(is_ours, folder, is_folder=True)
    _remove_leftovers(folder)
    with _temporary(folder, is_folder=True) as temporary:
        yield temporary
        require_ours(is_ours, folder, is_folder=True)
        # rename(2) does not replace a folder with content; for a moment neither name is there
        earlier = temporary_beside(folder)
        if os.path.lexists(folder):
            folder.rename(earlier)
        temporary.rename(folder)
        own_files.note_trees(folder)
        _remove(earlier)


def temporary_beside(path: Path) -> Path:
    """Return an unused hidden name in the folder of `path`; the folder is created if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")


@contextmanager
def _temporary(path: Path, is_folder: bool = False) -> Iterator[Path]:
    """Yield an empty file or folder beside `path`, locked while the block runs and removed then if it still exists."""
    while True:
        try:
            temporary = temporary_beside(path)
            if is_folder:
                temporary.mkdir()
            flags = os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT | os.O_EXCL
            descriptor = os.open(temporary, flags, 0o666)
        except OSError as error:  # the user knows nothing of the temporary name
            raise type(error)(error.errno, error.strerror, str(path)) from error
        # between its creation and its lock, another writer may have taken it for a leftover and removed it
        if _lock(descriptor) is not False and temporary.exists():
            break
        os.close(descriptor)
    try:
        if not is_folder:
            # an empty file looks written; its time tells that nobody wrote it
            os.utime(descriptor, (0, 0))  # until it is written; see _flush_to_disk
        yield temporary
    finally:
        _remove(temporary)
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed; return False if another process holds it, None if it cannot be locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None  # a file system without locks: nobody removes the file as a leftover either
    return True


def _remove_leftovers(*paths: Path) -> None:
    """Remove what killed writers of `paths` have left beside them, and report it in one line on stderr."""
    removed = []
    for path in paths:
        for leftover in sorted(path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}.tmp")):
            if _remove_unless_held(leftover):
                removed.append(leftover.name)
    if removed:
        print(f"{paths[0].parent}: removed {', '.join(removed)}, left by a run that was killed", file=sys.stderr)


def _remove_unless_held(path: Path) -> bool:
    with suppress(OSError):
        is_folder = path.is_dir() and not path.is_symlink()
        # for writing, as NFS requires for a lock; without blocking, should it be a pipe
        flags = os.O_RDONLY if is_folder else os.O_RDWR | os.O_NONBLOCK
        descriptor = os.open(path, flags | os.O_NOFOLLOW)
        try:
            if _lock(descriptor):
                _remove(path)
                return not path.exists()
        finally:
            os.close(descriptor)
    return False


def _remove(path: Path) -> None:
    """Remove a file or a folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_mtime_ns:
            raise FileNotFoundError(f"{path}: was not written")
        os.fsync(file.fileno())
