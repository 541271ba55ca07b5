"""List the content of a folder that the suite writes into: which entries are the suite's, and why the others are not.

A file is the suite's if the suite writes its name at that place (`utils/housekeeping/layout.py`), it is a regular file,
and it is on the list of written files (`utils/written.py`). To be removed it must also be unchanged since. To be packed
its own content may stand for the list: results that were copied here are packed. In a folder without a list content
decides, as far as it can. Links are never followed, and no folder is entered that has a marker of its own or is on
another file system. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from utils.housekeeping.footprint import DATA, FootprintError, open_file, read_file, read_marker
from utils.housekeeping.layout import MARKS, Layout
from utils.own_files import LARGEST_BYTES, PNG_CHUNK
from utils.results import raw_samples
from utils.results.store import SUPERSEDED, result_name
from utils.written import MARKER, State

FOLDER = "folder"
IDENTITY = ("platform", "framework", "model", "run")
ARCHIVE_COMMENT = b"tprimat 1"
OnList = Mapping[str, State | None] | None
"""The list of written files, with the folders above them (`utils.written.parsed`); None if there is no list."""
ON_LIST = "on the list of files that the suite wrote here"
_KEYS = {
    "result": {"schema_version", "identity_sha256", "label"},
    "comparison": {"comparison_version"},
    "history": {"history_version"},
    "probe": {"probe_version"},
    "status": {"schema_version", "jobs"},
    "status page": {"schema_version", "jobs"},
    "sweep": {"sweep_version", "points"},
    "text": {"tokens", "bin_sha256", "idx_sha256"},
}
"""Keys of the JSON of a kind, by which a file is recognised where there is no list."""
_BESIDE = {
    "comparison": "compare.json",
    "history": "history.json",
    "status page": "status.json",
    "text": "text.json",
}
"""Files that are written together with others are recognised by the JSON among them."""


_OF_A_LOG = (
    rb"(?m)^" + raw_samples.PREFIX.encode() + rb"|iteration +\d+/ *\d+ \|",
    rb"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ",
)
"""In the log of a job, which may be that of Primus, and at the beginning of that of a matrix."""


@dataclass(frozen=True)
class Entry:
    """One file or folder below a folder of the suite."""

    path: str
    """Relative to that folder; it may hold any character that a file name can."""
    directory: int
    """Descriptor of its parent folder, open until the next entry is taken."""
    name: str
    kind: str | None
    """FOLDER, a kind of `Layout.files`, or None if the suite does not write it."""
    status: os.stat_result
    foreign: str | None
    """Reason why it is not the suite's; None if it is."""

    @property
    def is_folder(self) -> bool:
        """True for a folder of the suite; it comes after its content."""
        return self.kind == FOLDER

    def is_unchanged(self) -> bool:
        """Check that the name still belongs to the same file or folder."""
        try:
            now = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(now, self.status)


def entries(
    directory: int, layout: Layout, listed: OnList, path: str = "", *, is_strict: bool = True
) -> Iterator[Entry]:
    """Yield everything in the open folder `directory`, sorted by path, a folder after its content.

    A folder that is not the suite's is one entry and is not entered. `path` ends with a slash or is empty. Unless
    `is_strict`, a file may have changed since the suite wrote it, or be recognised by its content alone.
    """
    found = []
    for name in names(directory):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed meanwhile
        found.append((name + "/" * stat.S_ISDIR(status.st_mode), name, status))
    for key, name, status in sorted(found, key=lambda one: one[0]):
        if key != name:
            yield from _folder(directory, name, status, layout.layout_of(name), listed, path, is_strict)
        else:
            kind = layout.kind_of(name)
            foreign = _why_foreign(directory, path + name, status, kind, listed, is_strict)
            yield Entry(path + name, directory, name, kind, status, foreign)


def names(directory: int) -> list[str]:
    """Return the names in an open folder, sorted."""
    return sorted(os.listdir(directory))


def shown(path: str) -> str:
    """Return a path on one line; unusual characters are escaped."""
    return path if path.isascii() and path.isprintable() else ascii(path)


