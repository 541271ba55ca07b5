"""Marker and lock in OUTPUT_DIR and DATA_DIR, and the list of the files that the suite wrote there.

Both folders may also hold other files of a user. The marker alone makes none of them the suite's: a name of ours
(`utils/housekeeping/inventory.py`) and a line in the list of written files (`utils/own_files.py`) do. Files are opened
through the descriptor of their folder and never through a link. Standard library only, Linux only.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from utils.errors import ConfigError
from utils.own_files import LIST, MARKER as MARKER, State, parsed
from utils.results.store import write_json

OUTPUT, DATA = "output", "data"
"""Kinds of a marker: the first use of the folder. One folder may be both; the names in it differ."""
OURS = {"tool": "tprimat", "schema": 1}
"""In every marker."""
LOCK = ".lock"
LARGEST_MARKER_BYTES = 4096
ADOPT = "if its files are the suite's: ./shell/purge.sh --adopt, with the same settings, adds them to the list"
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
        # an existing marker stays: the first use decides the kind
        if not write_json(OURS | {"kind": kind}, folder / MARKER, replace=False):
            with opened(folder) as directory:
                read_marker(directory, str(folder))
    except OSError as error:
        raise FootprintError(f"{folder}: cannot be written ({error.strerror}); name a folder of yours") from error


@contextmanager
def opened(folder: Path | str, directory: int | None = None) -> Iterator[int]:
    """Yield the descriptor of a folder; one in an open `directory` may not be a link. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    if directory is not None:
        flags |= os.O_NOFOLLOW
    descriptor = os.open(folder, flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_marker(directory: int, where: str) -> str:
    """Return the kind of the marked folder with the descriptor `directory`; messages name it `where`.

    Raises FootprintError if it has no marker, or one that is damaged or not ours.
    """
    try:
        with open_file(directory, MARKER) as file:
            content = json.loads(file.read(LARGEST_MARKER_BYTES))
    except FileNotFoundError as error:
        raise FootprintError(f"{where}: has no {MARKER} file, so this suite has not written there; {ADOPT}") from error
    # json raises RecursionError for what is too deep
    except (OSError, ValueError, RecursionError) as error:
        raise FootprintError(f"{where}/{MARKER}: is damaged or not ours ({error}); look at it yourself") from error
    if not isinstance(content, dict) or not OURS.items() <= content.items():
        raise FootprintError(f"{where}/{MARKER}: is not ours, wanted {json.dumps(OURS)[1:-1]}; look at it yourself")
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


def read_list(directory: int, where: str) -> dict[str, State | None] | None:
    """Return the list of the files that the suite wrote into an open folder; None if it was made without a list."""
    try:
        with open_file(directory, LIST) as file:
            return parsed(file.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FootprintError(f"{where}/{LIST}: cannot be read ({error}); look at it yourself") from error


@contextmanager
def locked(directory: int, where: str, *, create: bool = True) -> Iterator[int]:
    """Hold the lock of an open folder and yield its descriptor; no lock (-1) if there is none and `create` is false.

    Raises FootprintError if another process holds it, or if the file is not ours.
    """
    descriptor = -1
    with ExitStack() as stack:
        try:
            while create or LOCK in os.listdir(directory):
                # opened for writing, as NFS requires for a lock
                flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
                if create:
                    flags |= os.O_CREAT
                descriptor = os.open(LOCK, flags, 0o644, dir_fd=directory)
                stack.callback(os.close, descriptor)
                _flock(descriptor, where)
                # purge removes the file while it holds the lock: the one that is locked may have no name any more
                with suppress(FileNotFoundError):
                    named = os.stat(LOCK, dir_fd=directory, follow_symlinks=False)
                    if os.path.samestat(os.fstat(descriptor), named):
                        break
        except OSError as error:
            raise FootprintError(f"{where}/{LOCK}: cannot be locked ({error.strerror})") from error
        yield descriptor


def _flock(descriptor: int, where: str) -> None:
    holder = _HELD_BY.fullmatch(os.pread(descriptor, LARGEST_MARKER_BYTES, 0))
    if holder is None:
        raise FootprintError(f"{where}/{LOCK}: is not ours; look at it yourself, or name another folder")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = "a process"
        if holder["process"]:
            who = os.fsdecode(b"process %b on %b" % holder.group("process", "host"))
        raise FootprintError(
            f"{where}: {who} is at work there; wait for it to end, or name another OUTPUT_DIR"
        ) from error
