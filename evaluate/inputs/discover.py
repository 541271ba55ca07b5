"""Search for results by their name, and for the logs of trainings: by variable, name, known folder and content.

Files of one training form one log: rotated parts of a log, and the per-rank tree that Primus writes,
`{work_group}/{user}/{exp}/logs/pre_trainer/rank-N/*.log`, from which the most complete level of each rank is taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from evaluate.inputs import earlier
from evaluate.inputs.partly_known import named_in
from utils.input_files import InputFileError, require_regular
from utils.logs.events import FILE_NAME as EVENTS, EventFileError
from utils.logs.reader import holds_iterations
from utils.results.store import SUPERSEDED, ResultError

PATTERN = "train_*.json"
PRIMUS_PATH = "/workspace/Primus"
"""Folder of Primus in AMD's images; the environment variable PRIMUS_PATH overrides it."""
_ROTATED = re.compile(r"\.(?:\d+|\d{4}-\d\d-\d\d_[\d_-]+)(?=\.(?:log|txt)$)|(?<=\.log)\.\d+$|(?<=\.txt)\.\d+$")
_OF_A_LOG = re.compile(rb'^ "source": ?"log",?$', re.MULTILINE)
"""The line that evaluate/inputs/from_log.py has written; in all results it comes before the samples."""
_SEARCHED_BYTES = 1 << 16
"""Enough for what comes before the samples: large files of other kinds are not read whole."""
_LEVELS = ("debug", "info", "warning", "error")
"""Names of Primus's files; each level also contains the lines of the levels after it."""


class DiscoverError(ValueError):
    """No log was found, or more than one; the message names the searched folders."""


def find(folders: Iterable[Path], pattern: str = PATTERN) -> Iterator[Path]:
    """Yield every result file (`train_*.json`) below the folders, sorted; superseded attempts are skipped.

    A path that is itself a file is yielded as it is. Raises ResultError if a path does not exist, or is neither a
    folder nor a file. A path that is yielded may be anything of that name; `read` refuses what is no file.
    """
    paths: list[Path] = []
    for folder in folders:
        require_place(folder)
        if folder.is_file():
            paths.append(folder)
            continue
        for path in files_below(folder, pattern)[0]:
            # an attempt that was repeated is evidence, and no result
            if SUPERSEDED not in path.relative_to(folder).parts:
                paths.append(path)
    yield from distinct(paths)


def find_extracted(folders: Iterable[Path]) -> list[Path]:
    """Return the results that `evaluate.extract --output NAME.json` made under other names, sorted."""
    paths = []
    for path in find(folders, "*.json"):
        is_result = path.match(PATTERN) or path.match(earlier.PATTERN)
        if not is_result and _is_extracted(path):
            paths.append(path)
    return paths


def _is_extracted(path: Path) -> bool:
    # a file that may not be read and has no name of ours is none of ours
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return _OF_A_LOG.search(file.read(_SEARCHED_BYTES)) is not None
    return False


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
        line = f"{error.filename}: folder cannot be read: {error.strerror or error}"
        unreadable.append((Path(error.filename or folder), line))

    paths = []
    for place, folders, files in os.walk(folder, onerror=note):
        # only the administrator of a file system can read it
        if "lost+found" in folders:
            folders.remove("lost+found")
        for name in folders + files:
            if fnmatchcase(name, pattern):
                paths.append(Path(place, name))
    return sorted(paths), unreadable


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
        for part in reversed(Path(self.name).parts):
            models = named_in(part)
            if models:
                return models[0] if len(models) == 1 else None
        return None

    @property
    def label(self) -> str:
        """The name in a form for folders, different for each training so that no two share a row."""
        return re.sub(r"[^A-Za-z0-9._-]+", "_", self.name).strip("._") or "log"


def discover(folder: Path) -> list[FoundLog]:
    """Return every training with a log below `folder`, sorted by path; raise DiscoverError if it is not a folder."""
    if not folder.is_dir():
        raise DiscoverError(f"{folder}: no such folder; name the folder that holds the logs")
    return _trainings(folder, filter(Path.is_file, files_below(folder, "*")[0]))


