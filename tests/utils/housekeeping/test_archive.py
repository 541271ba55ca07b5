"""The archive holds the results and what belongs to them, nothing else, no secret, and the same bytes each time."""

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

import pytest
from checkout import ROOT
from housekeeping import CHUNK_BYTES as CHUNK, LIST, listed, packing, rewrite, tree, write_data, write_output

from utils.housekeeping import archive

TOKEN = "hf_" + "aB3" * 11 + "x"
"""In the form of a token of the hub, and none."""
COMPARISONS = [*(f"compare.{ending}" for ending in ("html", "json", "md", "png")), "why.png"]
PACKED = sorted(
    [
        *(f"{folder}{name}" for folder in ("", "tp2/") for name in COMPARISONS),
        *("logs/matrix.log", "logs/tp2_train_cpu_mega_llama_run1_attempt12.log"),
        *("logs/train_cpu_mega_llama_run1_attempt1.log", "status.html", "status.json"),
        "superseded/train_cpu_mega_llama_run2_attempt1.json",
        *("tp2/superseded/train_cpu_mega_llama_run1_attempt1.json", "tp2/train_cpu_mega_llama_run1.json"),
        *("train_cpu_hf_qwen_run1.json", "train_cpu_mega_llama_run1.json", "train_cpu_mega_llama_run2.json"),
    ]
)
LISTS = ["manifest.json", "SHA256SUMS"]


@pytest.fixture
def output(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    write_output(tmp_path / "output")
    (tmp_path / "output" / "output.zip").unlink()
    for path in tmp_path.glob("output/.output.zip.*.tmp"):  # packing removes it, and says so
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
    command = [sys.executable, "-S", "-m", "utils.housekeeping.archive", "--platform", "amd", f"OUTPUT_DIR={output}"]
    environ = {"PATH": os.environ["PATH"], "TP": "7"}  # nothing to do with files, so no GPU is asked for
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    status = (output / "output.zip").stat()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"{output}/output.zip: {len(PACKED) + 2} files, {status.st_size:,} bytes\n"
    assert status.st_mode & 0o777 == 0o644
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(output / "output.zip", unpacked)
    assert sorted(path for path, what in tree(unpacked).items() if what[:4] == "file") == sorted(PACKED + LISTS)
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=unpacked, capture_output=True)
    assert (checked.returncode, checked.stdout.count(b": OK")) == (0, len(PACKED) + 1), checked.stderr


def test_data_links_profiles_and_files_of_others_are_not_in_it(output, tmp_path, capsys):
    write_data(output / "data")
    (tmp_path / "secrets.env").write_text("mine")
    (output / "logs" / "train_cpu_mega_llama_run7_attempt1.log").symlink_to(tmp_path / "secrets.env")
    (output / "notes").symlink_to(tmp_path)
    (output / "train_cpu_mega_llama_run8.json").write_text("{")
    (output / "secrets.env").write_text("mine")
    os.mkfifo(output / "logs" / "train_cpu_mega_llama_run9_attempt1.log")
    shutil.copytree(output / "tp2", output / "copy")
    for name in ("data_overview.png", "sweeps/mine.env", "sweeps/mine.json", "tp2/compare.csv", "gpu_hour/summary.md"):
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_text("mine")
    (output / "logs" / "train_cpu_hf_llama_run7_attempt1.log").write_text("mine")
    assert list(packed(output)) == PACKED + LISTS
    assert "energy samples" not in archive.PACKED, "25 MB an hour for 8 GPUs"
    said = capsys.readouterr().err
    for name in ("logs/train_cpu_mega_llama_run7_attempt1.log: a symbolic link", "train_cpu_mega_llama_run8.json"):
        assert f"left out {name}" in said, "what looks like a result and is none is named"


