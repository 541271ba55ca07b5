"""List the content of a folder that the suite writes into: which entries are the suite's, and why the others are not.

A file is the suite's if the suite writes its name at that place (`utils/housekeeping/layout.py`), it is a regular file,
and its content agrees: a result must match its name and its folder. Links are never followed, and no folder is entered
that has a marker of its own or is on another file system. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from utils.housekeeping.footprint import DATA, MARKER, FootprintError, open_file, read_file, read_marker
from utils.housekeeping.layout import Layout
from utils.results.schema import SCHEMA_VERSION
from utils.results.store import result_name

FOLDER = "folder"
ARCHIVE_COMMENT = b"tprimat 1"
STATUS_TITLE = "Training status"
"""Title of every status.html, a page of earlier versions, which is recognised by it."""
LARGEST_PAGE_BYTES = 1 << 24
LARGEST_JSON_BYTES = 1 << 28
"""A result of a million steps is smaller."""
_REQUIRED = {
    "comparison": ("comparison_version", int),
    "history": ("history_version", int),
    "probe": ("probe_version", int),
    "status": ("jobs", list),
}
"""Kinds of JSON files other than results, and the key by which each is recognised, with the type of its value."""
_BESIDE = {"comparison": "compare.json", "history": "history.json"}
"""Of files that are written together only the JSON can be checked."""
_IDENTITY = {"platform": str, "framework": str, "model": str, "run": int, "label": str, "identity_sha256": str}


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


def entries(directory: int, layout: Layout, path: str = "", label: str = "") -> Iterator[Entry]:
    """Yield everything in the open folder `directory`, sorted by path, a folder after its content.

    A folder that is not the suite's is one entry and is not entered. `path` ends with a slash or is empty; `label` is
    the label that results must have at this place.
    """
    files = {}
    folders = {}
    for name in names(directory):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed meanwhile
        if stat.S_ISDIR(status.st_mode):
            folders[name + "/"] = (name, status)
        else:
            kind = layout.kind_of(name)
            foreign = _why_foreign(directory, name, status.st_mode, kind, label)
            files[name] = Entry(path + name, directory, name, kind, status, foreign)
    for key in sorted([*files, *folders]):
        if key in files:
            yield files[key]
        else:
            yield from _folder(directory, *folders[key], layout.layout_of(folders[key][0]), path, label)


def names(directory: int) -> list[str]:
    """Return the names in an open folder, sorted."""
    return sorted(os.listdir(directory))


def shown(path: str) -> str:
    """Return a path on one line; unusual characters are escaped."""
    return path if path.isascii() and path.isprintable() else ascii(path)


def _folder(
    directory: int, name: str, status: os.stat_result, layout: Layout | None, path: str, label: str
) -> Iterator[Entry]:
    def entry(foreign: str | None) -> Entry:
        return Entry(path + name, directory, name, FOLDER if layout else None, status, foreign)

    if layout is None:
        yield entry("a folder that the suite does not make here")
        return
    try:
        inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        yield entry(f"cannot be opened ({error.strerror})")
        return
    try:
        foreign = _why_not_entered(directory, status, inside)
        if foreign is None:
            label = name if layout.is_named_by_user else label
            foreign = yield from _content(inside, layout, f"{path}{name}/", label)
        yield entry(foreign)
    finally:
        os.close(inside)


def _content(inside: int, layout: Layout, path: str, label: str) -> Generator[Entry, None, str | None]:
    """Yield the content of a folder; return why the folder itself is not the suite's, None if it is.

    A folder with a name of the user's is the suite's only if a result is in it; if not, only files with a name of ours
    are yielded.
    """
    if layout.is_named_by_user:
        found = list(entries(inside, layout, path, label))
        if not any(entry.foreign is None and entry.kind == "result" for entry in found):
            yield from (entry for entry in found if entry.foreign and entry.kind and not entry.is_folder)
            return "nothing in it is the suite's"
    yield from entries(inside, layout, path, label)
    return None


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


def _why_foreign(directory: int, name: str, mode: int, kind: str | None, label: str) -> str | None:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if not stat.S_ISREG(mode):
        return "no regular file"
    if kind is None:
        return "a name that the suite does not write here"
    try:
        if kind == "result":
            return _result_fault(_json(directory, name), name, label)
        if kind == "archive":
            return _archive_fault(directory, name)
        if kind == "status page":
            return None if _is_status_page(read_file(directory, name, LARGEST_PAGE_BYTES)) else "no page of ours"
        if kind in _REQUIRED:
            key, kind_of_value = _REQUIRED[kind]
            content = _json(directory, _BESIDE.get(kind, name))
            if not isinstance(content.get(key), kind_of_value):
                raise ValueError(f"{key} is missing")
    except (OSError, ValueError, RecursionError) as error:
        what = f"{_BESIDE[kind]} in this folder is " if kind in _BESIDE else ""
        return f"{what}damaged or not ours ({getattr(error, 'strerror', None) or error})"
    return None


def _json(directory: int, name: str) -> dict[str, Any]:
    content = json.loads(read_file(directory, name, LARGEST_JSON_BYTES))
    if not isinstance(content, dict):
        raise ValueError(f"{name} holds a JSON {type(content).__name__}")
    return content


def _result_fault(result: dict[str, Any], name: str, label: str) -> str | None:
    """Return why a result is not ours; any earlier schema is, and its other rules are not checked here."""
    version = result.get("schema_version")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        return f"no result of ours: schema_version is {version!r}"
    missing = [key for key, kind in _IDENTITY.items() if not isinstance(result.get(key), kind)]
    if missing:
        return f"no result of ours: {', '.join(missing)} missing"
    if result["label"] != label:
        return f"a result of label {result['label']!r}, which does not belong here"
    own = result_name(*(result[key] for key in ("platform", "framework", "model", "run")))
    if re.sub(r"_attempt[0-9]+\.json$", ".json", name) != own:
        return f"holds the result {own}"
    return None


def _archive_fault(directory: int, name: str) -> str | None:
    with open_file(directory, name) as file:
        return None if _has_our_end(file) else "a zip file of somebody else, or a damaged one"


def _is_status_page(content: bytes) -> bool:
    return content.startswith(b"<!DOCTYPE html>") and f"<title>{STATUS_TITLE}</title>".encode() in content


def is_archive(path: Path) -> bool:
    """Recognise an archive of the suite."""
    with path.open("rb") as file:
        return _has_our_end(file)


def _has_our_end(file: BinaryIO) -> bool:
    """Check the comment, at the end behind a record of 22 bytes. Source: PKWARE APPNOTE.TXT 6.3.10, 4.3.16."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - 22 - len(ARCHIVE_COMMENT)))
    end = file.read()
    return end.startswith(b"PK\5\6") and end.endswith(ARCHIVE_COMMENT)
