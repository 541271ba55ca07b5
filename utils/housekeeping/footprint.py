"""Marker and lock in OUTPUT_DIR and DATA_DIR, and the folders from which nothing may be removed.

Both folders may also hold other files of a user. The marker alone makes none of them the suite's: a name of ours
(`utils/housekeeping/layout.py`) and a line in the list of written files (`utils/written.py`) do. A folder to be purged
is opened once, from the root down and without following a link, and everything later goes through its descriptor:
replacing a folder of the path by a link afterwards cannot lead purge elsewhere. Standard library only, Linux only.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import pwd
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from utils.errors import ConfigError
from utils.results.store import write_json
from utils.written import LIST, State, parsed
from utils.written import MARKER as MARKER

TOOL = "tprimat"
MARKER_SCHEMA = 1
OUTPUT, DATA = "output", "data"
"""Kinds of a marker: the first use of the folder. One folder may be both; the names in it differ."""
LOCK = ".lock"
LARGEST_MARKER_BYTES = 4096
ADOPT = "if its files are the suite's: ./shell/purge.sh --adopt, with the same settings, adds them to the list"
MOUNTS = Path("/proc/self/mountinfo")
_HELD_BY = re.compile(rb"(?:tprimat process (?P<process>[0-9]+) on (?P<host>[^\n]*)\n)?")
"""Content of a lock file of ours; it is empty until its first use."""


class FootprintError(ConfigError):
    """The folder cannot be used: its marker is not ours, or another process uses it; the message states which."""


class RefusedError(ConfigError):
    """Nothing may be removed from the folder; the message states why."""


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
        raise FootprintError(f"{where}: has no {MARKER} file, so this suite has not written there; {ADOPT}") from error
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


def read_list(directory: int, where: str) -> dict[str, State | None] | None:
    """Return the list of the files that the suite wrote into an open folder; None if it was made without a list."""
    try:
        return parsed(read_file(directory, LIST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FootprintError(f"{where}/{LIST}: cannot be read ({error}); look at it yourself") from error


@contextmanager
def lock(folder: Path) -> Iterator[Callable[[], bool]]:
    """Create, mark and lock `folder` as OUTPUT_DIR until the block ends or the process dies.

    Yields a function that returns False once `folder` is not that folder any more: deleted, renamed or replaced.
    Programs that the block starts do not inherit the lock (flock). Raises FootprintError if another process holds it,
    and as `mark`.
    """
    mark(folder, OUTPUT)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with locked(directory, str(folder)) as descriptor:
            assert descriptor is not None  # it is created if it is missing
            _sign(descriptor, str(folder))
            yield lambda: _is_in_place(descriptor, folder / LOCK)
    finally:
        os.close(directory)


def _is_in_place(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


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


class Guarded(NamedTuple):
    """An open folder that the suite has marked, and its parent."""

    path: Path
    directory: int
    parent: int


def open_guarded(stack: ExitStack, path: Path, key: str, root: Path, *, is_adopted: bool = False) -> Guarded | None:
    """Open the absolute `path` of the setting `key`, to be closed with `stack`; return None if it does not exist.

    Raises RefusedError for `/`, the home folder, the checkout `root` and every folder above them, a mount point,
    anything but a folder, and a path with a symbolic link in it; FootprintError for a folder without our marker, unless
    the user adopts it.
    """
    where = f"{key}={path}"
    _refuse_links(path, key)
    path = Path("/", os.path.normpath(path).lstrip("/"))  # without links, `..` is the parent folder
    parent = directory = _opened(stack, "/", os.O_PATH, None)
    try:
        for name in path.parts[1:-1]:
            parent = directory = _opened(stack, name, os.O_PATH, parent)
        if path.name:
            directory = _opened(stack, path.name, os.O_RDONLY, parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RefusedError(f"{where}: cannot be opened as a folder ({error.strerror})") from error
    _refuse_places(directory, where, root)
    if _is_mount_point(path):
        raise RefusedError(f"{where}: is a mount point; name a folder below it")
    if not is_adopted:
        read_marker(directory, where)
    return Guarded(path, directory, parent)


def _opened(stack: ExitStack, name: str, access: int, parent: int | None) -> int:
    descriptor = os.open(name, access | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    stack.callback(os.close, descriptor)
    return descriptor


def _refuse_links(path: Path, key: str) -> None:
    for place in [*reversed(path.parents), path]:
        if place.is_symlink():
            raise RefusedError(
                f"{key}={path}: {place} is a symbolic link; to purge its target, set {key}={os.path.realpath(path)}"
            )


def _refuse_places(directory: int, where: str, root: Path) -> None:
    """Compare the folders themselves and not their paths: one folder can have several paths."""
    status = os.fstat(directory)
    for place, what in _protected(root):
        try:
            is_same = os.path.samestat(status, place.stat())
        except OSError:
            continue  # a missing folder cannot be the open one
        if is_same:
            raise RefusedError(f"{where}: is {what}; name the folder that holds the results")


def _protected(root: Path) -> Iterator[tuple[Path, str]]:
    homes = {os.environ.get("HOME", "")}
    with suppress(KeyError):  # in a container the user may have no entry
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    places = [(Path(home), "the home folder") for home in sorted(homes) if home.startswith("/")]
    for place, what in [(Path("/"), "the root of the file system"), *places, (root, "the checkout")]:
        yield place, what
        for above in dict.fromkeys([*place.parents, *Path(os.path.realpath(place)).parents]):
            yield above, f"a folder that {what} is in"


def _is_mount_point(path: Path) -> bool:
    """Look also in the kernel's list, proc(5): a bind mount of the same file system looks like any folder."""
    if path.is_mount():
        return True
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError:
        return False  # there is no /proc
    points = (re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), line.split()[4]) for line in lines)
    return os.fsencode(path) in points
