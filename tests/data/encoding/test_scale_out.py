"""Tasks of datatrove, local and on Slurm, give the same bytes as one process; a failed task ends the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import slurm_cluster
from checkout import ROOT
from standins import write_jsonl
from toydata import TEXTS, assert_same_pair, megatron_pair

from data import encode
from data.encoding import scale_out

pytest.importorskip("datatrove", reason="datatrove is not installed: there are no tasks")
PATIENCE_SECONDS = 180
MANY = [f"{number} {text}" for number in range(9) for text in TEXTS]
SLURM = ("--executor", "slurm", "--tasks", "2", "--slurm-time", "00:10:00", "--slurm-partition")


@pytest.fixture
def arguments(tmp_path: Path, tokenizers: dict[str, Path]) -> list[str]:
    """The arguments of encoding `in.jsonl`, beside which megatron-core's pair is."""
    write_jsonl(tmp_path / "in.jsonl", MANY)
    megatron_pair(tmp_path / "theirs", MANY, tokenizers["bos"])
    paths = ["--input", str(tmp_path / "in.jsonl"), "--tokenizer", str(tokenizers["bos"])]
    return [*paths, "--output-prefix", str(tmp_path / "out")]


def run(command: list[str], environment: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "data.encode", *command]
    return subprocess.run(start, cwd=ROOT, env=dict(environment), capture_output=True, text=True)


def add_bad_line(folder: Path) -> None:
    with (folder / "in.jsonl").open("a") as file:
        file.write("oops\n")


def test_tasks_share_the_parts_between_them_and_the_join_finds_all_made(
    tmp_path, tokenizers, arguments, part_bytes, renames
) -> None:
    part_bytes(10_000)
    given = {"input": [tmp_path / "in.jsonl"], "tokenizer": tokenizers["bos"], "output_prefix": tmp_path / "out"}
    (tmp_path / ".out.parts").mkdir()
    shares = []
    for rank in (1, 0, 2):
        renames.names.clear()
        assert list(scale_out.EncodeParts(given)(None, rank, 3)) == []
        shares.append({name for name in renames.names if name[:6].isdigit() and name.endswith(".bin")})
    assert len(set.union(*shares)) == sum(map(len, shares)) >= 6 and all(shares)
    renames.names.clear()
    list(scale_out.JoinParts(given)(None))
    assert not [name for name in renames.names if name[:6].isdigit()], "no part is made again"
    assert_same_pair(tmp_path / "out", tmp_path / "theirs")


@pytest.mark.parametrize("is_bad", [False, True])
def test_tasks_of_datatrove_write_the_bytes_of_one_process_or_end_without_a_pair(tmp_path, arguments, is_bad) -> None:
    if is_bad:
        add_bad_line(tmp_path)
    done = run([*arguments, "--executor", "datatrove", "--tasks", "3", "--workers", "2"])
    if is_bad:
        assert done.returncode == 1 and f"in.jsonl:{len(MANY) + 1}: got invalid JSON" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert_same_pair(tmp_path / "out", tmp_path / "theirs")
        assert json.loads(done.stdout)["documents"] == len(MANY)
        assert not list(tmp_path.glob(".*"))
    assert (tmp_path / "out.json").exists() != is_bad


WRONG = [
    (("--executor", "datatrove"), "pip install datatrove=="),
    (("--executor", "slurm"), "--slurm-partition"),
    (("--executor", "slurm", "--slurm-partition", "x", "--slurm-option", "account"), "NAME=VALUE"),
]


@pytest.mark.parametrize(("more", "message"), WRONG)
def test_what_cannot_be_started_is_exit_2(arguments, commands, monkeypatch, more, message) -> None:
    if "datatrove" in more:
        monkeypatch.setitem(sys.modules, "datatrove", None)
    assert message in commands.error(encode.main, *arguments, *more, wanted=2)


@pytest.mark.full("a cluster of Slurm, about 15 s")
@pytest.mark.parametrize("is_bad", [False, True])
def test_tasks_on_slurm_write_the_bytes_of_one_process_or_end_without_a_pair(
    tmp_path, arguments, slurm: dict[str, str], is_bad: bool
) -> None:
    if is_bad:
        add_bad_line(tmp_path)
    done = run([*arguments, *SLURM, slurm_cluster.PARTITION], slurm)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["submitted"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while subprocess.run(["squeue", "-h", "-j", job], env=slurm, capture_output=True, text=True).stdout.strip():
        assert time.monotonic() < deadline
        time.sleep(1)
    assert (tmp_path / "out.json").exists() != is_bad
    if not is_bad:
        assert_same_pair(tmp_path / "out", tmp_path / "theirs")


@pytest.mark.full("a cluster of Slurm, about 5 s")
def test_what_slurm_refuses_is_one_line_and_exit_1(arguments, slurm: dict[str, str]) -> None:
    done = run([*arguments, *SLURM, "nowhere"], slurm)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: --executor slurm: sbatch refused the job (exit code 1); see its message above" in done.stderr
