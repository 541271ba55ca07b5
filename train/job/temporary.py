"""The temporary folder of a job: its ranks get it as TMPDIR, and it goes with the job, however the job ends.

Without it torchrun (`torchelastic_*`), torch.compile (`torchinductor_*`) and multiprocessing (`pymp-*`) leave folders
in the temporary folder of the machine. The launcher locks a file in its folder (flock(2)), and the kernel releases the
lock when the launcher dies: a folder whose lock is free was left behind by a launcher that was killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "tprimat_"
"""Short, because the path of a Unix socket in the folder has at most 107 bytes (unix(7))."""
LOCK = ".tprimat_job"
"""File in the folder; a folder without it is not a job's."""


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
