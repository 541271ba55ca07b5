"""Purge refuses every folder that it must not empty, and nothing that changes while it runs leads it elsewhere."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import settings_of
from housekeeping import COMMAND, LIST, LOCK, MARKER, Place, make, purging, tree, write_checkout, write_output
from toydata import write_toy_data

from data.prepare import prepare
from evaluate import fingerprint
from utils.errors import ConfigError
from utils.housekeeping import footprint

RESULT, LOG = "train_cpu_mega_llama_run1.json", "train_cpu_mega_llama_run1_attempt1.log"


@pytest.fixture(scope="module")
def hostile(template: Place, tmp_path_factory: pytest.TempPathFactory):
    """A neighbourhood with every folder that nothing may be removed from; locks in it are held meanwhile."""
    root = tmp_path_factory.mktemp("hostile") / "place"
    shutil.copytree(template.root, root, symlinks=True)
    for name in ("people", "people/home", "homes", "code"):
        write_output(root / name)
    write_output(root / "code" / "checkout")
    write_checkout(root / "code" / "checkout")
    for name in ("closed", "read_only", "unmarked", "damaged", "foreign_lock", "held"):
        shutil.copytree(root / "outside", root / name)
    shutil.copytree(root / "data", root / "preparing")
    held = [root / "held" / LOCK, root / "preparing/c4_llama_65536001tokens_0123456789ab/.text.parts/lock"]
    for path, what, detail in (
        ("link", "link", "site/output"),
        ("link_to_nothing", "link", "nothing"),
        ("link_to_site", "link", "site"),
        ("far/away", "folder", None),
        ("far/outside", "link", "outside"),
        ("link_to_far", "link", "far/away"),
        (f"damaged/{MARKER}", "file", b'{"tool": "tpri'),
        (f"foreign_lock/{LOCK}", "file", b"of my editor\n"),
        ("closed", "mode", 0o300),
        ("read_only", "mode", 0o500),
    ):
        make(root, root / path, what, detail)
    (root / "unmarked" / MARKER).rename(root / "unmarked" / "tp2" / MARKER)
    (root / "read_only" / LOCK).unlink()
    with held[0].open("r+b") as one, held[1].open("r+b") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(two, fcntl.LOCK_EX)
        yield Place(root, root / "code" / "checkout")


IS_LINK = "is a symbolic link"
OUTPUT_REFUSED = {
    "{root}/link": IS_LINK,
    "{root}/link_to_site/output": IS_LINK,
    "{root}/link_to_far/../site/output": IS_LINK,
    "{root}/link_to_nothing": IS_LINK,
    "~": IS_LINK,
    "/": "is the root of the file system",
    "//.././": "is the root of the file system",
    "{root}/people/home": "is the home folder",
    "{root}/people": "is a folder that the home folder is in",
    "{root}/homes": "is a folder that the home folder is in",
    ".": "is the checkout",
    "utils/..": "is the checkout",
    "..": "is a folder that the checkout is in",
    "{root}/unmarked": "has no .tprimat",
    "{root}/damaged": "is damaged or not ours",
    "{root}/outside/thesis.txt": "cannot be opened as a folder",
    "{root}/closed": "cannot be opened as a folder",
    "{root}/foreign_lock": ".lock: is not ours",
    "{root}/held": "at work there",
    "{root}/read_only": "cannot be locked (Permission denied)",
}
DATA_REFUSED = {
    "{root}/outside/thesis.txt": "DATA_DIR=",
    "{root}/people/home": "DATA_DIR=",
    "{root}/code": "DATA_DIR=",
    "{root}/site": "DATA_DIR=",
    "{root}/preparing": "data are being prepared there",
}
SETTINGS = ("MODEL=llama", "LABEL=tp2", "RUNS=1", "NONSENSE=1", "MBS=0", "nonsense")
"""Settings that look like a choice of what is removed."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(([f"OUTPUT_DIR={path}"], message) for path, message in OUTPUT_REFUSED.items()),
        *(
            (["OUTPUT_DIR={root}/site/output", "--with-data", f"DATA_DIR={path}"], message)
            for path, message in DATA_REFUSED.items()
        ),
        *((["OUTPUT_DIR={root}/site/output", setting], setting) for setting in SETTINGS),
    ],
)
def test_refused_with_2_and_one_line_and_nothing_changed(hostile, arguments, message):
    """The twin of every row is the folder of `test_a_whole_output_goes`, which is not refused."""
    arguments = [argument.replace("{root}", str(hostile.root)) for argument in arguments]
    before = tree(hostile.root)
    for dry_run in ([], ["--dry-run"]):
        if "read_only" in arguments[0] and dry_run:
            assert hostile.run(*arguments, *dry_run).returncode == 0, "a dry run makes no lock"
            continue
        ran = hostile.run(*arguments, *dry_run)
        assert (ran.returncode, ran.stdout) == (2, "")
        (line,) = ran.stderr.splitlines()
        assert line.startswith("error: ") and message in line
        assert tree(hostile.root) == before


