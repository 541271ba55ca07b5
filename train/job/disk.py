"""Sentences about disks that refuse to be written, instead of the last lines of a traceback."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

SENTENCES = {
    errno.ENOSPC: "the disk of {folder} is full ({free:,} bytes free)",
    errno.EDQUOT: "the disk quota for {folder} is used up",
    errno.EROFS: "the disk of {folder} can only be read",
    errno.EFBIG: "a file in {folder} is larger than allowed (ulimit -f)",
}
_NUMPY = re.compile(r"\d+ requested and \d+ written")
"""`ndarray.tofile` of numpy raises this without an error number when the disk is full."""


def reason(error: BaseException, folders: Sequence[Path]) -> str | None:
    """Return the disk's reason for an error in a program that writes into `folders`; None for any other error.

    An error names a file only if it could not be opened. Without a name, the reason names the folder whose disk has
    the least space free.
    """
    for cause in _causes(error):
        number = errno.ENOSPC if cause.errno is None and _NUMPY.search(str(cause)) else cause.errno
        if number in SENTENCES:
            folder = Path(cause.filename).parent if isinstance(cause.filename, str) else min(folders, key=_free)
            return SENTENCES[number].format(folder=folder, free=_free(folder))
    return None


def _causes(error: BaseException | None) -> Iterator[OSError]:
    while error is not None:
        if isinstance(error, OSError):
            yield error
        error = error.__cause__ or error.__context__


def _free(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, or of the nearest folder above it that exists."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
