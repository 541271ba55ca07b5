"""An output.zip of `evaluate/wrap.py` from an untrusted source, checked against its own manifest.

No file is unpacked before its name and size are known to be harmless, and no large file is held in memory.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from utils.housekeeping.inventory import OUTPUT_LAYOUT
from utils.input_files import require_regular
from utils.own_files import LARGEST_BYTES
from utils.results.fields import OBJECT, Wanted, checked, is_digest, is_whole

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
MANIFEST_VERSION = 1
PACKED = ("result", "log", "comparison", "status", "status page", "probe", "plot", "sweep")
"""Kinds of files in an archive (utils/housekeeping/inventory.py)."""
CHUNK_BYTES = 1 << 20
"""Size of the pieces in which files are packed, and checked."""
MOST_FILES = 100_000
SMALL_BYTES = 1 << 30
"""Unpacked size up to which any compression ratio is accepted."""
LARGEST_RATIO = 100
"""Largest unpacked over packed size, above SMALL_BYTES. Logs reach about 10; a ratio of 1,000 is made on purpose."""
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)
"""Exceptions that zipfile raises for damaged, encrypted and unknown content."""


class BundleError(ValueError):
    """A file that is not an archive of shell/wrap.sh; the message names the file and the reason."""


class Listed(NamedTuple):
    """Entry of the manifest for one file."""

    bytes: int
    sha256: str
    """64 hex digits."""


@dataclass(frozen=True)
class Bundle:
    """An open archive whose names and sizes are harmless."""

    archive: zipfile.ZipFile
    manifest: dict[str, Any]
    listed: dict[str, Listed]
    kinds: dict[str, str]
    """Kind (utils/housekeeping/inventory.py) of each file that the suite can have written, without the two lists."""

    def of_kind(self, kind: str) -> list[str]:
        """Return the sorted paths of a kind."""
        return sorted(path for path, found in self.kinds.items() if found == kind)

    def extract(self, name: str, folder: Path) -> Path:
        """Write a file of the archive into `folder` under its base name; raise one of UNREADABLE if it is damaged."""
        path = folder / Path(name).name
        with self.archive.open(name) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)
        return path


@contextmanager
def opened(path: Path) -> Iterator[tuple[Bundle | None, list[str]]]:
    """Yield the archive and the faults of its names and sizes; None instead of the archive if there are such faults.

    Raises BundleError if the file is not a zip file or its manifest.json is missing or malformed.
    """
    try:
        require_regular(path)
        archive = zipfile.ZipFile(path)
    except (*UNREADABLE, ValueError) as error:
        raise BundleError(
            f"{path}: cannot be read as a zip file ({error}); wanted an output.zip of shell/wrap.sh"
        ) from error
    with archive:
        members = archive.infolist()
        # names first: nothing is read from an archive that could do harm
        if MANIFEST not in archive.namelist():
            raise BundleError(
                f"{path}: contains no {MANIFEST}; pack the results again with this version's shell/wrap.sh"
            )
        faults = [*_unsafe(members), *_too_large(members, path.stat().st_size)]
        if faults:
            yield None, faults
            return
        where = f"{path}: {MANIFEST}"
        try:
            manifest = json.loads(archive.read(MANIFEST))
        except (*UNREADABLE, ValueError) as error:
            raise BundleError(f"{where}: no manifest of ours ({error})") from error
        files = checked(manifest, f"{where}: no manifest of ours", BundleError, _KEYS)["files"]
        listed = {}
        for name, entry in files.items():
            listed[name] = Listed(**checked(entry, f"{where}: files: {name!r}", BundleError, _LISTED))
        kinds = {}
        for name in archive.namelist():
            kind = kind_of(name)
            if kind is not None:
                kinds[name] = kind
        yield Bundle(archive, manifest, listed, kinds), []


_KEYS = {
    "manifest_version": Wanted(
        lambda value: value == MANIFEST_VERSION, f"{MANIFEST_VERSION}; use the version of the suite that has packed it"
    ),
    "files": OBJECT,
}
_LISTED = {
    "bytes": Wanted(lambda value: is_whole(value, 0), "a whole number from 0"),
    "sha256": Wanted(is_digest, "64 hexadecimal digits"),
}


def kind_of(name: str) -> str | None:
    """Return the kind of a path in an archive; None for a path that shell/wrap.sh never packs."""
    *folders, file = name.split("/")
    layout = OUTPUT_LAYOUT
    for folder in folders:
        inner = layout.layout_of(folder)
        if inner is None:
            return None
        layout = inner
    kind = layout.kind_of(file)
    return kind if kind in PACKED else None


def disagreements(bundle: Bundle) -> Iterator[str]:
    """Yield each file that was changed, removed or added since the manifest was made."""
    present = [name for name in bundle.archive.namelist() if name not in (MANIFEST, SUMS)]
    for name in sorted({*present, *bundle.listed}):
        if name not in bundle.listed:
            yield f"{name}: is not in {MANIFEST}: it was added"
        elif name not in present:
            yield f"{name}: is in {MANIFEST} but not in the archive: it was removed"
        else:
            yield from _changed(bundle, name)
    yield from _sums(bundle)


def _changed(bundle: Bundle, name: str) -> Iterator[str]:
    digest, size = sha256(), 0
    try:
        with bundle.archive.open(name) as file:
            for piece in iter(partial(file.read, CHUNK_BYTES), b""):
                digest.update(piece)
                size += len(piece)
    except UNREADABLE as error:
        yield f"{name}: cannot be read ({error})"
        return
    wanted = bundle.listed[name]
    if (size, digest.hexdigest()) != wanted:
        yield (
            f"{name}: has {size:,} bytes and sha256 {digest.hexdigest()}, {MANIFEST} lists {wanted.bytes:,} and "
            f"{wanted.sha256}: it was changed"
        )


def _sums(bundle: Bundle) -> Iterator[str]:
    try:
        stored = bundle.archive.read(SUMS)
        wanted = sums(bundle.listed, bundle.archive.read(MANIFEST))
    except KeyError:
        yield f"{SUMS}: is missing"
    except UNREADABLE as error:
        yield f"{SUMS}: cannot be read ({error})"
    else:
        if stored != wanted:
            yield f"{SUMS}: disagrees with {MANIFEST}: one of them was changed"


def _unsafe(members: list[zipfile.ZipInfo]) -> list[str]:
    """Return the members that could be written outside the folder when unpacked, or that are ambiguous."""
    faults = []
    seen: set[str] = set()
    for member in members:
        name, kind = member.orig_filename, stat.S_IFMT(member.external_attr >> 16)
        # zipfile shortens a name at a NUL and translates the separators of the platform
        is_odd = name != member.filename or not name.isprintable() or re.search(r'[\\:*?"<>|]', name)
        why = None
        if is_odd:
            why = "characters that file systems interpret differently"
        elif not {"", ".", ".."}.isdisjoint(name.split("/")):
            why = "a path that may lead out of the folder of the archive"
        elif kind not in (0, stat.S_IFREG):
            # 0: packed on a system without such modes
            why = "not a regular file"
        elif member.flag_bits & 1:
            why = "encrypted"
        elif name.casefold() in seen:
            why = "a second file of this name"
        if why is not None:
            faults.append(f"{ascii(name)}: refused: {why}")
        # a second one would replace the first on file systems that ignore case
        seen.add(name.casefold())
    return faults


def _too_large(members: list[zipfile.ZipInfo], packed_bytes: int) -> Iterator[str]:
    unpacked = sum(member.file_size for member in members)
    if len(members) > MOST_FILES:
        yield f"{len(members):,} files: refused: more than {MOST_FILES:,}"
    # small archives of text reach high ratios without any harm
    if unpacked > SMALL_BYTES and unpacked > LARGEST_RATIO * packed_bytes:
        times = f"more than {LARGEST_RATIO} times, as in a zip bomb"
        yield f"{unpacked:,} bytes packed in {packed_bytes:,}: refused: {times}"
    for member in members:
        # logs are streamed
        if member.file_size > LARGEST_BYTES and not member.filename.startswith("logs/"):
            yield f"{member.filename}: refused: {member.file_size:,} bytes, more than any file of the suite"


def sums(files: Mapping[str, Listed], manifest: bytes) -> bytes:
    """Return SHA256SUMS of `files` and the manifest, in the form that GNU coreutils' sha256sum reads."""
    lines = [f"{files[path].sha256}  {path}\n" for path in sorted(files)]
    return "".join([*lines, f"{sha256(manifest).hexdigest()}  {MANIFEST}\n"]).encode()
