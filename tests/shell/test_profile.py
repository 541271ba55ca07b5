"""shell/profile.sh: nsys wraps the job's script. Of what is refused see tests/test_bad_input.py.

A stand-in of nsys checks its arguments against the options of Nsight Systems 2023.1 and later, and starts nothing: this
machine has no GPU.
"""

import json
import os
import subprocess
import sys

from tests.support.setups import ROOT, add_program

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


def test_nsys_wraps_the_script_of_the_job_and_captures_the_profiled_steps_alone(tmp_path):
    tools = add_program(tmp_path / "bin" / "nsys", NSYS).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    asked = (f"OUTPUT_DIR={tmp_path}/out", "PROFILE_RANKS=0")
    command = [ROOT / "shell" / "profile.sh", "nsys", "train_nvd_mega_llama.sh", *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 7, done.stderr  # the exit code of nsys, which is that of the job
    said = json.loads(done.stdout)
    script = str(ROOT / "train" / "train_nvd_mega_llama.sh")
    assert said["application"] == [script, "FORCE=1", *asked, "PROFILING=nsys"]
    assert (said["range"], said["end"]) == ("cudaProfilerApi", "stop")
    (report,) = (tmp_path / "out" / "profiles" / "train_nvd_mega_llama_run1").iterdir()
    assert report.name.startswith("nsys_") and report.suffix == ".nsys-rep"
