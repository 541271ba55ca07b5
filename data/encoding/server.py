"""A part of the workers' fork server: it removes the folder of its socket when it ends.

multiprocessing removes that folder (`pymp-*` in the temporary folder) at the end of the process that started the
server, so not after `kill -9`. The server outlives that process by a moment. `data/encoding/workers.py` has the server
import this module.
"""

from __future__ import annotations

import atexit
import os
import shutil

SOCKETS = "TPRIMAT_SOCKETS"
"""Environment variable of the server that holds the folder."""


def _remove(folder: str, server: int) -> None:
    # a worker is forked from the server, and inherits this function
    if os.getpid() == server:
        shutil.rmtree(folder, ignore_errors=True)


if SOCKETS in os.environ:
    atexit.register(_remove, os.environ.pop(SOCKETS), os.getpid())
