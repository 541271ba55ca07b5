"""File names and streams that are unusual work, or are refused in one line that cannot control a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from checkout import ROOT
from json_lines import write_jsonl
from pyarrow import parquet

COMMANDS = ("data.encode", "data.clean", "data.prepare", "data.verify", "utils.configure", "evaluate.validate")
SETTINGS = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2", "MODEL=llama", "ALLOW_REPEAT=true")
NAMES = {
    "not UTF-8": os.fsdecode(b"\xff\xfe.jsonl"),
    "with an escape": "a\x1b[2J.jsonl",
    "with a line break": "a\nb.jsonl",
    "with a space": "a b.jsonl",
}


def run(module: str, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command as on a machine without a GPU, with none of this process' variables."""
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environ}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("what", NAMES)
def test_a_text_of_an_odd_name_is_cleaned_and_encoded_and_shows_no_control_character(
    what: str, tmp_path: Path, plain_tokenizer: Path
) -> None:
    source = write_jsonl(tmp_path / NAMES[what], ["w1 w2"] * 3)
    encoded = ("--input", source, "--tokenizer", plain_tokenizer, "--output-prefix", tmp_path / "pair")
    for ran in (run("data.clean", source, "--output", tmp_path / "out.jsonl"), run("data.encode", *encoded)):
        assert (ran.returncode, ran.stderr) == (0, ""), ran
    source.write_text("{")
    for ran in (run("data.clean", source, "--output", tmp_path / "out.jsonl"), run("data.encode", *encoded)):
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1) and "invalid JSON" in ran.stderr, ran
        assert ran.stderr.strip("\n").isprintable()


@pytest.mark.parametrize("what", NAMES)
def test_a_data_set_of_an_odd_name_is_prepared_or_refused_in_one_line(what: str, tmp_path: Path, plain_tokenizer: Path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    source = write_jsonl(folder / NAMES[what], ["w1 w2 " * 50] * 60)
    places = (f"DATA_DIR={folder}/data", f"OUTPUT_DIR={folder}/output", f"TOKENIZER={plain_tokenizer}")
    ran = run("data.prepare", "--platform", "cpu", f"DATASET={source}", *places, *SETTINGS)
    if what == "with a space":
        assert ran.returncode == 0, ran
        return
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1) and ran.stderr.strip("\n").isprintable(), ran
    # as one file of a folder its name does not matter
    ran = run("data.prepare", "--platform", "cpu", f"DATASET={folder}/*.jsonl", *places, *SETTINGS)
    assert ran.returncode == 0, ran


def test_two_parquet_columns_of_the_name_are_refused_and_two_others_are_not(tmp_path: Path) -> None:
    for names, code in ((["text", "text"], 2), (["text", "other"], 0), (["text", "o", "o"], 0)):
        table = pa.Table.from_arrays([pa.array(["a", "b"])] * len(names), names=names)
        parquet.write_table(table, tmp_path / "a.parquet")
        ran = run("data.clean", tmp_path / "a.parquet", "--clean", "none", "--output", tmp_path / "out.jsonl")
        assert (ran.returncode, ran.stderr.count("\n")) == (code, int(code > 0)), ran


@pytest.mark.parametrize("module", COMMANDS)
def test_without_docstrings_or_with_closed_streams_a_command_works(module: str) -> None:
    ran = run(module, "--help", PYTHONOPTIMIZE="2")
    assert (ran.returncode, ran.stderr) == (0, "") and "usage:" in ran.stdout
    for closed in (">&-", "<&- >&-", "2>&-"):
        line = f"exec {sys.executable} -m {module} --help {closed}"
        ran = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stderr) == (0, ""), (closed, ran)
