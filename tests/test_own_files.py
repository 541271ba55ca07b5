"""Every command that writes leaves the files of a user as they are: one error line, exit 2, before anything is written.

The commands are listed from the code, so a new one must be entered in one of the tables below.
"""

from __future__ import annotations

import importlib
import json
import platform
import re
import sys
from base64 import b64decode
from pathlib import Path

import pytest
from checkout import ROOT
from housekeeping import tree
from matplotlib.figure import Figure
from toydata import write_toy_data

from data import encode, synth, verify
from example import example_result

ROOMS = ("utils", "data", "train", "evaluate")
LOG = ROOT / "tests" / "utils" / "logs" / "samples" / "primus_a.log"
SETTINGS = "FRAMEWORK=hf MODEL=llama RUNS=1 GBS=8 MBS=2 SL=128 TRAIN_ITERS=6 WARMUP_ITERS=2"
JOB = "train_cpu_hf_llama_run1.json"
MATRIX = f"--platform cpu OUTPUT_DIR={{out}} DATA_DIR={{in}}/data DATASET={{in}}/toy {SETTINGS}"
SYNTH = "data/synth_seed42_6145tokens"

WRITERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "data.clean": ("{in}/text.jsonl --output {out}/new.jsonl", ("new.jsonl", ".new.jsonl.tprimat")),
    "data.encode": (
        "--input {in}/text.jsonl --tokenizer {in}/tokenizer --output-prefix {out}/pair",
        ("pair.bin", "pair.idx", "pair.json", ".pair.parts/notes.txt", ".pair.parts"),
    ),
    "data.prepare": (
        f"--platform cpu --for-any-training DATASET=synth DATA_DIR={{out}}/data OUTPUT_DIR={{out}}/output {SETTINGS}",
        (
            f"{SYNTH}/text.bin",
            f"{SYNTH}/text.idx",
            f"{SYNTH}/text.json",
            f"{SYNTH}/text.jsonl",
            f"{SYNTH}/tokenizer/tokenizer.json",
            "output/data_synth_seed42_6145tokens.png",
        ),
    ),
    "data.synth": (
        "--output {out}/new.jsonl --words 9 --tokenizer-output {out}/tokenizer",
        ("new.jsonl", "tokenizer", "tokenizer/tokenizer.json", "tokenizer/weights"),
    ),
    "data.verify": ("{in}/pair --tokenizer {in}/tokenizer --plot {out}/new.png", ("new.png",)),
    "evaluate.compare": (
        "{in}/results --output {out}",
        ("compare.json", "compare.md", "compare.html", "compare.png"),
    ),
    "evaluate.frame": ("{in}/results --output {out}/new.csv", ("new.csv",)),
    "evaluate.extract": (
        "--log-file {log} --model-name llama --num-gpus 8 --global-batch-size 64 --sequence-length 4096 "
        "--output {out}/new.json",
        ("new.json",),
    ),
    "evaluate.history": ("{in}/results --output {out}", ("history.json", "history.html")),
    "evaluate.mlperf": ("{in} --output {out}/new.json", ("new.json",)),
    "evaluate.trace": ("{in}/trace.json --output {out}", ("trace.html", "trace.json")),
    "train.launch": (f"--framework hf --model llama {MATRIX}", (JOB,)),
    "train.matrix": (MATRIX, (JOB, "status.json", "logs/matrix.log")),
    "train.probe": ("--platform cpu --seconds 0.1 OUTPUT_DIR={out}", (f"probe_cpu_{platform.node()}.json",)),
    "train.rehearse": (
        "--platform cpu --gpus 1 --framework mega --model llama --output {out}/new.json",
        ("new.json",),
    ),
    "train.slurm": (f"{MATRIX} RUNTIME=native", (JOB, "status.json", "logs/matrix.log")),
    "train.sweep": (f"{MATRIX} MBS=2,4", ("sweeps/sweep.json",)),
    "evaluate.wrap": ("--platform cpu OUTPUT_DIR={out}", ("output.zip",)),
}
"""Arguments of each command that writes, and the names below {out} that it would write."""

