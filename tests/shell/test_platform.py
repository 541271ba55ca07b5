"""shell/platform.sh on fake device trees and driver tools: it prints the vendor or an instruction, never a guess. And
`setting KEY` in bash: the value of utils.configure from every layer.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.setups import ROOT, add_program, copy_to, link_tools
from utils.settings import config, keys

SCRIPT = ROOT / "shell" / "platform.sh"
NODE = "sys/class/kfd/kfd/topology/nodes/{}/properties"
CPU_NODE, GPU_NODE = "cpu_cores_count 64\nsimd_count 0\n", "cpu_cores_count 0\nsimd_count 1216\n"

SMI_LISTS = "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'"
SMI_BROKEN = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
SMI_EMPTY = "echo 'No devices found.'"
ROCM_LISTS = r"printf 'GPU[0]\t\t: Device Name: \t\tAMD Instinct MI300X\n'"
ROCM_BROKEN = "echo 'ERROR: Driver not initialized (amdgpu not found in modules)'; exit 2"
AMD_LISTS = r"printf 'GPU: 0\n    BDF: 0000:05:00.0\n'"
XPU_LISTS = "echo '| 0 | Device Name: Intel(R) Data Center GPU Max 1550 |'"


@pytest.fixture
def machine(tmp_path):
    """Return a runner of the script that sees only the given files and tools."""

    def run(files=(), tools=(), environ=None, arguments=()):
        root, path = tmp_path / "root", tmp_path / "bin"
        link_tools(path, "bash", "cat", "dirname", "grep", "readlink", "sed", "timeout")
        for name, script in dict(tools).items():
            add_program(path / name, f"#!/usr/bin/env bash\n{script}\n")
        for name, text in dict(files).items():
            add_program(root / name, text)
        environ = {"PATH": str(path), "TPRIMAT_SYSROOT": str(root), **(environ or {})}
        return subprocess.run([SCRIPT, *arguments], env=environ, capture_output=True, text=True)

    return run


def says(done, word):
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{word}\n", "")


def refuses(done, *wanted):
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: platform: got ") and done.stderr.count("\n") == 1
    for text in wanted:
        assert text in done.stderr


VENDORS = [
    ("nvd", {}, {"nvidia-smi": SMI_LISTS}),
    ("nvd", {"dev/nvidia0": ""}, {"nvidia-smi": SMI_LISTS}),
    ("amd", {"dev/kfd": "", NODE.format(0): CPU_NODE, NODE.format(1): GPU_NODE}, {}),
    ("amd", {"dev/kfd": "", NODE.format(1): GPU_NODE}, {"rocm-smi": ROCM_BROKEN}),
    ("amd", {"dev/kfd": ""}, {"rocm-smi": ROCM_LISTS}),
    ("amd", {"dev/kfd": ""}, {"amd-smi": '[ "$1" = list ] && ' + AMD_LISTS}),
]
NO_ACCELERATOR = [
    ({}, {}),
    ({"dev/dri/card0": "", "dev/dri/renderD128": ""}, {"xpu-smi": "exit 1"}),  # integrated graphics
    ({}, {"nvidia-smi": SMI_BROKEN, "rocm-smi": ROCM_BROKEN}),
    ({"dev/nvidiactl": "", "dev/nvidia-uvm": ""}, {"nvidia-smi": SMI_EMPTY}),
    ({"dev/kfd": "", NODE.format(0): CPU_NODE}, {"rocm-smi": ROCM_BROKEN}),
    ({NODE.format(0): CPU_NODE}, {"amd-smi": "exit 1"}),
]


@pytest.mark.parametrize(("platform", "files", "tools"), [*VENDORS, *(("cpu", *one) for one in NO_ACCELERATOR)])
def test_a_gpu_that_its_driver_knows_is_the_vendors_platform_and_without_one_it_is_cpu(platform, files, tools, machine):
    says(machine(files, tools), platform)


OTHER, NEITHER = {"dev/accel/accel0": ""}, ("neither AMD nor NVIDIA", "PLATFORM=cpu")
BOTH = {"dev/nvidia0": "", "dev/kfd": "", NODE.format(1): GPU_NODE}


UNANSWERED = [  # a device that its driver does not answer for is not guessed away
    ("nvd", {"dev/nvidia0": ""}, {}),
    ("nvd", {"dev/nvidia3": ""}, {"nvidia-smi": SMI_BROKEN}),
    ("nvd", {"dev/nvidia0": ""}, {"nvidia-smi": SMI_EMPTY}),
    ("nvd", {"proc/driver/nvidia/gpus/0000:01:00.0/information": ""}, {}),
    ("amd", {"dev/kfd": ""}, {}),
    ("amd", {"dev/kfd": ""}, {"rocm-smi": ROCM_BROKEN, "amd-smi": "exit 1"}),
    ("amd", {"dev/kfd": "", NODE.format(0): CPU_NODE, NODE.format(1) + "/unreadable": ""}, {}),
    ("amd", {}, {"rocm-smi": ROCM_LISTS}),
]
REFUSED = [  # what the machine has, and words of the error
    *(
        ({"files": files, "tools": tools}, (f"PLATFORM={platform}", "PLATFORM=cpu"))
        for platform, files, tools in UNANSWERED
    ),
    # both vendors, or an accelerator of another kind
    *(
        ({"files": files, "tools": tools}, said)
        for files, tools, said in (
            (BOTH, {"nvidia-smi": SMI_LISTS}, ("PLATFORM=amd", "PLATFORM=nvd")),
            (OTHER, {"nvidia-smi": SMI_LISTS}, ("PLATFORM=nvd",)),
            (OTHER, {}, NEITHER),
            ({"dev/habanalabs0": ""}, {}, NEITHER),
            ({"dev/davinci0": ""}, {}, NEITHER),
            ({"dev/neuron0": ""}, {}, NEITHER),
            ({"dev/dri/card0": ""}, {"xpu-smi": XPU_LISTS}, NEITHER),
        )
    ),
    *(
        ({"environ": {"PLATFORM": value}}, (f"PLATFORM={value}", "wanted amd, nvd or cpu"))
        for value in ("nvidia", "AMD", "gpu", "cpu ")
    ),
    ({"arguments": ["--gpu"]}, ("'--gpu'",)),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_cannot_be_told_or_was_named_wrongly_is_an_error(given, said, machine):
    refuses(machine(**given), *said)


TAKEN = [
    *((one, {"files": {"dev/davinci0": ""}, "environ": {"PLATFORM": one}}) for one in ("amd", "nvd", "cpu")),
    ("amd", {"environ": {"PLATFORM": "bad"}, "arguments": ["PLATFORM=amd"]}),
    ("cpu", {"environ": {"PLATFORM": "cpu"}, "arguments": ["MODEL=llama"]}),  # a setting does not change it
    ("nvd", {"tools": {"nvidia-smi": SMI_LISTS}, "environ": {"PLATFORM": ""}}),  # an empty one is no override
]


@pytest.mark.parametrize(("platform", "given"), TAKEN)
def test_platform_from_the_arguments_or_the_environment_is_taken_as_it_is(platform, given, machine):
    says(machine(**given), platform)


# `setting KEY` in bash returns the same value as utils.configure, for every key and from every layer.

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
