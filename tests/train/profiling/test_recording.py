"""A recording has every profiled step under its own number; a tool or a file that fails is a reason and no error.

A stand-in of rocprofv3 checks its arguments against the options of ROCprofiler-SDK 7.13 and 10.2 and writes what it
got. It pretends to be in the process by naming its library in a file that takes the place of /proc/self/maps.
"""

import errno
import gzip
import hashlib
import json
import os
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from checkout import ROOT
from made_traces import MOST_UNATTRIBUTED, divided, painted_operators

from evaluate import validate
from tests.support import real_primus
from tests.support.launching import launch, python_of, run
from train.common import trainer
from train.profiling import tools
from utils.settings.profiling import Profile

ROCPROFV3 = f"""#!{sys.executable}
import argparse, json, os, sys
from pathlib import Path

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--attach", type=int, required=True)
parser.add_argument("--attach-sync-output", action="store_true", required=True)
for name in ("kernel", "hip-runtime", "memory-copy", "marker", "rccl"):
    parser.add_argument(f"--{{name}}-trace", action="store_true")
parser.add_argument("--output-format", nargs="+", choices=("csv", "json", "pftrace", "otf2", "rocpd"), required=True)
parser.add_argument("--output-directory", type=Path, required=True)
parser.add_argument("--output-file", required=True)
options = parser.parse_args()
os.kill(options.attach, 0)
if os.environ.get("STANDIN_FAULT") == "refused":
    sys.exit("ptrace: Operation not permitted")
Path(os.environ["STANDIN_MAPS"]).write_text("7f00-7f01 r-xp /opt/rocm/lib/rocprofiler-sdk-tool/lib.so\\n")
line = sys.stdin.readline()
traces = [key for key, value in vars(options).items() if value is True]
said = {{"process": options.attach, "traces": traces, "line": line}}
(options.output_directory / f"{{options.output_file}}_results.json").write_text(json.dumps(said))
sys.exit(3 if os.environ.get("STANDIN_FAULT") == "late" else 0)
"""


def steps_of(recording):
    """Record the steps, each of one product."""
    matrix = torch.ones(64, 64)
    recording.start()
    for number in recording.steps:
        recording.begin_step(number)
        matrix @ matrix
        recording.end_step()
    recording.stop()
    return recording


def recorded(folder, rank=0, **options):
    return steps_of(tools.TorchRecording(Profile(11, 13, (0,), **options), folder, rank))


@pytest.fixture
def attached(tmp_path, monkeypatch):
    """Return what records steps by rocprofv3; `None` as its fault means that it is not installed."""
    binaries, maps = tmp_path / "bin", tmp_path / "maps"
    binaries.mkdir()
    maps.write_text("55d0-55d1 r-xp /usr/bin/python3\n")
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_MAPS", str(maps))
    monkeypatch.setattr(tools, "MAPS", maps)

    def record(fault="", rank=0):
        if fault is not None:
            (binaries / "rocprofv3").write_text(ROCPROFV3)
            (binaries / "rocprofv3").chmod(0o755)
        monkeypatch.setenv("STANDIN_FAULT", fault or "")
        return steps_of(tools.RocprofRecording(Profile(3, 4, (0,), tool="rocprofv3"), tmp_path / "profile", rank))

    return record


def test_steps_are_marked_by_their_number_and_operators_have_shapes(tmp_path):
    recording = recorded(tmp_path / "new" / "folder")
    path = tmp_path / "new" / "folder" / "rank0.json.gz"
    assert [one.name for one in path.parent.iterdir()] == [path.name], "no temporary file is left"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (recording.trace.file, recording.trace.sha256, recording.reasons) == (path.name, digest, {})
    assert divided(path)["steps"] == [11, 12, 13]
    products = [event for event in events_of(path.parent) if event.get("name") == "aten::mm"]
    assert [event["args"]["Input Dims"][:2] for event in products] == [[[64, 64], [64, 64]]] * 3


def events_of(folder):
    return json.loads(gzip.decompress((folder / "rank0.json.gz").read_bytes()))["traceEvents"]


def test_with_memory_the_trace_of_a_cpu_has_the_allocations(tmp_path):
    for name, with_memory, reasons in (("plain", False, set()), ("full", True, {"rank0_memory"})):
        recording = recorded(tmp_path / name, with_memory=with_memory)
        assert any(event.get("name") == "[memory]" for event in events_of(tmp_path / name)) == with_memory
        assert set(recording.reasons) == reasons, "torch has no history of its allocator on a CPU"


def test_rocprofv3_is_attached_to_this_process_and_detached_by_enter(attached, tmp_path):
    assert attached().reasons == {}
    said = json.loads((tmp_path / "profile" / "rocprofv3" / "rank0_results.json").read_text())
    assert (said["process"], said["line"]) == (os.getpid(), "\n")
    assert {"kernel_trace", "hip_runtime_trace", "memory_copy_trace", "rccl_trace"} <= set(said["traces"])


