"""Search for results by their name, and for the logs of trainings: by variable, name, known folder and content.

Files of one training form one log: rotated parts of a log, and the per-rank tree that Primus writes,
`{work_group}/{user}/{exp}/logs/pre_trainer/rank-N/*.log`, from which the most complete level of each rank is taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path

from evaluate.inputs.earlier_names import named_in
from utils.input_files import InputFileError, require_regular
from utils.logs.events import FILE_NAME as EVENTS, EventFileError
from utils.logs.reader import holds_iterations
from utils.results.store import SUPERSEDED, ResultError

PATTERN = "train_*.json"
PRIMUS_PATH = "/workspace/Primus"
"""Folder of Primus in AMD's images; the environment variable PRIMUS_PATH overrides it."""
_ROTATED = re.compile(r"\.(?:\d+|\d{4}-\d\d-\d\d_[\d_-]+)(?=\.(?:log|txt)$)|(?<=\.log)\.\d+$|(?<=\.txt)\.\d+$")
_LEVELS = ("debug", "info", "warning", "error")
"""Names of Primus's files; each level also contains the lines of the levels after it."""


class DiscoverError(ValueError):
    """No log was found, or more than one; the message names the searched folders."""


def find(folders: Iterable[Path], pattern: str = PATTERN) -> Iterator[Path]:
    """Yield every result file (`train_*.json`) below the folders, sorted; superseded attempts are skipped.

    A path that is itself a file is yielded as it is. Raises ResultError if a path does not exist, or is neither a
    folder nor a file. A path that is yielded may be anything of that name; `read` refuses what is no file.
    """
    found: list[Path] = []
    for folder in folders:
        require_place(folder)
        below = [folder] if folder.is_file() else files_below(folder, pattern)[0]
        found += [path for path in below if SUPERSEDED not in path.relative_to(folder).parts]
    yield from distinct(found)


def require_folder(output: Path) -> None:
    """Raise ResultError if the place of a report is a file."""
    if output.exists() and not output.is_dir():
        raise ResultError(f"--output: got {output}, which is a file, wanted a folder; name another")


def require_place(path: Path) -> None:
    """Raise ResultError unless a path leads to a folder or a regular file."""
    if path.is_dir():
        return
    try:
        require_regular(path)
    except InputFileError as error:
        if os.path.lexists(path):
            raise ResultError(f"{path}: cannot be used ({error}); name the folder that holds the results") from error
        raise ResultError(f"{path}: no such file or folder; name the folder that holds the results") from error


