"""Purge removes what the suite made, all of it, and nothing else, whatever stands in the folder.

Each test speaks to the command, as `python -S`, which has the standard library only. The neighbourhood is compared
before and after.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import housekeeping
import pytest
from housekeeping import LIST, LOCK, MARKER, listed, make, tree, write_checkout, write_data, write_output

from example import example_result

RESULT = "train_cpu_mega_llama_run1.json"
LOG = "train_cpu_mega_llama_run1_attempt1.log"


def result(**changes: object) -> bytes:
    return json.dumps(example_result(**changes)).encode()


def odd(*names: bytes) -> list[str]:
    return [os.fsdecode(name) for name in names]


FILE = ("file", b"mine")
ODD = odd(b"-rf", b"--", b"*", b"?", b"[a]", b"a b", b"a\nb", b"\xff\xfe", b"~", b"$HOME", b"'", b"\x1b[2J", b"...")
ODD += odd(*(RESULT.encode() + end for end in (b"\n", b" ", b"\xff", b"*", b"\\")), b"*" + RESULT.encode())
ODD_FOLDERS = odd(b"-d", b"c\nd", b"\xfe", b"**", b"tp2 ", b"logs\n")
NEARLY = (
    f"{RESULT}.bak",
    f" {RESULT}",
    f"-{RESULT}",
    f"my_{RESULT}",
    RESULT.upper(),
    f".{RESULT}",
    f".{RESULT}.swp",
    "train_cpu_mega_llama_run01.json",
    "train_cpu_mega_llama_run\u0661.json",
    "train_cpu_mega_llama_run-1.json",
    "train_cpu_mega_llama_run1_attempt1.json",
    "train_cpu_mega_llama.json",
    "train_tpu_mega_llama_run1.json",
    "train_cpu_ours_llama_run1.json",
    "train_cpu_mega_gpt_run1.json",
    f".{RESULT}.reserves2",
    "comparexjson",
    "compare.pdf",
    "compare.json.old",
    ".compare.json.swp",
    "status.json~",
    "output.zip.1",
    "output2.zip",
    ".gitkeep",
    ".tprimat.old",
    ".lock.mine",
    "logs/matrix.log.1",
    f"logs/{LOG}.gz",
    f"logs/a b_{LOG}",
    f"logs/{RESULT}",
    "logs/hf_trainer/training_args.bin",
    "profiles/notes.txt",
    f"superseded/{RESULT}",
    "superseded/train_cpu_mega_llama_run1_attempt0.json",
    "tp2/mine.txt",
    "tp2/output.zip",
    "tp2/superseded/mine.txt",
    "tp2/status.json",
    "tp2/status.html",
    "profiles/profiled_train_cpu_hf_llama_run1",
    *(f"profiles/profiled_train_cpu_hf_llama_run1_attempt2/{name}" for name in ("notes.json", "rank00.json.gz")),
    "profiles/profiled_train_cpu_hf_llama_run1_attempt2/rocprofv3/profile.json",
)
"""Names close to those of the suite, or at a place where the suite does not write them."""
NO_RESULT = (
    b"{",
    b"[1, 2]",
    b'{"loss": [1.0, 2.0]}',
    b"",
    b"[" * 100_000,
    b"\xff\xfe",
    result(run=2),
    *(result(schema_version=version) for version in (99, "1")),
    *(result(**{key: None}) for key in ("identity_sha256", "model", "label")),
    *(result(**change) for change in ({"platform": "nvd"}, {"framework": "hf"}, {"label": "tp2"})),
)
"""Content of files with the name of a result of run 31 and so on, whose twin is that of run 1."""
CROWD = {
    **{name: FILE for name in (*ODD, *NEARLY)},
    **{f"logs/{name}": FILE for name in ODD},
    **{name: ("copy", "outside/tp2") for name in ODD_FOLDERS},
    **{
        name.format(number): ("file", content.replace(b'"run": 1,', b'"run": %d,' % number))
        for number, content in enumerate(NO_RESULT, 31)
        for name in ("train_cpu_mega_llama_run{}.json", "superseded/train_cpu_mega_llama_run{}_attempt1.json")
    },
    "mine": ("link", "outside"),
    "train_cpu_mega_llama_run21.json": ("link", f"outside/{RESULT}"),
    f"train_cpu_mega_llama_run22.json/{RESULT}": ("file", result()),
    "logs/train_cpu_mega_llama_run23_attempt1.log/" + LOG: FILE,
    "train_cpu_mega_llama_run24.json": ("pipe", None),
    ".train_cpu_mega_llama_run24.json.reserve": ("pipe", None),
    "notes/deep/logs/" + LOG: FILE,
    "notes/compare.md": FILE,
    "empty": ("folder", None),
    "backup": ("copy", "outside/superseded"),
    f"backup/{RESULT}": ("file", result()),
    "data": ("copy", "data"),
    "tp3": ("copy", "outside"),
    "tp2/compare.csv": FILE,
    "train_cpu_mega_llama_run76.json": ("file", result(run=76)),
    "tp5": ("copy", "outside/tp2"),
    f"tp5/{MARKER}": FILE,
}
CROWD_SAID = (
    "mine: a symbolic link",
    "empty/: ",
    "notes/: nothing in it is on the list",
    "data/: prepared data",
    "tp3/: an OUTPUT_DIR of its own",
    ".tprimat: marks the folder",
    ".gitkeep: ",
    "tp5/: has a .tprimat file that is damaged",
    "backup/: nothing",
    "tp2/compare.csv: not on",
    "train_cpu_mega_llama_run76.json: not on the list of files that the suite wrote",
    "-rf: a name that the suite does not write here",
    "'a\\nb': ",
    "'\\udcff\\udcfe': ",
    "'c\\nd/': ",
    "train_cpu_mega_llama_run22.json/: nothing",
    "logs/train_cpu_mega_llama_run23_attempt1.log/: a folder",
    "train_cpu_mega_llama_run21.json: a symbolic link",
    "train_cpu_mega_llama_run24.json: no regular file",
    *(f"train_cpu_mega_llama_run{31 + number}.json: " for number in range(len(NO_RESULT))),
)
HELD = {  # files of the suite that a user has replaced
    **dict.fromkeys(("compare.json", "status.json", "history.json", "tp2/compare.json"), ("file", b'{"mine": true}')),
    "status.html": ("file", b"<title>Training status</title>"),
    "output.zip": ("file", b"PK\5\6" + b"\0" * 18),
    RESULT: ("file", result()),
    "logs": ("link", "outside/logs"),
}
SCENARIOS = {  # what is put into the folder, and lines that name what is left
    "a crowd of others": (CROWD, CROWD_SAID),
    "names that are held": (HELD, (f"{RESULT}: changed since the suite wrote it", "logs: a symbolic link")),
    "closed folders": (
        {"logs": ("mode", 0o600), "profiles": ("mode", 0)},
        ("logs/: cannot be searched", "profiles/: cannot be opened"),
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_of_ours_goes_and_nothing_else(name, place):
    rows, said = SCENARIOS[name]
    for path, (what, detail) in rows.items():
        make(place.root, place.output / path, what, detail)
    kept = {f"site/output/{path}" for path in (*rows, MARKER)}
    before = tree(place.root)
    wanted = {
        path: what
        for path, what in before.items()
        if not path.startswith("site/output/")
        or any(path == one or path.startswith(f"{one}/") or one.startswith(f"{path}/") for one in kept)
    }
    dry = place.purge("--dry-run")
    assert tree(place.root) == before, "a dry run removes nothing"
    ran = place.purge()
    assert tree(place.root) == wanted
    assert ran.returncode == 0, ran.stderr
    for line in said:
        assert any(printed.startswith(f"left {line}") for printed in ran.stdout.splitlines()), line
    assert dry.stdout.replace("would remove", "removed") == ran.stdout


def test_a_whole_output_goes_with_its_folder_and_its_count_is_right(place):
    """Also with the files of every job, and with a hard link, whose file lives on under the other name."""
    housekeeping.write_names_of_every_job(place.output)
    os.link(place.root / "outside" / "logs" / LOG, place.output / "logs" / "train_cpu_mega_llama_run25_attempt1.log")
    listed(place.output)
    before = tree(place.root)
    ours = [place.root / path for path in before if path.startswith("site/output/")]
    # marker, list and lock go with the folder and are not counted
    files = [path for path in ours if path.is_file() and path.name not in (MARKER, LIST, LOCK)]
    size, folders = sum(path.stat().st_size for path in files), sum(path.is_dir() for path in ours) + 1
    ran = place.run(OUTPUT_DIR=str(place.output), TP="7")  # TP has nothing to do with files, so no GPU is looked for
    assert (ran.returncode, ran.stderr) == (0, "")
    assert tree(place.root) == {path: what for path, what in before.items() if not path.startswith("site/output")}
    assert ran.stdout.splitlines()[-1] == (
        f"{place.output}: removed {len(files):,} files ({size:,} bytes) and {folders} folders"
    )
    again = place.purge()
    assert (again.returncode, again.stderr) == (0, "") and "does not exist; nothing to do" in again.stdout


def test_what_cannot_be_removed_is_said_and_ends_with_1(place):
    (place.output / "logs").chmod(0o500)
    before = tree(place.output)
    ran = place.purge()
    assert ran.returncode == 1 and f"left logs/{LOG}: could not be removed (Permission denied)" in ran.stdout
    assert tree(place.output).keys() == {path for path in before if path.startswith("logs")} | {MARKER, LIST}


@pytest.fixture(params=["data", "site/output/data", "site/output"])
def data(request, place: housekeeping.Place) -> Path:
    """DATA_DIR beside OUTPUT_DIR, in it as on a machine without a GPU, and the same folder."""
    write_data(place.root / request.param)
    return place.root / request.param


def test_data_stay_unless_asked_for(data, place):
    assert place.purge(f"DATA_DIR={data}").returncode == 0
    assert tree(data).keys() >= tree(place.root / "data").keys() - {MARKER, LIST}


def test_data_go_when_asked_for_and_the_dry_run_says_the_same(data, place):
    before, settings = tree(place.root), ["--with-data", f"DATA_DIR={data}"]
    dry = place.purge("--dry-run", *settings)
    assert tree(place.root) == before
    ran = place.purge(*settings)
    assert ran.returncode == 0, ran.stderr
    gone = (f"{data.relative_to(place.root)}/", "site/output/")
    assert tree(place.root).keys() == {path for path in before if not f"{path}/".startswith(gone)}
    assert dry.stdout.replace("would remove", "removed") == ran.stdout


DATA_OF_OTHERS = (
    "mine.jsonl",
    "index_cache/mine.npy",
    "corpus/text.bin",
    "synth/text.bin",
    "synth_seed42/text.bin",
    f"index_cache/{'0' * 32}-GPTDataset-train-description.txt",
    "mine_0123456789ab/text.bin",
    "synth_seed3_50documents/text.jsonl",
    "my.own-text_0123456789ab/text.idx",
    "corpus_0123456789abc/text.bin",
    "_0123456789ab/text.bin",
    "corpus_0123456789AB/text.bin",
    *(f"synth_seed42_245761tokens/{name}" for name in ("mine.txt", "data.bin", ".text.bin.tmp", "text.bin.1")),
)


def test_data_of_others_stay(place):
    data = place.root / "data"
    for name in DATA_OF_OTHERS:
        make(place.root, data / name, *FILE)
    ran = place.purge("--with-data", f"DATA_DIR={data}")
    assert ran.returncode == 0
    assert {path for path in tree(data) if (data / path).is_file()} == {*DATA_OF_OTHERS, MARKER}
    assert "left corpus/: a folder that the suite does not make here" in ran.stdout


def test_parts_of_a_killed_run_of_an_earlier_version_go(place):
    (parts,) = (place.root / "data").rglob(".text.parts")
    for name in ("000007.reference", "000007.held"):
        (parts / name).write_bytes(b"half")
    listed(place.root / "data")
    assert place.purge("--with-data", f"DATA_DIR={place.root / 'data'}").returncode == 0
    assert not (place.root / "data").exists()


def test_a_folder_without_a_list_is_shown_and_refused_until_its_files_are_adopted(place):
    """Its own files go then, those of a user at names of ours stay; the twin is a folder with its list."""
    (place.output / LIST).unlink()
    (place.output / MARKER).unlink()
    mine = {"data_overview.png": FILE, "sweeps/mine.env": FILE, "sweeps/mine.json": FILE, "notes.md": FILE}
    mine |= {"train_cpu_mega_llama_run9.json": FILE, "gone": ("link", "outside")}
    for path, (what, detail) in mine.items():
        make(place.root, place.output / path, what, detail)
    before = tree(place.output)
    unmarked = place.purge()
    assert unmarked.returncode == 2 and "has no .tprimat file" in unmarked.stderr and "--adopt" in unmarked.stderr
    (place.output / MARKER).write_text('{"tool": "tprimat", "kind": "output", "schema": 1}\n')
    old = place.purge()
    assert old.returncode == 2 and "--adopt" in old.stderr
    assert f"can be adopted: {RESULT}\n" in old.stdout and "overview" not in old.stdout
    adopted = place.purge("--adopt")
    assert adopted.returncode == 0, adopted.stderr
    assert f"adopted {RESULT}\n" in adopted.stdout and "left sweeps/mine.env: " in adopted.stdout
    assert tree(place.output).items() >= before.items(), "adopting removes nothing"
    assert place.purge().returncode == 0
    assert {path for path in tree(place.output) if not (place.output / path).is_dir()} == {*mine, MARKER} - {"gone"}
    assert (place.output / "gone").is_symlink()


# What is refused, and what changes while it runs.


@pytest.fixture(scope="module")
def hostile(template: housekeeping.Place, tmp_path_factory: pytest.TempPathFactory):
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
        yield housekeeping.Place(root, root / "code" / "checkout")


@pytest.fixture(scope="module")
def before_of_hostile(hostile: housekeeping.Place) -> dict[str, str]:
    return tree(hostile.root)


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
OF_SITE = "OUTPUT_DIR={root}/site/output"
SETTINGS = ("MODEL=llama", "LABEL=tp2", "RUNS=1", "NONSENSE=1", "MBS=0", "nonsense")
"""Settings that look like a choice of what is removed."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(([f"OUTPUT_DIR={path}"], message) for path, message in OUTPUT_REFUSED.items()),
        *(([OF_SITE, "--with-data", f"DATA_DIR={path}"], message) for path, message in DATA_REFUSED.items()),
        *(([OF_SITE, setting], setting) for setting in SETTINGS),
    ],
)
def test_refused_with_2_and_one_line_and_nothing_changed(hostile, before_of_hostile, arguments, message):
    """The twin of every row is the folder of `test_a_whole_output_goes`, which is not refused."""
    arguments = [argument.replace("{root}", str(hostile.root)) for argument in arguments]
    for dry_run in ([], ["--dry-run"]):
        if "read_only" in arguments[0] and dry_run:
            assert hostile.run(*arguments, *dry_run).returncode == 0, "a dry run makes no lock"
            continue
        ran = hostile.run(*arguments, *dry_run)
        assert (ran.returncode, ran.stdout) == (2, "")
        (line,) = ran.stderr.splitlines()
        assert line.startswith("error: ") and message in line
    assert tree(hostile.root) == before_of_hostile


