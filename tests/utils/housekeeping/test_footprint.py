"""The suite knows its folders by a marker, its files by their names, and who is at work in a folder by a lock."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from housekeeping import LOCK, MARKER, purging
from settings_of import settings_of
from toydata import write_toy_data

from data.prepare import prepare
from evaluate import fingerprint
from utils.errors import ConfigError
from utils.housekeeping import footprint

SHORT = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2")
HOLDER = (
    "import sys, time; from pathlib import Path; from utils.housekeeping.footprint import lock\n"
    "with lock(Path(sys.argv[1])):\n    print('held', flush=True); {}\n"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "output").mkdir()
    return tmp_path / "output"


@pytest.fixture
def holder(folder):
    """Return a starter of another process that locks the folder; what it starts is ended afterwards."""
    started = []

    def start(then: str = "time.sleep(60)"):
        command = [sys.executable, "-c", HOLDER.format(then), str(folder)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=Path(__file__).parents[3], stdin=pipe, stdout=pipe, text=True))
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_folder_is_marked_once_with_whose_it_is_and_what_for(tmp_path):
    folder = tmp_path / "new" / "data"
    for kind in ("data", "output"):
        footprint.mark(folder, kind)
        assert json.loads((folder / MARKER).read_text()) == {"tool": "tprimat", "kind": "data", "schema": 1}
    assert [path.name for path in folder.iterdir()] == [MARKER]
    with pytest.raises(ConfigError, match="/proc/nowhere: cannot be written"):
        footprint.mark(Path("/proc/nowhere"), "output")


FOREIGN = {  # content of the marker, and of the lock
    "no JSON": '{"tool": "tpri',
    "empty": "",
    "a list": "[]",
    "another tool": '{"tool": "other", "kind": "output", "schema": 1}',
    "another schema": '{"tool": "tprimat", "kind": "output", "schema": 2}',
    "another kind": '{"tool": "tprimat", "kind": "home", "schema": 1}',
    "nested without end": "[" * 100_000,
    "not UTF-8": "\xff",
    "link": None,
    "pipe": None,
    "folder": None,
}


@pytest.mark.parametrize("name", [MARKER, LOCK])
@pytest.mark.parametrize("fault", FOREIGN)
def test_a_marker_or_lock_that_is_not_ours_stays_and_the_folder_is_not_used(fault, name, folder, tmp_path):
    if (fault, name) == ("empty", LOCK):
        return  # a lock that nobody has used yet
    if fault == "link":
        footprint.mark(tmp_path / "other", "output")
        (folder / name).symlink_to(tmp_path / "other" / MARKER)
    elif fault == "pipe":
        os.mkfifo(folder / name)  # opening it must not wait for a writer
    elif fault == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).write_text(FOREIGN[fault], encoding="latin1")
    before = (folder / name).lstat()
    with pytest.raises(ConfigError, match=name) as error, footprint.lock(folder):
        pass
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    after = (folder / name).lstat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize("fault", ["deleted", "renamed", "replaced"])
def test_lock_is_lost_with_its_folder(tmp_path, fault):
    folder = tmp_path / "output"
    with footprint.lock(folder) as is_held:
        assert is_held()
        folder.rename(tmp_path / "renamed")
        if fault == "deleted":
            (tmp_path / "renamed" / LOCK).unlink()
        if fault == "replaced":
            with footprint.lock(folder):
                assert not is_held()
        assert not is_held()
    assert folder.exists() == (fault == "replaced")


def test_only_one_process_has_a_folder_until_it_ends_and_the_other_is_told_who(folder, holder):
    process = holder()
    assert (folder / MARKER).exists(), "who locks a folder marks it"
    refused = pytest.raises(ConfigError, match=f"process {process.pid} on .* is at work there")
    with refused, footprint.lock(folder):
        pass
    process.kill()
    process.wait()
    # a program that is started under the lock does not keep it: `cat` waits for the end of this test's input
    holder("import subprocess; subprocess.Popen(['cat'], stdout=2); sys.exit()").wait()
    for _ in range(2):
        with footprint.lock(folder):
            assert str(os.getpid()) in (folder / LOCK).read_text()


def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(folder, monkeypatch):
    """Purge removes the file: without asking again, two could hold a lock each, on different files."""
    taken = []

    def flock(descriptor, operation):
        if not taken:
            (folder / LOCK).unlink()
        taken.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr("fcntl.flock", flock)
    with footprint.lock(folder):
        assert (folder / LOCK).stat().st_ino == taken[-1]
    assert len(taken) == 2


def test_a_lock_on_a_full_disk_is_bad_input_and_is_given_back(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ConfigError, match="No space left"), footprint.lock(folder):
        pass
    monkeypatch.undo()
    with footprint.lock(folder):
        pass


@pytest.mark.parametrize("text", ["made here", "of a user"])
def test_data_folder_is_marked_and_all_that_preparing_and_reading_leaves_goes(text, tmp_path):
    """Made by data.prepare, and by evaluate.fingerprint with GPTDataset; also with a text whose name is odd."""
    settings = [f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path / 'output'}"]
    if text == "made here":
        prefix, _ = prepare(settings_of(*settings, *SHORT), "llama")
        assert (tmp_path / "data" / MARKER).exists(), "marked by what makes the data, not only by what reads them"
        own = tmp_path / "my.-[own].jsonl"
        own.write_text(
            "".join(json.dumps({"text": f"the {number} lines of mine " * 40}) + "\n" for number in range(60))
        )
        named = (f"DATASET={own}", f"TOKENIZER={prefix.parent / 'tokenizer'}", "ALLOW_REPEAT=true", "SAMPLES=50")
        prepare(settings_of(*settings, *SHORT, *named), "llama")
    else:
        prefix = write_toy_data(tmp_path / "theirs" / "text")
    assert fingerprint.main([str(prefix), "--platform", "cpu", *settings, *SHORT, f"DATASET={prefix}"]) == 0
    made = [path.parent.name for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert len(made) > (3 + 7 if text == "made here" else 3) and made.count("index_cache") == 4
    assert purging("--with-data", *settings) == 0
    assert not (tmp_path / "data").exists()
    assert text == "made here" or [path.name for path in sorted(prefix.parent.iterdir())] == ["text.bin", "text.idx"]
