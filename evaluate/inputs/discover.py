"""Search for the logs of trainings: by environment variable, by name, in known folders, and by content.

Files of one training form one log: rotated parts of a log, and the per-rank tree that Primus writes,
`{work_group}/{user}/{exp}/logs/pre_trainer/rank-N/*.log`, from which the most complete level of each rank is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path

from evaluate.inputs.earlier_names import named_in
from utils.input_files import files_below
from utils.logs.events import FILE_NAME as EVENTS, EventFileError
from utils.logs.reader import holds_iterations

PRIMUS_PATH = "/workspace/Primus"
"""Folder of Primus in AMD's images; the environment variable PRIMUS_PATH overrides it."""
_ROTATED = re.compile(r"\.(?:\d+|\d{4}-\d\d-\d\d_[\d_-]+)(?=\.(?:log|txt)$)|(?<=\.log)\.\d+$|(?<=\.txt)\.\d+$")
_LEVELS = ("debug", "info", "warning", "error")
"""Names of Primus's files; each level also contains the lines of the levels after it."""


class DiscoverError(ValueError):
    """No log was found, or more than one; the message names the searched folders."""


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
