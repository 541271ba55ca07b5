"""The profiles of jobs beside results: `profiles/<job>/profile.json` in an OUTPUT_DIR."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from utils.input_files import files_below
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
    found, errors, seen = [], [], set()
    for path in paths:
        folder = path if path.is_dir() else path.parent
        for file in sorted({*files_below(folder, profile_file.NAME)[0], *_beside(folder)}):
            place = os.path.realpath(file)
            if file.parent.parent.name != profile_file.FOLDER or place in seen:
                continue
            seen.add(place)
            try:
                found.append(profile_file.read(file))
            except ProfileError as error:
                errors.append(str(error))
    return Profiles(tuple(found), tuple(errors))


def _beside(folder: Path) -> Iterator[Path]:
    """Yield the profiles of the folder's parent; none if it cannot be read."""
    with suppress(OSError):
        for job in sorted((folder.parent / profile_file.FOLDER).iterdir()):
            if (file := job / profile_file.NAME).is_file():
                yield file
