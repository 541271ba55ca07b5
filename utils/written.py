"""The list of the files that the suite has written into a marked folder: purge removes and wrap packs no others.

A line of JSON is added to `.tprimat_files` beside the marker whenever a file gets its name: its path in the folder,
inode, size and modification time. The last line about a path counts. A file that was replaced or edited since differs
from its line and belongs to the user, as does a file without a line: a line that is lost leaves a file in place and
never removes one. Writers in `utils/files.py` call `note`; others call it themselves. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

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
        return (
            self.inode == status.st_ino
            and self.bytes in (None, status.st_size)
            and self.modified_ns in (None, status.st_mtime_ns)
        )


def note(*paths: Path, grows: bool = False) -> None:
    """Add files and folders to the list of the marked folder around them; without such a folder, do nothing.

    A file that `grows` may change until it is noted again. A list that cannot be written is no error.
    """
    lines: dict[Path, str] = {}
    for path in map(Path.absolute, paths):
        folder = next((above for above in path.parents if (above / MARKER).is_file()), None)
        with suppress(OSError):
            status = path.lstat()
            if folder is not None and path.name != MARKER and not stat.S_ISLNK(status.st_mode):
                is_whole = stat.S_ISREG(status.st_mode) and not grows
                state = State(status.st_ino, *((status.st_size, status.st_mtime_ns) if is_whole else ()))
                line = json.dumps({"path": str(path.relative_to(folder)), **state._asdict()})
                lines[folder] = lines.get(folder, "") + f"\n{line}"  # before it, should the last line be cut off
    for folder, text in lines.items():
        with suppress(OSError):
            descriptor = os.open(folder / LIST, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(text.encode())


def note_trees(*paths: Path) -> None:
    """Note files, and folders with everything in them that no other program changes any more."""
    note(*(found for path in paths for found in (path, *(path.rglob("*") if path.is_dir() else ()))))


def parsed(content: bytes) -> dict[str, State | None]:
    """Return the state of each path in a list, and None for each folder above one; damaged lines are left out."""
    found: dict[str, State | None] = {}
    for line in content.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            found[str(entry["path"])] = State(*(entry[key] for key in State._fields))
    above = {str(folder) for path in found for folder in PurePosixPath(path).parents}
    return dict.fromkeys(above) | found
