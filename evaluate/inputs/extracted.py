"""Results that `evaluate.extract --output NAME.json` made from a log, found under any name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
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
    others = (
        path
        for place, path in below
        if store.SUPERSEDED not in place.parts
        and not fnmatchcase(path.name, store.PATTERN)
        and not earlier.is_named(path)
    )
    return distinct(filter(_is_extracted, others))


def _is_extracted(path: Path) -> bool:
    with suppress(OSError):  # a file that may not be read and has no name of ours is none of ours
        if path.is_file():
            with path.open("rb") as file:
                return _MARK.search(file.read(_SEARCHED_BYTES)) is not None
    return False
