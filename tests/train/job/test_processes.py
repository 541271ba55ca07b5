"""No process and no temporary folder outlives its job, not even one in its own session or of a killed launcher."""

from __future__ import annotations

import os
import signal
import tempfile
import time

import psutil
import pytest
from processes import wait_until_gone

from tests.support.launching import Launcher

RANKS = """
sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_DFL); print(1, flush=True); time.sleep(600)"
orphan = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True, stdout=subprocess.PIPE)
orphan.stdout.readline()
temporary = Path(os.environ["TMPDIR"])
(temporary / "torchelastic_1").mkdir()
print("started", orphan.pid, os.getpid(), temporary, flush=True)
"""
"""Ranks that leave a process behind, in a session of its own, and a folder."""
DEAF = RANKS.replace("SIG_DFL", "SIG_IGN")
SLEEP = "time.sleep(600)"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The temporary folder of the machine."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A function that starts a launcher whose ranks hang; returns it, process ids of its ranks, and their folder."""
    running = []

    def start(name, **options):
        job = Launcher(tmp_path / name, monkeypatch)
        process = job.start(ranks=RANKS + SLEEP, **options)
        running.append(process)
        line = next(line for line in process.stdout if line.startswith("started "))
        _, orphan, rank, folder = line.split()
        running.append(psutil.Process(int(orphan)))
        return process, int(orphan), psutil.Process(int(rank)), folder

    yield start
    for process in running:
        if process.poll() is None if hasattr(process, "poll") else process.is_running():
            process.kill()


deaf = pytest.param(DEAF, marks=pytest.mark.full("an orphan that is deaf to SIGTERM gets 10 s, about 12 s"))


@pytest.mark.parametrize("ranks", [RANKS, deaf], ids=("orphan", "deaf orphan"))
def test_what_the_ranks_left_is_ended_and_their_folder_goes(ranks, place, tmp_path, monkeypatch):
    ended = Launcher(tmp_path / "job", monkeypatch).run(ranks=ranks + "result()")
    _, orphan, _, folder = next(line for line in ended.out.splitlines() if line.startswith("started ")).split()
    assert ended.code == 0
    wait_until_gone([one for one in psutil.process_iter() if one.pid == int(orphan)])
    assert folder.startswith(f"{place}/") and list(place.glob("tprimat_*")) == []


def test_killed_launcher_takes_its_ranks_along_and_the_next_one_removes_its_folder_alone(
    place, started, tmp_path, monkeypatch
):
    killed, _, rank, left = started("killed")
    killed.kill()
    killed.wait()
    wait_until_gone([rank])
    assert os.path.isdir(left)  # noqa: PTH112
    running, _, _, used = started("running", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert not os.path.isdir(left) and os.path.isdir(used)  # noqa: PTH112
    (place / "tprimat_file").touch()
    (place / "tprimat_results").mkdir()
    (place / "kept").mkdir()
    lock = next(path for path in place.glob("tprimat_*/.*") if path.is_file())
    (place / "kept" / lock.name).touch()
    (place / "tprimat_link").symlink_to(place / "kept")
    if os.geteuid() == 0:  # only root can give a folder to another user
        (place / "tprimat_theirs").mkdir()
        (place / "tprimat_theirs" / lock.name).touch()
        os.chown(place / "tprimat_theirs" / lock.name, 12345, 12345)
    before = sorted(place.rglob("*"))
    third = Launcher(tmp_path / "third", monkeypatch).start(ranks="result()")
    assert third.communicate(timeout=60) and third.returncode == 0
    assert [path for path in before if not path.exists()] == [], "of a running launcher, of a user, no launcher's"
    running.send_signal(signal.SIGHUP)  # ignored, as under nohup
    time.sleep(0.5)
    assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    said = running.communicate(timeout=60)[0]
    assert running.returncode == 128 + signal.SIGTERM and "interrupted by SIGTERM" in said
    assert not os.path.isdir(used)  # noqa: PTH112
