"""The archive holds the results and what belongs to them, nothing else, no secret, and the same bytes each time.

A folder is known by a marker, and who is at work in it by a lock.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from unittest.mock import Mock

import pytest
from checkout import ROOT, settings_of
from housekeeping import (
    CHUNK_BYTES as CHUNK,
    LIST,
    LOCK,
    MARKER,
    listed,
    make,
    packing,
    purging,
    tree,
    write_data,
    write_output,
)
from standins import write_jsonl
from toydata import write_toy_data

from data.prepare import prepare
from evaluate import fingerprint, wrap
from train.runner.state import lock
from utils.errors import ConfigError
from utils.housekeeping import footprint

TOKEN = "hf_" + "aB3" * 11 + "x"
"""In the form of a token of the hub, and none."""
COMPARISONS = [*(f"compare.{ending}" for ending in ("html", "json", "md", "png")), "why.png"]
PACKED = sorted(
    [
        *(f"{folder}{name}" for folder in ("", "tp2/") for name in COMPARISONS),
        "logs/matrix.log",
        "logs/tp2_train_cpu_mega_llama_run1_attempt12.log",
        "logs/train_cpu_mega_llama_run1_attempt1.log",
        "status.html",
        "status.json",
        "superseded/train_cpu_mega_llama_run2_attempt1.json",
        "tp2/superseded/train_cpu_mega_llama_run1_attempt1.json",
        "tp2/train_cpu_mega_llama_run1.json",
        "train_cpu_hf_qwen_run1.json",
        "train_cpu_mega_llama_run1.json",
        "train_cpu_mega_llama_run2.json",
    ]
)
LISTS = ["manifest.json", "SHA256SUMS"]


@pytest.fixture
def output(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    write_output(tmp_path / "output")
    for path in tmp_path.glob("output/*output.zip*"):  # packing removes the half-written one, and says so
        path.unlink()
    return tmp_path / "output"


def packed(output: Path) -> dict[str, bytes]:
    assert packing(output) == 0
    with zipfile.ZipFile(output / "output.zip") as opened:
        assert {member.date_time for member in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}, "the first there is"
        return {name: opened.read(name) for name in opened.namelist()}


def test_it_holds_all_results_and_what_belongs_to_them_as_they_are_and_a_manifest(output, monkeypatch):
    monkeypatch.setenv("TPRIMAT_GIT_COMMIT", "0" * 40)
    monkeypatch.setenv("TPRIMAT_GIT_DIRTY", "false")
    (output / "data_synth_seed42.png").write_bytes(b"a picture of the data")
    listed(output)
    content = packed(output)
    names = sorted([*PACKED, "data_synth_seed42.png"])
    assert list(content) == names + LISTS
    assert all((output / name).read_bytes() == content[name] for name in names)
    manifest = json.loads(content["manifest.json"])
    assert len(manifest.pop("report_code_sha256")) == 64
    assert manifest == {
        "manifest_version": 1,
        "tool": "tprimat",
        "git_commit": "0" * 40,
        "git_dirty": False,
        "reasons": {},
        "files": {name: {"bytes": len(content[name]), "sha256": sha256(content[name]).hexdigest()} for name in names},
    }


def test_the_standard_library_is_enough_and_others_can_read_it_with_their_own_tools(output, tmp_path):
    command = [sys.executable, "-S", "-m", "evaluate.wrap", "--platform", "amd", f"OUTPUT_DIR={output}"]
    environ = {"PATH": os.environ["PATH"], "TP": "7"}  # nothing to do with files, so no GPU is asked for
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)
    status = (output / "output.zip").stat()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"{output}/output.zip: {len(PACKED) + 2} files, {status.st_size:,} bytes\n"
    assert status.st_mode & 0o777 == 0o644
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(output / "output.zip", unpacked)
    assert sorted(path for path, what in tree(unpacked).items() if what[:4] == "file") == sorted(PACKED + LISTS)
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=unpacked, capture_output=True)
    assert (checked.returncode, checked.stdout.count(b": OK")) == (0, len(PACKED) + 1), checked.stderr


OTHERS = {  # name below the folder of the test, as steps of `make`
    "output/logs/train_cpu_mega_llama_run7_attempt1.log": ("link", "secrets.env"),
    "output/notes": ("link", "."),
    "output/train_cpu_mega_llama_run8.json": ("file", b"{"),
    "output/logs/train_cpu_mega_llama_run9_attempt1.log": ("pipe", None),
    "output/copy": ("copy", "output/tp2"),
    **{
        f"output/{name}": ("file", b"mine")
        for name in (
            "secrets.env",
            "data_overview.png",
            "sweeps/mine.env",
            "sweeps/mine.json",
            "tp2/compare.csv",
            "gpu_hour/summary.md",
            "logs/train_cpu_hf_llama_run7_attempt1.log",
        )
    },
}


def test_data_links_profiles_and_files_of_others_are_not_in_it(output, tmp_path, capsys):
    write_data(output / "data")
    (tmp_path / "secrets.env").write_text("mine")
    for name, (what, detail) in OTHERS.items():
        make(tmp_path, tmp_path / name, what, detail)
    assert list(packed(output)) == PACKED + LISTS
    assert "energy samples" not in wrap.PACKED, "25 MB an hour for 8 GPUs"
    said = capsys.readouterr().err
    for name in ("logs/train_cpu_mega_llama_run7_attempt1.log: a symbolic link", "train_cpu_mega_llama_run8.json"):
        assert f"left out {name}" in said, "what looks like a result and is none is named"


def test_the_same_files_give_the_same_bytes_wherever_and_whenever_they_were_written(output, tmp_path):
    packed(output)
    first = (output / "output.zip").read_bytes()
    shutil.copytree(output, tmp_path / "elsewhere", copy_function=shutil.copyfile)  # with other times
    for path in (tmp_path / "elsewhere").glob("*.json"):
        path.chmod(0o600)
    (tmp_path / "elsewhere" / "output.zip").unlink()
    for again in (tmp_path / "elsewhere", output):  # an archive is not in itself
        packed(again)
        assert (again / "output.zip").read_bytes() == first


HIDDEN = {  # file, text in it, HF_TOKEN in use
    "in a log": ("logs/matrix.log", f"Authorization: Bearer {TOKEN}\n", ""),
    "after an escaped newline": ("logs/matrix.log", rf"\n{TOKEN}", ""),
    "in a result": ("train_cpu_mega_llama_run1.json", None, ""),  # in the place of a null
    "in bytes that are no text": ("compare.png", "\xff\x00" + TOKEN + "\xff", ""),
    "cut off": ("logs/matrix.log", TOKEN[:25], ""),
    "the one in use, whatever its form": ("tp2/compare.md", "x=opensesame;", "opensesame"),
    "the one in use, with a newline": ("tp2/compare.md", "x=opensesame;", "opensesame\n"),
    **{
        f"across two pieces, {before} before": ("logs/matrix.log", "." * (CHUNK - before) + TOKEN + "." * CHUNK, "")
        for before in (0, 1, 10, len(TOKEN) - 1)
    },
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_file_with_a_token_is_named_and_nothing_is_packed(where, output, monkeypatch, capsys):
    """Its twin is `test_our_own_words_are_no_token`."""
    name, text, in_use = HIDDEN[where]
    content = text or (output / name).read_text().replace("null", f'"login with {TOKEN} failed"', 1)
    (output / name).write_bytes(content.encode("latin1"))
    monkeypatch.setenv("HF_TOKEN", in_use)
    before = tree(output)
    assert packing(output) == 1
    said = capsys.readouterr()
    assert f"{name}: holds an access token" in said.err
    assert TOKEN[:20] not in said.err + said.out and "opensesame" not in said.err + said.out
    assert tree(output) == before


def test_all_files_with_a_token_are_named_and_one_in_a_name_is_not_repeated(output, capsys):
    for name in ("compare.md", f"logs/{TOKEN}_train_cpu_mega_llama_run1_attempt12.log"):
        (output / name).write_text(TOKEN)
    listed(output)
    assert packing(output) == 1
    said = capsys.readouterr().err
    assert "compare.md, logs/***_train_cpu" in said and TOKEN[:20] not in said and not (output / "output.zip").exists()


@pytest.mark.parametrize(
    "text",
    ["train_cpu_hf_llama_run1_attempt1", "hf_trainer TOKENIZERS_PARALLELISM=false hf_", "x" * (3 * CHUNK) + "end"],
    ids=["name", "words", "of several pieces"],
)
def test_our_own_words_are_no_token(text, output, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", " ")
    (output / "logs" / "matrix.log").write_text(text)
    assert packed(output)["logs/matrix.log"] == text.encode()


BREAKS = {
    "a full disk": ("open", Mock(side_effect=OSError(28, "No space left on device"))),
    "damage that is read back": ("testzip", Mock(return_value="compare.html")),
}


@pytest.mark.parametrize("fault", BREAKS)
def test_an_archive_that_breaks_off_or_reads_back_damaged_leaves_the_old_one_and_no_other(output, monkeypatch, fault):
    packed(output)
    (output / "logs" / "matrix.log").write_text("more")
    before = tree(output)
    monkeypatch.setattr(zipfile.ZipFile, *BREAKS[fault])
    assert packing(output) == 1
    assert tree(output) == before


THEIRS = b"PK\5\6" + b"\0" * 18
"""An empty archive of somebody."""


@pytest.mark.parametrize(("what", "detail"), [("file", THEIRS), ("link", "elsewhere.zip"), ("folder", None)])
def test_an_output_zip_of_somebody_else_is_not_replaced(what, detail, output, tmp_path):
    make(tmp_path, output / "output.zip", what, detail)
    before = tree(output)
    assert packing(output) == 2
    assert tree(output) == before


def test_results_that_were_copied_here_are_packed_and_a_folder_without_a_marker_is_refused(output, tmp_path, capsys):
    """They are not on the list: their content shows what they are, as that of a log with samples does."""
    shutil.copytree(output, tmp_path / "copy")
    output = tmp_path / "copy"
    (output / "logs" / "tp2_train_cpu_mega_llama_run1_attempt12.log").write_text('raw: {"run": 1}\n')
    assert list(packed(output)) == PACKED + LISTS
    listed_before = (output / LIST).read_text()
    (output / LIST).write_text(re.sub(r".*(?:run1.json|attempt12.log|compare.*)\".*\n", "", listed_before))
    assert list(packed(output)) == [name for name in PACKED if not re.search("compare.(md|html)", name)] + LISTS
    (output / ".tprimat").unlink()
    assert packing(output) == 2
    assert "--adopt" in capsys.readouterr().err.splitlines()[-1]


# The suite knows its folders by a marker, its files by their names, and who is at work in a folder by a lock.

SHORT = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2")
HOLDER = (
    "import subprocess, sys; from pathlib import Path; from train.runner.state import lock\n"
    "with lock(Path(sys.argv[1])):\n"
    "    subprocess.Popen(['cat'], stdout=2); print('held', flush=True); sys.stdin.readline()\n"
)
"""A process that holds the lock, and a program that it starts, which ends with its input."""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "output").mkdir()
    return tmp_path / "output"


def test_a_folder_is_marked_once_with_whose_it_is_and_what_for(tmp_path):
    folder = tmp_path / "new" / "data"
    for kind in ("data", "output"):
        footprint.mark(folder, kind)
    assert json.loads((folder / MARKER).read_text()) == {"tool": "tprimat", "kind": "data", "schema": 1}
    with pytest.raises(ConfigError, match="/proc/nowhere: cannot be written"):
        footprint.mark(Path("/proc/nowhere"), "output")


FOREIGN = {  # what stands at the place of the marker or the lock, as steps of `make`
    "no JSON": ("file", b'{"tool": "tpri'),
    "empty": ("file", b""),
    "a list": ("file", b"[]"),
    "another tool": ("file", b'{"tool": "other", "kind": "output", "schema": 1}'),
    "another schema": ("file", b'{"tool": "tprimat", "kind": "output", "schema": 2}'),
    "another kind": ("file", b'{"tool": "tprimat", "kind": "home", "schema": 1}'),
    "nested without end": ("file", b"[" * 100_000),
    "not UTF-8": ("file", b"\xff"),
    "link": ("link", "other"),
    "pipe": ("pipe", None),  # opening it must not wait for a writer
    "folder": ("folder", None),
}


@pytest.mark.parametrize(
    ("fault", "name"),
    # an empty lock is one that nobody has used yet
    [(fault, name) for fault in FOREIGN for name in (MARKER, LOCK) if (fault, name) != ("empty", LOCK)],
)
def test_a_marker_or_lock_that_is_not_ours_stays_and_the_folder_is_not_used(fault, name, folder, tmp_path):
    (tmp_path / "other").write_text('{"tool": "tprimat", "kind": "output", "schema": 1}')
    make(tmp_path, folder / name, *FOREIGN[fault])
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=name) as error, lock(folder):
        pass
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    assert tree(tmp_path).items() >= before.items()


@pytest.mark.parametrize("fault", ["deleted", "renamed", "replaced"])
def test_lock_is_lost_with_its_folder(folder, fault):
    with lock(folder) as is_held:
        assert is_held()
        folder.rename(folder.with_name("renamed"))
        if fault == "deleted":
            shutil.rmtree(folder.with_name("renamed"))
        if fault == "replaced":
            with lock(folder):
                assert not is_held()
        assert not is_held()


def test_only_one_process_has_a_folder_until_it_is_killed_and_the_other_is_told_who(folder):
    """A program that it has started goes on, and does not keep the lock."""
    command, pipe = [sys.executable, "-c", HOLDER, str(folder)], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n" and (folder / MARKER).exists(), "who locks a folder marks it"
        refused = pytest.raises(ConfigError, match=f"process {process.pid} on .* is at work there")
        with refused, lock(folder):
            pass
        process.kill()
        process.wait()
        with lock(folder):
            assert str(os.getpid()) in (folder / LOCK).read_text()


def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(folder, monkeypatch):
    """Purge removes the file: without asking again, two could hold a lock each, on different files."""
    taken = []

    def flock(descriptor, operation):
        if not taken:
            (folder / LOCK).unlink()
        taken.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr("fcntl.flock", flock)
    with lock(folder):
        assert (folder / LOCK).stat().st_ino == taken[-1]
    assert len(taken) == 2


def test_a_lock_on_a_full_disk_is_bad_input_and_is_given_back(folder, monkeypatch):
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ConfigError, match="No space left"), lock(folder):
        pass
    monkeypatch.undo()
    with lock(folder):
        pass


@pytest.mark.parametrize("text", ["made here", "of a user"])
def test_data_folder_is_marked_and_all_that_preparing_and_reading_leaves_goes(text, tmp_path):
    """Made by data.prepare, and by evaluate.fingerprint with GPTDataset; also with a text whose name is odd."""
    settings = [f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path / 'output'}"]
    if text == "made here":
        prefix, _ = prepare(settings_of(*settings, *SHORT), "llama")
        assert (tmp_path / "data" / MARKER).exists(), "marked by what makes the data, not only by what reads them"
        own = write_jsonl(tmp_path / "my.-[own].jsonl", [f"the {number} lines of mine " * 40 for number in range(60)])
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
