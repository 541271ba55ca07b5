"""Marker and lock in OUTPUT_DIR and DATA_DIR: the suite has used the folder, and a process is using it now.

Both folders may also hold other files of a user. The marker alone makes none of them the suite's: names
(`utils/housekeeping/layout.py`) and content (`utils/housekeeping/inventory.py`) decide. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from utils.errors import ConfigError
from utils.results.store import write_json

TOOL = "tprimat"
MARKER = ".tprimat"
MARKER_SCHEMA = 1
OUTPUT, DATA = "output", "data"
"""Kinds of a marker: the first use of the folder. One folder may be both; the names in it differ."""
LOCK = ".lock"
LARGEST_MARKER_BYTES = 4096
_HELD_BY = re.compile(rb"(?:tprimat process (?P<process>[0-9]+) on (?P<host>[^\n]*)\n)?")
"""Content of a lock file of ours; it is empty until its first use."""


class FootprintError(ConfigError):
    """The folder cannot be used: its marker is not ours, or another process uses it; the message states which."""


def mark(folder: Path, kind: str) -> None:
    """Mark `folder`, which is created if it is missing, as one that the suite uses as `kind`, OUTPUT or DATA.

    A marked folder stays as it is. Raises FootprintError if the folder cannot be written, or if its marker is not ours.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if write_json({"tool": TOOL, "kind": kind, "schema": MARKER_SCHEMA}, folder / MARKER, replace=False):
            return
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise FootprintError(f"{folder}: cannot be written ({error.strerror}); name a folder of yours") from error
    try:
        read_marker(directory, str(folder))
    finally:
        os.close(directory)


def read_marker(directory: int, where: str) -> str:
    """Return the kind of the marked folder with the descriptor `directory`; messages name it `where`.

    Raises FootprintError if it has no marker, or one that is damaged or not ours.
    """
    try:
        content = json.loads(read_file(directory, MARKER, LARGEST_MARKER_BYTES))
    except FileNotFoundError as error:
        raise FootprintError(f"{where}: has no {MARKER} file, so this suite has not written there") from error
    except (OSError, ValueError, RecursionError) as error:
        raise FootprintError(f"{where}/{MARKER}: is damaged or not ours ({error}); look at it yourself") from error
    known = {"tool": TOOL, "schema": MARKER_SCHEMA}
    if not isinstance(content, dict) or {key: content.get(key) for key in known} != known:
        raise FootprintError(f"{where}/{MARKER}: is not ours, wanted {json.dumps(known)[1:-1]}; look at it yourself")
    if content.get("kind") not in (OUTPUT, DATA):
        raise FootprintError(f"{where}/{MARKER}: got kind {content.get('kind')!r}, wanted {OUTPUT} or {DATA}")
    return str(content["kind"])


def open_file(directory: int, name: str) -> BinaryIO:
    """Open a regular file of an open folder; a link or a pipe raises OSError at once."""
    # without O_NONBLOCK, opening a pipe waits for a writer
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{name} is no regular file")
    return os.fdopen(descriptor, "rb")


def read_file(directory: int, name: str, largest_bytes: int | None = None) -> bytes:
    """Return the content of a regular file of an open folder; raise OSError as `open_file`, or if it is larger."""
    with open_file(directory, name) as file:
        size = os.fstat(file.fileno()).st_size
        if largest_bytes is not None and size > largest_bytes:
            raise OSError(f"{name} has {size:,} bytes, more than any of ours")
        return file.read()


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Create, mark and lock `folder` as OUTPUT_DIR until the block ends or the process dies.

    Programs that the block starts do not inherit the lock (flock). Raises FootprintError if another process holds it,
    and as `mark`.
    """
    mark(folder, OUTPUT)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with locked(directory, str(folder)) as descriptor:
            assert descriptor is not None  # it is created if it is missing
            _sign(descriptor, str(folder))
            yield
    finally:
        os.close(directory)


@contextmanager
def locked(directory: int, where: str, *, create: bool = True) -> Iterator[int | None]:
    """Hold the lock of an open folder and yield its descriptor; None if there is no lock file and `create` is false.

    Raises FootprintError if another process holds it, or if the file is not ours.
    """
    try:
        descriptor = _take_lock(directory, where, create)
    except OSError as error:
        raise FootprintError(f"{where}/{LOCK}: cannot be locked ({error.strerror})") from error
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _sign(descriptor: int, where: str) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"tprimat process {os.getpid()} on {platform.node()}\n".encode(), 0)
    except OSError as error:
        raise FootprintError(f"{where}/{LOCK}: cannot be written ({error.strerror}); free disk space") from error


def _take_lock(directory: int, where: str, create: bool) -> int | None:
    # opened for writing, as NFS requires for a lock; purge removes the file, so check that it is still there
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    while True:
        try:
            descriptor = os.open(LOCK, flags, 0o644, dir_fd=directory)
        except FileNotFoundError:
            return None
        with ExitStack() as stack:
            stack.callback(os.close, descriptor)
            _flock(descriptor, where)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(LOCK, dir_fd=directory, follow_symlinks=False)):
                    stack.pop_all()  # the caller closes it
                    return descriptor


def _flock(descriptor: int, where: str) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise FootprintError(f"{where}/{LOCK}: is no regular file, so it is not ours; look at it yourself")
    holder = _HELD_BY.fullmatch(os.pread(descriptor, LARGEST_MARKER_BYTES, 0))
    if holder is None:
        raise FootprintError(f"{where}/{LOCK}: is not ours; look at it yourself, or name another folder")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = os.fsdecode(b"process %b on %b" % holder.group("process", "host")) if holder["process"] else "a process"
        raise FootprintError(
            f"{where}: {who} is at work there; wait for it to end, or name another OUTPUT_DIR"
        ) from error
