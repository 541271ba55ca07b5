"""Disk space reserved for a job's result, in case the disk fills up, and removal of the files of a killed writer.

Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

RESERVE_BYTES = 1 << 18
"""A result without samples takes 5 KB, one with 500 steps 60 KB."""


def reserve(result_path: Path) -> None:
    """Reserve space for a result beside its path; raise OSError if the disk has none."""
    path = _reserve_path(result_path)
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            path.unlink()
            raise


def release_reserve(result_path: Path) -> None:
    """Free the reserved space just before the result is written; do nothing if none was reserved."""
    _reserve_path(result_path).unlink(missing_ok=True)


def remove_leftovers(result_path: Path) -> None:
    """Remove the temporary files and the reserve that a killed writer of this result has left.

    Call it only when no process can be writing the result.
    """
    release_reserve(result_path)
    for path in result_path.parent.glob(f".{result_path.name}.*"):
        path.unlink(missing_ok=True)


def _reserve_path(result_path: Path) -> Path:
    return result_path.with_name(f".{result_path.name}.reserve")
