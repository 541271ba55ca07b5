"""A run that was ended continues where it stopped, with the same bytes, and reuses only parts that are its own.

Tasks of datatrove, local and on Slurm, give the same bytes as one process.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import hypothesis
import numpy as np
import psutil
import pytest
import slurm_cluster
from checkout import ROOT
from processes import below, wait_until_gone
from standins import contents, texts_by_json, write_jsonl
from toydata import TEXTS, assert_same_pair, megatron_pair
from transformers import AutoTokenizer

from data import encode
from data.encoding import scale_out

PATIENCE_SECONDS = 600
FINISHED = 5
"""Parts that are finished when the disk is full."""


def arguments(folder: Path, tokenizer: Path, *more: object, name: str = "out") -> list[object]:
    return ["--input", folder / "in.jsonl", "--tokenizer", tokenizer, "--output-prefix", folder / name, *more]


def finished(folder: Path) -> list[Path]:
    return sorted((folder / ".out.parts").glob("[0-9]*.json"))


def other_text(folder: Path) -> None:
    content = (folder / "in.jsonl").read_bytes()
    (folder / "in.jsonl").write_bytes(content[:10] + b"other" + content[15:])  # of the same size, in the first part


def damaged(name: str, content: bytes | None = None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / ".out.parts" / name
        path.write_bytes(path.read_bytes()[:-2] + b"\0\1" if content is None else content)

    return change


def of_another_version(folder: Path) -> None:
    path = folder / ".out.parts" / "000000.json"
    path.write_text(re.sub(r'("version": ?)\d+', r"\g<1>99", path.read_text(), count=1))


def swapped(folder: Path) -> None:
    for ending in ("bin", "lengths", "json"):
        shutil.copy(folder / ".out.parts" / f"000001.{ending}", folder / ".out.parts" / f"000000.{ending}")


CHANGES: dict[str, tuple[Callable[[Path], None] | None, tuple[str, ...], int]] = {
    "nothing": (None, (), 0),
    "more workers": (None, ("--workers", "2"), 0),
    "other text": (other_text, (), 1),
    "changed ids": (damaged("000000.bin"), (), 1),
    "no ids": (damaged("000000.bin", b""), (), 1),
    "lengths": (damaged("000000.lengths"), (), 1),
    "empty manifest": (damaged("000000.json", b"{}"), (), 1),
    "no manifest": (damaged("000000.json", b""), (), 1),
    "another part": (swapped, (), 1),
    "another version": (of_another_version, (), 1),
    "another tokenizer": (None, ("--tokenizer", "bos"), FINISHED),
    "another key": (None, ("--text-key", "other"), FINISHED),
    "another rule for bad lines": (None, ("--on-bad-line", "skip"), FINISHED),
}
"""What changes after a run that ended, and how many of its parts are made again."""


@pytest.mark.parametrize("name", CHANGES)
def test_a_part_is_reused_if_nothing_of_its_origin_changed_and_else_made_anew(
    tmp_path: Path, tokenizers, part_bytes, renames, commands, name: str
) -> None:
    change, more, made_again = CHANGES[name]
    part_bytes(2000)
    with (tmp_path / "in.jsonl").open("w") as file:
        for number in range(1000):
            file.write(json.dumps({"text": f"{number} some words of it", "other": f"{number} x"}) + "\n")
    renames.before[f"{FINISHED:06d}.json"] = OSError("no space left")
    assert "no space left" in commands.error(encode.main, *arguments(tmp_path, tokenizers["plain"]))
    assert len(finished(tmp_path)) == FINISHED and not list(tmp_path.glob("out*"))

    if change:
        change(tmp_path)
    last = (tmp_path / "in.jsonl").stat().st_size // 2000 - 1
    renames.names.clear()
    given = [str(tokenizers.get(word, word)) for word in more]
    commands.run(encode.main, *arguments(tmp_path, tokenizers["plain"], *given))
    if "--workers" not in more:  # else the parts are made in other processes
        made = [int(name[:6]) for name in renames.names if re.fullmatch(r"\d{6}\.json", name)]
        assert made == [*range(made_again), *range(FINISHED, made[-1] + 1)] and abs(made[-1] - last) < 3
    assert not (tmp_path / ".out.parts").exists()
    commands.run(encode.main, *arguments(tmp_path, tokenizers["plain"], *given, name="whole"))
    assert_same_pair(tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize(
    ("place", "name"), [("before", "out.bin"), ("after", "out.bin"), ("after", "out.idx"), ("before", "out.json")]
)
def test_a_run_that_ends_while_it_replaces_a_pair_leaves_no_manifest_and_is_taken_up(
    tmp_path: Path, plain_tokenizer, commands, renames, place: str, name: str
) -> None:
    command = arguments(tmp_path, plain_tokenizer)
    write_jsonl(tmp_path / "in.jsonl", ["the first"])
    commands.run(encode.main, *command)
    getattr(renames, place)[name] = KeyboardInterrupt()
    write_jsonl(tmp_path / "in.jsonl", ["the second", "text"])
    commands.error(encode.main, *command, wanted=130)
    assert not (tmp_path / "out.json").exists(), "nothing vouches for a pair that is half replaced"
    write_jsonl(tmp_path / "in.jsonl", ["a third", "", "text"] * 2)
    commands.run(encode.main, *command)
    commands.run(encode.main, *arguments(tmp_path, plain_tokenizer, name="whole"))
    assert_same_pair(tmp_path / "out", tmp_path / "whole")
    assert (tmp_path / "out.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_two_runs_cannot_write_one_pair(tmp_path: Path, plain_tokenizer: Path, commands) -> None:
    write_jsonl(tmp_path / "in.jsonl", ["text"])
    (tmp_path / ".out.parts").mkdir()
    with (tmp_path / ".out.parts" / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = commands.error(encode.main, *arguments(tmp_path, plain_tokenizer), wanted=2)
        assert "another run is writing" in error
    commands.run(encode.main, *arguments(tmp_path, plain_tokenizer))


def start(folder: Path, tokenizer: Path, name: str = "out") -> subprocess.Popen[str]:
    """Start data.encode with two workers in a session of its own, as a user does."""
    command = [sys.executable, "-m", "data.encode", *arguments(folder, tokenizer, "--workers", "2", name=name)]
    return subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def interrupt(process: subprocess.Popen[str]) -> None:
    """As a terminal does, whose Ctrl-C reaches all processes."""
    os.killpg(process.pid, signal.SIGINT)


def kill_a_worker(process: subprocess.Popen[str]) -> None:
    """Kill a child of the server process, which is a child of the run."""
    worker = next(child for child in below(process.pid) if child.ppid() != process.pid)
    worker.kill()


STOPS: dict[str, tuple[Callable[[subprocess.Popen[str]], None], int, str]] = {
    "terminated": (subprocess.Popen.terminate, 143, ""),
    "interrupted": (interrupt, 130, "error: interrupted"),
    "killed": (subprocess.Popen.kill, -signal.SIGKILL, ""),
    "a worker killed": (kill_a_worker, 1, "error: workers: one of 2 was killed"),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_run_that_is_stopped_leaves_its_finished_parts_and_no_process(
    tmp_path: Path, plain_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stop, code, said = STOPS[name]
    write_jsonl(tmp_path / "in.jsonl", ["some words of it " * 2000] * 1000)
    with tempfile.TemporaryDirectory(prefix="t") as temporary:  # a short path, for sockets of the workers' server
        monkeypatch.setenv("TMPDIR", temporary)
        process = start(tmp_path, plain_tokenizer)
        while not finished(tmp_path) and process.poll() is None:
            time.sleep(0.005)
        found = below(process.pid)
        assert list(Path(temporary).iterdir())
        stop(process)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == code and said in errors and "Traceback" not in errors, errors
        wait_until_gone(found)
        assert list(Path(temporary).iterdir()) == []
    left = {path.name for path in tmp_path.iterdir() if name != "killed" or path.suffix != ".tmp"}
    assert left == {".out.parts", "in.jsonl"} and finished(tmp_path)


def test_ctrl_c_ends_no_process_below_a_run_while_it_starts(tmp_path: Path, plain_tokenizer: Path) -> None:
    """A terminal sends it to all of them; only the run itself says that it was interrupted."""
    write_jsonl(tmp_path / "in.jsonl", ["some words of it " * 2000] * 300)
    process = start(tmp_path, plain_tokenizer)
    while process.poll() is None and not finished(tmp_path):
        for child in below(process.pid):
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGINT)
        time.sleep(0.002)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0 and "Traceback" not in errors, errors


@pytest.mark.full("a run that is killed ten times at random moments, about 15 s")
def test_a_run_killed_at_any_moment_goes_on_with_the_same_bytes_and_nobody_is_left(
    tmp_path: Path, plain_tokenizer: Path, commands
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # pytest shows it on failure
    pick, kills, while_writing = random.Random(seed), 0, 0
    write_jsonl(tmp_path / "in.jsonl", [f"{number} " + "some words of it " * 80 for number in range(12_000)])
    began = time.monotonic()
    assert start(tmp_path, plain_tokenizer, "whole").wait() == 0
    undisturbed = time.monotonic() - began
    while kills < 10 or not while_writing:
        process = start(tmp_path, plain_tokenizer)
        time.sleep(pick.uniform(0, undisturbed))
        found = below(process.pid)
        if process.poll() is None:
            kill = (os.kill, os.killpg)[kills % 2]  # alone, as when memory runs out, and with its workers
            kill(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate()
        wait_until_gone(found)
        while_writing += bool(finished(tmp_path)) and not (tmp_path / "out.json").exists()
        if (tmp_path / "out.json").exists():
            assert_same_pair(tmp_path / "out", tmp_path / "whole")
            for path in tmp_path.glob("out.*"):
                path.unlink()
    left = sorted(path.name for path in tmp_path.glob(".out.*.tmp"))
    assert len(left) <= 3, "those of the last killed run only: .bin, .idx, and the manifest"
    said = commands.run(encode.main, *arguments(tmp_path, plain_tokenizer)).err
    lines = re.findall(rf"(?m)^{re.escape(str(tmp_path))}: removed (.+), left by a run that was killed$", said)
    assert sorted(name for line in lines for name in line.split(", ")) == left
    assert_same_pair(tmp_path / "out", tmp_path / "whole")
    names = [f"{name}.{ending}" for name in ("out", "whole") for ending in ("bin", "idx", "json")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", *names]


def test_any_file_is_the_right_bytes_or_a_clear_error(
    tmp_path: Path, plain_tokenizer: Path, part_bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    part_bytes(40)
    tokenizer, prefix = AutoTokenizer.from_pretrained(plain_tokenizer), tmp_path / "out"
    command = [str(argument) for argument in arguments(tmp_path, plain_tokenizer)]

    @hypothesis.settings(max_examples=80, deadline=None)
    @hypothesis.example(b'{"text": "' + b"5" * 5_000_000 + b'"}\noops')
    @hypothesis.given(contents)
    def check(content: bytes) -> None:
        (tmp_path / "in.jsonl").write_bytes(content)
        texts = texts_by_json(content)
        code = encode.main(command)
        said = capfd.readouterr()
        if None in texts:
            assert code == 1 and f"in.jsonl:{texts.index(None) + 1}: got " in said.err
        elif not any(texts):
            assert code == 1 and "contain no token" in said.err
        else:
            assert code == 0 and json.loads(said.out)["documents"] == len(texts)
            ids = []
            for row in tokenizer(texts).input_ids:
                ids += [*row, tokenizer.eos_token_id] if row else []
            assert np.fromfile(prefix.with_suffix(".bin"), dtype=np.uint16).tolist() == ids
        assert not (tmp_path / ".out.parts").exists()

    check()


# Tasks of datatrove share the parts; a failed task ends the work.

MANY = [f"{number} {text}" for number in range(9) for text in TEXTS]
SLURM = ("--executor", "slurm", "--tasks", "2", "--slurm-time", "00:10:00", "--slurm-partition")
TASKS = {
    "datatrove": ("--executor", "datatrove", "--tasks", "3", "--workers", "2"),
    "slurm": (*SLURM, slurm_cluster.PARTITION),
}


@pytest.fixture
def given(tmp_path: Path, tokenizers: dict[str, Path]) -> list[str]:
    """The arguments of encoding `in.jsonl`, beside which megatron-core's pair is."""
    pytest.importorskip("datatrove", reason="datatrove is not installed: there are no tasks")
    write_jsonl(tmp_path / "in.jsonl", MANY)
    megatron_pair(tmp_path / "theirs", MANY, tokenizers["bos"])
    return list(map(str, arguments(tmp_path, tokenizers["bos"])))