def test_the_same_files_give_the_same_bytes_wherever_and_whenever_they_were_written(output, tmp_path):
    packed(output)
    first = (output / "output.zip").read_bytes()
    for path in sorted(output.rglob("*"), reverse=True):  # another order on the disk, other times and modes
        target = tmp_path / "elsewhere" / path.relative_to(output)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.name != "output.zip":
            shutil.copyfile(path, target)
            target.chmod(0o600)
            os.utime(target, (1, 1))
    for again in (tmp_path / "elsewhere", output):  # an archive is not in itself
        packed(again)
        assert (again / "output.zip").read_bytes() == first


HIDDEN = {  # file, text in it, HF_TOKEN in use
    "in a log": ("logs/matrix.log", f"Authorization: Bearer {TOKEN}\n", ""),
    "after an escaped newline": ("logs/matrix.log", rf"\n{TOKEN}", ""),
    "in a result": ("train_cpu_mega_llama_run1.json", None, ""),
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
    if text is None:
        rewrite(output / name, reason=f"login with {TOKEN} failed")
    else:
        (output / name).write_bytes(text.encode("latin1"))
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
    (output / "logs" / f"{TOKEN}_train_cpu_mega_llama_run2_attempt1.log").symlink_to(output)
    assert packing(output) == 1
    said = capsys.readouterr().err
    assert "compare.md, logs/***_train_cpu" in said and "left out logs/***_train" in said and TOKEN[:20] not in said
    assert not (output / "output.zip").exists()


@pytest.mark.parametrize(
    "text",
    ["train_cpu_hf_llama_run1_attempt1", "hf_trainer TOKENIZERS_PARALLELISM=false hf_", "x" * (3 * CHUNK) + "end"],
    ids=["name", "words", "of several pieces"],
)
def test_our_own_words_are_no_token(text, output, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", " ")
    (output / "logs" / "matrix.log").write_text(text)
    assert packed(output)["logs/matrix.log"] == text.encode()


@pytest.mark.parametrize("fault", ["full disk", "damaged"])
def test_an_archive_that_breaks_off_or_reads_back_damaged_leaves_the_old_one_and_no_other(output, monkeypatch, fault):
    packed(output)
    (output / "logs" / "matrix.log").write_text("more")
    before = tree(output)

    def fail(*arguments: object) -> str:
        if fault == "full disk":
            raise OSError(28, "No space left on device")
        return "compare.html"

    monkeypatch.setattr(zipfile.ZipFile, "open" if fault == "full disk" else "testzip", fail)
    assert packing(output) == 1
    assert tree(output) == before


@pytest.mark.parametrize("sort", ["zip of somebody", "link", "folder"])
def test_an_output_zip_of_somebody_else_is_not_replaced(sort, output, tmp_path):
    if sort == "link":
        (output / "output.zip").symlink_to(tmp_path / "elsewhere.zip")
    elif sort == "folder":
        (output / "output.zip").mkdir()
    else:
        with zipfile.ZipFile(output / "output.zip", "w") as theirs:
            theirs.writestr("thesis.txt", "years of work")
    before = tree(output)
    assert packing(output) == 2
    assert tree(output) == before


def test_results_that_were_copied_here_are_packed_and_a_folder_without_a_marker_is_refused(output, capsys):
    """They are not on the list: their content shows what they are, as that of a log with samples does."""
    for name in ("train_cpu_mega_llama_run1.json", "compare.md", "tp2/compare.png"):
        shutil.copy(output / name, output / "copied")
        (output / "copied").replace(output / name)
    log = output / "logs" / "tp2_train_cpu_mega_llama_run1_attempt12.log"
    log.unlink()
    log.write_text('raw: {"run": 1}\n')
    assert list(packed(output)) == PACKED + LISTS
    listed_before = (output / LIST).read_text()
    (output / LIST).write_text(re.sub(r".*(?:run1.json|attempt12.log|compare.*)\".*\n", "", listed_before))
    assert list(packed(output)) == [name for name in PACKED if not re.search("compare.(md|html)", name)] + LISTS
    (output / ".tprimat").unlink()
    capsys.readouterr()
    assert packing(output) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--adopt" in said