def swap_for(path: Path, target: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(target)


RACES = {  # call, name of its file, what happens at the first such call; then exit code, what is printed, what stays
    "a folder on the way is swapped": (
        "unlink",
        "compare.html",
        lambda place: swap_for(place.root / "site", place.root / "elsewhere"),
        0,
        "removed",
        set(),
    ),
    "a folder in it is swapped before it is opened": (
        "open",
        "logs",
        lambda place: swap_for(place.output / "logs", place.root / "outside" / "logs"),
        0,
        "left logs",
        {"logs", "moved"},
    ),
    "a folder in it is swapped while it is emptied": (
        "unlink",
        LOG,
        lambda place: swap_for(place.output / "logs", place.root / "outside" / "logs"),
        1,
        "left logs",
        {"logs", "moved"},
    ),
    "a file is replaced": (
        "unlink",
        "compare.html",
        lambda place: make(place.root, place.output / RESULT, *FILE),
        0,
        f"left {RESULT}: changed since the suite wrote it",
        {RESULT},
    ),
    "a file comes at the end": (
        "unlink",
        LOCK,
        lambda place: (place.output / "new").write_text("mine"),
        1,
        "left .: could not be removed",
        {"new"},
    ),
    "nothing": ("unlink", "", None, 0, "removed", set()),
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
    ended = housekeeping.purging(f"OUTPUT_DIR={place.output}")
    monkeypatch.undo()
    assert (ended, said in capsys.readouterr().out) == (exit_code, True)
    assert tree(place.root).items() >= before.items()
    left = {path.name for path in place.output.iterdir()} if place.output.exists() else set()
    assert left - {MARKER, LIST} == stays or place.output.parent.is_symlink()
    assert not (place.root / "moved" / "output").exists()
    if change is None:
        assert calls[-2:] == [LOCK, MARKER], "so that a purge that was killed can be taken up again"


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
    command = (*unshare, f'mount {mount} && exec "$@"', "sh", *housekeeping.COMMAND)
    ran = place.run(f"OUTPUT_DIR={output}", command=command, OUTPUT=str(output))
    assert ran.returncode == exit_code and said in ran.stdout + ran.stderr, ran.stderr
    kept = {path: what for path, what in before.items() if exit_code or path.startswith("an#output/logs")}
    assert tree(place.root / "site").items() >= kept.items()
