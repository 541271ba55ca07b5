"""Tasks of datatrove, local and on Slurm, give the same bytes as one process; a failed task ends the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import slurm_cluster
from megatron_reference import TEXTS, write_jsonl

from data.encode import main
from data.encoding import parts, scale_out
from data.encoding.pair import encode
from data.encoding.parts import folder_of
from utils.errors import DataError
from utils.provenance.digests import sha256_file
from utils.settings.config import ROOT

PATIENCE_SECONDS = 180
SLURM = ("--executor", "slurm", "--tasks", "2", "--slurm-time", "00:10:00")
needs_datatrove = pytest.mark.skipif(
    not any(Path(path, "datatrove").is_dir() for path in sys.path), reason="datatrove is not installed"
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a cluster."""
    if why := slurm_cluster.missing():
        pytest.skip(why)
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


def arguments(folder: Path, tokenizer: Path, *more: str) -> list[str]:
    paths = ["--input", str(folder / "in.jsonl"), "--tokenizer", str(tokenizer)]
    return [*paths, "--output-prefix", str(folder / "out"), *more]


def pair(prefix: Path) -> list[str]:
    return [sha256_file(prefix.with_name(f"{prefix.name}.{ending}")) for ending in ("bin", "idx")]


@pytest.fixture
def one_process(tmp_path: Path, bos_tokenizer: Path) -> list[str]:
    """What one process writes of `in.jsonl`."""
    source = write_jsonl(tmp_path / "in.jsonl", [f"{number} {text}" for number in range(9) for text in TEXTS])
    encode(source, bos_tokenizer, tmp_path / "one")
    return pair(tmp_path / "one")


def test_tasks_share_the_parts_between_them_and_the_join_finds_all_made(
    tmp_path: Path, bos_tokenizer: Path, one_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 10_000)
    source = tmp_path / "in.jsonl"
    given = {"input": [source], "tokenizer": bos_tokenizer, "output_prefix": tmp_path / "out"}
    (tmp_path / ".out.parts").mkdir()
    for rank in (1, 0, 2):
        assert list(scale_out.EncodeParts(given)(None, rank, 3)) == []
    made = list(folder_of(tmp_path / "out").glob("*.bin"))
    assert len(made) == len(list(parts.spans([source]))) >= 6
    with monkeypatch.context() as patch:
        patch.setattr("data.encoding.worker.EncodeJob._encode", None)  # so nothing can be made again
        list(scale_out.JoinParts(given)(None))
    assert pair(tmp_path / "out") == one_process


def test_a_bad_line_in_a_task_is_named_as_it_is_in_the_file(
    tmp_path: Path, plain_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 100)
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"text": "fine"}\n' * 100 + b"oops\n")
    given = {"input": [source], "tokenizer": plain_tokenizer, "output_prefix": tmp_path / "out"}
    with pytest.raises(DataError, match=r"in\.jsonl:101: got invalid JSON"):
        for rank in range(3):
            list(scale_out.EncodeParts(given)(None, rank, 3))


@needs_datatrove
def test_tasks_of_datatrove_write_the_bytes_of_one_process(
    tmp_path: Path, bos_tokenizer: Path, one_process: list[str]
) -> None:
    command = arguments(tmp_path, bos_tokenizer, "--executor", "datatrove", "--tasks", "3", "--workers", "2")
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert pair(tmp_path / "out") == one_process
    assert json.loads(done.stdout)["documents"] == 9 * len(TEXTS)
    names = ["in.jsonl", *(f"{name}.{ending}" for name in ("one", "out") for ending in ("bin", "idx", "json"))]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_without_datatrove_it_says_what_to_install(
    tmp_path: Path, plain_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "datatrove", None)
    write_jsonl(tmp_path / "in.jsonl", TEXTS)
    assert main(arguments(tmp_path, plain_tokenizer, "--executor", "datatrove")) == 2
    assert "pip install datatrove==" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [((), "--slurm-partition"), (("--slurm-partition", "x", "--slurm-option", "account"), "NAME=VALUE")],
)
def test_slurm_options_that_cannot_be_are_exit_2(
    tmp_path: Path, plain_tokenizer: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    write_jsonl(tmp_path / "in.jsonl", TEXTS)
    assert main(arguments(tmp_path, plain_tokenizer, "--executor", "slurm", *more)) == 2
    assert message in capsys.readouterr().err


@needs_datatrove
@pytest.mark.parametrize("is_bad", [False, True])
def test_tasks_on_slurm_write_the_bytes_of_one_process_or_end_without_a_pair(
    tmp_path: Path, bos_tokenizer: Path, one_process: list[str], slurm: dict[str, str], is_bad: bool
) -> None:
    if is_bad:
        with (tmp_path / "in.jsonl").open("a") as file:
            file.write("oops\n")
    more = (
        "--executor",
        "slurm",
        "--tasks",
        "2",
        "--slurm-partition",
        slurm_cluster.PARTITION,
        "--slurm-time",
        "00:10:00",
    )
    done = run(arguments(tmp_path, bos_tokenizer, *more), slurm)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["submitted"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while subprocess.run(["squeue", "-h", "-j", job], env=slurm, capture_output=True, text=True).stdout.strip():
        assert time.monotonic() < deadline
        time.sleep(1)
    assert (tmp_path / "out.json").exists() != is_bad
    if not is_bad:
        assert pair(tmp_path / "out") == one_process


@needs_datatrove
def test_what_slurm_refuses_is_one_line_and_exit_1(
    tmp_path: Path, plain_tokenizer: Path, slurm: dict[str, str]
) -> None:
    write_jsonl(tmp_path / "in.jsonl", TEXTS)
    done = run(arguments(tmp_path, plain_tokenizer, *SLURM, "--slurm-partition", "nowhere"), slurm)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: --executor slurm: sbatch refused the job (exit code 1); see its message above" in done.stderr


def run(command: list[str], environment: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "data.encode", *command],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