@pytest.mark.parametrize("tool", ["torch", "rocprofv3"])
def test_a_rank_that_is_not_recorded_starts_no_tool_and_writes_nothing(attached, tool, tmp_path, monkeypatch):
    profile = Profile(3, 4, (0,), tool=tool)
    config = SimpleNamespace(platform="cpu", train_iterations=9, profiled=profile, output_dir=tmp_path, node_rank=0)
    monkeypatch.setenv("RANK", "1")
    recording = steps_of(trainer.recorder(SimpleNamespace(config=config, labelled="job", attempt=1), False).profile)
    assert recording.reasons == {} and recording.trace is None and list(tmp_path.rglob("*rank*")) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("refused", "ended with exit code 1"),
        ("late", "ended with exit code 3"),
        (None, "rocprofv3 cannot be started"),
    ],
)
def test_a_tool_that_fails_is_a_reason_and_the_steps_go_on(attached, fault, said, capfd):
    assert said in attached(fault).reasons["rank0"]
    assert "warning: profile: rank0: rocprofv3" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("fault", "said"), [("disk", "is full"), ("folder", ""), ("profiler", "torch.profiler cannot start")]
)
def test_a_trace_that_cannot_be_made_is_a_reason_and_leaves_no_file(fault, said, tmp_path, monkeypatch, capsys):
    error = OSError(errno.ENOSPC, "No space left on device") if fault == "disk" else RuntimeError("no Kineto")
    if fault != "folder":
        name = {"disk": "compress", "profiler": "_profiler"}[fault]
        monkeypatch.setattr(tools, name, Mock(side_effect=error))
    (tmp_path / "file").write_text("of a user")
    recording = recorded(tmp_path / "file" / "profile" if fault == "folder" else tmp_path)
    assert recording.trace is None and said in recording.reasons["rank0"]
    assert [path.read_text() for path in tmp_path.iterdir()] == ["of a user"]
    assert "warning: profile: rank0: " in capsys.readouterr().err


