"""Start real jobs through train.launch for the tests and return their results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from utils.results import store
from utils.settings.config import ROOT

SHORT = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2", "LR=1e-3", "CPU_RANKS=1")


def launch(framework: str, model: str, folder: Path, prefix: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Run one job of six short steps; results go to `folder`, data caches beside the data."""
    where = (f"OUTPUT_DIR={folder}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
    command = [sys.executable, "-m", "train.launch", "--platform", "cpu", "--framework", framework, "--model", model]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *SHORT, *where, *settings], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


def run(framework: str, model: str, folder: Path, prefix: Path, *settings: str) -> dict[str, Any]:
    """Run one job that must end well and return its result."""
    ran = launch(framework, model, folder, prefix, *settings)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    (path,) = store.find([folder])
    return store.read(path)
