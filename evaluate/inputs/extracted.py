"""Results that `evaluate.extract --output NAME.json` made from a log, found under any name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from evaluate.inputs import earlier
from utils.input_files import distinct, files_below
from utils.results import store

_MARK = re.compile(rb'^ "source": ?"log",?$', re.MULTILINE)
"""The line that evaluate/inputs/from_log.py has written; in all results it comes before the samples."""
_SEARCHED_BYTES = 1 << 16
"""Enough for what comes before: large files of other kinds are not read whole."""


def find(paths: Iterable[Path]) -> list[Path]:
    """Return the results of logs below the folders among `paths` that are not named as results are, sorted."""
    below = ((path.relative_to(one), path) for one in paths if one.is_dir() for path in files_below(one, "*.json")[0])
    return distinct(path for place, path in below if _is_other_name(place) and _is_extracted(path))


def _is_other_name(path: Path) -> bool:
    is_found_anyway = any(fnmatchcase(path.name, pattern) for pattern in (store.PATTERN, earlier.PATTERN))
    return not is_found_anyway and store.SUPERSEDED not in path.parts


def _is_extracted(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _MARK.search(file.read(_SEARCHED_BYTES)) is not None
    except OSError:  # a file that may not be read and has no name of ours is none of ours
        return False
