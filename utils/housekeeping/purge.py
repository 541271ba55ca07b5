"""Remove what the suite has written into OUTPUT_DIR, with --with-data also into DATA_DIR, and nothing else.

    python -m utils.housekeeping.purge --platform cpu [--with-data] [--dry-run] [OUTPUT_DIR=...] [DATA_DIR=...]

`utils/housekeeping/inventory.py` decides which files are the suite's, `utils/housekeeping/footprint.py` from which
folders they may be removed. Of a file with several hard links only the name in the folder is removed. Standard library
only. Exits 0; 1 if a file of the suite could not be removed; 2 if the folder is refused, with nothing removed.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import signal
import stat
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from utils.arguments import Parser, run
from utils.errors import ConfigError
from utils.housekeeping import footprint, inventory
from utils.housekeeping.footprint import Guarded
from utils.housekeeping.inventory import Entry
from utils.housekeeping.layout import DATA_LAYOUT, OUTPUT_LAYOUT, Layout
from utils.settings.config import PLATFORMS, ROOT, folders

FOLDERS = ("OUTPUT_DIR", "DATA_DIR")
_LAST = ("marker", "lock")


@dataclass
class Tally:
    """Counts of what was removed from a folder, and what was left in it."""

    is_dry_run: bool
    files: int = 0
    folders: int = 0
    bytes: int = 0
    """Sum of the file sizes; less space is freed if a file has other hard links."""
    left: list[tuple[str, str]] = field(default_factory=list)
    """Path and reason."""
    failures: int = 0
    """Number of entries of `left` that are the suite's."""

    @property
    def verb(self) -> str:
        """Verb of the report, for a dry run or a real one."""
        return "would remove" if self.is_dry_run else "removed"

    def removed(self, path: str, size_bytes: int | None) -> None:
        """Count and print a file, or a folder if the size is None."""
        print(f"{self.verb} {inventory.shown(path)}{'/' if size_bytes is None else ''}")
        if size_bytes is None:
            self.folders += 1
        else:
            self.files, self.bytes = self.files + 1, self.bytes + size_bytes

    def keeps(self, folder: str) -> bool:
        """Return True if something below `folder` (empty: anywhere) is left."""
        return any(path.startswith(folder + "/" if folder else "") for path, _ in self.left)

    def failed(self, path: str, reason: str) -> None:
        """Record something of the suite that could not be removed."""
        self.left.append((path, reason))
        self.failures += 1


def purge(folder: Guarded, layout: Layout, gone: list[os.stat_result], *, is_dry_run: bool) -> Tally:
    """Remove the suite's files below an open and locked folder, then the folder itself if nothing else is in it.

    `gone` lists the folders that were removed completely before: a dry run still finds them.
    """
    tally = Tally(is_dry_run)
    for entry in inventory.entries(folder.directory, layout):
        if any(os.path.samestat(entry.status, purged) for purged in gone):
            continue
        if entry.foreign is not None:
            tally.left.append((entry.path + ("/" if stat.S_ISDIR(entry.status.st_mode) else ""), entry.foreign))
        elif entry.kind not in _LAST and not (entry.is_folder and tally.keeps(entry.path)):
            _remove(entry, tally)
    _finish(folder, tally, gone)
    return tally


def refuse_in_use(folder: Guarded, layout: Layout) -> None:
    """Raise FootprintError if data are being prepared in the folder, which data/encoding/pair.py locks meanwhile."""
    for entry in inventory.entries(folder.directory, layout):
        if entry.kind == "data lock" and entry.foreign is None:
            with footprint.open_file(entry.directory, entry.name) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise footprint.FootprintError(
                        f"{folder.path}/{entry.path}: data are being prepared there; wait for that to end"
                    ) from error


def _remove(entry: Entry, tally: Tally) -> None:
    try:
        if not entry.is_unchanged():
            tally.failed(entry.path, "changed while this ran")
            return
        if not tally.is_dry_run:
            (os.rmdir if entry.is_folder else os.unlink)(entry.name, dir_fd=entry.directory)
    except OSError as error:
        tally.failed(entry.path, f"could not be removed ({error.strerror})")
    else:
        tally.removed(entry.path, None if entry.is_folder else entry.status.st_size)


