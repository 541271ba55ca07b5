"""run_train.sh: bad input from any layer ends it with exit code 2 and one line, before anything is written.

Run by shell/test.sh, which has set up the environment that the scripts use.
"""

import os
import subprocess

import pytest

from utils.settings.config import ROOT

BAD_INPUT = {
    "unknown key": (["NONSENSE=1"], {}, "unknown key NONSENSE=1"),
    "bad value in the environment": ([], {"MBS": "0"}, "environment: MBS=0"),
    "unknown model": (["MODEL=gpt"], {}, "MODEL=gpt"),
    "unknown platform": (["PLATFORM=tpu"], {}, "tpu"),
    "framework that cannot run here": (["FRAMEWORK=prim"], {}, "FRAMEWORK=prim"),
    "missing data set": (["DATASET={missing}/text.jsonl"], {}, "{missing}/text.jsonl"),
    "hf with tensor parallelism": (["TP=2"], {}, "TP=2"),
    "output folder that cannot be written": (["OUTPUT_DIR=/proc/nowhere"], {}, "OUTPUT_DIR=/proc/nowhere"),
    "data folder that cannot be written": (["DATA_DIR=/proc/nowhere"], {}, "DATA_DIR=/proc/nowhere"),
    "context parallelism without TE": (["CP=2"], {}, "CP=2: context parallelism without TransformerEngine"),
    "container engine": (["RUNTIME=docker"], {}, "RUNTIME=docker"),
}


@pytest.mark.parametrize("fault", BAD_INPUT)
def test_bad_input_ends_the_whole_road_with_2_and_one_line(fault, tmp_path):
    settings, environment, named = BAD_INPUT[fault]
    output, missing = tmp_path / "output", tmp_path / "missing"
    settings, named = [setting.format(missing=missing) for setting in settings], named.format(missing=missing)
    ran = subprocess.run(
        [ROOT / "shell" / "run_train.sh", f"OUTPUT_DIR={output}", f"DATA_DIR={tmp_path / 'data'}", *settings],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2, ran.stderr
    errors = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and named in errors[0]
    assert "Traceback" not in ran.stderr
    assert not list(output.rglob("*")), "nothing was written"


def test_help_is_the_header_of_the_script():
    ran = subprocess.run([ROOT / "shell" / "run_train.sh", "--help"], capture_output=True, text=True)
    assert ran.returncode == 0
    assert "Usage:" in ran.stdout and "KEY=VALUE" in ran.stdout
