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

import pytest
import torch

from evaluate import trace
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


def test_steps_are_marked_by_their_number_and_operators_have_shapes(tmp_path, capsys):
    recording = recorded(tmp_path / "new" / "folder")
    path = tmp_path / "new" / "folder" / "rank0.json.gz"
    assert [one.name for one in path.parent.iterdir()] == [path.name], "no temporary file is left"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (recording.trace.file, recording.trace.sha256, recording.reasons) == (path.name, digest, {})
    assert trace.main([str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == [11, 12, 13]
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


def test_a_rank_that_is_not_recorded_starts_no_tool_and_writes_nothing(attached, tmp_path):
    for recording in (attached(rank=1), recorded(tmp_path / "profile", rank=1)):
        assert recording.reasons == {} and recording.trace is None and not (tmp_path / "profile").exists()


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
    def fail(*arguments, **options):
        raise (
            OSError(errno.ENOSPC, "No space left on device")
            if fault == "disk"
            else RuntimeError("Can't disable Kineto")
        )

    if fault == "disk":
        monkeypatch.setattr(tools, "compress", fail)
    if fault == "profiler":
        monkeypatch.setattr(tools, "_profiler", fail)
    (tmp_path / "file").write_text("of a user")
    recording = recorded(tmp_path / "file" / "profile" if fault == "folder" else tmp_path)
    assert recording.trace is None and said in recording.reasons["rank0"]
    assert [path.read_text() for path in tmp_path.iterdir()] == ["of a user"]
    assert "warning: profile: rank0: " in capsys.readouterr().err


def test_a_trace_that_is_cut_off_is_refused_and_a_whole_one_is_packed_the_same_each_time(tmp_path):
    recorded(tmp_path)
    whole = gzip.decompress((tmp_path / "rank0.json.gz").read_bytes())
    path = tmp_path / "trace.json"
    path.write_bytes(whole)
    tools.require_whole(path)
    for name in ("1.gz", "2.gz"):
        tools.compress(path, tmp_path / name)
    assert (tmp_path / "1.gz").read_bytes() == (tmp_path / "2.gz").read_bytes()
    assert gzip.decompress((tmp_path / "1.gz").read_bytes()) == whole
    last_event = whole.rindex(b"}", 0, whole.rindex(b'"traceName"'))
    for length in (0, 1, len(whole) // 2, last_event + 1, len(whole) - 3):
        path.write_bytes(whole[:length])
        with pytest.raises(tools.TraceError, match="no complete trace"):
            tools.require_whole(path)
    with pytest.raises(tools.TraceError, match="0 bytes"):
        tools.require_whole(tmp_path / "missing")
