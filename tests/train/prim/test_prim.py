"""FRAMEWORK=prim from settings to result, with a stand-in for Primus and for the GPUs that this machine has not.

`launch` is the whole path: the launcher of a job, the job, the stand-in. `run_job` is the job alone, in this process.
"""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml
from toydata import write_toy_data

from evaluate.checks.entries import check_result
from train import launch as launcher
from train.job.rank_environment import ENV_NAMES
from train.prim import training as prim_job
from train.prim.arguments import WIDTH, Arguments
from train.runner import plan
from utils import models
from utils.housekeeping.layout import OUTPUT_LAYOUT
from utils.results import profile_file, store
from utils.settings.config import ROOT

STANDIN = Path(__file__).parent / "primus_standin" / "root"
PRETENCE = Path(__file__).parent / "primus_standin" / "pretence"
GPUS = 2
SHORT = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2", "LR=1e-3", "MODEL_SIZE=tiny")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture
def primus(tmp_path):
    root = tmp_path / "Primus"
    shutil.copytree(STANDIN, root)
    return root


@pytest.fixture
def launch(tmp_path, primus, prefix):
    """Return what starts one job as the matrix would, but for the shell script, which would look for a GPU."""

    def start(*settings, fault="", data=""):
        where = (f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
        command = [sys.executable, "-m", "train.launch", "--platform", "amd", "--framework", "prim", "--model", "llama"]
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_VISIBLE_DEVICES")}
        environ = {
            **kept,
            "PRIMUS_PATH": str(primus),
            "PYTHONPATH": str(PRETENCE),
            "TPRIMAT_TEST_GPUS": str(GPUS),
            "STANDIN_PYTHON": sys.executable,
            "STANDIN_FAULT": fault,
            "STANDIN_DATA": data,
            ENV_NAMES: "TPRIMAT_TEST_GPUS,STANDIN_PYTHON,STANDIN_FAULT,STANDIN_DATA",
        }
        return subprocess.Popen(
            [*command, *SHORT, *where, *settings],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(process):
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


@pytest.fixture
def run_job(tmp_path, primus, prefix, monkeypatch):
    """Return what runs one job in this process and gives back its exit code and its result."""

    def run(*settings, fault="", lines="v25.10", data="", model="llama"):
        pretend(monkeypatch)
        standin = {"PYTHON": sys.executable, "FAULT": fault, "LINES": lines, "DATA": data}
        for name, value in {"PRIMUS_PATH": str(primus), **{f"STANDIN_{key}": standin[key] for key in standin}}.items():
            monkeypatch.setenv(name, value)
        where = (f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
        command = ["train_prim", "--platform", "amd", "--model", model, *SHORT, *where, *settings]
        monkeypatch.setattr(sys, "argv", command)
        (tmp_path / "output" / "logs").mkdir(parents=True)
        return prim_job.main(), result_in(tmp_path)

    return run


def pretend(monkeypatch):
    """Have this process see GPUs that are not there."""
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    unknown = ("total_memory_gb", "gpu_cores", "software_version", "driver_version", "pytorch_version")
    pretended = {**dict.fromkeys(unknown), "device_name": "pretended device", "device_count": GPUS}
    pretended |= {"software_stack": "rocm", "reasons": dict.fromkeys(unknown, "pretended")}
    monkeypatch.setattr(prim_job, "_gpu_info", lambda job: dict(pretended))
    for module in (prim_job, plan):
        monkeypatch.setattr(module, "visible_gpus", lambda platform: GPUS)


def result_in(folder):
    (path,) = store.find([folder / "output"])
    return store.read(path)


# Times of the stand-in: 900 ms, 300 ms, then 200 + n.
TIMES = [0.9, 0.3, 0.203, 0.204, 0.205, 0.206]
# LR n / (W + 1) for n <= W = 2, then a cosine over the remaining four steps: cos(0), cos(pi/4), cos(pi/2), cos(3 pi/4)
RATES = [1e-3 / 3, 2e-3 / 3, 1e-3, 8.535534e-4, 5e-4, 1.464466e-4]


def test_whole_path_gives_a_valid_result_with_proof_of_settings_and_samples(launch, tmp_path, primus):
    code, out, err = ended(launch(data="real"))
    assert code == 0, out[-3000:] + err
    result = result_in(tmp_path)
    assert (result["status"], result["source"]) == ("ok", "log")
    (warning,) = (line for line in result["warnings"] if "INIT=equal" in line)  # others are of the machine
    assert "own weights" in warning
    assert list(check_result(result).rejections) == []
    assert result["steps"] == [1, 2, 3, 4, 5, 6] and result["step_times"] == TIMES
    assert result["loss_values"] == pytest.approx([11.9, 11.8, 11.7, 11.6, 11.5, 11.4])
    assert result["learning_rates"] == pytest.approx(RATES, rel=1e-6)
    resolved = result["resolved_config"]
    asked = {key: value for key, value in result["training_config"].items() if key in resolved and key != "init"}
    assert asked == {key: resolved[key] for key in asked}
    assert resolved["init"] == "native" and resolved["dp"] == GPUS
    assert resolved["rope_scaling"]["factor"] == 8.0 and resolved["attention_backend"] == "transformer_engine:auto"
    assert len(result["fingerprint"]["token_stream_sha256"]) == 64
    assert result["memory_metrics"]["peak_memory_allocated_gb"] is None
    assert "2000.00" in result["memory_metrics"]["reasons"]["peak_memory_allocated_gb"]
    environment = result["provenance"]["environment"]
    assert (environment["HSA_NO_SCRATCH_RECLAIM"], environment["GPU_MAX_HW_QUEUES"]) == ("1", "2")
    assert result["gpu_info"]["device_name"] == "pretended device"
    energy = result["energy_metrics"]  # the ends of its steps are known by its lines; no GPU of AMD is here
    assert energy["joules"] is None and "amdsmi" in energy["reasons"]["joules"] and "step_clock" not in energy
    assert f"[AMD] Step 6/6 | 0.206 s | avg {(0.3 + 0.203 + 0.204 + 0.205 + 0.206) / 5:.3f} s | loss 11.4000 | 6" in out
    assert not [
        path for path in primus.rglob("*") if path.is_file() and not (STANDIN / path.relative_to(primus)).exists()
    ]


def test_primus_gets_the_environment_of_ranks_and_no_secret(launch, tmp_path, monkeypatch):
    token = "hf_" + "x" * 34
    secret = {"HF_TOKEN": token, "NCCL_FOO": token, "WANDB_API_KEY": "open-sesame", "MY_NOTE": token}
    secret |= {"PIP_INDEX_URL": "https://ann:open-sesame@index.example/simple"}
    for name, value in {**secret, "NCCL_DEBUG": "WARN", "PIP_FIND_LINKS": "/wheels"}.items():
        monkeypatch.setenv(name, value)
    process = launch(fault="hang:3")
    deadline = time.monotonic() + 120
    found: list[dict[str, str]] = []
    while not found and time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "primus/cli/main.py" in child.cmdline():
                    found.append(child.environ())
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    ended(process)
    assert found and not [name for name, value in found[0].items() if name in secret or token in value]
    assert (found[0]["NCCL_DEBUG"], found[0]["HSA_NO_SCRATCH_RECLAIM"]) == ("WARN", "1")
    assert found[0]["PIP_FIND_LINKS"] == "/wheels", "its launcher runs pip"
    assert result_in(tmp_path)["provenance"]["environment_withheld"] == ["NCCL_FOO", "PIP_INDEX_URL"]


@pytest.mark.parametrize(("lines", "excluded"), [("v25.11", {}), ("v26.4", {"2": "means over iterations 1 and 2"})])
def test_later_generations_of_lines_are_read_as_well(lines, excluded, run_job):
    code, result = run_job(lines=lines)
    assert code == 0, result["reason"]
    kept = [step for step in range(1, 7) if str(step) not in excluded]
    assert result["steps"] == kept
    assert result["step_times"] == [TIMES[step - 1] for step in kept]
    assert result["learning_rates"] == pytest.approx([RATES[step - 1] for step in kept], rel=1e-6)
    assert result["excluded_steps"].keys() == excluded.keys()
    assert all(why in result["excluded_steps"][step] for step, why in excluded.items())


PROFILE = ("PROFILING=true", "PROFILE_STEP_START=5", "PROFILE_STEP_END=6", "TRAIN_ITERS=14", "PROFILE_RANKS=all")


@pytest.mark.parametrize(("lines", "more"), [("v25.10", ()), ("v26.4", (2,))])
def test_profiled_steps_of_primus_and_those_beside_them_are_no_samples(lines, more, run_job, tmp_path):
    code, result = run_job(*PROFILE, lines=lines)
    assert code == 0, result["reason"]
    left_out = {*more, 4, 5, 6, 7}
    assert result["steps"] == [step for step in range(1, 15) if step not in left_out]
    assert {step: why for step, why in result["excluded_steps"].items() if step != "2"} == {
        "4": "the profiler starts in it",
        "5": "profiled",
        "6": "profiled",
        "7": "the trace of the profile is written in it",
    }
    assert check_result(result).rejections == () and result["label"] == "tiny_profiled"
    (path,) = (tmp_path / "output" / "profiles").rglob("profile.json")
    profile = profile_file.read(path)
    assert (profile.steps, profile.ranks, set(profile.traces)) == ((5, 6), (0, 1), {0, 1})
    assert profile.profiled_step_seconds == (0.205, 0.206)
    assert b"ProfilerStep#5" in gzip.decompress(profile.trace_path(1).read_bytes())
    assert not list((tmp_path / "output" / "logs").rglob("*.pt.trace.json.gz")), "moved, not copied"
    assert all("profile" not in text for text in result["warnings"])


def test_a_trace_that_primus_did_not_write_is_a_warning(run_job, tmp_path, capfd):
    code, result = run_job(*PROFILE, fault="no_trace")
    assert (code, result["status"]) == (0, "ok")
    said = [f"profile: rank{rank}: Primus wrote no trace of this rank" for rank in range(GPUS)]
    assert [text for text in result["warnings"] if "trace" in text] == said
    assert "[AMD] Step 5/14 | profiled | loss 11.5000" in capfd.readouterr().out


FAULTS = {
    "its own exit code": ("exit:37:3", 37, "failed", "Primus ended with exit code 37"),
    "killed": ("killed:3", 137, "failed", "exit code 137"),
    "no memory": ("oom:3", 1, "oom", "HIP out of memory"),
    "a missing loss": ("nan:4", 1, "nan", "iteration 4"),
    "an early end": ("stop:4", 1, "failed", "4 of 6"),
    "no output": ("silent", 1, "failed", "no line tells of an iteration"),
    "another learning rate": ("another:lr=0.5", 1, "failed", "lr: asked 0.001, built 0.5"),
    "another norm epsilon": ("another:norm_epsilon=0.001", 1, "failed", "norm_eps: asked 1e-05, built 0.001"),
    "no scaling of rope": ("another:use_rope_scaling=false", 1, "failed", "rope_scaling: asked"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_bad_end_is_a_result_with_its_reason_and_no_exit_code_is_swallowed(name, run_job):
    fault, wanted, status, said = FAULTS[name]
    code, result = run_job(fault=fault)
    assert (code, result["status"]) == (wanted, status), result["reason"]
    assert said in result["reason"]
    if name == "its own exit code":
        assert "the last words of a stand-in" in result["reason"] and result["steps"] == [1, 2, 3]


def test_exit_code_of_primus_is_that_of_the_launcher(launch, tmp_path):
    code, out, err = ended(launch(fault="exit:37:3"))
    assert code == 37 and "Primus ended with exit code 37" in err
    assert result_in(tmp_path)["steps"] == [1, 2, 3]


def test_without_a_table_of_arguments_nothing_is_claimed(run_job):
    code, result = run_job(fault="no_table")
    assert code == 0, result["reason"]
    assert any("no table" in warning for warning in result["warnings"])
    assert {result["resolved_config"][key] for key in ("lr", "seed", "init", "num_layers")} == {None}
    assert result["learning_rates"][0] is None and result["fingerprint"]["token_stream_sha256"] is None


def test_other_samples_are_no_proof(run_job):
    code, result = run_job(fault="reseed", data="real")
    assert code == 0, result["reason"]
    assert result["fingerprint"]["token_stream_sha256"] is None
    assert "is not the one of our data set" in result["fingerprint"]["reasons"]["token_stream_sha256"]


def test_hanging_primus_is_ended_as_a_timeout(launch, tmp_path):
    code, out, err = ended(launch("STEP_TIMEOUT_SECONDS=3", fault="hang:3"))
    assert code == 124, out[-2000:] + err
    result = result_in(tmp_path)
    assert result["status"] == "timeout" and "after step 3 of 6" in result["reason"]


def test_nothing_of_primus_outlives_a_launcher_that_is_killed(launch, primus):
    process = launch(fault="hang:3")
    for line in process.stdout:
        if "Step 3/6" in line:
            break
    process.send_signal(signal.SIGKILL)
    ended(process)
    deadline = time.monotonic() + 60
    while left := processes_of(primus):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_what_primus_leaves_running_is_ended_with_it(run_job, primus):
    assert run_job(fault="leftover")[0] == 0
    assert processes_of(primus) == []


def processes_of(primus):
    """Command lines of living processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == primus:
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_what_a_job_leaves_behind_has_a_name_that_purge_knows(run_job, tmp_path, prefix):
    code, result = run_job("LABEL=mine")
    assert code == 0, result["reason"]
    logs = tmp_path / "output" / "logs"
    stem = "mine_train_amd_prim_llama_run1_attempt1"
    assert {path.name for path in logs.iterdir()} == {f"{stem}{end}" for end in (".primus.log", ".yaml", ".primus")}
    for path in (path for path in logs.rglob("*") if path.is_file()):
        layout = OUTPUT_LAYOUT
        for folder in path.relative_to(tmp_path / "output").parts[:-1]:
            layout = layout.layout_of(folder)
        assert layout.kind_of(path.name) == "log", path
    said = yaml.safe_load((logs / f"{stem}.yaml").read_text())["modules"]["pre_trainer"]["overrides"]
    assert said["train_data_path"] == str(prefix) and said["mock_data"] is False
    assert said["stderr_sink_level"] == "DEBUG" and said["disable_last_saving"] and said["save_interval"] > 6


BAD = {
    "no Primus": ({"PRIMUS_PATH": "{missing}"}, "PRIMUS_PATH={missing}: no Primus there"),
    "GPUs that Primus would not take": ({"HIP_VISIBLE_DEVICES": "2,3"}, "ROCR_VISIBLE_DEVICES"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_with_2_and_one_line_before_anything_is_started(
    name, monkeypatch, tmp_path, prefix, primus, capsys
):
    environ, said = BAD[name]
    missing = tmp_path / "missing"
    pretend(monkeypatch)
    for key, value in {"PRIMUS_PATH": str(primus), **environ}.items():
        monkeypatch.setenv(key, value.format(missing=missing))
    where = (f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
    arguments = ["launch", "--platform", "amd", "--framework", "prim", "--model", "llama", *SHORT, *where]
    monkeypatch.setattr(sys, "argv", arguments)
    assert launcher.main() == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and line.startswith("error: ") and said.format(missing=missing) in line
    assert not list((tmp_path / "output").rglob("*.json"))


def test_result_says_which_primus_it_was(run_job, primus):
    git = ["git", "-C", str(primus), "-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "stand-in"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    code, result = run_job()
    assert code == 0, result["reason"]
    assert result["provenance"]["framework_versions"]["primus"] == commit


@pytest.mark.parametrize(
    ("printed", "backend", "library"),
    [
        ("", "auto", None),
        ("[INFO     | DotProductAttention]: Running with FusedAttention backend (sub-backend 1)", "fused", "ck"),
        ("Running with FusedAttention backend (sub-backend 0)", "fused", "aotriton"),
        ("Running with FlashAttention backend (version 2.8.3)", "flash", "flash_attn 2.8.3"),
        ("Running with UnfusedDotProductAttention backend", "unfused", "torch"),
    ],
)
def test_the_attention_that_ran_is_read_where_transformer_engine_prints_it(printed, backend, library):
    arguments = Arguments()
    for line in (f"  attention_backend {'.' * (WIDTH - 17)} auto", "end of arguments", f"rank-0 {printed}"):
        arguments.take(line)
    resolved = arguments.resolved(models.get("llama", "tiny"))
    assert resolved["attention_backend"] == f"transformer_engine:{backend}"
    assert resolved.get("attention_library") == library