def _folder(
    directory: int,
    name: str,
    status: os.stat_result,
    layout: Layout | None,
    listed: OnList,
    path: str,
    is_strict: bool,
) -> Iterator[Entry]:
    foreign: str | None = "a folder that the suite does not make here"
    with ExitStack() as stack, suppress(OSError):
        if layout is not None:
            foreign = "cannot be opened"
            inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            stack.callback(os.close, inside)
            content = partial(entries, inside, layout, listed, f"{path}{name}/", is_strict=is_strict)
            foreign = _why_not_entered(directory, status, inside)
            if foreign is None and listed is not None and is_strict and path + name not in listed:
                foreign = f"nothing in it is {ON_LIST}"
            elif foreign is None and layout.is_named_by_user and not (listed and path + name in listed):
                kinds = {entry.kind for entry in content() if entry.foreign is None}
                foreign = None if "result" in kinds else "nothing in it is the suite's"
            if foreign is None:
                yield from content()
    yield Entry(path + name, directory, name, FOLDER if layout else None, status, foreign)


def _why_not_entered(directory: int, status: os.stat_result, inside: int) -> str | None:
    if not os.path.samestat(status, os.fstat(inside)):
        return "changed while this ran"
    if status.st_dev != os.fstat(directory).st_dev:
        return "another file system is mounted there"
    if not os.access(".", os.X_OK, dir_fd=inside):
        return "cannot be searched (Permission denied)"
    if MARKER not in names(inside):
        return None
    try:
        is_data = read_marker(inside, "") == DATA
    except FootprintError:
        return f"has a {MARKER} file that is damaged or not ours"
    return "prepared data, for --with-data" if is_data else "an OUTPUT_DIR of its own"


def _why_foreign(
    directory: int, path: str, status: os.stat_result, kind: str | None, listed: OnList, is_strict: bool
) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    if kind is None:
        return "a name that the suite does not write here"
    state = None if listed is None else listed.get(path)
    if kind in (*MARKS, "temporary") or (state is not None and (not is_strict or state.fits(status))):
        return None
    if listed is not None and is_strict:
        return "changed since the suite wrote it" if state else f"not {ON_LIST}"
    try:
        return _why_unlike(directory, path, kind, is_alone=listed is not None)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        return f"damaged or not the suite's ({getattr(error, 'strerror', None) or error})"


def _why_unlike(directory: int, path: str, kind: str, *, is_alone: bool) -> str | None:
    """Return why the content of a file is not like that of the suite's file of this name; None if it is.

    A file that `is_alone` must show it itself: a JSON beside it, or its name, is not enough.
    """
    folder, _, name = path.rpartition("/")
    if kind == "archive":
        with open_file(directory, name) as file:
            return None if _has_our_end(file) else "a zip file of somebody else, or a damaged one"
    told = name if is_alone or name.endswith((".png", ".env")) else _BESIDE.get(kind, name)
    if told.endswith(".json") and kind in _KEYS:
        content = json.loads(read_file(directory, told, LARGEST_BYTES))
        if not isinstance(content, dict) or not _KEYS[kind] <= content.keys():
            return f"{told} is not the suite's"
        if kind == "result" and content["label"] != folder.removesuffix(SUPERSEDED).rstrip("/"):
            return f"a result of label {content['label']!r}, which does not belong here"
        own = result_name(*(content.get(key) for key in IDENTITY))  # type: ignore[arg-type]
        if kind == "result" and re.sub(r"_attempt[0-9]+\.json$", ".json", name) != own:
            return f"holds the result {own}"
    elif told.endswith((".png", ".env")) or is_alone:
        mark = PNG_CHUNK if name.endswith(".png") else _OF_A_LOG[name == "matrix.log"] if kind == "log" else None
        if mark is None or not re.search(mark, read_file(directory, name, LARGEST_BYTES)):
            return "nothing in it shows that the suite wrote it"
    return None


def is_archive(path: Path) -> bool:
    """Recognise an archive of the suite."""
    with path.open("rb") as file:
        return _has_our_end(file)


def _has_our_end(file: BinaryIO) -> bool:
    """Check the comment, at the end behind a record of 22 bytes. Source: PKWARE APPNOTE.TXT 6.3.10, 4.3.16."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - 22 - len(ARCHIVE_COMMENT)))
    end = file.read()
    return end.startswith(b"PK\5\6") and end.endswith(ARCHIVE_COMMENT)
