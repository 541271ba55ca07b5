"""An output.zip that somebody sent: opened with distrust, and held against its own manifest.

Nothing is unpacked before its name and size are known to be harmless, and nothing is held in memory that may be large.
"""

from __future__ import annotations

import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from utils.housekeeping import archive_manifest
from utils.housekeeping.archive import PACKED
from utils.housekeeping.archive_manifest import MANIFEST, SUMS, Listed
from utils.housekeeping.inventory import LARGEST_JSON_BYTES
from utils.housekeeping.layout import OUTPUT_LAYOUT

CHUNK_BYTES = 1 << 20
MOST_FILES = 100_000
SMALL_BYTES = 1 << 30
LARGEST_RATIO = 100
"""Unpacked over packed, beyond SMALL_BYTES. Logs are packed some 10 times; what is packed 1,000 times is made to be."""
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)
"""What zipfile raises for damaged, encrypted and unknown content."""


class BundleError(ValueError):
    """A file that is no archive of ours; the message names it and says why."""


@dataclass(frozen=True)
class Bundle:
    """An open archive whose names and sizes are harmless."""

    path: Path
    archive: zipfile.ZipFile
    manifest: dict[str, Any]
    listed: dict[str, Listed]
    kinds: dict[str, str]
    """Kind (utils/housekeeping/layout.py) of every file that the suite may have written; the two lists are not among
    them.
    """

    def of_kind(self, kind: str) -> list[str]:
        """Return the paths of a kind, sorted."""
        return sorted(path for path, found in self.kinds.items() if found == kind)

    def extract(self, name: str, folder: Path) -> Path:
        """Write a file of the archive into `folder` under its last name; raise one of UNREADABLE for a damaged one."""
        path = folder / Path(name).name
        with self.archive.open(name) as source, path.open("wb") as target:
            while piece := source.read(CHUNK_BYTES):
                target.write(piece)
        return path


@contextmanager
def opened(path: Path) -> Iterator[tuple[Bundle | None, list[str]]]:
    """Yield the archive and what is wrong with names and sizes in it; None for it where it had better not be read.

    Raises BundleError for what is no zip file, holds no manifest.json, or one that is none.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (*UNREADABLE, ValueError) as error:
        raise BundleError(
            f"{path}: no zip file that can be read ({error}); wanted an output.zip of shell/wrap.sh"
        ) from error
    with archive:
        members = archive.infolist()
        if MANIFEST not in archive.namelist():
            raise BundleError(f"{path}: holds no {MANIFEST}; pack the results again with this version's shell/wrap.sh")
        faults = [*_unsafe(members), *_too_large(members, path.stat().st_size)]
        if faults:
            yield None, faults
            return
        try:
            manifest, listed = archive_manifest.read(archive.read(MANIFEST))
        except (archive_manifest.ManifestError, *UNREADABLE) as error:
            raise BundleError(f"{path}: {MANIFEST}: {error}") from error
        kinds = {name: kind for name in archive.namelist() if (kind := kind_of(name))}
        yield Bundle(path, archive, manifest, listed, kinds), []


def kind_of(name: str) -> str | None:
    """Return the kind of a path in an archive, None for one that shell/wrap.sh does not pack."""
    *folders, file = name.split("/")
    layout = OUTPUT_LAYOUT
    for folder in folders:
        inside = layout.layout_of(folder)
        if inside is None:
            return None
        layout = inside
    kind = layout.kind_of(file)
    return kind if kind in PACKED else None


def disagreements(bundle: Bundle) -> Iterator[str]:
    """Yield what is not as the manifest lists it: a file changed, missing, added, or one that the suite never packs."""
    there = [name for name in bundle.archive.namelist() if name not in (MANIFEST, SUMS)]
    for name in sorted({*there, *bundle.listed}):
        if name not in bundle.listed:
            yield f"{name}: is not in {MANIFEST}: it was added"
        elif name not in there:
            yield f"{name}: is in {MANIFEST} and not in the archive: it was taken out"
        else:
            yield from _changed(bundle, name)
        if name in there and name not in bundle.kinds:
            yield f"{name}: the suite packs no file of this name"
    yield from _sums(bundle)


def _changed(bundle: Bundle, name: str) -> Iterator[str]:
    digest, size = sha256(), 0
    try:
        with bundle.archive.open(name) as file:
            while piece := file.read(CHUNK_BYTES):
                digest.update(piece)
                size += len(piece)
    except UNREADABLE as error:
        yield f"{name}: cannot be read ({error})"
        return
    wanted = bundle.listed[name]
    if (size, digest.hexdigest()) != wanted:
        yield (
            f"{name}: has {size:,} bytes and sha256 {digest.hexdigest()}, {MANIFEST} says {wanted.bytes:,} and "
            f"{wanted.sha256}: it was changed"
        )


def _sums(bundle: Bundle) -> Iterator[str]:
    try:
        said = bundle.archive.read(SUMS)
        wanted = archive_manifest.sums(bundle.listed, bundle.archive.read(MANIFEST))
    except KeyError:
        yield f"{SUMS}: is missing"
    except UNREADABLE as error:
        yield f"{SUMS}: cannot be read ({error})"
    else:
        if said != wanted:
            yield f"{SUMS}: does not say what {MANIFEST} says: one of them was changed"


def _unsafe(members: list[zipfile.ZipInfo]) -> list[str]:
    """Return what could write somewhere else when it is unpacked, or be read as two things."""
    faults = []
    seen: set[str] = set()
    for member in members:
        name, kind = member.orig_filename, stat.S_IFMT(member.external_attr >> 16)
        why = None
        if name != member.filename or not name.isprintable() or re.search(r'[\\:*?"<>|]', name):
            why = "characters that file systems read differently"
        elif name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
            why = "a path that may lead out of the folder that it is unpacked in"
        elif kind not in (0, stat.S_IFREG):
            why = "no regular file"
        elif member.flag_bits & 1:
            why = "encrypted"
        elif name.casefold() in seen:
            why = "stands there twice"
        seen.add(name.casefold())
        if why:
            faults.append(f"{ascii(name)}: refused: {why}")
    return faults


def _too_large(members: list[zipfile.ZipInfo], packed_bytes: int) -> list[str]:
    faults = []
    unpacked = sum(member.file_size for member in members)
    if len(members) > MOST_FILES:
        faults.append(f"{len(members):,} files: refused: more than {MOST_FILES:,}")
    if sum(member.compress_size for member in members) > packed_bytes:
        faults.append(f"{packed_bytes:,} bytes: refused: its files overlap, as in an archive made to fill a disk")
    if unpacked > SMALL_BYTES and unpacked > LARGEST_RATIO * packed_bytes:
        faults.append(
            f"{unpacked:,} bytes packed in {packed_bytes:,}: refused: more than {LARGEST_RATIO} times, as in "
            "one made to fill a disk"
        )
    for member in members:
        if member.file_size > LARGEST_JSON_BYTES and not member.filename.startswith("logs/"):  # which are streamed
            faults.append(f"{member.filename}: refused: {member.file_size:,} bytes, more than any of ours")
    return faults
