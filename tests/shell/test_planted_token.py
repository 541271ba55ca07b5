"""A token in secrets.env is used in a whole run, from the data to the archive, and is found nowhere afterwards.

The ranks print it in every way that a library does, and one fails with it in the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
import zipfile
from pathlib import Path

import psutil
import pytest
from toydata import write_toy_data

from evaluate.bundle.check import check
from train.job.rank_environment import ENV_NAMES
from utils.results import store
from utils.settings.config import ROOT

TOKEN = "hf_" + "".join(chr(ord("A") + (7 * place) % 26) for place in range(34))
"""Shaped like a token of the hub, but invalid; no file of this checkout contains it."""
MARK = "TPRIMAT_TEST_PLANTED"
SETTINGS = ("FRAMEWORK=mega", "MODEL=llama", "RUNS=2", "TRAIN_ITERS=2", "WARMUP_ITERS=0", "CPU_RANKS=1")
SMALL = ("GBS=2", "MBS=2", "SL=64", "RUNTIME=native")
PLANT = """
import os, sys, time
if "train.train_mega" in " ".join(sys.orig_argv) and "RANK" in os.environ:
    token = os.environ["TPRIMAT_TEST_BACKWARDS"][::-1]
    names = [name for name, value in os.environ.items() if token in value]
    print("variables with it:", names, flush=True)
    print("login with", token, "at https://ann:" + token + "@hub.example/api?token=" + token, flush=True)
    print({"headers": {"authorization": "Bearer " + token}}, file=sys.stderr, flush=True)
    for part in (token[:9], token[9:], "\\n"):
        sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.2)
    if "2" == sys.argv[sys.argv.index("--run-number") + 1]:
        sys.path.insert(0, os.getcwd())
        import train.job.recorder
        del sys.path[0]
        def fail(self):
            raise RuntimeError(f"cannot fetch https://ann:{token}@hub.example/x with {token}")
        train.job.recorder.StepRecorder.start = fail
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of the checkout for its own secrets.env; the environment is shared."""
    root = tmp_path_factory.mktemp("planted") / "checkout"
    for folder in ("shell", "utils", "evaluate", "train", "data"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*ROOT.glob("config*.env"), *ROOT.glob("*requirements.txt")]:
        shutil.copy(path, root)
    (root / ".venv").symlink_to(ROOT / ".venv")
    (root / "secrets.env").write_text(f"HF_TOKEN={TOKEN}\n")
    (root / "secrets.env").chmod(0o600)
    return root


class Ran:
    """Output of a whole run, and the data of its processes that were visible meanwhile."""

    def __init__(self, checkout: Path) -> None:
        folder = checkout.parent
        site, self.output, prefix = folder / "site", folder / "output", write_toy_data(folder / "data" / "text")
        site.mkdir()
        (site / "sitecustomize.py").write_text(PLANT)
        mark = uuid.uuid4().hex
        taken = ("HF_TOKEN", "TPRIMAT_SECRETS_TAKEN")
        inherited = {name: value for name, value in os.environ.items() if name not in taken}
        self.environment = inherited | {"PLATFORM": "cpu", MARK: mark}
        where = (f"OUTPUT_DIR={self.output}", f"DATA_DIR={folder / 'cache'}", f"DATASET={prefix}")
        planted = {"PYTHONPATH": str(site), "TPRIMAT_TEST_BACKWARDS": TOKEN[::-1]}
        planted[ENV_NAMES] = f"{MARK},TPRIMAT_TEST_BACKWARDS"
        said = folder / "said.txt"
        self.seen: set[str] = set()
        with said.open("w") as file:
            process = subprocess.Popen(
                [checkout / "shell" / "run_train.sh", *SETTINGS, *SMALL, *where],
                env=self.environment | planted, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
            deadline = time.monotonic() + 400
            while process.poll() is None and time.monotonic() < deadline:
                self._look(mark)
                time.sleep(0.05)
        self.exit_code, self.said, self.where = process.wait(1), said.read_text(), where[0]

    def _look(self, mark: str) -> None:
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == mark:
                    self.seen.add("\0".join(process.cmdline()))
            except psutil.Error:
                continue


@pytest.fixture(scope="module")
def ran(checkout):
    return Ran(checkout)


def test_it_stands_in_no_command_line(ran):
    assert any("train.train_mega" in line for line in ran.seen) and any("train.launch" in line for line in ran.seen)
    assert not [line for line in ran.seen if TOKEN in line]


def test_the_ranks_do_not_get_it(ran):
    logs = [path.read_text() for path in sorted((ran.output / "logs").glob("train_*.log"))]
    assert len(logs) == 2 and all("variables with it: []" in log for log in logs), ran.said


def test_it_stands_in_nothing_that_is_said_or_written(ran):
    assert ran.exit_code == 1, ran.said
    first, second = (store.read(ran.output / f"train_cpu_mega_llama_run{run}.json") for run in (1, 2))
    assert (first["status"], second["status"]) == ("ok", "failed")
    assert "cannot fetch https://***@hub.example/x with ***" in second["reason"]
    log = (ran.output / "logs" / "train_cpu_mega_llama_run1_attempt1.log").read_text()
    assert "login with *** at https://***@hub.example/api?token=***\n" in log
    assert "'Bearer ***'" in log and "\n***\n" in log, "also where it came in two parts"
    names = {path.name for path in ran.output.rglob("*") if path.is_file()}
    assert names >= {"status.json", "matrix.log", "compare.json", "compare.md", "compare.html", "compare.png"}
    holding = [path for path in ran.output.rglob("*") if path.is_file() and TOKEN[:20].encode() in path.read_bytes()]
    assert holding == [] and TOKEN[:20] not in ran.said


def test_the_archive_is_packed_without_it_and_holds_what_was_measured(ran, checkout):
    wrapped = subprocess.run(
        [checkout / "shell" / "wrap.sh", ran.where], env=ran.environment, capture_output=True, text=True, timeout=120
    )
    assert (wrapped.returncode, wrapped.stderr) == (0, "")
    with zipfile.ZipFile(ran.output / "output.zip") as opened:
        assert not [name for name in opened.namelist() if TOKEN[:20].encode() in opened.read(name)]
    assert check(ran.output / "output.zip").faults == (), "redacted alike in the log and in the result"


def test_an_archive_is_refused_where_somebody_else_has_written_it_down(ran, checkout):
    log = ran.output / "logs" / "matrix.log"
    before = log.read_bytes()
    log.write_bytes(before + TOKEN.encode())
    wrapped = subprocess.run(
        [checkout / "shell" / "wrap.sh", ran.where], env=ran.environment, capture_output=True, text=True, timeout=120
    )
    log.write_bytes(before)
    assert wrapped.returncode == 1 and "logs/matrix.log" in wrapped.stderr and TOKEN not in wrapped.stderr


def test_as_an_argument_it_is_refused_and_not_repeated(checkout):
    ran = subprocess.run(
        [checkout / "shell" / "data.sh", f"HF_TOKEN={TOKEN}"], env={**os.environ, "PLATFORM": "cpu"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 2 and "HF_TOKEN" in ran.stderr and TOKEN[:20] not in ran.stderr