def files_below(folder: Path, pattern: str) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Return the sorted paths below a folder whose name fits the pattern, and the folders that cannot be read.

    Links to folders are not followed; lost+found is left out, which only the administrator of a file system can read. A
    path of a fitting name may be anything: a folder, a link to nothing, a pipe.
    """
    unreadable: list[tuple[Path, str]] = []

    def note(error: OSError) -> None:
        unreadable.append(
            (Path(error.filename or folder), f"{error.filename}: folder cannot be read: {error.strerror or error}")
        )

    found = []
    for place, folders, files in os.walk(folder, onerror=note):
        folders[:] = [name for name in folders if name != "lost+found"]
        found += [Path(place, name) for name in (*folders, *files) if fnmatchcase(name, pattern)]
    return sorted(found), unreadable


def distinct(paths: Iterable[Path]) -> list[Path]:
    """Return the paths in their order, without those that lead to the same file as an earlier one."""
    found: dict[str, Path] = {}
    for path in paths:
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


@dataclass(frozen=True)
class FoundLog:
    """The log files of one training."""

    name: str
    """Path below the searched folder, for messages."""
    paths: tuple[Path, ...]
    refused: str | None = None
    """Reason why the files cannot give a result."""

    @property
    def model(self) -> str | None:
        """The model named by the innermost part of the path that names one; None if no part does."""
        named = next(filter(None, map(named_in, reversed(Path(self.name).parts))), ())
        return named[0] if len(named) == 1 else None

    @property
    def label(self) -> str:
        """The name in a form for folders, different for each training so that no two share a row."""
        return re.sub(r"[^A-Za-z0-9._-]+", "_", self.name).strip("._") or "log"


def discover(folder: Path) -> list[FoundLog]:
    """Return every training with a log below `folder`, sorted by path; raise DiscoverError if it is not a folder."""
    if not folder.is_dir():
        raise DiscoverError(f"{folder}: no such folder; name the folder that holds the logs")
    return _trainings(folder, (path for path in files_below(folder, "*")[0] if path.is_file()))


def log_of(model: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the files of the log of `model`: those that `<MODEL>_LOG` names, else the only log in a known folder.

    Folders are searched in order: the current one, its logs/ and output/ (and output/logs/), PRIMUS_WORKSPACE, and
    output/ of PRIMUS_PATH. Raises DiscoverError if no folder has a log, or the first that has any has several.
    """
    variable = f"{model.upper()}_LOG"
    if named := environ.get(variable):
        paths = [Path(text) for text in named.split(":")]
        for path in paths:
            if not path.is_file():
                raise DiscoverError(
                    f"{variable}={named}: {path} is not a file; name the log, its parts separated by `:`"
                )
        return paths
    known = [Path(), Path("logs"), Path("output"), Path("output/logs")]
    known += [Path(environ["PRIMUS_WORKSPACE"])] if environ.get("PRIMUS_WORKSPACE") else []
    known.append(Path(environ.get("PRIMUS_PATH") or PRIMUS_PATH) / "output")
    folders = [folder for folder in dict.fromkeys(known) if folder.is_dir()]
    for folder in folders:
        found = [one for one in _in_folder(folder) if one.model == model]
        if len(found) > 1:
            names = ", ".join(str(one.paths[0]) for one in found)
            raise DiscoverError(f"{folder}: several logs of {model} ({names}); choose one with --log-file")
        if found:
            return list(found[0].paths)
    looked = ", ".join(str(folder) for folder in folders)
    raise DiscoverError(f"no log of {model} in {looked}; name it with --log-file or {variable}")


def _in_folder(folder: Path) -> list[FoundLog]:
    """Return the trainings directly in a folder and in the Primus tree below it, but in no deeper folder."""
    paths = [path for path in folder.iterdir() if path.is_file()]
    paths += folder.glob("*/*/*/logs/pre_trainer/rank-*/*")
    logs = (path for path in paths if not path.name.startswith(EVENTS))
    return [found for found in _trainings(folder, logs) if not found.refused]


def _trainings(folder: Path, paths: Iterable[Path]) -> list[FoundLog]:
    """Return the trainings whose logs are among the files, sorted by path."""
    named = sorted((key, path) for path in paths if (key := _training_of(path)) is not None)
    groups = ((key, [path for _, path in group]) for key, group in groupby(named, itemgetter(0)))
    return [found for key, group in groups if (found := _found(folder, key, group))]


def _training_of(path: Path) -> Path | None:
    """Return the path that the files of one training share; None for a file whose name is not that of a log."""
    if path.parent.name.startswith("rank-") and path.parent.parent.name == "pre_trainer" and path.suffix == ".log":
        return path.parents[3]
    if path.name.startswith(EVENTS) or path.suffix == ".xlsx":
        return path
    plain = _ROTATED.sub("", path.name)
    return path.with_name(plain) if plain.endswith((".log", ".txt")) else None


def _found(folder: Path, key: Path, paths: Sequence[Path]) -> FoundLog | None:
    name = str(key.relative_to(folder))
    if key.suffix == ".xlsx":
        why = "a report on traces of some steps (TraceLens and the like); it holds times of kernels and none of steps"
        return FoundLog(name, tuple(paths), why)
    chosen = tuple(_fullest_levels(paths))
    try:
        return FoundLog(name, chosen) if any(holds_iterations(path) for path in chosen) else None
    except EventFileError as error:
        return FoundLog(name, chosen, str(error))


def _fullest_levels(paths: Iterable[Path]) -> Iterable[Path]:
    """Yield the files of the most complete level of each rank's folder, and every file without a level of Primus."""
    for folder, group in groupby(paths, attrgetter("parent")):
        files = list(group)
        levels = [level for level in _LEVELS if any(file.name.startswith(f"{level}.") for file in files)]
        is_of_levels = levels and folder.name.startswith("rank-")
        yield from (file for file in files if not is_of_levels or file.name.startswith(f"{levels[0]}."))
