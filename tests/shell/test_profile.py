"""shell/profile.sh: nsys wraps the job's script, torch and rocprofv3 start it; what cannot be is one line.

A stand-in of nsys checks its arguments against the options of Nsight Systems 2023.1 and later, and starts nothing: this
machine has no GPU.
"""

import json
import os
import subprocess
import sys

import pytest

from utils.settings.config import ROOT

SCRIPT = ROOT / "shell" / "profile.sh"
NSYS = f"""#!{sys.executable}
import argparse, json, os, sys
from pathlib import Path

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("command", choices=("profile",))
parser.add_argument("--trace", type=lambda text: set(text.split(",")), required=True)
parser.add_argument("--sample", choices=("process-tree", "system-wide", "none"))
parser.add_argument("--cpuctxsw", choices=("process-tree", "system-wide", "none"))
parser.add_argument("--capture-range", choices=("none", "cudaProfilerApi", "hotkey", "nvtx"), required=True)
parser.add_argument("--capture-range-end", choices=("none", "stop", "stop-shutdown"), required=True)
parser.add_argument("--kill", choices=("none", "sigkill", "sigterm"))
parser.add_argument("--output", type=Path, required=True)
own = [argument for argument in sys.argv[1:] if argument.startswith("--") or argument == "profile"]
if not all("=" in argument for argument in own[1:]):
    sys.exit("nsys: a long option and its value are joined by =")
options = parser.parse_args(own)
application = sys.argv[1 + len(own):]
if not os.access(application[0], os.X_OK) or not options.trace <= {{"cuda", "nvtx", "osrt", "cublas", "cudnn", "mpi"}}:
    sys.exit("nsys: bad application or trace")
options.output.with_suffix(".nsys-rep").write_text("report")
print(json.dumps({{"application": application, "range": options.capture_range, "end": options.capture_range_end}}))
sys.exit(7)
"""


def profile(*arguments, tools=None):
    path = f"{tools}:{os.environ['PATH']}" if tools else os.environ["PATH"]
    environment = {**os.environ, "PATH": path}
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, timeout=60, env=environment)


@pytest.fixture
def tools(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nsys").write_text(NSYS)
    (folder / "nsys").chmod(0o755)
    return folder


def test_nsys_wraps_the_script_of_the_job_and_captures_the_profiled_steps_alone(tools, tmp_path):
    done = profile("nsys", "train_nvd_mega_llama.sh", f"OUTPUT_DIR={tmp_path / 'out'}", "PROFILE_RANKS=0", tools=tools)
    assert done.returncode == 7, done.stderr  # the exit code of nsys, which is that of the job
    script = str(ROOT / "train" / "train_nvd_mega_llama.sh")
    said = json.loads(done.stdout)
    assert said["application"] == [script, "FORCE=1", f"OUTPUT_DIR={tmp_path}/out", "PROFILE_RANKS=0", "PROFILING=nsys"]
    assert (said["range"], said["end"]) == ("cudaProfilerApi", "stop")
    (report,) = (tmp_path / "out" / "profiles" / "train_nvd_mega_llama_run1").iterdir()
    assert report.name.startswith("nsys_") and report.suffix == ".nsys-rep"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "got 0 arguments, wanted a tool"),
        (("torch",), "got 1 arguments, wanted a tool"),
        (("perf", "cpu_mega_llama"), "got tool 'perf', wanted nsys, rocprofv3 or torch"),
        (("torch", "cpu_mega_lama"), "got job 'cpu_mega_lama', wanted one of train/train_*.sh"),
        (("torch", "mega"), "got job 'mega'"),
        (("nsys", "amd_mega_llama"), "nsys is a tool of platform nvd, and the job is of amd"),
        (("rocprofv3", "cpu_mega_llama"), "rocprofv3 is a tool of platform amd, and the job is of cpu"),
        (("nsys", "nvd_mega_llama"), "nsys is not on PATH"),
        (("rocprofv3", "amd_mega_llama"), "rocprofv3 is not on PATH"),
        (("torch", "cpu_mega_llama", "PROFILE_STEP_STRT=3"), "PROFILE_STEP_START"),
        (("torch", "cpu_mega_llama", "PROFILE_STEP_START=0"), "PROFILE_STEP_START=0: wanted a whole number from 1"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(arguments, said):
    done = profile(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and said in line
