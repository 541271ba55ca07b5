"""Purge removes what the suite made, all of it, and nothing else, whatever stands in the folder.

Each test speaks to the command, as `python -S`, which has the standard library only. The neighbourhood is compared
before and after.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from housekeeping import LIST, LOCK, MARKER, Place, listed, make, tree, write_data, write_names_of_every_job

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
    *(f"{RESULT}.bak", f" {RESULT}", f"-{RESULT}", f"my_{RESULT}", RESULT.upper(), f".{RESULT}", f".{RESULT}.swp"),
    *("train_cpu_mega_llama_run01.json", "train_cpu_mega_llama_run\u0661.json", "train_cpu_mega_llama_run-1.json"),
    *("train_cpu_mega_llama_run1_attempt1.json", "train_cpu_mega_llama.json", "train_tpu_mega_llama_run1.json"),
    *("train_cpu_ours_llama_run1.json", "train_cpu_mega_gpt_run1.json", f".{RESULT}.reserves2", "comparexjson"),
    *(
        "compare.pdf",
        "compare.json.old",
        ".compare.json.swp",
        "status.json~",
        "output.zip.1",
        "output2.zip",
        ".gitkeep",
    ),
    *(".tprimat.old", ".lock.mine", "matrix.log", "logs/matrix.log.1", "logs/train_cpu_mega_llama_run1.log"),
    *(f"logs/{LOG}.gz", f"logs/a b_{LOG}", f"logs/{RESULT}", "logs/hf_trainer/training_args.bin", "profiles/notes.txt"),
    *(f"superseded/{RESULT}", "superseded/train_cpu_mega_llama_run1_attempt0.json", "tp2/mine.txt", "tp2/output.zip"),
    *("tp2/superseded/mine.txt", "tp2/status.json", "tp2/status.html", "profiles/profiled_train_cpu_hf_llama_run1"),
    *(f"profiles/profiled_train_cpu_hf_llama_run1_attempt2/{name}" for name in ("notes.json", "rank00.json.gz")),
    "profiles/profiled_train_cpu_hf_llama_run1_attempt2/rocprofv3/profile.json",
)
"""Names close to those of the suite, or at a place where the suite does not write them."""
NO_RESULT = (
    *(b"{", b"[1, 2]", b'{"loss": [1.0, 2.0]}', b"", b"[" * 100_000, b"\xff\xfe", result(run=2)),
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
        f"{folder}train_cpu_mega_llama_run{number}{attempt}.json": (
            "file",
            content.replace(b'"run": 1,', b'"run": %d,' % number),
        )
        for number, content in enumerate(NO_RESULT, 31)
        for folder, attempt in (("", ""), ("superseded/", "_attempt1"))
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
    "tp4": ("copy", "outside/tp2"),
    f"tp4/{MARKER}": ("copy", "outside/.tprimat"),
    "data_overview.png": FILE,
    **{f"sweeps/{name}": FILE for name in ("mine.env", "mine.json", "mine.png")},
    "gpu_hour/summary.md": FILE,
    "logs/train_cpu_mega_llama_run77_attempt1.log": FILE,
    "tp2/compare.csv": FILE,
    "train_cpu_mega_llama_run76.json": ("file", result(run=76)),
    ".compare.png.original": FILE,
    "tp5": ("copy", "outside/tp2"),
    f"tp5/{MARKER}": FILE,
}
CROWD_SAID = (
    *("mine: a symbolic link", "empty/: ", "notes/: nothing in it is on the list", "data/: prepared data"),
    *("tp3/: an OUTPUT_DIR of its own", "tp4/: an OUTPUT_DIR of its own", ".tprimat: marks the folder", ".gitkeep: "),
    *("tp5/: has a .tprimat file that is damaged", "backup/: nothing", "sweeps/: nothing", "tp2/compare.csv: not on"),
    *("train_cpu_mega_llama_run76.json: not on the list of files that the suite wrote", "data_overview.png: not on"),
    *(
        "-rf: a name that the suite does not write here",
        "'a\\nb': ",
        "'\\udcff\\udcfe': ",
        "'\\x1b[2J': ",
        "'c\\nd/': ",
    ),
    *("train_cpu_mega_llama_run22.json/: nothing", "logs/train_cpu_mega_llama_run23_attempt1.log/: a folder"),
    *("train_cpu_mega_llama_run21.json: a symbolic link", "train_cpu_mega_llama_run24.json: no regular file"),
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
    "a pipe for an archive": ({"output.zip": ("pipe", None)}, ("output.zip: no regular file",)),
    "closed folders": (
        {"logs": ("mode", 0o600), "profiles": ("mode", 0)},
        ("logs/: cannot be searched", "profiles/: cannot be opened"),
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_of_ours_goes_and_nothing_else(name, place):
    rows, said = SCENARIOS[name]
    for path, (what, detail) in rows.items():
        if str(detail).endswith(MARKER):
            shutil.copy(place.root / detail, place.output / path)
        else:
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
    again = place.purge()
    assert "removed 0 files" in again.stdout or "--adopt" in again.stderr
    assert tree(place.root) == wanted


def test_a_whole_output_goes_with_its_folder_and_its_count_is_right(place):
    """Also with the files of every job, and with a hard link, whose file lives on under the other name."""
    write_names_of_every_job(place.output)
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
    assert ran.returncode == 1
    assert f"left logs/{LOG}: could not be removed (Permission denied)" in ran.stdout
    assert tree(place.output).keys() == {path for path in before if path.startswith("logs")} | {MARKER, LIST}


# Prepared data


@pytest.fixture(params=["data", "site/output/data", "site/output"])
def data(request, place: Place) -> Path:
    """DATA_DIR beside OUTPUT_DIR, in it as on a machine without a GPU, and the same folder."""
    write_data(place.root / request.param)
    return place.root / request.param


def test_data_stay_unless_asked_for(data, place):
    kept = {path: what for path, what in tree(place.root / "data").items() if path not in (MARKER, LIST)}
    assert place.purge(f"DATA_DIR={data}").returncode == 0
    assert tree(data).items() >= kept.items()


def test_data_go_when_asked_for_and_the_dry_run_says_the_same(data, place):
    before = tree(place.root)
    settings = ["--with-data", f"DATA_DIR={data}"]
    dry = place.purge("--dry-run", *settings)
    assert tree(place.root) == before
    ran = place.purge(*settings)
    assert ran.returncode == 0, ran.stderr
    gone = (f"{data.relative_to(place.root)}/", "site/output/")
    assert tree(place.root).keys() == {path for path in before if not f"{path}/".startswith(gone)}
    assert dry.stdout.replace("would remove", "removed") == ran.stdout


DATA_OF_OTHERS = (
    *("mine.jsonl", "index_cache/mine.npy", "corpus/text.bin", "synth/text.bin", "synth_seed42/text.bin"),
    *(f"index_cache/{'0' * 32}-GPTDataset-train-description.txt", "mine_0123456789ab/text.bin"),
    *("synth_seed3_50documents/text.jsonl", "my.own-text_0123456789ab/text.idx"),
    *("corpus_0123456789abc/text.bin", "_0123456789ab/text.bin", "corpus_0123456789AB/text.bin"),
    *(
        f"synth_seed42_245761tokens/{name}"
        for name in ("mine.txt", "data.bin", "text.txt", ".text.bin.tmp", ".text.bin.0123456789AB.tmp", "text.bin.1")
    ),
)


def test_data_of_others_stay(place):
    data = place.root / "data"
    for name in DATA_OF_OTHERS:
        make(place.root, data / name, *FILE)
    ran = place.purge("--with-data", f"DATA_DIR={data}")
    assert ran.returncode == 0
    assert {path for path in tree(data) if (data / path).is_file()} == {*DATA_OF_OTHERS, MARKER}
    assert "left corpus/: a folder that the suite does not make here" in ran.stdout


# Folders of earlier versions


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
    assert (unmarked.returncode, unmarked.stdout, unmarked.stderr.count("\n")) == (2, "", 1)
    assert "has no .tprimat file" in unmarked.stderr and "--adopt" in unmarked.stderr
    (place.output / MARKER).write_text('{"tool": "tprimat", "kind": "output", "schema": 1}\n')
    old = place.purge()
    assert (old.returncode, old.stderr.count("\n")) == (2, 1) and "--adopt" in old.stderr
    assert f"can be adopted: {RESULT}\n" in old.stdout and "overview" not in old.stdout
    assert tree(place.output).items() >= before.items()
    adopted = place.purge("--adopt")
    assert adopted.returncode == 0, adopted.stderr
    assert f"adopted {RESULT}\n" in adopted.stdout and "left sweeps/mine.env: " in adopted.stdout
    assert tree(place.output).items() >= before.items(), "adopting removes nothing"
    assert place.purge().returncode == 0
    assert {path for path in tree(place.output) if not (place.output / path).is_dir()} == {*mine, MARKER} - {"gone"}
    assert (place.output / "gone").is_symlink()