def run(command: list[str], environment: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "data.encode", *command]
    return subprocess.run(start, cwd=ROOT, env=dict(environment), capture_output=True, text=True)


def test_tasks_share_the_parts_between_them_and_the_join_finds_all_made(
    tmp_path, tokenizers, given, part_bytes, renames
) -> None:
    part_bytes(10_000)
    named = {"input": [tmp_path / "in.jsonl"], "tokenizer": tokenizers["bos"], "output_prefix": tmp_path / "out"}
    (tmp_path / ".out.parts").mkdir()
    shares = []
    for rank in (1, 0, 2):
        renames.names.clear()
        assert list(scale_out.EncodeParts(named)(None, rank, 3)) == []
        shares.append({name for name in renames.names if re.fullmatch(r"\d{6}\.bin", name)})
    one, two, three = shares
    assert one and two and three and not one & two and not (one | two) & three
    renames.names.clear()
    list(scale_out.JoinParts(named)(None))
    assert not any(name[:6].isdigit() for name in renames.names), "no part is made again"
    assert_same_pair(tmp_path / "out", tmp_path / "theirs")


@pytest.mark.parametrize(
    "executor", ["datatrove", pytest.param("slurm", marks=pytest.mark.full("a cluster of Slurm, about 15 s"))]
)
@pytest.mark.parametrize("is_bad", [False, True])
def test_tasks_write_the_bytes_of_one_process_or_end_without_a_pair(
    tmp_path, given, request, executor: str, is_bad: bool
) -> None:
    environment = request.getfixturevalue("slurm") if executor == "slurm" else os.environ
    if is_bad:
        with (tmp_path / "in.jsonl").open("a") as file:
            file.write("oops\n")
    done = run([*given, *TASKS[executor]], environment)
    assert done.returncode == (is_bad and executor == "datatrove"), done.stderr
    if executor == "slurm":
        listing = ["squeue", "-h", "-j", json.loads(done.stdout)["submitted"]]
        while subprocess.run(listing, env=environment, capture_output=True).stdout.strip():
            time.sleep(1)
    elif is_bad:
        assert f"in.jsonl:{len(MANY) + 1}: got invalid JSON" in done.stderr
    else:
        assert json.loads(done.stdout)["documents"] == len(MANY) and not list(tmp_path.glob(".*"))
    assert (tmp_path / "out.json").exists() != is_bad
    if not is_bad:
        assert_same_pair(tmp_path / "out", tmp_path / "theirs")


WRONG = [
    (("--executor", "datatrove"), "pip install datatrove=="),
    (("--executor", "slurm"), "--slurm-partition"),
    (("--executor", "slurm", "--slurm-partition", "x", "--slurm-option", "account"), "NAME=VALUE"),
]


@pytest.mark.parametrize(("more", "message"), WRONG)
def test_what_cannot_be_started_is_exit_2(given, commands, monkeypatch, more, message) -> None:
    if "datatrove" in more:
        monkeypatch.setitem(sys.modules, "datatrove", None)
    assert message in commands.error(encode.main, *given, *more, wanted=2)


@pytest.mark.full("a cluster of Slurm, about 5 s")
def test_what_slurm_refuses_is_one_line_and_exit_1(given, slurm: dict[str, str]) -> None:
    done = run([*given, *SLURM, "nowhere"], slurm)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: --executor slurm: sbatch refused the job (exit code 1); see its message above" in done.stderr
