"""Remove what the suite has written into OUTPUT_DIR, with --with-data also into DATA_DIR, and nothing else.

    python -m utils.housekeeping.purge --platform cpu [--with-data] [--dry-run] [OUTPUT_DIR=...] [DATA_DIR=...]

What is the suite's is decided by `utils/housekeeping/inventory.py`, where it may be removed by
`utils/housekeeping/refusals.py`. A file with several
hard links goes like any other: what is removed is a name of ours, and the bytes stay under the other names. Standard
library only. Exits 0; 1 where something of ours could not be removed; 2 where nothing may be, before anything was.
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

from utils.errors import ConfigError
from utils.housekeeping import footprint, inventory, refusals
from utils.housekeeping.inventory import Entry
from utils.housekeeping.layout import DATA_LAYOUT, OUTPUT_LAYOUT, Layout
from utils.housekeeping.refusals import Guarded
from utils.settings.config import PLATFORMS, ROOT, folders

FOLDERS = ("OUTPUT_DIR", "DATA_DIR")
_LAST = ("marker", "lock")


@dataclass
class Tally:
    """What became of a folder's content."""

    is_dry_run: bool
    files: int = 0
    folders: int = 0
    bytes: int = 0
    """Sum of the sizes of the files; less comes free where one has other hard links."""
    left: list[tuple[str, str]] = field(default_factory=list)
    """Path and reason."""
    failures: int = 0
    """How many of these are the suite's."""

    @property
    def verb(self) -> str:
        """What is done to files of the suite."""
        return "would remove" if self.is_dry_run else "removed"

    def removed(self, path: str, size_bytes: int | None) -> None:
        """Count and name a file, or a folder where the size is None."""
        print(f"{self.verb} {inventory.shown(path)}{'/' if size_bytes is None else ''}")
        if size_bytes is None:
            self.folders += 1
        else:
            self.files, self.bytes = self.files + 1, self.bytes + size_bytes

    def keeps(self, folder: str) -> bool:
        """Whether something below `folder` (empty: anywhere) stays where it is."""
        return any(path.startswith(folder + "/" if folder else "") for path, _ in self.left)

    def failed(self, path: str, reason: str) -> None:
        """Note something of ours that stays."""
        self.left.append((path, reason))
        self.failures += 1


def purge(folder: Guarded, layout: Layout, gone: list[os.stat_result], *, is_dry_run: bool) -> Tally:
    """Remove what is the suite's below an open and locked folder, then the folder where nothing else is in it.

    `gone` are the folders that were purged before and whole: a dry run finds them still there.
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
    """Raise FootprintError where somebody is preparing data in the folder, under a lock of data/encode.py."""
    for entry in inventory.entries(folder.directory, layout):
        if entry.kind == "data lock" and entry.foreign is None:
            with footprint.open_file(entry.directory, entry.name) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise footprint.FootprintError(
                        f"{folder.path}/{entry.path}: data are being prepared there; wait for it to end"
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
    """The marker goes last and only with the folder: while it is there, the rest can be purged another time."""
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
    left = f", left {len(tally.left):,}" if tally.left else ""
    print(
        f"{folder.path}: {tally.verb} {tally.files:,} files ({tally.bytes:,} bytes) and {tally.folders:,} folders{left}"
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m utils.housekeeping.purge",
        description="Remove what the suite has written: results of all jobs and labels, logs, comparisons, archive.",
        epilog="All else in these folders is left and named. Exits 0; 1: something could not be removed; 2: refused.",
    )
    parser.add_argument("--platform", required=True, choices=PLATFORMS, help="whose config.<platform>.env counts")
    parser.add_argument("--with-data", action="store_true", help="remove prepared data too, from DATA_DIR")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help=" or ".join(FOLDERS))
    return parser.parse_intermixed_args(argv)


def _check(settings: Sequence[str]) -> None:
    """`MODEL=llama` reads like a choice of what to remove, which it would not be."""
    for setting in settings:
        if setting.partition("=")[0] not in FOLDERS:
            raise ConfigError(
                f"{setting}: everything that the suite has written goes, of all jobs and labels; "
                f"leave it out (allowed here: {', '.join(FOLDERS)})"
            )


def _purge_all(output_dir: Path, data_dir: Path | None, *, is_dry_run: bool) -> int:
    """Purge the folders and return how much could not be; nothing is touched before all are known to be fit for it."""
    opened = []
    with ExitStack() as stack:
        for key, path, layout in _named(output_dir, data_dir):
            folder = refusals.open_guarded(stack, path, key, ROOT)
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
    """Setting, path and layout of each folder to purge; one that lies in the other comes first."""
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
        print("error: interrupted; what is named above is gone", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