def log_of(model: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the files of the log of `model`: those that `<MODEL>_LOG` names, else the only log in a known folder.

    Folders are searched in order: the current one, its logs/ and output/ (and output/logs/), PRIMUS_WORKSPACE, and
    output/ of PRIMUS_PATH. Raises DiscoverError if no folder has a log, or the first that has any has several.
    """
    variable = f"{model.upper()}_LOG"
    named = environ.get(variable)
    if named:
        paths = [Path(text) for text in named.split(":")]
        for path in paths:
            if not path.is_file():
                raise DiscoverError(
                    f"{variable}={named}: {path} is not a file; name the log, its parts separated by `:`"
                )
        return paths
    known = [Path(), Path("logs"), Path("output"), Path("output/logs")]
    if environ.get("PRIMUS_WORKSPACE"):
        known.append(Path(environ["PRIMUS_WORKSPACE"]))
    known.append(Path(environ.get("PRIMUS_PATH") or PRIMUS_PATH) / "output")
    # the current folder may be one of the others
    folders = [folder for folder in dict.fromkeys(known) if folder.is_dir()]
    for folder in folders:
        logs = [log for log in _in_folder(folder) if log.model == model]
        if len(logs) > 1:
            names = ", ".join(str(log.paths[0]) for log in logs)
            raise DiscoverError(f"{folder}: several logs of {model} ({names}); choose one with --log-file")
        if logs:
            return list(logs[0].paths)
    looked = ", ".join(str(folder) for folder in folders)
    raise DiscoverError(f"no log of {model} in {looked}; name it with --log-file or {variable}")


def _in_folder(folder: Path) -> list[FoundLog]:
    """Return the trainings directly in a folder and in the Primus tree below it, but in no deeper folder."""
    paths = [path for path in folder.iterdir() if path.is_file()]
    paths += folder.glob("*/*/*/logs/pre_trainer/rank-*/*")
    logs = [path for path in paths if not path.name.startswith(EVENTS)]
    return [log for log in _trainings(folder, logs) if not log.refused]


def _trainings(folder: Path, paths: Iterable[Path]) -> list[FoundLog]:
    """Return the trainings whose logs are among the files, sorted by path."""
    by_training: dict[Path, list[Path]] = {}
    for path in sorted(paths):
        key = _training_of(path)
        if key is not None:
            by_training.setdefault(key, []).append(path)
    logs = []
    for key in sorted(by_training):
        log = _log(folder, key, by_training[key])
        if log is not None:
            logs.append(log)
    return logs


def _training_of(path: Path) -> Path | None:
    """Return the path that the files of one training share; None for a file whose name is not that of a log."""
    if path.parent.name.startswith("rank-") and path.parent.parent.name == "pre_trainer" and path.suffix == ".log":
        return path.parents[3]
    if path.name.startswith(EVENTS) or path.suffix == ".xlsx":
        return path
    plain = _ROTATED.sub("", path.name)
    return path.with_name(plain) if plain.endswith((".log", ".txt")) else None


def _log(folder: Path, key: Path, paths: Sequence[Path]) -> FoundLog | None:
    name = str(key.relative_to(folder))
    if key.suffix == ".xlsx":
        why = "a report on traces of some steps (TraceLens and the like); it holds times of kernels and none of steps"
        return FoundLog(name, tuple(paths), why)
    chosen = _fullest_levels(paths)
    try:
        if not any(map(holds_iterations, chosen)):
            return None
    except EventFileError as error:
        return FoundLog(name, tuple(chosen), str(error))
    return FoundLog(name, tuple(chosen))


def _fullest_levels(paths: Iterable[Path]) -> list[Path]:
    """Return the files of the most complete level of each rank's folder, and every file without a level of Primus."""
    chosen = []
    for folder, group in groupby(paths, attrgetter("parent")):
        files = list(group)
        if folder.name.startswith("rank-"):
            # each level contains the lines of all later ones, so one is enough
            for level in _LEVELS:
                of_level = [file for file in files if file.name.startswith(f"{level}.")]
                if of_level:
                    files = of_level
                    break
        chosen += files
    return chosen
