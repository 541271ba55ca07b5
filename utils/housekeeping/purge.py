"""Remove what the suite wrote, and nothing else; list what was removed, what was kept, and why.

It removes results of every job and label, logs, comparisons and the archive; prepared data only with --with-data; .venv
never. It keeps what the suite did not write, what has changed since, links, and folders that are not empty afterwards.
The suite keeps a list of the files that it writes, .tprimat_files; a folder from before there was a list is refused. A
container may write to the parents of these folders, because they are removed as well.

Usage:   ./shell/run_purge.sh [--with-data] [--dry-run | --adopt] [--here] [OUTPUT_DIR=...] [DATA_DIR=...] [KEY=VALUE]
         --dry-run lists what would be removed, after the command of the container, if there is one
         --adopt adds files of an earlier version, and copies of files, to the list, and removes nothing
         --here uses no container (also ./shell/purge.sh)
Reads:   config.env and its overlays, the environment, OUTPUT_DIR, DATA_DIR
Writes:  nothing; removes files and folders in OUTPUT_DIR and, with --with-data, DATA_DIR
Exits:   0 done; 1 something could not be removed; 2 bad input, a folder that nothing may be removed from, or a RUNTIME
         that does not work
Example: ./shell/run_purge.sh --dry-run

`utils/housekeeping/inventory.py` decides which files are the suite's. A folder is opened once, and everything later
goes through its descriptor: replacing a folder of its path by a link afterwards cannot lead purge elsewhere. Of a file
with several hard links only the name in the folder is removed. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from utils import own_files
from utils.arguments import Parser, refusing, run
from utils.errors import ConfigError
from utils.housekeeping import footprint, inventory
from utils.housekeeping.footprint import opened
from utils.housekeeping.inventory import DATA_LAYOUT, MARKS, OUTPUT_LAYOUT, Entry, Layout, OnList
from utils.own_files import LIST, MARKER
from utils.settings.config import PLATFORM_OPTION, ROOT, folders

MOUNTS = Path("/proc/self/mountinfo")
FOLDERS = ("OUTPUT_DIR", "DATA_DIR")


class RefusedError(ConfigError):
    """Nothing may be removed from the folder; the message states why."""


class Guarded(NamedTuple):
    """An open folder whose files of ours may be removed, and its parent."""

    where: str
    """Setting and path."""
    path: Path
    directory: int
    parent: int
    layout: Layout

    def entries(self, listed: OnList) -> Iterator[Entry]:
        """Yield what is in it."""
        return inventory.entries(self.directory, self.layout, listed)


def _guarded(stack: ExitStack, key: str, path: Path, layout: Layout) -> Guarded | None:
    """Open the absolute `path` of the setting `key`, to be closed with `stack`; return None if it does not exist.

    Raises RefusedError for `/`, the home folder, the checkout and every folder above them, a mount point, anything but
    a folder, and a path with a symbolic link in it.
    """
    where = f"{key}={path}"
    # from the root down, so that the first link is named
    for place in (*reversed(path.parents), path):
        if place.is_symlink():
            raise RefusedError(
                f"{where}: {place} is a symbolic link; to purge its target, set {key}={os.path.realpath(path)}"
            )
    path = Path("/", os.path.normpath(path).lstrip("/"))  # without links, `..` is the parent folder
    try:
        directory = stack.enter_context(opened(path))
        parent = stack.enter_context(opened("..", directory))
        # the path is checked after opening: what is open cannot be exchanged any more
        if os.path.realpath(path) != str(path) or not os.path.samestat(os.fstat(directory), path.lstat()):
            raise RefusedError(f"{where}: changed while this ran")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RefusedError(f"{where}: cannot be opened as a folder ({error.strerror})") from error
    for place, description in _protected():
        # the folders themselves and not their paths: one folder can have several paths
        with suppress(OSError):  # a missing folder cannot be the open one
            if os.path.samestat(os.fstat(directory), place.stat()):
                raise RefusedError(f"{where}: is {description}; name the folder that holds the results")
    points: set[bytes] = set()
    with suppress(OSError):  # there may be no /proc; in the kernel's list, proc(5), is a bind mount too
        for line in MOUNTS.read_bytes().splitlines():
            points.add(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), line.split()[4]))
    if path.is_mount() or os.fsencode(path) in points:
        raise RefusedError(f"{where}: is a mount point; name a folder below it")
    return Guarded(where, path, directory, parent, layout)


def _protected() -> Iterator[tuple[Path, str]]:
    places = [(Path("/"), "the root of the file system")]
    homes = {os.environ.get("HOME", "")}
    with suppress(KeyError):  # in a container the user may have no entry
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    for home in sorted(homes):
        if home.startswith("/"):
            places.append((Path(home), "the home folder"))
    places.append((ROOT, "the checkout"))
    for place, description in places:
        yield place, description
        for above in (*place.parents, *Path(os.path.realpath(place)).parents):
            yield above, f"a folder that {description} is in"


def _refuse(folder: Guarded) -> None:
    """Refuse a folder without our marker, one made before there was a list, after printing what can be adopted."""
    footprint.read_marker(folder.directory, folder.where)
    if footprint.read_list(folder.directory, str(folder.path)) is None:
        is_any_adoptable = False
        for entry in folder.entries(None):
            if _is_adoptable(entry):
                print(f"can be adopted: {entry}")
                is_any_adoptable = True
        if is_any_adoptable:
            raise RefusedError(f"{folder.where}: was made before the suite kept a list of its files; {footprint.ADOPT}")


def _refuse_in_use(folder: Guarded) -> None:
    """Raise FootprintError if data are being prepared in the folder, which data/encoding/pair.py locks meanwhile."""
    for entry in folder.entries(None):
        if entry.kind == "data lock" and stat.S_ISREG(entry.status.st_mode):
            with footprint.open_file(entry.directory, entry.name) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise footprint.FootprintError(
                        f"{folder.path}/{entry.path}: data are being prepared there; wait for that to end"
                    ) from error


def _is_adoptable(entry: Entry) -> bool:
    return entry.foreign is None and entry.kind not in (*MARKS, "temporary")


def _adopt(folder: Guarded) -> None:
    """Mark a folder, and add the files in it that are recognised by name and content to its list; print all others."""
    footprint.mark(folder.path, footprint.DATA if folder.layout is DATA_LAYOUT else footprint.OUTPUT)
    entries = list(folder.entries(None))
    ours = [folder.path / entry.path for entry in entries if _is_adoptable(entry)]
    own_files.note(*ours)
    for entry in entries:
        if entry.kind in MARKS:
            continue
        print(f"left {entry}: {entry.foreign}" if entry.foreign else f"adopted {entry}")
    print(f"{folder.path}: adopted {_counted(len(ours), 'file or folder')}; ./shell/purge.sh removes them")


def _purge(folder: Guarded, gone: list[os.stat_result], *, is_dry_run: bool) -> int:
    """Remove the suite's files below an open and locked folder, then the folder itself if nothing else is in it.

    `gone` lists the folders that were removed completely before: a dry run still finds them. Prints a line for each
    entry; returns the number of those of the suite that could not be removed.
    """
    verb = "would remove" if is_dry_run else "removed"
    left: dict[str, str] = {}
    files = folders = size = failures = 0
    for entry in folder.entries(footprint.read_list(folder.directory, str(folder.path))):
        if any(os.path.samestat(entry.status, purged) for purged in gone):
            continue
        if entry.foreign is not None:
            left[entry.path] = f"{entry}: {entry.foreign}"
            continue
        # a folder comes after its content, so that what stays in it is known
        is_needed = entry.is_folder and any(path.startswith(f"{entry.path}/") for path in left)
        if is_needed or entry.kind in MARKS:
            continue
        try:
            if not is_dry_run:
                remove = os.rmdir if entry.is_folder else os.unlink
                remove(entry.name, dir_fd=entry.directory)
        except OSError as error:
            left[entry.path] = f"{entry}: could not be removed ({error.strerror})"
            failures += 1
            continue
        print(f"{verb} {entry}")
        if entry.is_folder:
            folders += 1
        else:
            files += 1
            size += entry.status.st_size
    try:
        if not is_dry_run:
            # the list goes too: a file that comes later could have the identity of one that is gone
            with suppress(FileNotFoundError):
                if not failures:
                    os.unlink(LIST, dir_fd=folder.directory)
            os.unlink(footprint.LOCK, dir_fd=folder.directory)
            if not left:
                now = os.stat(folder.path.name, dir_fd=folder.parent, follow_symlinks=False)
                names = os.listdir(folder.directory)  # noqa: PTH208 a descriptor
                if names != [MARKER] or not os.path.samestat(os.fstat(folder.directory), now):
                    raise OSError(errno.EBUSY, "changed while this ran")
                # last, so that purge can be run again while the folder is there
                os.unlink(MARKER, dir_fd=folder.directory)
                os.rmdir(folder.path.name, dir_fd=folder.parent)
    except OSError as error:
        left["."] = f".: could not be removed ({error.strerror})"
        failures += 1
    else:
        if left:
            left[MARKER] = f"{MARKER}: marks the folder as the suite's while anything else is in it"
        else:
            gone.append(os.fstat(folder.directory))
            folders += 1
            print(f"{verb} ./")
    for line in left.values():
        print(f"left {line}")
    summary = f"{folder.path}: {verb} {_counted(files, 'file')} ({size:,} bytes) and {_counted(folders, 'folder')}"
    if left:
        summary += f", left {len(left):,}"
    print(summary)
    return failures


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _purge_all(output_dir: Path, data_dir: Path | None, *, is_dry_run: bool, is_adopted: bool) -> int:
    """Purge the folders and return the number of failures; nothing is removed before all folders are accepted."""
    with ExitStack() as stack:
        folders = []
        for key, path, layout in _in_order(output_dir, data_dir):
            folder = _guarded(stack, key, path, layout)
            if folder is None:
                print(f"{key}={path}: does not exist; nothing to do")
                continue
            folders.append(folder)
            if not is_adopted:
                _refuse(folder)
            if layout is not OUTPUT_LAYOUT:
                _refuse_in_use(folder)
        # all locks before the first removal
        for folder in folders:
            stack.enter_context(footprint.locked(folder.directory, str(folder.path), create=not is_dry_run))
        if is_adopted:
            for folder in folders:
                _adopt(folder)
            return 0
        gone: list[os.stat_result] = []
        return sum([_purge(folder, gone, is_dry_run=is_dry_run) for folder in folders])


def _in_order(output_dir: Path, data_dir: Path | None) -> list[tuple[str, Path, Layout]]:
    """Return setting, path and layout of each folder to purge; a folder inside the other comes first."""
    output, data = OUTPUT_LAYOUT, DATA_LAYOUT
    if data_dir is None:
        return [("OUTPUT_DIR", output_dir, output)]
    if os.path.realpath(data_dir) == os.path.realpath(output_dir):
        return [("OUTPUT_DIR", output_dir, Layout(data.files + output.files, data.folders + output.folders))]
    named = [("OUTPUT_DIR", output_dir, output), ("DATA_DIR", data_dir, data)]
    # the inner folder must be gone before the outer one can be
    return sorted(named, key=lambda folder: -len(Path(os.path.normpath(folder[1])).parts))


@refusing((ConfigError,), (OSError,), interrupted="; the files listed above are removed")
def main(argv: Sequence[str] | None = None) -> int:
    """Purge the configured folders."""
    parser = Parser(
        {
            "--platform": PLATFORM_OPTION,
            "--with-data": {"action": "store_true", "help": "also remove prepared data from DATA_DIR"},
            "settings": {"nargs": "*", "metavar": "KEY=VALUE", "help": " or ".join(FOLDERS)},
        },
        prog="python -m utils.housekeeping.purge",
        description="Remove all that the suite wrote: results of all jobs and labels, logs, comparisons, archive.",
        epilog="Everything else in these folders is left and listed. Exits 0 on success; 1 if a file could not be "
        "removed; 2 if the folder is refused.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="print what would be removed; remove nothing")
    what.add_argument(
        "--adopt",
        action="store_true",
        help="add files of an earlier version, or copied ones, to the list of ours; remove nothing",
    )
    options = parser.parse_args(argv)
    output_dir, data_dir = folders(options.platform, arguments=options.settings)
    for setting in options.settings:  # `MODEL=llama` would not limit what is removed
        if setting.partition("=")[0] not in FOLDERS:
            raise ConfigError(
                f"{setting}: files of all jobs and labels are removed; leave this setting out "
                f"(allowed here: {', '.join(FOLDERS)})"
            )
    data = data_dir if options.with_data else None
    return min(1, _purge_all(output_dir, data, is_dry_run=options.dry_run, is_adopted=options.adopt))


if __name__ == "__main__":
    sys.exit(run(main))
