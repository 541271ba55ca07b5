"""run_reproduce.sh trains the jobs of an archive again: a true one passes, one whose times were halved fails."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from bundles import write_run
from checkout import ROOT

from evaluate import compare
from tests.support.setups import heed_signals
from utils.results import performance

RUNS, STEPS = 3, 25
SETTINGS = f"FRAMEWORK=mega MODEL=llama RUNS={RUNS} TRAIN_ITERS={STEPS} WARMUP_ITERS=2 GBS=4 MBS=2 SL=64 CPU_RANKS=1"
JOB = "train_cpu_mega_llama_run"


HERE = "PLATFORM=cpu", "RUNTIME=native"


def sh(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "shell" / script, *HERE, *arguments], capture_output=True, text=True, timeout=600)


def tell(folder: Path, label: str, seconds: float) -> None:
    """Replace the step times in the results below a folder, and their logs, by steady ones; all else agrees."""
    for path in sorted((folder / label).glob(f"{JOB}*.json")):
        result: dict[str, Any] = json.loads(path.read_text())
        times = [seconds * (1 + 1e-3 * (step % 7) + 1e-5 * result["run"]) for step in range(STEPS)]
        result["step_times"], result["data_wait_seconds"] = times, [0.0] * STEPS
        found = result["performance_metrics"]
        found |= performance.summarize(times, 4 * 64, 1) | {"loop_seconds": sum(times), "data_wait_fraction": 0.0}
        result["warnings"] = [line for line in result["warnings"] if "waiting for samples" not in line]
        write_run(folder, result)


def packed(folder: Path, seconds: float, archive: Path) -> None:
    """Pack a folder after its times were told."""
    tell(folder, "", seconds)
    assert compare.main([str(folder)]) == 3, "one framework has no pair"
    (folder / "output.zip").unlink(missing_ok=True)
    assert sh("run_wrap.sh", f"OUTPUT_DIR={folder}").returncode == 0
    shutil.copy(folder / "output.zip", archive)


@pytest.mark.full("run_reproduce.sh: 3 jobs of mega and the same again, about 100 s")
def test_a_true_archive_passes_and_one_whose_times_were_halved_fails(tmp_path: Path) -> None:
    there, here, archive = tmp_path / "there", tmp_path / "here", tmp_path / "claim.zip"
    where = (f"OUTPUT_DIR={here}", f"DATA_DIR={tmp_path / 'data'}")
    trained = sh("run_train.sh", *SETTINGS.split(), f"OUTPUT_DIR={there}", where[1])
    assert len(list(there.glob("train_*.json"))) == RUNS, trained.stderr[-3000:]
    packed(there, 0.01, archive)

    looked = sh("run_reproduce.sh", str(archive), "--dry-run", *where)
    assert looked.returncode == 0 and not list(here.rglob("train_*.json")), looked.stderr[-3000:]
    assert f"plan: {RUNS} jobs, 0 with an ok result already" in looked.stdout + looked.stderr

    results = here / "reproduced-claim"
    first = here / "logs" / f"reproduced-claim_{JOB}1_attempt1.log"
    command = [ROOT / "shell" / "run_reproduce.sh", *HERE, str(archive), *where]
    script = subprocess.Popen(command, start_new_session=True, preexec_fn=heed_signals)
    deadline = time.monotonic() + 600
    while not (first.exists() and "Step" in first.read_text()):
        assert script.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does, to the script and all that it started
    assert script.wait(600) == 128 + signal.SIGINT
    assert json.loads((results / f"{JOB}1.json").read_text())["status"] == "failed"
    assert not (results / f"{JOB}2.json").exists()
    ran = sh("run_reproduce.sh", str(archive), *where)
    assert len(list(results.glob("train_*.json"))) == RUNS, ran.stdout + ran.stderr[-3000:]
    (word,) = re.findall(r"^(PASS|FAIL|UNKNOWN) ", ran.stdout, re.M)
    assert ran.returncode == {"PASS": 0, "FAIL": 1, "UNKNOWN": 3}[word], ran.stdout

    tell(here, "reproduced-claim", 0.0101)  # this machine may be busy
    written = {path: path.read_bytes() for path in results.glob("train_*.json")}
    true = sh("run_reproduce.sh", str(archive), *where)
    assert true.returncode == 0 and re.search(r"^PASS +mega llama", true.stdout, re.M), true.stdout
    packed(there, 0.005, archive)
    false = sh("run_reproduce.sh", str(archive), "--at-least=60", *where)
    assert false.returncode == 1 and re.search(r"^FAIL +mega llama.* 49\.5 \(", false.stdout, re.M), false.stdout
    assert {path: path.read_bytes() for path in results.glob("train_*.json")} == written, "it continued where it was"