PRINTS = "prints only"
OF_A_JOB = "started by train.launch, which checks; writes its result only where there is none"
WRITE_NOTHING_NAMED = {
    "evaluate.__main__": "starts compare, history, trace or validate",
    "evaluate.fingerprint": PRINTS,
    "evaluate.reproduce": PRINTS,
    "evaluate.sweep": "writes beside the file that it reads; see tests/evaluate/sweeps/test_sweep.py",
    "evaluate.validate": PRINTS,
    "train.convert": "needs NVIDIA's container; an existing folder stays, see tests/train/test_frameworks.py",
    "train.energy.gpu_reader": PRINTS,
    "train.machine.gpu_command": PRINTS,
    "train.status": PRINTS,
    "train.probing.collectives": "started by train.probe; writes into a temporary folder",
    "train.train_hf": OF_A_JOB,
    "train.train_mega": OF_A_JOB,
    "train.train_nemo": OF_A_JOB,
    "train.train_bridge": OF_A_JOB,
    "train.train_prim": OF_A_JOB,
    "train.train_titan": OF_A_JOB,
    "utils.configure": PRINTS,
    "utils.hardware.__main__": PRINTS,
    "utils.housekeeping.purge": "removes files that utils/housekeeping/inventory.py recognises, and writes none",
    "shell/build.sh": "an image; of the file for Apptainer see tests/shell/test_build.py",
    "shell/compare.sh": "starts evaluate.compare",
    "shell/data.sh": "starts data.prepare",
    "shell/entry.sh": "starts what the user names, in a container",
    "shell/extract.sh": "starts evaluate.extract",
    "shell/frame.sh": "starts evaluate.frame",
    "shell/gpu.sh": "starts train.machine.gpu_command",
    "shell/history.sh": "starts evaluate.history",
    "shell/platform.sh": PRINTS,
    "shell/profile.sh": "starts train.launch; of nsys see tests/shell/test_scripts.py",
    "shell/purge.sh": "starts utils.housekeeping.purge",
    "shell/run_data.sh": "starts data.prepare",
    "shell/run_gpu_hour.sh": "starts benchmarks.gpu",
    "shell/run_purge.sh": "starts utils.housekeeping.purge",
    "shell/run_reproduce.sh": "starts train.matrix",
    "shell/run_slurm.sh": "starts train.slurm",
    "shell/run_sweep.sh": "starts train.sweep",
    "shell/run_train.sh": "starts train.matrix",
    "shell/run_wrap.sh": "starts evaluate.wrap",
    "shell/setup.sh": "environments of the checkout; of the folder of --download see tests/shell/test_offline.py",
    "shell/sweep.sh": "starts train.sweep",
    "shell/test.sh": "tests, in temporary folders",
    "shell/trace.sh": "starts evaluate.trace",
    "shell/train.sh": "starts train.matrix",
    "shell/validate.sh": "starts evaluate.validate",
    "shell/wrap.sh": "starts evaluate.wrap",
}


OF_A_USER = {
    ".json": b'{"text": "of a user", "version": 1}\n',
    ".jsonl": b'{"text": "of a user"}\n',
    ".md": b"# Comparison\n\nof a user\n",
    ".html": b"<!DOCTYPE html>\n<title>of a user</title>\n",
    # one pixel, as any program writes it
    ".png": b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="),
}


def commands() -> set[str]:
    """Return every module that is a program, and every script directly in shell/."""
    is_program = re.compile(r"^if __name__ == .__main__.:", re.MULTILINE)
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if is_program.search(path.read_text())]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    return modules | {f"shell/{path.name}" for path in (ROOT / "shell").glob("*.sh")}


