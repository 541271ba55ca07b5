"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(*paths: Path) -> Iterator[list[Path]]:
    """Yield a temporary path beside each of `paths`; they get their names when the block has ended without an error.

    What was written is on the disk before the first is renamed. After an error nothing is left, and what the paths
    held before is untouched.
    """
    temporaries = [temporary_beside(path) for path in paths]
    try:
        yield temporaries
        for temporary in temporaries:
            _flush_to_disk(temporary)
        for temporary, path in zip(temporaries, paths, strict=True):
            temporary.replace(path)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    """Return an unused hidden name in the folder of `path`, which is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
