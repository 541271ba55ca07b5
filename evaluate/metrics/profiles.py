"""The profiles of jobs beside results: `profiles/<job>/profile.json` in an OUTPUT_DIR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
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
    folders = [path if path.is_dir() else path.parent for path in paths]
    files = (file for one in folders for file in sorted({*files_below(one, profile_file.NAME)[0], *_beside(one)}))
    ours = (file for file in files if file.parent.parent.name == profile_file.FOLDER)
    return Profiles(*read_each(ours, profile_file.read, ProfileError))


def _beside(folder: Path) -> Iterator[Path]:
    """Yield the profiles of the folder's parent; none if it cannot be read."""
    with suppress(OSError):
        for job in sorted((folder.parent / profile_file.FOLDER).iterdir()):
            if (file := job / profile_file.NAME).is_file():
                yield file
