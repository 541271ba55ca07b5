"""Files beside results: those around their folders, and the profiles of jobs, `profiles/<job>/profile.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from utils.input_files import files_below, read_each
from utils.results import profile_file
from utils.results.profile_file import Profile, ProfileError


@dataclass(frozen=True)
class Profiles:
    """All profiles that were found, and the errors of files that could not be read as profiles."""

    found: tuple[Profile, ...] = ()
    errors: tuple[str, ...] = ()


def load_profiles(paths: Iterable[Path]) -> Profiles:
    """Return the profiles below these folders and in `profiles/` beside them, which may be that of OUTPUT_DIR.

    Traces are not read.
    """
    files = files_around(paths, profile_file.NAME, f"{profile_file.FOLDER}/*/{profile_file.NAME}")
    ours = (file for file in files if file.parent.parent.name == profile_file.FOLDER)
    return Profiles(*read_each(ours, profile_file.read, ProfileError))


def files_around(paths: Iterable[Path], name: str, beside: str) -> Iterator[Path]:
    """Yield the files of a name below these folders, and those that fit `beside` in their parents, by folder."""
    for folder in (path if path.is_dir() else path.parent for path in paths):
        yield from sorted({*files_below(folder, name)[0], *filter(Path.is_file, folder.parent.glob(beside))})
