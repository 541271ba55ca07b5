"""Recognition of files that the suite wrote: by their content, and by the list kept at writing. Standard library only.

Only a file whose content is recognised may be replaced. A recogniser takes a path and returns True if the file there
was written by the suite. An error of its reading and looking into the file has the meaning of False. A format has its
recogniser beside its writer; this file has what several of them need.

Purge removes only unchanged files on the list, which is that of the nearest marked folder above a file. Wrap packs
files on it, and those that it recognises by their content. A line of JSON is added to `.tprimat_files` beside the
marker whenever a file gets its name: its path in the folder, inode, size and modification time. The last line about a
path counts. A file that was replaced or edited since differs from its line and belongs to the user, as does a file
without a line: a line that is lost leaves a file in place and never removes one. Writers in `utils/files.py` call
`note`; others call it themselves.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

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
        # lexists: a link to nothing is in the way too
        if os.path.lexists(path) and not _is_recognised(path, is_ours, is_folder):
            raise ForeignFileError(
                f"{path}: exists, and this suite has not written it; name another output, or remove it"
            )


def require_apart(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Raise UnusableError if a file to be written is also one that is read, under any name: a link, another path."""
    sources = {key: path for path in read for key in _keys(path)}
    for output in written:
        for key in _keys(output):
            if key in sources:
                raise UnusableError(
                    f"{output}: would be written, and is also an input ({sources[key]}); name another output"
                )


def _is_recognised(path: Path, is_ours: Recogniser, is_folder: bool) -> bool:
    try:
        mode = path.stat().st_mode
        is_of_kind = stat.S_ISDIR(mode) if is_folder else stat.S_ISREG(mode)
        return is_of_kind and is_ours(path)
    # a file that cannot be understood is not ours: it stays
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return False


def _keys(path: Path) -> list[object]:
    """Return what identifies a file: its resolved path and, if it exists, device and inode."""
    try:
        status = path.stat()
    except OSError:
        return [os.path.realpath(path)]
    # two hard links have different paths
    return [os.path.realpath(path), (status.st_dev, status.st_ino)]


MARKER = ".tprimat"
LIST = ".tprimat_files"


class State(NamedTuple):
    """Identity of a file as it was written."""

    inode: int
    bytes: int | None = None
    """None for a folder, and for a file that its writer has not finished."""
    modified_ns: int | None = None

    def fits(self, status: os.stat_result) -> bool:
        """Check that a file is still as it was written."""
        if self.inode != status.st_ino or self.bytes not in (None, status.st_size):
            return False
        return self.modified_ns in (None, status.st_mtime_ns)


def note(*paths: Path, grows: bool = False) -> None:
    """Add files and folders to the list of the marked folder around them; without such a folder, do nothing.

    A file that `grows` may change until it is noted again. A list that cannot be written is no error.
    """
    lines: dict[Path, str] = {}
    for path in paths:
        path = path.absolute()
        folder = next((above for above in path.parents if (above / MARKER).is_file()), None)
        if folder is None or path.name == MARKER:
            continue
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                continue
            state = State(status.st_ino)
            if stat.S_ISREG(status.st_mode) and not grows:
                state = State(status.st_ino, status.st_size, status.st_mtime_ns)
            line = json.dumps({"path": str(path.relative_to(folder)), **state._asdict()})
            # the line feed comes first, because the last line of a list may be cut off
            lines[folder] = lines.get(folder, "") + f"\n{line}"
    for folder, text in lines.items():
        with suppress(OSError):
            # one write in append mode: processes that add to the list at the same time do not mix their lines
            descriptor = os.open(folder / LIST, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(text.encode())


def note_trees(*paths: Path) -> None:
    """Note files, and folders with everything in them that no other program changes any more."""
    written: list[Path] = []
    for path in paths:
        written.append(path)
        if path.is_dir():
            written += path.rglob("*")
    note(*written)


def parsed(content: bytes) -> dict[str, State | None]:
    """Return the state of each path in a list, and None for each folder above one; damaged lines are left out."""
    states: dict[str, State | None] = {}
    for line in content.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            states[str(entry["path"])] = State(entry["inode"], entry["bytes"], entry["modified_ns"])
    for path in list(states):
        for folder in PurePosixPath(path).parents:
            states.setdefault(str(folder), None)
    return states