# What changes while it runs


def swap_for(path: Path, target: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(target)


def replace(path: Path) -> None:
    path.with_name("new").write_text("mine")
    path.with_name("new").rename(path)


RACES = {  # call, name of its file, what happens at the first such call; then exit code, what is printed, what stays
    "a folder on the way is swapped": (
        *("unlink", "compare.html", lambda place: swap_for(place.root / "site", place.root / "elsewhere")),
        *(0, "removed", set()),
    ),
    "a folder in it is swapped before it is opened": (
        *("open", "logs", lambda place: swap_for(place.output / "logs", place.root / "outside" / "logs")),
        *(0, "left logs", {"logs", "moved"}),
    ),
    "a folder in it is swapped while it is emptied": (
        *("unlink", LOG, lambda place: swap_for(place.output / "logs", place.root / "outside" / "logs")),
        *(1, "left logs", {"logs", "moved"}),
    ),
    "a file is replaced": (
        *("unlink", "compare.html", lambda place: replace(place.output / RESULT)),
        *(0, f"left {RESULT}: changed since the suite wrote it", {RESULT}),
    ),
    "a file comes at the end": (
        *("unlink", LOCK, lambda place: (place.output / "new").write_text("mine")),
        *(1, "left .: could not be removed", {"new"}),
    ),
    "nothing": (*("unlink", "", None), *(0, "removed", set())),
}


@pytest.mark.parametrize("name", RACES)
def test_what_changes_while_it_runs_leads_nowhere_else_and_stays(name, place, monkeypatch, capsys):
    call, file, change, exit_code, said, stays = RACES[name]
    real, calls = getattr(os, call), []
    shutil.copytree(place.root / "outside", place.root / "elsewhere" / "output")
    before = {path: what for path, what in tree(place.root).items() if not path.startswith("site")}

    def changing(path, *arguments, **keywords):
        if path == file and path not in calls:
            change(place)
        calls.append(path)
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(os, call, changing)
    ended = purging(f"OUTPUT_DIR={place.output}")
    monkeypatch.undo()
    assert (ended, said in capsys.readouterr().out) == (exit_code, True)
    assert tree(place.root).items() >= before.items()
    left = {path.name for path in place.output.iterdir()} if place.output.exists() else set()
    assert left - {MARKER, LIST} == stays or place.output.parent.is_symlink()
    if name.startswith("a folder on the way"):
        assert not (place.root / "moved" / "output").exists()
    if change is None:
        assert calls[-2:] == [LOCK, MARKER], "so that a purge that was killed can be taken up again"


# Mount points


@pytest.mark.parametrize(
    ("mount", "exit_code", "said"),
    [
        ('--bind "$OUTPUT" "$OUTPUT"', 2, "is a mount point"),
        ('-t tmpfs none "$OUTPUT"', 2, "is a mount point"),
        ('-t tmpfs none "$OUTPUT/logs"', 0, "left logs/: another file system is mounted there"),
    ],
)
def test_a_mount_point_is_refused_and_one_in_the_folder_is_not_entered(mount, exit_code, said, place):
    """Under a name with a number sign, which proc(5) writes as \\043 in the list of mounts."""
    output = place.output.rename(place.output.with_name("an#output"))
    unshare = ("unshare", "--mount", "--map-root-user", "--propagation", "private", "sh", "-c")
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a mount namespace")
    before = tree(place.root / "site")
    ran = place.run(
        f"OUTPUT_DIR={output}", command=(*unshare, f'mount {mount} && exec "$@"', "sh", *COMMAND), OUTPUT=str(output)
    )
    assert ran.returncode == exit_code and said in ran.stdout + ran.stderr, ran.stderr
    kept = {path: what for path, what in before.items() if exit_code or path.startswith("an#output/logs")}
    assert tree(place.root / "site").items() >= kept.items()


# The suite knows its folders by a marker, its files by their names, and who is at work in a folder by a lock.

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
