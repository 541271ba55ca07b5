"""A job has a temporary folder of its own that goes with it, also when its launcher is killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from train.job import temporary
from utils.settings.config import ROOT

HOLDER = (
    "import time; from train.job.temporary import job_folder\n"
    "with job_folder() as folder:\n    print(folder, flush=True); time.sleep(600)\n"
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The temporary folder of the machine."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def holder(place):
    """A launcher with a folder of its own, in another process."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.wait()
    process.stdout.close()


def test_folder_goes_with_its_content_also_after_an_error(place):
    with pytest.raises(KeyError), temporary.job_folder() as folder:
        (folder / "torchelastic_1" / "attempt_0").mkdir(parents=True)
        assert folder.parent == place
        raise KeyError
    assert list(place.iterdir()) == []


def test_folder_of_a_killed_launcher_is_removed_by_the_next(place, holder):
    process, folder = holder
    (folder / "torchelastic_1").mkdir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert folder.is_dir()
    with temporary.job_folder() as mine:
        assert list(place.iterdir()) == [mine]


def test_folder_of_a_running_launcher_and_everything_else_stay(place, holder):
    _, folder = holder
    (place / "tprimat_file").touch()
    (place / "tprimat_results").mkdir()
    (place / "kept").mkdir()
    (place / "kept" / temporary.LOCK).touch()
    (place / "tprimat_link").symlink_to(place / "kept")
    before = sorted(place.rglob("*"))
    temporary.remove_left_behind()
    assert sorted(place.rglob("*")) == before and folder / temporary.LOCK in before


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_folder_of_another_user_stays(place):
    (place / "tprimat_theirs").mkdir()
    (place / "tprimat_theirs" / temporary.LOCK).touch()
    os.chown(place / "tprimat_theirs" / temporary.LOCK, 12345, 12345)
    temporary.remove_left_behind()
    assert (place / "tprimat_theirs").is_dir()
