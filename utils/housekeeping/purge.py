"""Remove what the suite has written into OUTPUT_DIR, with --with-data also into DATA_DIR, and nothing else.

    python -m utils.housekeeping.purge --platform cpu [--with-data] [--dry-run | --adopt] [OUTPUT_DIR=...]

`utils/housekeeping/inventory.py` decides which files are the suite's, `utils/housekeeping/footprint.py` from which
folders they may be removed. A folder of a version that kept no list of the files it wrote is refused, and its files of
ours are printed; --adopt adds these to the list and removes nothing. Of a file with several hard links only the name in
the folder is removed. Standard library only. Exits 0; 1 if a file of the suite could not be removed; 2 if the folder is
refused, with nothing removed.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from utils import written
from utils.arguments import Parser, exit_code, run
from utils.errors import ConfigError
from utils.housekeeping import footprint, inventory
from utils.housekeeping.footprint import Guarded
from utils.housekeeping.inventory import Entry, shown
from utils.housekeeping.layout import DATA_LAYOUT, MARKS, OUTPUT_LAYOUT, Layout
from utils.settings.config import PLATFORMS, ROOT, folders
from utils.written import LIST, MARKER

FOLDERS = ("OUTPUT_DIR", "DATA_DIR")


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
        print(f"{self.verb} {shown(path)}{'/' if size_bytes is None else ''}")
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
    for entry in inventory.entries(folder.directory, layout, _list_of(folder)):
        if any(os.path.samestat(entry.status, purged) for purged in gone):
            continue
        if entry.foreign is not None:
            tally.left.append((_named(entry), entry.foreign))
        elif entry.kind not in MARKS and not (entry.is_folder and tally.keeps(entry.path)):
            _remove(entry, tally)
    _finish(folder, tally, gone)
    return tally


def adopt(folder: Guarded, layout: Layout, kind: str) -> None:
    """Mark a folder, and add the files in it that are recognised by name and content to its list; print all others."""
    footprint.mark(folder.path, kind)
    found = [(_named(entry), entry) for entry in inventory.entries(folder.directory, layout, None)]
    ours = [path for path, entry in found if _is_adoptable(entry)]
    written.note(*(folder.path / path for path in ours))
    for path, entry in found:
        if entry.kind not in MARKS:
            print(f"left {shown(path)}: {entry.foreign}" if entry.foreign else f"adopted {shown(path)}")
    print(f"{folder.path}: adopted {_counted(len(ours), 'file or folder')}; ./shell/purge.sh removes them")


def require_list(folder: Guarded, layout: Layout, key: str) -> None:
    """Raise RefusedError, after printing what can be adopted, if the folder has files of ours and no list of them."""
    if _list_of(folder) is None:
        ours = [_named(entry) for entry in inventory.entries(folder.directory, layout, None) if _is_adoptable(entry)]
        print(*(f"can be adopted: {shown(path)}\n" for path in ours), sep="", end="")
        if ours:
            raise footprint.RefusedError(
                f"{key}={folder.path}: was made before the suite kept a list of its files; {footprint.ADOPT}"
            )


def _is_adoptable(entry: Entry) -> bool:
    return entry.foreign is None and entry.kind not in MARKS and entry.kind != "temporary"


def _list_of(folder: Guarded) -> inventory.OnList:
    return footprint.read_list(folder.directory, str(folder.path))


def _named(entry: Entry) -> str:
    return entry.path + "/" * stat.S_ISDIR(entry.status.st_mode)


def refuse_in_use(folder: Guarded, layout: Layout) -> None:
    """Raise FootprintError if data are being prepared in the folder, which data/encoding/pair.py locks meanwhile."""
    for entry in inventory.entries(folder.directory, layout, {}, is_strict=False):
        if entry.kind == "data lock" and stat.S_ISREG(entry.status.st_mode):
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
    """Remove the lock, and the marker with the folder: while the marker is there, purge can be run again.

    The list goes too: a file that comes later could have the identity of one that is gone.
    """
    status = os.fstat(folder.directory)
    try:
        if not tally.is_dry_run:
            with suppress(FileNotFoundError):
                if not tally.failures:
                    os.unlink(LIST, dir_fd=folder.directory)
            os.unlink(footprint.LOCK, dir_fd=folder.directory)
        if tally.keeps(""):
            tally.left.append((MARKER, "marks the folder as the suite's while anything else is in it"))
            return
        if not tally.is_dry_run:
            _remove_emptied(folder, status)
    except OSError as error:
        tally.failed(".", f"could not be removed ({error.strerror})")
    else:
        gone.append(status)
        tally.removed(".", None)


def _remove_emptied(folder: Guarded, status: os.stat_result) -> None:
    if inventory.names(folder.directory) != [MARKER] or not os.path.samestat(
        status, os.stat(folder.path.name, dir_fd=folder.parent, follow_symlinks=False)
    ):
        raise OSError(errno.EBUSY, "changed while this ran")
    os.unlink(MARKER, dir_fd=folder.directory)
    os.rmdir(folder.path.name, dir_fd=folder.parent)


def _report(folder: Guarded, tally: Tally) -> None:
    for path, reason in tally.left:
        print(f"left {shown(path)}: {reason}")
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
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="print what would be removed; remove nothing")
    what.add_argument(
        "--adopt",
        action="store_true",
        help="add files of an earlier version, or copied ones, to the list of ours; remove nothing",
    )
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


def _purge_all(output_dir: Path, data_dir: Path | None, *, is_dry_run: bool, is_adopted: bool) -> int:
    """Purge the folders and return the number of failures; nothing is removed before all folders are accepted."""
    opened = []
    with ExitStack() as stack:
        for key, path, layout in _in_order(output_dir, data_dir):
            folder = footprint.open_guarded(stack, path, key, ROOT, is_adopted=is_adopted)
            if folder is None:
                print(f"{key}={path}: does not exist; nothing to do")
                continue
            if not is_adopted:
                require_list(folder, layout, key)
            if layout is not OUTPUT_LAYOUT:
                refuse_in_use(folder, layout)
            opened.append((folder, layout))
        for folder, _ in opened:
            stack.enter_context(footprint.locked(folder.directory, str(folder.path), create=not is_dry_run))
        gone: list[os.stat_result] = []
        failures = 0
        for folder, layout in opened:
            if is_adopted:
                adopt(folder, layout, footprint.DATA if layout is DATA_LAYOUT else footprint.OUTPUT)
                continue
            tally = purge(folder, layout, gone, is_dry_run=is_dry_run)
            _report(folder, tally)
            failures += tally.failures
    return failures


def _in_order(output_dir: Path, data_dir: Path | None) -> list[tuple[str, Path, Layout]]:
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

    def work() -> int:
        output_dir, data_dir = folders(options.platform, arguments=options.settings)
        _check(options.settings)
        data = data_dir if options.with_data else None
        return min(1, _purge_all(output_dir, data, is_dry_run=options.dry_run, is_adopted=options.adopt))

    return exit_code(work, (ConfigError,), interrupted="; the files listed above are removed")


if __name__ == "__main__":
    sys.exit(run(main))
