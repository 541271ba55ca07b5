"""Purge removes what the suite made, all of it, and nothing else, whatever the folder has been turned into.

Each hostile set-up starts from a whole OUTPUT_DIR in a neighbourhood of other people's files, and the whole
neighbourhood is compared before and after. Run as `python -S`, which has the standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from housekeeping import rewrite, tree, write_data, write_output

from utils.housekeeping import footprint, purge
from utils.settings.config import ROOT

COMMAND = (sys.executable, "-B", "-S", "-m", "utils.housekeeping.purge", "--platform", "nvd")
RESULT = "train_cpu_mega_llama_run1.json"
LOG = "train_cpu_mega_llama_run1_attempt1.log"
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24  # <linux/capability.h>, <linux/prctl.h>


@dataclass
class Place:
    """A neighbourhood: a checkout, a home, other people's files, and an OUTPUT_DIR of ours among them."""

    root: Path
    output: Path = field(init=False)
    outside: Path = field(init=False)
    checkout: Path = field(init=False)
    home: Path = field(init=False)
    ours: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.output, self.outside = self.root / "site" / "output", self.root / "outside"
        self.checkout, self.home = self.root / "code" / "checkout", self.root / "people" / "home"
        self.ours = {str(Path("site", "output", name)) for name in tree(self.output)} | {"site/output"}

    def purge(self, *arguments: str, output: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run the checkout's purge as a user with no rights beyond those of the files."""
        return subprocess.run(
            [*COMMAND, f"OUTPUT_DIR={output or self.output}", *arguments],
            cwd=self.checkout,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            preexec_fn=drop_rights,
            capture_output=True,
            text=True,
            timeout=60,
        )


def drop_rights() -> None:
    """Root may write anywhere; without these capabilities it may not. For any other user this does nothing."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template")
    checkout = root / "code" / "checkout"
    checkout.mkdir(parents=True)
    shutil.copytree(ROOT / "utils", checkout / "utils", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("config*.env"):
        shutil.copy(path, checkout)
    write_output(root / "site" / "output")
    write_data(root / "data")
    write_output(root / "outside")
    (root / "outside" / "thesis.txt").write_text("years of work")
    (root / "people" / "home").mkdir(parents=True)
    (root / "people" / "home" / "letters").write_text("dear")
    return root


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Place:
    shutil.copytree(template, tmp_path / "place", symlinks=True)
    return Place(tmp_path / "place")


REFUSED: dict[str, tuple[Callable[[Place], str | None], str]] = {}
"""Set-ups in which nothing may be removed: they return OUTPUT_DIR (None: as it is); part of the message."""
LEFT: dict[str, Callable[[Place], tuple[set[str], set[str]]]] = {}
"""Set-ups in which ours go: they return what of ours stays, from OUTPUT_DIR, and words of the reasons given."""


def refused(message: str) -> Callable[[Callable[[Place], str | None]], None]:
    def add(setup: Callable[[Place], str | None]) -> None:
        REFUSED[setup.__name__] = (setup, message)

    return add


def left(setup: Callable[[Place], tuple[set[str], set[str]]]) -> None:
    LEFT[setup.__name__] = setup


@refused("is a symbolic link")
def output_is_a_link(place):
    (place.root / "link").symlink_to(place.output)
    return str(place.root / "link")


@refused("is a symbolic link")
def output_was_swapped_for_a_link_to_another_output(place):
    place.output.rename(place.output.with_name("moved"))
    place.output.symlink_to(place.outside)


@refused("is a symbolic link")
def a_folder_on_the_way_is_a_link(place):
    (place.root / "link").symlink_to(place.root / "site")
    return str(place.root / "link" / "output")


@refused("is a symbolic link")
def a_way_up_leads_through_a_link(place):
    (place.root / "far" / "away").mkdir(parents=True)
    (place.root / "far" / "outside").symlink_to(place.outside)
    (place.root / "link").symlink_to(place.root / "far" / "away")
    return f"{place.root}/link/../site/output"


@refused("is a symbolic link")
def output_is_a_link_to_nothing(place):
    (place.root / "link").symlink_to(place.root / "nothing")
    return str(place.root / "link")


@refused("is the root of the file system")
def output_is_the_root(place):
    return "/"


@refused("is the root of the file system")
def output_is_the_root_by_another_name(place):
    return "//.././"


@refused("is the home folder")
def output_is_home(place):
    write_output(place.home)
    return "~"


@refused("is a folder that the home folder is in")
def output_is_above_home(place):
    write_output(place.root / "people")
    return str(place.root / "people")


@refused("is a folder that the home folder is in")
def output_is_above_what_home_is_a_link_to(place):
    write_output(place.root / "people")
    place.home.rename(place.root / "people" / "real")
    (place.root / "homes").mkdir()
    (place.root / "homes" / "me").symlink_to(place.root / "people" / "real")
    place.home = place.root / "homes" / "me"
    return str(place.root / "people")


@refused("is the checkout")
def output_is_a_dot(place):
    write_output(place.checkout)
    return "."


@refused("is a folder that the checkout is in")
def output_is_two_dots(place):
    write_output(place.root / "code")
    return ".."


@refused("is the checkout")
def output_is_a_way_back_to_the_checkout(place):
    write_output(place.checkout)
    return "utils/.."


@refused("has no .tprimat")
def output_has_no_marker(place):
    (place.output / footprint.MARKER).unlink()


@refused("has no .tprimat")
def only_a_labelled_folder_has_a_marker(place):
    (place.output / footprint.MARKER).rename(place.output / "tp2" / footprint.MARKER)


@refused("is damaged or not ours")
def the_marker_is_damaged(place):
    (place.output / footprint.MARKER).write_text('{"tool": "tpri')


@refused("cannot be opened as a folder")
def output_is_a_file(place):
    return str(place.outside / "thesis.txt")


@refused("cannot be opened as a folder")
def output_cannot_be_read(place):
    place.output.chmod(0o300)


@refused(".lock: is not ours")
def the_lock_is_of_somebody_else(place):
    (place.output / footprint.LOCK).write_text("of my editor\n")


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_2_and_one_line_and_nothing_changed(name, place):
    setup, message = REFUSED[name]
    output = setup(place)
    before = tree(place.root)
    for dry_run in ([], ["--dry-run"]):
        ran = place.purge(*dry_run, output=output)
        assert (ran.returncode, ran.stdout) == (2, "")
        (line,) = ran.stderr.splitlines()
        assert line.startswith("error: ") and message in line
        assert tree(place.root) == before


@left
def a_link_to_a_folder_of_others(place):
    (place.output / "mine").symlink_to(place.outside)
    return set(), {"left mine: a symbolic link"}


@left
def logs_are_a_link_to_logs_of_others(place):
    (place.output / "logs").rename(place.root / "logs")
    place.ours -= {name for name in place.ours if name.startswith("site/output/logs")}
    (place.output / "logs").symlink_to(place.outside / "logs")
    return set(), {"left logs: a symbolic link"}


@left
def a_result_is_a_link_to_a_result_of_others(place):
    (place.output / RESULT).unlink()
    (place.output / RESULT).symlink_to(place.outside / RESULT)
    return {RESULT}, {f"left {RESULT}: a symbolic link"}


@left
def a_result_is_a_folder(place):
    (place.output / RESULT).unlink()
    (place.output / RESULT).mkdir()
    shutil.copy(place.outside / RESULT, place.output / RESULT)
    return {RESULT}, {f"left {RESULT}/: nothing in it", f"left {RESULT}/{RESULT}: a result of label ''"}


@left
def a_log_is_a_folder_with_a_log_in_it(place):
    (place.output / "logs" / LOG).unlink()
    (place.output / "logs" / LOG).mkdir()
    (place.output / "logs" / LOG / LOG).touch()
    return {"logs", f"logs/{LOG}"}, {f"left logs/{LOG}/: a folder"}


@left
def ours_are_hard_links_to_files_of_others(place):
    """What is removed is our name; the file lives on under the other."""
    for name in (RESULT, f"logs/{LOG}"):
        (place.output / name).unlink()
        os.link(place.outside / name, place.output / name)
    return set(), set()


@left
def names_are_odd(place):
    names = [b"-rf", b"--", b"*", b"?", b"[a]", b"a b", b"a\nb", b"\xff\xfe", b"~", b"$HOME", b"'", b"\x1b[2J", b"..."]
    names += [RESULT.encode() + end for end in (b"\n", b" ", b"\xff", b"*", b"\\")]
    names += [b" " + RESULT.encode(), b"*" + RESULT.encode(), b"-" + RESULT.encode()]
    for name in names:
        Path(os.fsdecode(os.fsencode(place.output) + b"/" + name)).write_text("odd")
        Path(os.fsdecode(os.fsencode(place.output / "logs") + b"/" + name)).write_text("odd")
    return {"logs"}, {"left -rf: ", "left 'a\\nb': ", "left '\\udcff\\udcfe': ", "left '\\x1b[2J': "}


@left
def folders_have_odd_names(place):
    for name in (b"-rf", b"a\nb", b"\xff", b"*", b"tp2 ", b"logs\n"):
        folder = Path(os.fsdecode(os.fsencode(place.output) + b"/" + name))
        shutil.copytree(place.output / "tp2", folder)
    return set(), {"left -rf/: ", "left 'a\\nb/': "}


@left
def files_have_nearly_our_names(place):
    for name in (f"{RESULT}.bak", f"my_{RESULT}", "train_cpu_mega_llama_run01.json", "output2.zip", ".lock~", "status"):
        shutil.copy(place.output / RESULT, place.output / name)
    for name in (f"{LOG}.gz", "notes.txt"):
        (place.output / "logs" / name).write_text("mine")
    return {"logs"}, {f"left {RESULT}.bak: a name that the suite does not write here"}


FOREIGN_RESULTS = {
    "train_cpu_mega_llama_run31.json": "{",
    "train_cpu_mega_llama_run32.json": "[1, 2]",
    "train_cpu_mega_llama_run33.json": '{"loss": [1.0, 2.0]}',
    "train_cpu_mega_llama_run34.json": "",
    "train_cpu_mega_llama_run35.json": "[" * 100_000,
    "train_cpu_mega_llama_run36.json": "\xff\xfe",
}


@left
def foreign_json_has_our_names(place):
    for name, text in FOREIGN_RESULTS.items():
        (place.output / name).write_bytes(text.encode("latin1"))
        (place.output / "superseded" / name.replace(".json", "_attempt1.json")).write_bytes(text.encode("latin1"))
    return {"superseded"}, {f"left {name}: " for name in FOREIGN_RESULTS}


@left
def results_are_not_those_that_their_names_say(place):
    for number, changes in enumerate(
        ({"schema_version": 99}, {"schema_version": "1"}, {"platform": "nvd"}, {"run": 2}, {"label": "tp2"})
        + ({"identity_sha256": None}, {"model": ["llama"]}, {"framework": "hf"}),
        start=41,
    ):
        path = place.output / f"train_cpu_mega_llama_run{number}.json"
        shutil.copy(place.output / RESULT, path)
        rewrite(path, **{"run": number, **changes})
    return set(), {f"left train_cpu_mega_llama_run{number}.json: " for number in range(41, 49)}


@left
def a_users_own_folder_is_in_it(place):
    (place.output / "notes" / "deep" / "logs").mkdir(parents=True)
    (place.output / "notes" / "deep" / "logs" / LOG).write_text("mine")
    (place.output / "notes" / "compare.md").write_text("mine")
    (place.output / "empty").mkdir()
    return set(), {"left notes/: nothing in it is the suite's", "left empty/: "}


@left
def a_user_keeps_copies_of_results_in_it(place):
    shutil.copytree(place.output, place.output / "backup", ignore=shutil.ignore_patterns(".*", "backup"))
    return set(), {f"left backup/{RESULT}: a result of label ''", "left backup/: nothing"}


@left
def a_user_has_files_beside_labelled_results(place):
    (place.output / "tp2" / "mine.txt").write_text("mine")
    (place.output / "tp2" / "superseded" / "mine.txt").write_text("mine")
    return {"tp2", "tp2/superseded"}, {"left tp2/mine.txt: ", "left tp2/superseded/mine.txt: "}


@left
def a_user_had_such_files_before(place):
    for name in ("compare.json", "status.json"):
        (place.output / name).write_text('{"mine": true}')
    (place.output / "status.html").write_text("<title>Training status</title>")
    (place.output / "output.zip").write_bytes(b"PK\5\6" + b"\0" * 18)
    (place.output / "tp2" / "compare.json").unlink()
    own = {
        "compare.json",
        "compare.md",
        "compare.png",
        "compare.html",
        "why.png",
        "status.json",
        "status.html",
        "output.zip",
        "tp2",
    }
    own |= {"tp2/why.png", *(f"tp2/compare.{suffix}" for suffix in ("md", "png", "html"))}
    return own, {"left output.zip: a zip file"}


@left
def prepared_data_are_in_it(place):
    shutil.copytree(place.root / "data", place.output / "data")
    return set(), {"left data/: prepared data"}


@left
def another_output_is_in_it(place):
    shutil.copytree(place.outside, place.output / "tp3")
    shutil.copy(place.output / footprint.MARKER, place.output / "tp2")
    stays = {"tp2"} | {str(path.relative_to(place.output)) for path in (place.output / "tp2").rglob("*")}
    return stays, {"left tp3/: an OUTPUT_DIR of its own", "left tp2/: an OUTPUT_DIR of its own"}


@left
def pipes_and_sockets_have_our_names(place):
    for name in ("train_cpu_mega_llama_run31.json", "compare.svg", ".train_cpu_mega_llama_run31.json.reserve"):
        os.mkfifo(place.output / name)
    (place.output / "output.zip").unlink()
    os.mkfifo(place.output / "output.zip")
    here = Path.cwd()
    os.chdir(place.output / "logs")  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("train_cpu_mega_llama_run31_attempt1.log")
    os.chdir(here)
    return {"logs", "output.zip"}, {"left output.zip: no regular file", "left logs/train_cpu_mega_llama_run31_attempt1"}


@left
def a_folder_of_ours_cannot_be_looked_into(place):
    (place.output / "logs").chmod(0o600)
    (place.output / "profiles").chmod(0)
    stays = {str(path.relative_to(place.output)) for path in place.output.glob("[lp]*/**/*")}
    return stays | {"logs", "profiles"}, {"left logs/: cannot be searched", "left profiles/: cannot be opened"}


@left
def git_keeps_the_folder(place):
    (place.output / ".gitkeep").touch()
    return set(), {"left .gitkeep: ", "left .tprimat: marks the folder"}


@pytest.mark.parametrize("name", LEFT)
def test_all_of_ours_goes_and_nothing_else(name, place):
    stays, reasons = LEFT[name](place)
    before = tree(place.root)
    dry = place.purge("--dry-run")
    assert tree(place.root) == before, "a dry run removes nothing"
    ran = place.purge()
    removed = place.ours - {f"site/output/{name}" for name in stays}
    if any(path.startswith("site/output/") for path in before.keys() - removed):
        removed -= {"site/output", "site/output/.tprimat"}
    assert tree(place.root) == {path: what for path, what in before.items() if path not in removed}
    assert ran.returncode == 0, ran.stderr
    for reason in reasons:
        assert any(line.startswith(reason) for line in ran.stdout.splitlines()), ran.stdout
    assert dry.stdout.replace("would remove", "removed") == ran.stdout
    again = place.purge()
    assert again.returncode == 0 and "removed 0 files" in again.stdout or "does not exist" in again.stdout
    assert tree(place.root) == {path: what for path, what in before.items() if path not in removed}


def test_a_whole_output_goes_with_its_folder_and_its_count_is_right(place):
    before = tree(place.root)
    files = [path for path in place.ours if before[path].startswith("file of")]
    sizes = sum((place.root / path).stat().st_size for path in files)
    # the marker and the lock go with the folder and are not counted
    for name in (footprint.MARKER, footprint.LOCK):
        sizes -= (place.output / name).stat().st_size
    ran = place.purge()
    assert not place.output.exists() and place.output.parent.exists()
    assert tree(place.root) == {path: what for path, what in before.items() if path not in place.ours}
    folders = len(place.ours) - len(files)
    assert ran.stdout.splitlines()[-1] == (
        f"{place.output}: removed {len(files) - 2:,} files ({sizes:,} bytes) and {folders} folders"
    )


def test_purging_what_is_not_there_is_nothing_to_do(place):
    place.purge()
    before = tree(place.root)
    ran = place.purge()
    assert (ran.returncode, ran.stderr) == (0, "") and "does not exist; nothing to do" in ran.stdout
    assert tree(place.root) == before


@pytest.fixture(params=["data", "site/output/data", "site/output"])
def data(request, place: Place) -> Path:
    """DATA_DIR beside OUTPUT_DIR, in it as on a machine without a GPU, and the same folder."""
    folder = place.root / request.param
    if not folder.exists():
        shutil.copytree(place.root / "data", folder)
    elif request.param == "site/output":
        write_data(folder)
    return folder


def test_data_stay_unless_asked_for(data, place):
    before = tree(data)
    ran = place.purge(f"DATA_DIR={data}")
    assert ran.returncode == 0
    before = {path: what for path, what in before.items() if f"{data.relative_to(place.root)}/{path}" not in place.ours}
    assert "synth_seed42_245761tokens/text.bin" in before
    assert tree(data).items() >= before.items()


def test_data_go_when_asked_for_and_the_dry_run_says_the_same(data, place):
    before = tree(place.root)
    settings = ["--with-data", f"DATA_DIR={data}"]
    dry = place.purge("--dry-run", *settings)
    assert tree(place.root) == before
    ran = place.purge(*settings)
    assert ran.returncode == 0, ran.stderr
    assert not data.exists() and not place.output.exists()
    assert dry.stdout.replace("would remove", "removed") == ran.stdout
    gone = (str(data.relative_to(place.root)), "site/output")
    assert tree(place.root) == {
        path: what
        for path, what in before.items()
        if path not in gone and not path.startswith(tuple(f"{name}/" for name in gone))
    }


def test_data_of_others_and_a_broken_data_set_stay(place):
    data = place.root / "data"
    own = ("mine.jsonl", "synth_seed42_245761tokens/mine.txt", "index_cache/mine.npy", "corpus/text.bin")
    for name in own:
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text("mine")
    ran = place.purge("--with-data", f"DATA_DIR={data}")
    assert ran.returncode == 0
    files = {path for path in tree(data) if (data / path).is_file()}
    assert files == {*own, footprint.MARKER}
    assert "left corpus/: a folder that the suite does not make here" in ran.stdout


@pytest.mark.parametrize("where", ["outside/thesis.txt", "people/home", "site", "code"])
def test_nothing_goes_where_the_data_may_not_be_purged(where, place):
    before = tree(place.root)
    ran = place.purge("--with-data", f"DATA_DIR={place.root / where}")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: DATA_DIR=") and ran.stderr.count("\n") == 1
    assert tree(place.root) == before


def test_a_folder_in_use_is_refused(place):
    before = tree(place.root)
    with (place.output / footprint.LOCK).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for dry_run in ([], ["--dry-run"]):
            ran = place.purge(*dry_run)
            assert (ran.returncode, ran.stdout) == (2, "")
            assert "at work there" in ran.stderr and ran.stderr.count("\n") == 1
    assert tree(place.root) == before


def test_a_folder_in_which_no_lock_can_be_made_is_refused(place):
    (place.output / footprint.LOCK).unlink()
    place.output.chmod(0o500)
    before = tree(place.root)
    ran = place.purge()
    assert (ran.returncode, ran.stdout) == (2, "") and "cannot be locked (Permission denied)" in ran.stderr
    assert tree(place.root) == before


def test_data_that_are_being_prepared_are_refused(place):
    before = tree(place.root)
    (lock,) = (place.root / "data").glob("*/.text.parts/lock")
    with lock.open("wb") as held:
        held.write(b"data")
        fcntl.flock(held, fcntl.LOCK_EX)
        for dry_run in ([], ["--dry-run"]):
            ran = place.purge("--with-data", f"DATA_DIR={place.root / 'data'}", *dry_run)
            assert (ran.returncode, ran.stdout) == (2, "")
            assert "data are being prepared there" in ran.stderr and ran.stderr.count("\n") == 1
    assert tree(place.root) == before


@pytest.mark.parametrize("setting", ["MODEL=llama", "LABEL=tp2", "RUNS=1", "NONSENSE=1", "MBS=0", "nonsense"])
def test_a_setting_that_reads_like_a_choice_is_refused(setting, place):
    before = tree(place.root)
    ran = place.purge(setting)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert setting in ran.stderr and ran.stderr.count("\n") == 1
    assert tree(place.root) == before


def test_what_cannot_be_removed_is_said_and_ends_with_1(place):
    (place.output / "logs").chmod(0o500)
    before = tree(place.output)
    ran = place.purge()
    kept = {path for path in before if path.startswith("logs")}
    assert ran.returncode == 1
    assert f"left logs/{LOG}: could not be removed (Permission denied)" in ran.stdout
    assert tree(place.output).keys() == kept | {footprint.MARKER}


def test_a_setting_in_the_environment_names_the_folder_as_it_does_for_training(place, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", str(place.output))
    monkeypatch.setenv("TP", "7")  # nothing to do with files, so no GPU is asked for
    assert purge.main(["--platform", "nvd"]) == 0
    assert not place.output.exists()


def in_process(place: Place, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("HOME", str(place.home))
    return purge.main(["--platform", "cpu", f"OUTPUT_DIR={place.output}"])


def test_a_way_swapped_for_a_link_while_it_runs_leads_nowhere_else(place, monkeypatch):
    real, elsewhere = purge.purge, place.root / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(place.outside, elsewhere / "output")
    before = tree(elsewhere)

    def swap(*arguments, **keywords):
        (place.root / "site").rename(place.root / "moved")
        (place.root / "site").symlink_to(elsewhere)
        return real(*arguments, **keywords)

    monkeypatch.setattr(purge, "purge", swap)
    assert in_process(place, monkeypatch) == 0
    assert tree(elsewhere) == before
    assert not (place.root / "moved" / "output").exists()


@pytest.mark.parametrize("moment", ["open", "unlink"])
def test_a_folder_swapped_for_a_link_while_it_runs_leads_nowhere_else(moment, place, monkeypatch, capsys):
    real, before = getattr(os, moment), tree(place.outside)

    def swap(name, *arguments, **keywords):
        if name == ("logs" if moment == "open" else LOG) and not (place.output / "logs").is_symlink():
            (place.output / "logs").rename(place.root / "moved")
            (place.output / "logs").symlink_to(place.outside / "logs")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(os, moment, swap)
    exit_code = in_process(place, monkeypatch)
    monkeypatch.undo()
    assert tree(place.outside) == before
    assert (place.output / "logs").is_symlink()
    assert (exit_code, "left logs" in capsys.readouterr().out) == (int(moment == "unlink"), True)


def test_a_file_that_came_while_it_runs_stays(place, monkeypatch, capsys):
    real = purge.Entry.is_unchanged

    def replace(entry):
        if entry.path == RESULT:
            (place.output / "new").write_text("mine")
            (place.output / "new").rename(place.output / RESULT)
        return real(entry)

    monkeypatch.setattr(purge.Entry, "is_unchanged", replace)
    assert in_process(place, monkeypatch) == 1
    assert (place.output / RESULT).read_text() == "mine"
    assert f"left {RESULT}: changed while this ran" in capsys.readouterr().out


def test_a_folder_that_is_filled_while_it_runs_stays(place, monkeypatch):
    real = purge._finish

    def fill(*arguments):
        (place.output / "new").write_text("mine")
        real(*arguments)

    monkeypatch.setattr(purge, "_finish", fill)
    assert in_process(place, monkeypatch) == 1
    assert tree(place.output).keys() == {"new", footprint.MARKER}


def mounted(place: Place, *mount: str) -> list[str]:
    """Return the command that purges in a mount namespace of its own; skips where this user may make none."""
    unshare = ["unshare", "--mount", "--map-root-user", "--propagation", "private", "sh", "-c"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a mount namespace")
    script = f'mount {" ".join(mount)} && exec "$@"'
    return [*unshare, script, "sh", *COMMAND, f"OUTPUT_DIR={place.output}"]


@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_a_mount_point_is_refused(kind, place):
    source = ["--bind", str(place.output)] if kind == "bind" else ["-t", "tmpfs", "none"]
    command = mounted(place, *source, str(place.output))
    before = tree(place.root)
    ran = subprocess.run(command, cwd=place.checkout, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and "is a mount point" in ran.stderr, ran.stderr
    assert tree(place.root) == before


def test_another_file_system_in_it_is_not_entered(place):
    command = mounted(place, "-t", "tmpfs", "none", str(place.output / "logs"))
    before = tree(place.output / "logs")
    ran = subprocess.run(command, cwd=place.checkout, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "left logs/: another file system is mounted there" in ran.stdout
    assert tree(place.output / "logs") == before


def test_a_mount_point_with_an_odd_name_is_known(tmp_path, monkeypatch):
    """Source of the line: proc(5), /proc/pid/mountinfo, which writes a space as \\040."""
    monkeypatch.setattr(footprint, "MOUNTS", tmp_path / "mountinfo")
    footprint.MOUNTS.write_text(
        "36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    )
    assert footprint._is_mount_point(Path("/mnt/a b")) and not footprint._is_mount_point(tmp_path)


def test_the_marker_is_the_last_to_go(place, monkeypatch):
    """So that a purge that was killed can be taken up again."""
    order = []
    real = os.unlink
    monkeypatch.setattr(os, "unlink", lambda name, **where: (order.append(name), real(name, **where)))
    assert in_process(place, monkeypatch) == 0
    assert order[-2:] == [footprint.LOCK, footprint.MARKER]
