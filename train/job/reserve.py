"""Room on the disk for the result of a job that finds the disk full, and no half file left of one that was killed.

Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

RESERVE_BYTES = 1 << 18
"""A result without samples takes 5 KB, one with 500 steps 60 KB."""


def reserve(result_path: Path) -> None:
    """Take room for a result beside where it will stand; raise OSError where the disk has none."""
    path = _reserve_path(result_path)
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            path.unlink()
            raise


def release_reserve(result_path: Path) -> None:
    """Give the room back, to be written into at once; does nothing where none was taken."""
    _reserve_path(result_path).unlink(missing_ok=True)


def remove_leftovers(result_path: Path) -> None:
    """Remove what a writer of this result that was killed has left: its temporary files and the reserve.

    Only for when nobody can be writing it.
    """
    release_reserve(result_path)
    for path in result_path.parent.glob(f".{result_path.name}.*"):
        path.unlink(missing_ok=True)


def _reserve_path(result_path: Path) -> Path:
    return result_path.with_name(f".{result_path.name}.reserve")
