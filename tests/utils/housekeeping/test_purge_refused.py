"""Purge refuses every folder that it must not empty, and nothing that changes while it runs leads it elsewhere."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from housekeeping import LIST, LOCK, MARKER, purging, tree, write_output
from neighbourhood import COMMAND, Place, make, write_checkout

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