def _finish(folder: Guarded, tally: Tally, gone: list[os.stat_result]) -> None:
    """Remove the lock, and the marker with the folder: while the marker is there, purge can be run again."""
    status = os.fstat(folder.directory)
    try:
        if not tally.is_dry_run:
            os.unlink(footprint.LOCK, dir_fd=folder.directory)
        if tally.keeps(""):
            tally.left.append((footprint.MARKER, "marks the folder as the suite's while anything else is in it"))
            return
        if not tally.is_dry_run:
            _remove_emptied(folder, status)
    except OSError as error:
        tally.failed(".", f"could not be removed ({error.strerror})")
    else:
        gone.append(status)
        tally.removed(".", None)


def _remove_emptied(folder: Guarded, status: os.stat_result) -> None:
    if inventory.names(folder.directory) != [footprint.MARKER] or not os.path.samestat(
        status, os.stat(folder.path.name, dir_fd=folder.parent, follow_symlinks=False)
    ):
        raise OSError(errno.EBUSY, "changed while this ran")
    os.unlink(footprint.MARKER, dir_fd=folder.directory)
    os.rmdir(folder.path.name, dir_fd=folder.parent)


def _report(folder: Guarded, tally: Tally) -> None:
    for path, reason in tally.left:
        print(f"left {inventory.shown(path)}: {reason}")
    files, folders = _counted(tally.files, "file"), _counted(tally.folders, "folder")
    left = f", left {len(tally.left):,}" if tally.left else ""
    print(f"{folder.path}: {tally.verb} {files} ({tally.bytes:,} bytes) and {folders}{left}")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m utils.housekeeping.purge",
        description="Remove all that the suite wrote: results of all jobs and labels, logs, comparisons, archive.",
        epilog="Everything else in these folders is left and listed. Exits 0 on success; 1 if a file could not be "
        "removed; 2 if the folder is refused.",
    )
    parser.add_argument(
        "--platform", required=True, choices=PLATFORMS, help="read config.<platform>.env of this platform"
    )
    parser.add_argument("--with-data", action="store_true", help="also remove prepared data from DATA_DIR")
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed; remove nothing")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help=" or ".join(FOLDERS))
    return parser.parse_intermixed_args(argv)


def _check(settings: Sequence[str]) -> None:
    """Refuse settings that look like a choice of files: `MODEL=llama` would not limit what is removed."""
    for setting in settings:
        if setting.partition("=")[0] not in FOLDERS:
            raise ConfigError(
                f"{setting}: files of all jobs and labels are removed; leave this setting out "
                f"(allowed here: {', '.join(FOLDERS)})"
            )


def _purge_all(output_dir: Path, data_dir: Path | None, *, is_dry_run: bool) -> int:
    """Purge the folders and return the number of failures; nothing is removed before all folders are accepted."""
    opened = []
    with ExitStack() as stack:
        for key, path, layout in _named(output_dir, data_dir):
            folder = footprint.open_guarded(stack, path, key, ROOT)
            if folder is None:
                print(f"{key}={path}: does not exist; nothing to do")
                continue
            if layout is not OUTPUT_LAYOUT:
                refuse_in_use(folder, layout)
            opened.append((folder, layout))
        for folder, _ in opened:
            stack.enter_context(footprint.locked(folder.directory, str(folder.path), create=not is_dry_run))
        gone: list[os.stat_result] = []
        failures = 0
        for folder, layout in opened:
            tally = purge(folder, layout, gone, is_dry_run=is_dry_run)
            _report(folder, tally)
            failures += tally.failures
    return failures


def _named(output_dir: Path, data_dir: Path | None) -> list[tuple[str, Path, Layout]]:
    """Return setting, path and layout of each folder to purge; a folder inside the other comes first."""
    output, data = OUTPUT_LAYOUT, DATA_LAYOUT
    if data_dir is None:
        return [("OUTPUT_DIR", output_dir, output)]
    if os.path.realpath(data_dir) == os.path.realpath(output_dir):
        return [("OUTPUT_DIR", output_dir, Layout(data.files + output.files, data.folders + output.folders))]
    named = [("OUTPUT_DIR", output_dir, output), ("DATA_DIR", data_dir, data)]
    return sorted(named, key=lambda folder: -len(Path(os.path.normpath(folder[1])).parts))


def main(argv: Sequence[str] | None = None) -> int:
    """Purge the configured folders."""
    options = _arguments(argv)
    try:
        output_dir, data_dir = folders(options.platform, arguments=options.settings)
        _check(options.settings)
        failures = _purge_all(output_dir, data_dir if options.with_data else None, is_dry_run=options.dry_run)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; the files listed above are removed", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(run(main))