def test_a_trace_that_is_cut_off_is_refused(tmp_path):
    recorded(tmp_path)
    whole = gzip.decompress((tmp_path / "rank0.json.gz").read_bytes())
    path = tmp_path / "trace.json"
    path.write_bytes(whole)
    tools.require_whole(path)
    last_event = whole.rindex(b"}", 0, whole.rindex(b'"traceName"'))
    for length in (0, 1, len(whole) // 2, last_event + 1, len(whole) - 3):
        path.write_bytes(whole[:length])
        with pytest.raises(tools.TraceError, match="no complete trace"):
            tools.require_whole(path)
    with pytest.raises(tools.TraceError, match="0 bytes"):
        tools.require_whole(tmp_path / "missing")


# Real jobs with a profile: the trace opens, sums to the step, and the training is that of a job without a profile.

FULL = pytest.mark.full("profiled jobs of mega, hf, torchtitan, Megatron Bridge and Primus, about 150 s")
REAL_PRIMUS = pytest.mark.skipif(real_primus.why_not() is not None, reason=str(real_primus.why_not()))

STEPS = ("TRAIN_ITERS=9",)
PROFILE = ("PROFILING=true", "PROFILE_STEP_START=4", "PROFILE_STEP_END=5")
TWO_RANKS = ("CPU_RANKS=2", "PROFILE_RANKS=all")
FULL_DISK = """
import errno, os
if os.environ.get("RANK") == "0":
    from train.profiling import tools
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")
    tools.compress = full
"""
"""Planted into every Python of a job: rank 0 cannot write its trace."""


@pytest.fixture(scope="module")
def mega(prefix, tmp_path_factory):
    """Folder and result of a profiled job of two ranks, of which rank 0 finds a full disk."""
    folder, fault = tmp_path_factory.mktemp("mega"), tmp_path_factory.mktemp("fault")
    (fault / "sitecustomize.py").write_text(FULL_DISK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{fault}:{ROOT}")
        return folder, run("mega", "llama", folder, prefix, *STEPS, *PROFILE, *TWO_RANKS)


@pytest.fixture(scope="module")
def hf(prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf")
    return folder, run("hf", "llama", folder, prefix, *STEPS, *PROFILE)


@pytest.fixture(params=["mega", "hf"])
def job(request):
    return request.param, *request.getfixturevalue(request.param)


def profile_of(folder):
    """Return the content of profile.json and its folder."""
    (path,) = (folder / "profiles").rglob("profile.json")
    return json.loads(path.read_text()), path.parent


@FULL
def test_the_result_is_valid_and_leaves_out_the_profiled_steps_as_the_log_does(job):
    framework, folder, result = job
    assert validate.main([str(folder)]) == 0
    assert result["steps"] == [1, 2, 3, 6, 7, 8, 9]
    assert result["excluded_steps"] == {"4": "profiled", "5": "profiled"}
    assert result["training_config"]["profile"] == "steps 4-5 of " + ("all ranks" if framework == "mega" else "rank 0")
    assert (folder / "profiled" / f"train_cpu_{framework}_llama_run1.json").exists()
    (log,) = (folder / "logs").glob("*.log")
    lines = [line for line in log.read_text().splitlines() if "] Step " in line]
    assert [line.split("|")[1].strip() == "profiled" for line in lines] == [4 <= n <= 5 for n in range(1, 10)]


@FULL
def test_the_trace_opens_and_its_kinds_sum_to_the_step_with_little_unattributed(job):
    framework, folder, _ = job
    profile, place = profile_of(folder)
    found = divided(place / profile["traces"][str(profile["ranks"][-1])]["file"])
    kinds = found["kinds"]
    assert found["steps"] == [4, 5]
    assert sum(kinds.values()) == pytest.approx(found["step_seconds"], rel=1e-9)
    assert kinds["unattributed"] < MOST_UNATTRIBUTED * found["step_seconds"]
    assert all(kinds[kind] > 0 for kind in ("matmul", "attention", "memory_bound", "optimizer"))
    if framework == "mega":
        assert kinds["communication_exposed"] + found["communication_overlapped"] > 0
    else:  # the marks are the steps that the recorder timed: within 5 % and 2 ms; of mega another rank is timed
        mean = sum(profile["profiled_step_seconds"]) / 2
        assert found["step_seconds"] == pytest.approx(mean, rel=0.05, abs=2e-3)


@FULL
def test_profile_json_is_of_the_job_and_its_settings_are_those_without_a_profile(job):
    framework, folder, result = job
    profile, place = profile_of(folder)
    wanted = {"platform": "cpu", "framework": framework, "model": "llama", "model_size": "tiny", "steps": [4, 5]}
    wanted |= {"host": result["provenance"]["host"], "settings": result["training_config"] | {"profile": "none"}}
    wanted["settings"].pop("reasons", None)
    assert wanted.items() <= profile.items()
    assert place.name == f"profiled_train_cpu_{framework}_llama_run1_attempt1"
    mean = result["performance_metrics"]["avg_step_time_seconds"]
    assert profile["unprofiled_step_seconds"] == pytest.approx(mean, abs=1e-3)
    assert len(profile["profiled_step_seconds"]) == 2


@FULL
def test_a_trace_that_cannot_be_written_does_not_lose_the_result_and_is_said(mega, hf):
    folder, result = mega
    profile, _ = profile_of(folder)
    assert result["status"] == "ok" and list(profile["traces"]) == ["1"]
    assert list(profile["reasons"]) == ["rank0"] and "is full" in profile["reasons"]["rank0"]
    said = [text for text in result["warnings"] if "rank0" in text]
    assert said == [f"profile: rank0: {profile['reasons']['rank0']}"]
    assert profile_of(hf[0])[0]["reasons"] == {} and not [text for text in hf[1]["warnings"] if "profile" in text]


@FULL
def test_a_profile_changes_no_number_of_the_training_and_neither_job_stands_for_the_other(mega, prefix):
    folder, profiled = mega
    again = launch("mega", "llama", folder, prefix, *STEPS, *PROFILE, *TWO_RANKS)
    assert again.returncode == 0 and "has an ok result" in again.stdout
    plain = launch("mega", "llama", folder, prefix, "LABEL=profiled", *STEPS, *TWO_RANKS)
    assert plain.returncode == 0 and "has an ok result" not in plain.stdout, plain.stderr[-2000:]
    result = json.loads((folder / "profiled" / "train_cpu_mega_llama_run1.json").read_text())
    assert result["steps"] == list(range(1, 10)) and "excluded_steps" not in result
    for key in ("loss_values", "grad_norms", "learning_rates"):
        assert [result[key][step - 1] for step in profiled["steps"]] == profiled[key], key


@FULL
@pytest.mark.parametrize("framework", ["titan", "bridge", pytest.param("prim", marks=REAL_PRIMUS)])
def test_the_trace_of_a_framework_in_its_own_environment_opens_under_the_numbers_of_the_steps(
    framework, prefix, tmp_path, monkeypatch
):
    python_of(framework)  # made before the job, whose time is limited
    if framework == "prim":
        monkeypatch.setenv("PRIMUS_PATH", str(real_primus.unpack("primus-fd1eeab", tmp_path / "primus")))
    more = ("TRAIN_ITERS=14", "PROFILING=true", "PROFILE_STEP_START=5", "PROFILE_STEP_END=6", "MODEL_SIZE=tiny")
    result = run(framework, "llama", tmp_path / "output", prefix, *more)
    assert validate.main([str(tmp_path / "output")]) == 0
    assert [step for step, why in result["excluded_steps"].items() if why == "profiled"] == ["5", "6"]
    profile, place = profile_of(tmp_path / "output")
    path = place / profile["traces"]["0"]["file"]
    found = divided(path)
    assert found["kinds"] == pytest.approx(painted_operators(path), abs=0.005 * found["step_seconds"])
    assert sum(found["kinds"].values()) == pytest.approx(found["step_seconds"], rel=1e-9)
    assert profile["steps"] == found["steps"] == [5, 6]
    assert found["kinds"]["unattributed"] < MOST_UNATTRIBUTED * found["step_seconds"]
