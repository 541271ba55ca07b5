"""Disks: sentences about those that refuse to be written, and the temporary folder of a job.

The ranks get the folder as TMPDIR, and it goes with the job, however the job ends. Without it torchrun
(`torchelastic_*`), torch.compile (`torchinductor_*`) and multiprocessing (`pymp-*`) leave folders in the temporary
folder of the machine. The launcher locks a file in its folder (flock(2)), and the kernel releases the lock when the
launcher dies: a folder whose lock is free was left behind by a launcher that was killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

SENTENCES = {
    errno.ENOSPC: "the disk of {folder} is full ({free:,} bytes free)",
    errno.EDQUOT: "the disk quota for {folder} is used up",
    errno.EROFS: "the disk of {folder} can only be read",
    errno.EFBIG: "a file in {folder} is larger than allowed (ulimit -f)",
}
_NUMPY = re.compile(r"\d+ requested and \d+ written")
"""`ndarray.tofile` of numpy raises this without an error number when the disk is full."""
PREFIX = "tprimat_"
"""Short, because the path of a Unix socket in the folder has at most 107 bytes (unix(7))."""
LOCK = ".tprimat_job"
"""File in the folder; a folder without it is not a job's."""


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


@contextmanager
def job_folder() -> Iterator[Path]:
    """Yield a new locked folder, which is removed when the block ends; raise OSError if it cannot be made.

    First removes what killed launchers have left.
    """
    remove_left_behind()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with (folder / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "unlocked").rename(folder / LOCK)  # under this name it is always locked while the launcher lives
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_behind() -> None:
    """Remove the folders of this user's launchers that were killed; those of running launchers stay."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), path.open("r+") as lock:  # BlockingIOError: its launcher runs
            if os.fstat(lock.fileno()).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