def test_every_command_is_known() -> None:
    assert sorted([*WRITERS, *WRITE_NOTHING_NAMED]) == sorted(commands())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a text, its tokenizer, a pair and a result."""
    folder = tmp_path_factory.mktemp("in")
    (folder / "trace.json").write_text('[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]')
    (folder / "text.jsonl").write_text('{"text": "some words of it"}\n' * 20)
    synth.write_tokenizer(folder / "tokenizer", seed=1, vocabulary_size=300)
    write_toy_data(folder / "toy")
    assert encode.main([*encoded(folder), "--output-prefix", str(folder / "pair")]) == 0
    (folder / "results").mkdir()
    (folder / "results" / JOB).write_text(json.dumps(example_result()))
    return folder


def encoded(folder: Path) -> list[str]:
    """Return the options of data.encode for the text."""
    return ["--input", str(folder / "text.jsonl"), "--tokenizer", str(folder / "tokenizer")]


def run(
    command: str, inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Run a command of WRITERS in this process; return its exit code and what it printed on stderr."""
    places = {"in": inputs, "out": out, "log": LOG}
    arguments = [argument.format_map(places) for argument in WRITERS[command][0].split()]
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    monkeypatch.setenv("PLATFORM", "cpu")
    monkeypatch.setenv("TPRIMAT_MACHINE", "")  # train.slurm sets it for the processes that it starts
    capsys.readouterr()
    code = importlib.import_module(command).main()
    return code, capsys.readouterr().err


@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize(
    ("command", "output"), [(command, output) for command, (_, outputs) in WRITERS.items() for output in outputs]
)
def test_a_file_of_a_user_stays_and_is_named_in_one_line(
    tmp_path: Path,
    inputs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    output: str,
    kind: str,
) -> None:
    path = tmp_path / "out" / output
    path.parent.mkdir(parents=True)
    of_user = path if kind == "file" else tmp_path / "elsewhere"
    of_user.write_bytes(OF_A_USER.get(path.suffix, b"of a user\n"))
    if kind == "link":
        path.symlink_to(of_user)
    before = tree(tmp_path)
    code, said = run(command, inputs, tmp_path / "out", monkeypatch, capsys)
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith("error: ") and (str(path) in said or str(path.parent) in said or path.name in said), said
    after = tree(tmp_path)
    assert {name: after[name] for name in before} == before
    assert not [name for name in after if name not in before and after[name].startswith("file")]


@pytest.mark.parametrize(
    "command",
    [
        "data.encode",
        "data.clean",
        "data.synth",
        "data.verify",
        "evaluate.compare",
        "evaluate.extract",
        "evaluate.frame",
        "evaluate.history",
    ],
)
def test_what_the_suite_wrote_is_replaced(
    tmp_path: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    codes = [run(command, inputs, tmp_path, monkeypatch, capsys) for _ in range(2)]
    assert [code for code, _ in codes] == [3 if command == "evaluate.compare" else 0] * 2, codes
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(("is_ours", "code"), [(True, 3), (False, 2)])
def test_a_report_of_an_earlier_version_is_replaced_but_no_picture_of_another_program(
    tmp_path: Path,
    inputs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_ours: bool,
    code: int,
) -> None:
    for path in (ROOT / "docs" / "examples" / "compare").glob("compare.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    Figure().savefig(tmp_path / "compare.png", metadata={"Software": "tprimat"} if is_ours else None)
    assert run("evaluate.compare", inputs, tmp_path, monkeypatch, capsys)[0] == code


def test_a_pair_of_another_program_is_not_replaced_although_it_has_a_manifest_of_ours(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["--output-prefix", str(tmp_path / "pair")]
    assert encode.main([*encoded(inputs), *pair]) == 0
    (tmp_path / "pair.json").unlink()
    assert verify.main([str(tmp_path / "pair"), "--tokenizer", str(inputs / "tokenizer"), "--write-manifest"]) == 0
    assert json.loads((tmp_path / "pair.json").read_text())["input"] is None
    before = tree(tmp_path)
    capsys.readouterr()
    assert encode.main([*encoded(inputs), *pair]) == 2
    assert "pair.bin: exists, and this suite has not written it" in capsys.readouterr().err
    assert tree(tmp_path) == before
