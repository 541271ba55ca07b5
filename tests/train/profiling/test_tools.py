"""rocprofv3 is attached to the rank's own process for the profiled steps; without it the training goes on, and says so.

A stand-in of rocprofv3 checks its arguments against the options of ROCprofiler-SDK 7.13 and 10.2 and writes what it
got. It pretends to be in the process by naming its library in a file that takes the place of /proc/self/maps.
"""

import json
import os
import stat
import sys

import pytest

from train.profiling import tools
from train.profiling.tools import RocprofRecording
from utils.settings.profiling import Profile

STANDIN = f"""#!{sys.executable}
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


@pytest.fixture
def attached(tmp_path, monkeypatch):
    """Return what records steps 3 and 4 by rocprofv3."""
    binaries, maps = tmp_path / "bin", tmp_path / "maps"
    binaries.mkdir()
    maps.write_text("55d0-55d1 r-xp /usr/bin/python3\n")
    tool = binaries / "rocprofv3"
    tool.write_text(STANDIN)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_MAPS", str(maps))
    monkeypatch.setattr(tools, "MAPS", maps)

    def record(fault="", rank=0):
        monkeypatch.setenv("STANDIN_FAULT", fault)
        recording = RocprofRecording(Profile(3, 4, (0,), tool="rocprofv3"), tmp_path / "profile", rank)
        recording.start()
        for number in recording.steps:
            recording.begin_step(number)
            recording.end_step()
        recording.stop()
        return recording

    return record


def test_rocprofv3_is_attached_to_this_process_and_detached_by_enter(attached, tmp_path):
    assert attached().reasons == {}
    said = json.loads((tmp_path / "profile" / "rocprofv3" / "rank0_results.json").read_text())
    assert (said["process"], said["line"]) == (os.getpid(), "\n")
    assert {"kernel_trace", "hip_runtime_trace", "memory_copy_trace", "rccl_trace"} <= set(said["traces"])


def test_a_rank_that_is_not_recorded_starts_no_tool(attached, tmp_path):
    assert attached(rank=1).reasons == {} and not (tmp_path / "profile").exists()


@pytest.mark.parametrize(("fault", "said"), [("refused", "ended with exit code 1"), ("late", "ended with exit code 3")])
def test_a_tool_that_fails_is_a_reason_and_the_steps_go_on(attached, fault, said, capfd):
    assert said in attached(fault).reasons["rank0"]
    assert "warning: profile: rank0: rocprofv3" in capfd.readouterr().err


def test_a_missing_tool_is_a_reason(attached, tmp_path):
    (tmp_path / "bin" / "rocprofv3").unlink()
    assert "rocprofv3 cannot be started" in attached().reasons["rank0"]
