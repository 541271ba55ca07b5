"""Open a folder for purge, and refuse every folder that could be named by a typing error.

The folder is opened once, from the root down and without following a link. Everything later goes through its
descriptor, so replacing a folder of the path by a link afterwards cannot lead purge elsewhere. Standard library only,
Linux only.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from utils.errors import ConfigError
from utils.housekeeping.footprint import read_marker

MOUNTS = Path("/proc/self/mountinfo")


class RefusedError(ConfigError):
    """Nothing may be removed from the folder; the message states why."""


@dataclass(frozen=True)
class Guarded:
    """An open folder that the suite has marked, and its parent."""

    path: Path
    directory: int
    parent: int


def open_guarded(stack: ExitStack, path: Path, key: str, root: Path) -> Guarded | None:
    """Open the absolute `path` of the setting `key`, to be closed with `stack`; return None if it does not exist.

    Raises RefusedError for `/`, the home folder, the checkout `root` and every folder above them, a mount point,
    anything but a folder, and a path with a symbolic link in it; FootprintError for a folder without our marker.
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
