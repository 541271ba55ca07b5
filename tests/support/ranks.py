"""Ranks of a test's own worker: processes that find one another over loopback."""

import os
import subprocess

from utils.settings.config import ROOT


def start_ranks(command, ranks, port):
    """Start `command` once for each rank, with one thread each; return the processes in the order of their ranks."""
    where = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
