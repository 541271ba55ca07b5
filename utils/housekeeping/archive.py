"""Pack the results of OUTPUT_DIR into OUTPUT_DIR/output.zip, to be sent or kept.

    python -m utils.housekeeping.archive --platform cpu [KEY=VALUE ...]

In it are results (superseded ones and those of every label too), logs, comparisons, probes, plots, status.json, the two
lists of `utils/housekeeping/archive_manifest.py`, and nothing else: no data, no profile, no link, no file that
`utils/housekeeping/inventory.py` does not know as the suite's. The same files give the same bytes. A file that holds a
secret ends it before anything is written. `python -m evaluate.validate --bundle output.zip` checks it. Files are read
in pieces, whatever their size. Standard library only. Exits 0; 1 for a secret, or where the archive cannot be written;
2 for bad input or a folder that holds nothing to pack.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from utils import redact
from utils.errors import ConfigError
from utils.files import MODE, written_whole
from utils.housekeeping import archive_manifest, inventory
from utils.housekeeping.archive_manifest import Listed
from utils.housekeeping.footprint import open_file
from utils.housekeeping.inventory import ARCHIVE_COMMENT, Entry
from utils.housekeeping.layout import ARCHIVE, OUTPUT_LAYOUT
from utils.settings.config import PLATFORMS, ROOT, folders

PACKED = ("result", "log", "comparison", "status", "probe", "plot")
OLDEST_TIME = (1980, 1, 1, 0, 0, 0)
"""The first that a zip file can hold; a real one would make every archive of the same files another one."""
CHUNK_BYTES = 1 << 20
LONGEST_SECRET_BYTES = 4096
"""Of two pieces of a file, so much is looked at together."""
_PROGRESS_DELAY_SECONDS = 2


class ArchiveError(RuntimeError):
    """An archive that must not or cannot be written; the message names the file."""


def write(folder: Path, environ: Mapping[str, str]) -> tuple[Path, list[str]]:
    """Write the archive of OUTPUT_DIR, whole or not at all; return its path and the paths in it, the lists last.

    Raises ConfigError for a folder that is missing or holds nothing to pack, ArchiveError for one that holds an access
    token or an output.zip of somebody else, and OSError where the disk says no.
    """
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"OUTPUT_DIR={folder}: cannot be opened as a folder ({error.strerror})") from error
    try:
        total = len(_packed(directory, is_talking=True))
        if not total:
            raise ConfigError(f"OUTPUT_DIR={folder}: holds no result, log or comparison of the suite; train first")
        with written_whole(folder / ARCHIVE) as (temporary,):
            paths = _pack(directory, temporary, total, environ)
            _verify(temporary, paths)
            temporary.chmod(MODE)
    finally:
        os.close(directory)
    return folder / ARCHIVE, paths


def _packed(directory: int, *, is_talking: bool) -> list[str]:
    """Return the paths to pack; say what looks like one and is none."""
    paths = []
    for entry in inventory.entries(directory, OUTPUT_LAYOUT):
        if entry.kind == "archive" and entry.foreign:
            raise ArchiveError(f"{ARCHIVE}: {entry.foreign}; move it elsewhere, it would be replaced")
        if _is_packed(entry):
            paths.append(entry.path)
        elif entry.kind in PACKED and is_talking:
            print(f"left out {inventory.shown(entry.path)}: {entry.foreign}", file=sys.stderr)
    return paths


def _is_packed(entry: Entry) -> bool:
    return entry.kind in PACKED and entry.foreign is None


def _pack(directory: int, path: Path, total: int, environ: Mapping[str, str]) -> list[str]:
    files: dict[str, Listed] = {}
    told: list[str] = []
    progress = _Progress(total)
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = ARCHIVE_COMMENT
        for entry in inventory.entries(directory, OUTPUT_LAYOUT):
            if not _is_packed(entry):
                continue
            files[entry.path], has_secret = _add(archive, entry, environ)
            told += [entry.path] if has_secret else []
            progress.show(len(files))
        manifest = archive_manifest.write(files, ROOT)
        lists = {archive_manifest.MANIFEST: manifest, archive_manifest.SUMS: archive_manifest.sums(files, manifest)}
        for name, content in lists.items():
            archive.writestr(_member(name), content)
    progress.end()
    if told:
        raise ArchiveError(
            f"{', '.join(told)}: holds an access token; nothing was packed: revoke the token, then remove it from there"
        )
    return [*files, *lists]


def _add(archive: zipfile.ZipFile, entry: Entry, environ: Mapping[str, str]) -> tuple[Listed, bool]:
    """Pack a file piece by piece; return what the manifest says of it, and whether a secret is in it."""
    member = _member(entry.path)
    member.file_size = entry.status.st_size  # decides whether the header has room for more than 4 GiB
    digest, size, has_secret, before = sha256(), 0, False, b""
    with open_file(entry.directory, entry.name) as source, archive.open(member, "w") as target:
        while piece := source.read(CHUNK_BYTES):
            target.write(piece)
            digest.update(piece)
            size += len(piece)
            has_secret = has_secret or redact.holds_secret(before + piece, environ)
            before = piece[-LONGEST_SECRET_BYTES:]
    return Listed(size, digest.hexdigest()), has_secret


def _member(path: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(path, OLDEST_TIME)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.create_system = 3  # Unix, whose file mode follows
    member.external_attr = 0o100644 << 16
    return member


def _verify(path: Path, paths: Sequence[str]) -> None:
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        if damaged is not None or archive.namelist() != list(paths):
            raise ArchiveError(f"{path}: reads back damaged ({damaged or 'names'}); look at the disk and try again")


class _Progress:
    """A count on the terminal, once packing takes a while. Not tqdm: this must run where nothing is installed."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._started = time.monotonic()
        self._is_shown = False

    def show(self, done: int) -> None:
        if sys.stderr.isatty() and time.monotonic() > self._started + _PROGRESS_DELAY_SECONDS:
            self._is_shown = True
            print(f"\rpacking {done:,} of {self._total:,} files", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_shown:
            print(file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the archive of the configured OUTPUT_DIR."""
    parser = argparse.ArgumentParser(
        prog="python -m utils.housekeeping.archive",
        description=f"Pack results, logs, comparisons and status.json of all jobs and labels into {ARCHIVE} there.",
        epilog="Exits 0; 1: a file holds an access token, or the archive cannot be written; 2: bad input or nothing to "
        "pack.",
    )
    parser.add_argument("--platform", required=True, choices=PLATFORMS, help="whose config.<platform>.env counts")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args(argv)
    try:
        output_dir, _ = folders(options.platform, arguments=options.settings)
        path, paths = write(output_dir, os.environ)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ArchiveError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {len(paths):,} files, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
