"""What a user types wrongly ends in one error line that names the remedy, with exit code 2 (1: the work failed)."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.checkout import ROOT, copy_to
from utils import arguments

HLEP = "did you mean --help?"
CONFIGURE = "python -m utils.configure --platform cpu"
ENCODE = "python -m data.encode --output-prefix {m}/out/a --tokenizer"
REHEARSE = "python -m train.rehearse --platform cpu --gpus 1"

TOKEN = "hf_" + "Ab1" * 11 + "z"

TYPED = [
    # settings, as every command with KEY=VALUE reads them
    (f"{CONFIGURE} TRAIN_ITER=5", "did you mean TRAIN_ITERS?", 2),
    (f"{CONFIGURE} mbs=2", "did you mean MBS=2?", 2),
    (f"{CONFIGURE} 'MBS = 2'", "did you mean MBS=2?", 2),
    (f"{CONFIGURE} MBS", "did you mean MBS=VALUE?", 2),
    (f"{CONFIGURE} 'export SL=64'", "did you mean SL=64?", 2),
    (f"{CONFIGURE} 'MBS=\"2\"'", "did you mean MBS=2?", 2),
    (f"{CONFIGURE} 'LABEL=a b'", "without quotes, spaces", 2),
    (f"{CONFIGURE} micro_batch_size=2", "did you mean MBS=2?", 2),
    (f"{CONFIGURE} ZEBRA=1", "allowed: DATASET, ", 2),
    (f"{CONFIGURE} ''", "wanted KEY=VALUE", 2),
    (f"{CONFIGURE} --MBS=2", "did you mean MBS=2?", 2),
    (f"{CONFIGURE} --mbs 2", "did you mean MBS=...?", 2),
    (f"{CONFIGURE} MODEL=lama", "did you mean llama?", 2),
    (f"{CONFIGURE} FRAMEWORK=mega,hff", "did you mean hf?", 2),
    (f"{CONFIGURE} PRECISION=BF16", "did you mean bf16?", 2),
    (f"{CONFIGURE} FORCE=ture", "did you mean true?", 2),
    (f"{CONFIGURE} PROFILING=ture", "did you mean true?", 2),
    (f"{CONFIGURE} PROFILING=true PROFILE_STEP_END=31", "profile some of them", 2),
    (f"{CONFIGURE} RUNS=atuo", "did you mean auto?", 2),
    (f"{CONFIGURE} LR=fast", "wanted a number above 0", 2),
    (f"{CONFIGURE} SL=", "wanted a whole number from 2", 2),
    (f"{CONFIGURE} FRAMEWORK=hf TP=2", "hf cannot divide a training", 2),
    (f"{CONFIGURE} GBS=9", "use GBS=16", 2),
    (f"{CONFIGURE} MIN_LR=1", "use a smaller MIN_LR", 2),
    (f"{CONFIGURE} --jobs OUTPUT_DIR=/proc/x", "use another folder", 2),
    (f"{CONFIGURE} --jobs --vsible-gpus 2", "did you mean --visible-gpus?", 2),
    (f"{CONFIGURE} --get outputdir", "did you mean output_dir?", 2),
    ("python -m utils.configure --platform cup", "did you mean cpu?", 2),
    ("python -m utils.configure", "wanted amd, nvd, cpu", 2),
    ("python -m utils.hardware --tabel", "did you mean --table?", 2),
    ("python -m evaluate.wrap --platform cpu OUTPUT_DIR={m}/missing", "name the folder of the results", 2),
    ("python -m evaluate.wrap --platform cpu OUTPUT_DIR={m}/empty", "OUTPUT_DIR={m}/empty: ", 2),
    ("python -m utils.housekeeping.purge --platform cpu OUTPUT_DIR=/", "name the folder that holds the results", 2),
    ("python -m utils.housekeeping.purge --platform cpu --with-dat", "did you mean --with-data?", 2),
    # data
    ("python -m data.encode", "got no --input", 2),
    (f"{ENCODE} {{m}}/notokenizer --input {{m}}/docs.parquet", "python -m data.clean", 2),
    (f"{ENCODE} {{m}}/notokenizer --input {{m}}/docs.jsonl", "name the folder of a Hugging Face tokenizer", 2),
    (f"{ENCODE} {{m}}/badtokenizer --input {{m}}/docs.jsonl", "repair it or name another", 2),
    (f"{ENCODE} {{m}}/missing --input {{m}}/docs.jsonl", "name the folder with the tokenizer", 2),
    (f"{ENCODE} {{m}}/missing --input {{m}}/missing.jsonl", "name a .jsonl file", 2),
    (f"{ENCODE} {{m}}/missing --input {{m}}/docs.jsonl --workers x", "wanted a whole number", 2),
    (f"{ENCODE} {{m}}/missing --input {{m}}/docs.jsonl --workers 0", "wanted at least 1", 2),
    (f"{ENCODE} {{m}}/missing --input {{m}}/docs.jsonl --on-bad-line ignore", "wanted one of error, skip", 2),
    (f"{ENCODE} {{m}}/missing --input {{m}}/docs.jsonl {{m}}/docs.jsonl", "name each file once", 2),
    (f"{ENCODE} {{m}}/missing --input {{m}}/plain.txt", "got a .txt file, wanted .jsonl", 2),
    (f"{ENCODE} {{m}}/missing --inptu {{m}}/docs.jsonl", "did you mean --input?", 2),
    ("python -m data.clean {m}/docs.parquet --output {m}/o.jsonl --column contents", "did you mean content?", 2),
    ("python -m data.clean {m}/docs.jsonl --output /proc/x.jsonl", "name a path that exists", 1),
    ("python -m data.clean {m}/bad.jsonl --output {m}/o.jsonl", "fix or remove the line", 1),
    ("python -m data.clean {m}/empty --output {m}/o.jsonl", "wanted .jsonl", 2),
    ("python -m data.verify {m}/missing", "name a prefix", 2),
    ("python -m data.synth --words many --output {m}/o.jsonl", "wanted a whole number", 2),
    ("python -m data.synth --words 100 --output /proc/x.jsonl", "name a path that exists", 1),
    ("python -m data.synth --words 0 --output {m}/o.jsonl", "words: got 0, wanted", 2),
    ("python -m data.synth --words 9 --seed -1 --output {m}/o.jsonl", "seed: got -1, wanted a whole number from 0", 2),
    ("python -m data.synth --words 9 --output {m}/o.jsonl --tokenizer-output {m}/notokenizer", "notokenizer", 2),
    ("python -m data.synth --words 9 --output {m}/plain/o.jsonl", "{m}/plain", 1),  # below a file
    ("python -m data.prepare --platform cpu TEXT_COLUM=x", "did you mean TEXT_COLUMN?", 2),
    ("python -m data.prepare --platform cpu DATASET=snyth", "did you mean synth?", 2),
    ("python -m data.prepare --platform cpu DATASET=synth DATA_DIR=/proc/x", "use another folder", 2),
    # training
    ("python -m train.matrix --platform cpu --dryrun", "did you mean --dry-run?", 2),
    ("python -m train.matrix --platform cpu --dry-run OUTPUT_DIR=/proc/x", "use a folder on a disk", 2),
    ("python -m train.matrix --platform cpu --dry-run DATASET=synth OUTPUT_DIR={m}/docs.jsonl", "use a folder", 2),
    ("python -m train.launch --platform cpu --framework meg --model llama", "allowed: mega, prim, hf", 2),
    ("python -m train.launch --platform cpu --framework mega --model llama --run x", "wanted a whole number", 2),
    ("python -m train.slurm --platform cpu --nowait", "did you mean --no-wait?", 2),
    ("python -m train.probe --platform cpu --seconds x", "wanted a number", 2),
    ("python -m train.probe --platform cpu --qiuck", "did you mean --quick?", 2),
    ("python -m train.probe --platform cpu OUTPUT_DIR=/proc/nowhere", "use another folder", 2),
    ("python -m train.convert lama", "did you mean llama?", 2),
    (f"{REHEARSE} --framework hf --model lama", "allowed: llama", 2),
    (f"{REHEARSE} --framework hf --model llama TRAIN_ITER=3", "did you mean TRAIN_ITERS?", 2),
    ("python -m train.machine.gpu_command --end abc", "wanted a whole number", 2),
    ("python -m train.machine.gpu_command --end-our", "did you mean --end-ours?", 2),
    # results
    ("python -m evaluate.compare", "got no folders", 2),
    ("python -m evaluate.compare {m}/missing", "name the folder that holds the results", 2),
    ("python -m evaluate.compare {m}/empty", "name the folder that holds them", 2),
    ("python -m evaluate.compare {m}/broken", "name the folder that holds the results", 2),
    ("python -m evaluate.compare {m}/plain", "name a folder or a result", 2),
    ("python -m evaluate.compare {m}/no.zip", "wanted an output.zip", 2),
    ("python -m evaluate.compare {m}/empty --by platfrom", "did you mean platform?", 2),
    ("python -m evaluate.compare {m}/empty --format hmtl", "wanted any of md,html", 2),
    ("python -m evaluate.compare {m}/empty --band x", "wanted a number", 2),
    ("python -m evaluate.compare --hlep", HLEP, 2),
    ("python -m evaluate.compare {m}/empty --output {m}/plain", "name another", 2),
    ("python -m evaluate.compare {m}/damaged --output /proc/x", "name another with --output", 1),
    ("python -m evaluate.compare {m}/empty --agaisnt published", "did you mean --against?", 2),
    ("python -m evaluate.history {m}/missing", "name the folder", 2),
    ("python -m evaluate.history --fail-no loss {m}/empty", "did you mean --fail-on?", 2),
    ("python -m train.sweep --platform cpu --dryrun", "did you mean --dry-run?", 2),
    ("python -m evaluate.validate {m}/no.zip", "--bundle", 2),
    ("python -m evaluate.validate --bundle {m}/no.zip", "wanted an output.zip", 2),
    ("python -m evaluate.validate --bundel {m}/no.zip", "did you mean --bundle?", 2),
    ("python -m evaluate.validate", "is required", 2),
    *((f"python -m evaluate.validate {{m}}/{name}", f"{{m}}/{name}", 2) for name in ("missing", "empty")),
    ("python -m evaluate.extract --log-file {m}/missing.log --model-name llama", "name the log of a training", 2),
    ("python -m evaluate.extract --log-file {m}/plain --model-name lama", "did you mean llama?", 2),
    ("python -m evaluate.extract --log-file {m}/plain --model-name llama", "docs/logs.md", 2),
    ("python -m evaluate.extract --discover {m}/plain", "name the folder that holds the logs", 2),
    ("python -m evaluate.fingerprint {m}/missing", "name a prefix", 2),
    ("python -m evaluate.mlperf {m}/missing", "name the folder", 2),
    # benchmarks
    ("python -m benchmarks.compare --setps 4", "did you mean --steps?", 2),
    ("python -m benchmarks.encode --repetitions 0", "wanted a whole number from 1", 2),
    ("python -m benchmarks.encode --input {m}/missing --tokenizer {m}/empty", "name a path that exists", 2),
    ("python -m benchmarks.texts --megabyte 1 {m}/out", "did you mean --megabytes?", 2),
    ("python -m benchmarks.gpu --platform cpu --device H10", "wanted one of", 2),
    ("python -m benchmarks.gpu --platform cpu MBS=2", "wanted OUTPUT_DIR or DATA_DIR", 2),
    ("python -m benchmarks.recorder --pairs x", "wanted a whole number", 2),
    # scripts: nothing is installed, prepared or started before the line
    ("./shell/run_train.sh mbs=2", "did you mean MBS=2?", 2),
    ("./shell/run_train.sh --hlep", HLEP, 2),
    ("./shell/run_train.sh PLATFORM=nvidia", "unset it to have the platform detected", 2),
    ("./shell/run_data.sh --dry", "did you mean --dry-run?", 2),
    ("./shell/run_wrap.sh OUTPUTDIR=x", "did you mean OUTPUT_DIR?", 2),
    ("./shell/run_purge.sh --with-dat", "did you mean --with-data?", 2),
    ("./shell/run_slurm.sh --nowait", "did you mean --no-wait?", 2),
    *((f"./shell/run_reproduce.sh{archives}", "wanted one archive", 2) for archives in ("", " no.zip", " a.zip b.zip")),
    ("./shell/run_sweep.sh MSB=1,2", "did you mean MBS?", 2),
    ("./shell/run_sweep.sh MODEL=lama,qwen MBS=1,2", "did you mean llama?", 2),
    ("./shell/profile.sh tourch cpu_mega_llama", "wanted nsys, rocprofv3 or torch", 2),
    ("./shell/profile.sh torch cpu_mega_llama PROFILE_RANK=0", "did you mean PROFILE_RANKS?", 2),
    ("./shell/sweep.sh --dry-rum MBS=1,2", "did you mean --dry-run?", 2),
    ("./shell/train.sh --compair", "did you mean --compare?", 2),
    ("./shell/data.sh dataset=synth", "did you mean DATASET=synth?", 2),
    ("./shell/build.sh PLATFROM=cpu --dry-run", "did you mean PLATFORM=cpu?", 2),
    ("./shell/setup.sh --develop", "wanted --dev or KEY=VALUE", 2),
    ("./tprimat setup --download", "--download: got no value", 2),
    ("./tprimat setup --download {m}/new --python 3.9", "got 3.9, wanted 3.10, 3.11, 3.12 or 3.13", 2),
    ("./tprimat setup --download {m}/new --machine ppc64le", "wanted x86_64 or aarch64", 2),
    ("./tprimat setup --download {m}/new --platform intel", "got PLATFORM=intel, wanted amd, nvd or cpu", 2),
    ("./tprimat setup --download {m}/new --pyton 3.12", "did you mean --python?", 2),
    ("./tprimat setup --offline {m}/new --python 3.12", "got --offline with an option of --download", 2),
    ("./tprimat setup --offline {m}/new", "got no folder that ./tprimat setup --download made", 2),
    ("./shell/entry.sh ls", "-- before a command", 2),
    ("./shell/platform.sh nvd", "wanted PLATFORM=amd", 2),
    ("./shell/run_gpu_hour.sh --mintes 5", "did you mean --minutes?", 2),
    ("./shell/gpu.sh --ned 5", "did you mean --end?", 2),
    *((f"./shell/gpu.sh --end {number} --yes", f"{number}", 2) for number in (0, 999999999)),
    ("./tprimat comapre", "did you mean compare?", 2),
    ("./tprimat xyzzy", "got command 'xyzzy'; ./tprimat lists all commands", 2),
    ("./tprimat trian", "did you mean train?; ./tprimat lists all commands", 2),
    ("./tprimat completion fish", "wanted bash or zsh", 2),
    ("./tprimat train --hlep", HLEP, 2),
    ("MBS=two ./shell/train.sh --dry-run", "environment: MBS=two: wanted auto", 2),
    ("PYTHONHOME=/nonsense ./shell/wrap.sh OUTPUT_DIR={m}/empty", "train first", 2),
    ("evaluate/compare.sh OUTPUT_DIR=a {m}/empty", "leave out one of them", 2),
    # profiles: nsys is a tool of one vendor
    ("./shell/profile.sh", "got 0 arguments, wanted a tool", 2),
    ("./shell/profile.sh torch cpu_mega_lama", "wanted one of train/train_*.sh", 2),
    ("./shell/profile.sh nsys amd_mega_llama", "nsys is a tool of platform nvd, and the job is of amd", 2),
    ("./shell/profile.sh rocprofv3 cpu_mega_llama", "rocprofv3 is a tool of platform amd, and the job is of cpu", 2),
    ("./shell/profile.sh nsys nvd_mega_llama", "nsys is not on PATH", 2),
    ("./shell/profile.sh rocprofv3 amd_mega_llama", "rocprofv3 is not on PATH", 2),
    ("./shell/profile.sh torch cpu_mega_llama PROFILE_STEP_START=0", "wanted a whole number from 1", 2),
    # a whole run: refused before its data are made
    ("MBS=0 ./shell/run_train.sh", "environment: MBS=0", 2),
    ("./shell/run_train.sh FRAMEWORK=prim", "FRAMEWORK=prim", 2),
    ("./shell/run_train.sh DATASET={m}/missing/text.jsonl", "{m}/missing/text.jsonl", 2),
    ("./shell/run_train.sh OUTPUT_DIR=/proc/nowhere", "OUTPUT_DIR=/proc/nowhere", 2),
    ("./shell/run_train.sh DATA_DIR=/proc/nowhere", "DATA_DIR=/proc/nowhere", 2),
    ("./shell/run_train.sh CP=2", "CP=2: context parallelism without TransformerEngine", 2),
    ("./shell/run_train.sh HF_KERNELS=liger FRAMEWORK=hf", "HF_KERNELS=liger: liger-kernel is not installed", 2),
    ("./shell/run_train.sh RUNTIME=docker", "RUNTIME=docker", 2),
    ("./shell/inside/job.sh cpu hf", "wanted", 2),
    # names with a token, which nothing repeats
    (f"./shell/run_train.sh LABEL={TOKEN}", "LABEL", 2),
    (f"./shell/run_train.sh OUTPUT_DIR={TOKEN}", "OUTPUT_DIR", 2),
    (f"DATA_DIR=data/{TOKEN}/x ./shell/run_train.sh", "DATA_DIR", 2),
    (f"TOKENIZER=/models/{TOKEN} ./shell/run_train.sh", "TOKENIZER", 2),
    (f"DATASET_REPO=ann/{TOKEN} ./shell/run_train.sh", "DATASET_REPO", 2),
    (f"./shell/wrap.sh OUTPUT_DIR=/results/{TOKEN}", "OUTPUT_DIR", 2),
    (f"./shell/data.sh HF_TOKEN={TOKEN}", "HF_TOKEN", 2),
    (f"python -m evaluate.compare {{m}}/damaged --output {TOKEN}", "--output", 2),
    (f"{ENCODE} there --input a.jsonl --output-prefix made/{TOKEN}", "--output-prefix", 2),
    (f"python -m evaluate.extract --log-file a.log --output={TOKEN}.json", "--output", 2),
]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files and folders that are not what a command wants."""
    folder = tmp_path_factory.mktemp("typed")
    files = {
        "notokenizer/README.md": "no tokenizer here",
        "badtokenizer/tokenizer.json": "{not json",
        "damaged/train_cpu_mega_llama_run1.json": "{not json",
        **dict.fromkeys(("plain", "plain.txt"), "plain text\n"),
        "no.zip": "no archive\n",
        "docs.jsonl": json.dumps({"text": "one text"}) + "\n",
        "bad.jsonl": "{not json\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "empty").mkdir()
    (folder / "broken").symlink_to("nowhere")
    pq.write_table(pa.table({"content": ["one text"]}), folder / "docs.parquet")
    return folder


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep what this machine sets out of the commands, and what they might write out of the checkout."""
    given = {"PLATFORM": "cpu", "OUTPUT_DIR": str(tmp_path / "output"), "DATA_DIR": str(tmp_path / "data")}
    for name, value in (given | {"RUNTIME": "native"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TPRIMAT_SETTINGS", raising=False)


def in_process(module: str, rest: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code of `python -m module`, run here."""
    monkeypatch.setattr(sys, "argv", [module, *rest])
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # those of the tests stay
    try:
        return arguments.run(importlib.import_module(module.replace("hardware", "hardware.__main__")).main)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(("typed", "remedy", "code"), TYPED, ids=[row[0] for row in TYPED])
def test_a_slip_ends_in_one_line_that_names_the_remedy(
    typed: str,
    remedy: str,
    code: int,
    material: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, before = typed.replace("{m}", str(material)), sorted(material.rglob("*"))
    if command.startswith("python -m "):
        _, _, module, *rest = shlex.split(command)
        got = in_process(module, rest, monkeypatch)
        said = capsys.readouterr().err
    else:
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=600)
        got, said = done.returncode, done.stderr
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert (got, len(errors)) == (code, 1), said
    assert remedy.replace("{m}", str(material)) in errors[0] and "Traceback" not in said
    assert TOKEN[:20] not in said.replace(command, "")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing was written"
    assert sorted(material.rglob("*")) == before


def test_the_table_reaches_every_room_and_script() -> None:
    typed = " ".join(row[0] for row in TYPED)
    assert len({row[0] for row in TYPED}) == len(TYPED)
    for room in ("utils", "data", "train", "evaluate", "benchmarks"):
        assert typed.count(f"python -m {room}.") >= 5
    for script in ROOT.glob("shell/run_*.sh"):
        assert f"shell/{script.name}" in typed


EDITS = [
    ("MBS=1", "mbs=1", "config.env:12: got 'mbs=1'", "did you mean MBS=1?"),
    ("MBS=1", "MBS = 1", "config.env:12: got 'MBS = 1'", "did you mean MBS=1?"),
    ("MBS=1", 'MBS="1', "config.env:12: got", "did you mean MBS=1?"),
    ("MBS=1", "MBS='1'", "config.env:12: got", "did you mean MBS=1?"),
    ("MBS=1", " MBS=1", "config.env:12: got ' MBS=1'", "did you mean MBS=1?"),
    ("MBS=1", "MBS=$X", "config.env:12: got 'MBS=$X'", "without quotes, spaces, $ or export"),
    ("SEED=42", "SEED=-1", "config.env:12: SEED=-1", "wanted"),
    ("MBS=1", "export MBS=1", "config.env:12: got", "did you mean MBS=1?"),
    ("MBS=1", "MSB=1", "config.env:12: unknown key MSB=1", "did you mean MBS?"),
    ("MBS=1", "MBS=1 # one", "config.env:12: got", "did you mean MBS=1?"),
    ("MBS=1", "MBS=1\nMBS=2", "config.env:13: MBS is already set in config.env:12", "keep one of the two"),
    ("SEED=42", "", "config.env: SEED is missing", "add the line SEED="),
    ("MBS=1", "PLATFORM=cpu", "config.env:12: PLATFORM=cpu: is no line", "give PLATFORM to the command"),
    ("MBS=1", "MBS=1\udcff", "config.env: cannot be read", "restores it"),
]


@pytest.mark.parametrize(("line", "typed", "place", "remedy"), EDITS, ids=[repr(row[1]) for row in EDITS])
def test_a_slip_in_a_settings_file_names_its_line_and_the_remedy(
    line: str, typed: str, place: str, remedy: str, tmp_path: Path
) -> None:
    config = copy_to(tmp_path, "utils", "config*.env") / "config.env"
    lines = config.read_text().splitlines()
    place = place.replace(":12", f":{lines.index(line) + 1}").replace(":13", f":{lines.index(line) + 2}")
    lines[lines.index(line)] = typed
    config.write_text("\n".join(lines) + "\n", errors="surrogateescape")
    command = [sys.executable, *CONFIGURE.split()[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    (error,) = done.stderr.splitlines()
    assert done.returncode == 2 and place in error and remedy in error


@pytest.mark.parametrize(
    "typed", [f"{CONFIGURE} --jobs", "python -m train.matrix --help", "python -m evaluate.compare --help"]
)
def test_a_pipe_that_is_closed_ends_a_command_quietly(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # then Python writes at its end
    command = [sys.executable, *typed.split()[1:]]
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, check=False, timeout=600)
    finally:
        os.close(write)
    assert done.returncode in (0, 128 + signal.SIGPIPE) and done.stderr == b""  # argparse ignores the closed pipe
