"""The archive holds the results and what belongs to them, nothing else, no secret, and the same bytes each time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from housekeeping import rewrite, tree, write_data, write_output

from utils.errors import ConfigError, ForeignFileError
from utils.housekeeping import archive
from utils.provenance.origin import sha256_report_code
from utils.settings.config import ROOT

TOKEN = "hf_" + "aB3" * 11 + "x"
"""In the form of a token of the hub, and none."""
PACKED = [
    "compare.html",
    "compare.json",
    "compare.md",
    "compare.png",
    "logs/matrix.log",
    "logs/tp2_train_cpu_mega_llama_run1_attempt12.log",
    "logs/train_cpu_mega_llama_run1_attempt1.log",
    "status.html",
    "status.json",
    "superseded/train_cpu_mega_llama_run2_attempt1.json",
    "tp2/compare.html",
    "tp2/compare.json",
    "tp2/compare.md",
    "tp2/compare.png",
    "tp2/superseded/train_cpu_mega_llama_run1_attempt1.json",
    "tp2/train_cpu_mega_llama_run1.json",
    "tp2/why.png",
    "train_cpu_hf_qwen_run1.json",
    "train_cpu_mega_llama_run1.json",
    "train_cpu_mega_llama_run2.json",
    "why.png",
]
LISTS = ["manifest.json", "SHA256SUMS"]


@pytest.fixture
def output(tmp_path):
    write_output(tmp_path / "output")
    (tmp_path / "output" / "output.zip").unlink()
    for path in tmp_path.glob("output/.output.zip.*.tmp"):  # packing removes it, and says so
        path.unlink()
    return tmp_path / "output"


def packed(output: Path, **environ: str) -> dict[str, bytes]:
    path, _ = archive.write(output, environ)
    with zipfile.ZipFile(path) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def test_it_holds_all_results_and_what_belongs_to_them_as_they_are(output):
    content = packed(output)
    assert list(content) == PACKED + LISTS
    assert all((output / name).read_bytes() == content[name] for name in PACKED)


def test_plots_of_the_data_are_in_it(output):
    (output / "data_synth_seed42.png").write_bytes(b"a picture")
    assert packed(output)["data_synth_seed42.png"] == b"a picture"


def test_others_can_read_it_with_their_own_tools(output, tmp_path):
    archive.write(output, {})
    assert (output / "output.zip").stat().st_mode & 0o777 == 0o644
    shutil.unpack_archive(output / "output.zip", tmp_path / "unpacked")
    assert sorted(path for path, what in tree(tmp_path / "unpacked").items() if what[:4] == "file") == sorted(
        PACKED + LISTS
    )
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "unpacked", capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout.count(": OK")) == (0, len(PACKED) + 1), checked.stderr


def test_data_links_profiles_and_files_of_others_are_not_in_it(output, tmp_path, capsys):
    write_data(output / "data")
    (tmp_path / "secrets.env").write_text("mine")
    (output / "logs" / "train_cpu_mega_llama_run7_attempt1.log").symlink_to(tmp_path / "secrets.env")
    (output / "notes").symlink_to(tmp_path)
    (output / "train_cpu_mega_llama_run8.json").write_text("{")
    (output / "train_cpu_mega_llama_run1.json.bak").write_text("mine")
    (output / "secrets.env").write_text("mine")
    os.mkfifo(output / "logs" / "train_cpu_mega_llama_run9_attempt1.log")
    shutil.copytree(output / "tp2", output / "copy")
    assert list(packed(output)) == PACKED + LISTS
    said = capsys.readouterr().err
    for name in ("logs/train_cpu_mega_llama_run7_attempt1.log: a symbolic link", "train_cpu_mega_llama_run8.json"):
        assert f"left out {name}" in said, "what looks like a result and is none is named"


def test_the_same_files_give_the_same_bytes_wherever_and_whenever_they_were_written(output, tmp_path):
    archive.write(output, {})
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for path in sorted(output.rglob("*"), reverse=True):  # another order on the disk, other times and modes
        if path.is_file():
            target = copy / path.relative_to(output)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o600)
            os.utime(target, (1, 1))
    (copy / "output.zip").unlink()
    archive.write(copy, {})
    with zipfile.ZipFile(copy / "output.zip") as opened:
        assert {member.date_time for member in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}, "the first there is"
    assert (copy / "output.zip").read_bytes() == (output / "output.zip").read_bytes()
    archive.write(output, {})
    assert (copy / "output.zip").read_bytes() == (output / "output.zip").read_bytes(), "an archive is not in itself"


HIDDEN = {
    "in a log": ("logs/matrix.log", f"Authorization: Bearer {TOKEN}\n", {}),
    "after an escaped newline": ("logs/matrix.log", rf"\n{TOKEN}", {}),
    "in a result": ("train_cpu_mega_llama_run1.json", None, {}),
    "in bytes that are no text": ("compare.png", "\xff\x00" + TOKEN + "\xff", {}),
    "cut off": ("logs/matrix.log", TOKEN[:25], {}),
    "the one in use, whatever its form": ("tp2/compare.md", "x=opensesame;", {"HF_TOKEN": "opensesame"}),
    "the one in use, with a newline": ("tp2/compare.md", "x=opensesame;", {"HF_TOKEN": "opensesame\n"}),
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_file_with_a_token_is_named_and_nothing_is_packed(where, output, monkeypatch, capsys):
    name, text, environ = HIDDEN[where]
    if text is None:
        rewrite(output / name, reason=f"login with {TOKEN} failed")
    else:
        (output / name).write_bytes(text.encode("latin1"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    before = tree(output)
    assert archive.main(["--platform", "cpu", f"OUTPUT_DIR={output}"]) == 1
    said = capsys.readouterr()
    assert name in said.err and "access token" in said.err
    assert TOKEN[:20] not in said.err + said.out and "opensesame" not in said.err + said.out
    assert tree(output) == before


def test_all_files_with_a_token_are_named(output):
    for name in ("logs/matrix.log", "compare.md"):
        (output / name).write_text(TOKEN)
    with pytest.raises(archive.ArchiveError, match=r"compare\.md, logs/matrix\.log: "):
        archive.write(output, {})


def test_the_manifest_says_size_and_hash_of_each_file_and_which_commit_packed(output, monkeypatch):
    monkeypatch.setenv("TPRIMAT_GIT_COMMIT", "0" * 40)
    monkeypatch.setenv("TPRIMAT_GIT_DIRTY", "false")
    content = packed(output)
    manifest = json.loads(content["manifest.json"])
    wanted = {name: {"bytes": len(content[name]), "sha256": sha256(content[name]).hexdigest()} for name in PACKED}
    assert manifest == {
        "manifest_version": 1,
        "tool": "tprimat",
        "git_commit": "0" * 40,
        "git_dirty": False,
        "reasons": {},
        "report_code_sha256": sha256_report_code(ROOT),
        "files": wanted,
    }


def test_a_token_in_a_name_is_not_repeated_and_nothing_is_packed(output, capsys):
    log = output / "logs" / "tp2_train_cpu_mega_llama_run1_attempt12.log"
    log.rename(log.with_name(f"{TOKEN}_train_cpu_mega_llama_run1_attempt12.log"))
    (output / "logs" / f"{TOKEN}_train_cpu_mega_llama_run2_attempt1.log").symlink_to(output)
    with pytest.raises(archive.ArchiveError, match=r"logs/\*\*\*_train_cpu.*has one in its name") as caught:
        archive.write(output, {})
    said = capsys.readouterr().err
    assert "left out logs/***_train" in said and TOKEN[:20] not in str(caught.value) + said
    assert not (output / "output.zip").exists()


def test_a_large_file_is_read_in_pieces_and_a_secret_across_two_of_them_is_found(output, monkeypatch):
    log = output / "logs" / "matrix.log"
    log.write_bytes(b"x" * (3 * archive.CHUNK_BYTES) + b"end")
    assert packed(output)["logs/matrix.log"] == log.read_bytes()
    for start in (0, 1, 10, len(TOKEN) - 1, len(TOKEN)):
        content = bytearray(b"." * (2 * archive.CHUNK_BYTES))
        content[archive.CHUNK_BYTES - start : archive.CHUNK_BYTES - start + len(TOKEN)] = TOKEN.encode()
        log.write_bytes(content)
        with pytest.raises(archive.ArchiveError, match=r"logs/matrix\.log: holds an access token"):
            archive.write(output, {})


@pytest.mark.parametrize("text", ["train_cpu_hf_llama_run1_attempt1", "hf_trainer", "TOKENIZERS_PARALLELISM=false hf_"])
def test_our_own_words_are_no_token(text, output):
    (output / "logs" / "matrix.log").write_text(text)
    assert list(packed(output, HF_TOKEN=" ")) == PACKED + LISTS


def test_an_archive_that_breaks_off_leaves_the_old_one_and_no_other(output, monkeypatch):
    archive.write(output, {})
    (output / "logs" / "matrix.log").write_text("more")
    before = tree(output)

    def no_space(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.zipfile.ZipFile, "open", no_space)
    with pytest.raises(OSError, match="No space"):
        archive.write(output, {})
    assert tree(output) == before


def test_an_archive_that_reads_back_damaged_is_not_kept(output, monkeypatch):
    real = archive._verify

    def damage(path, paths):
        content = bytearray(path.read_bytes())
        content[content.index(b"compare.html") + 14] ^= 1  # in the data of the first file
        path.write_bytes(content)
        real(path, paths)

    monkeypatch.setattr(archive, "_verify", damage)
    before = tree(output)
    with pytest.raises((archive.ArchiveError, zipfile.BadZipFile)):
        archive.write(output, {})
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
    with pytest.raises((ConfigError, ForeignFileError)):
        archive.write(output, {})
    assert tree(output) == before


def test_nothing_to_pack_is_bad_input(tmp_path, capsys):
    for name in ("missing", "empty"):
        if name == "empty":
            (tmp_path / name).mkdir()
        with pytest.raises(ConfigError, match=f"OUTPUT_DIR={tmp_path}/{name}: "):
            archive.write(tmp_path / name, {})
        assert archive.main(["--platform", "cpu", f"OUTPUT_DIR={tmp_path / name}"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not list((tmp_path / "empty").iterdir())


def test_the_standard_library_is_enough(output):
    command = [sys.executable, "-S", "-m", "utils.housekeeping.archive", "--platform", "amd", f"OUTPUT_DIR={output}"]
    environ = {"PATH": os.environ["PATH"], "TP": "7"}  # nothing to do with files, so no GPU is asked for
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    size = (output / "output.zip").stat().st_size
    assert ran.stdout == f"{output}/output.zip: {len(PACKED) + 2} files, {size:,} bytes\n"


def test_packing_that_takes_a_while_is_counted_on_a_terminal_only(monkeypatch, capsys):
    for is_terminal, wanted in ((True, "\rpacking 1,100 of 1,200 files\rpacking 1,200 of 1,200 files\n"), (False, "")):
        monkeypatch.setattr(archive.sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        for done, elapsed_seconds in ((1, 1.0), (1100, 3.0), (1200, 4.0)):
            archive._show_progress(done, 1200, elapsed_seconds)
        assert capsys.readouterr().err == wanted
