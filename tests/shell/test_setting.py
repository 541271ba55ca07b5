"""`setting KEY` in bash returns the same value as utils.configure, for every key and from every layer."""

import os
import subprocess

import pytest

from tests.support.setups import copy_to
from utils.settings import config, keys

READ_ALL = """
set -Eeuo pipefail
source shell/lib/environment.sh
for key in $KEYS; do printf '%s=' "$key"; setting "$key" "$@"; done
"""
ENVIRONMENT = {"LABEL": "", "MBS": "4", "DATASET": "/a/b*.jsonl", "RUNTIME": "podman"}
ARGUMENTS = ["GBS=32", "MODEL=qwen", "GBS=128", "TARGET_LOSS=", "OUTPUT_DIR=~/x=y,z"]


@pytest.fixture
def root(tmp_path):
    """Return a checkout with settings that contain each unusual line that the grammar allows."""
    root = copy_to(tmp_path / "a checkout", "shell", "config*.env")
    overlay = root / "config.cpu.env"
    overlay.write_bytes(
        overlay.read_bytes().replace(b"\n", b"\r\n") + b"\r\n  \r\n#SL=1\r\nSEED=7"
    )  # without a last newline
    return root


def read(root, platform, environment=(), arguments=()):
    done = subprocess.run(
        ["bash", "-c", READ_ALL, "bash", *arguments],
        env={"PATH": os.environ["PATH"], "PLATFORM": platform, "KEYS": " ".join(keys.KEYS), **dict(environment)},
        cwd=root,
        capture_output=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.decode().removesuffix("\n").split("\n"))


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [({}, []), (ENVIRONMENT, []), ({}, ARGUMENTS), ({"GBS": "256", **ENVIRONMENT}, ["--dry-run", *ARGUMENTS])],
    ids=["files", "environment", "arguments", "all"],
)
@pytest.mark.parametrize(
    ("platform", "method"), [("cpu", "equal"), ("amd", "equal"), ("amd", "best"), ("nvd", "best"), ("nvd", "both")]
)
def test_bash_reads_what_python_reads(platform, method, environment, arguments, root):
    asked = [*arguments, f"METHOD={method}"]
    settings = [argument for argument in asked if not argument.startswith("--")]
    python = config.values_of(platform, settings, environment, root)
    assert read(root, platform, environment, asked) == {key: python[key].text for key in keys.KEYS}


def test_the_method_of_a_file_brings_its_overlay_too(root):
    text = (root / "config.env").read_text()
    (root / "config.env").write_text(text.replace("METHOD=equal", "METHOD=best"))
    assert read(root, "amd")["SL"] == "8192" == config.values_of("amd", environ={}, root=root)["SL"].text


def test_a_key_that_stands_nowhere_is_an_error(root):
    script = "set -e; source shell/lib/environment.sh; setting NONSENSE; echo reached"
    done = subprocess.run(["bash", "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: config.env: NONSENSE is missing; add the line NONSENSE=...\n"
