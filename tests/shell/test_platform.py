"""shell/platform.sh on fake device trees and driver tools: it prints the vendor or an instruction, never a guess."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "shell" / "platform.sh"
NEEDED = ("bash", "cat", "grep", "sed", "timeout")
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
        path.mkdir()
        for name in NEEDED:
            (path / name).symlink_to(shutil.which(name))
        for name, script in dict(tools).items():
            (path / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
            (path / name).chmod(0o755)
        for name, text in dict(files).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        environ = {"PATH": str(path), "TPRIMAT_SYSROOT": str(root), **(environ or {})}
        return subprocess.run([SCRIPT, *arguments], env=environ, capture_output=True, text=True, check=False)

    return run


def says(done, word):
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{word}\n", "")


def refuses(done, *wanted):
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: platform: got ") and done.stderr.count("\n") == 1
    for text in wanted:
        assert text in done.stderr


def test_a_machine_without_any_accelerator_is_cpu(machine):
    says(machine(), "cpu")


def test_integrated_graphics_are_no_accelerator(machine):
    says(machine({"dev/dri/card0": "", "dev/dri/renderD128": ""}, {"xpu-smi": "exit 1"}), "cpu")


VENDORS = [
    ("nvd", {}, {"nvidia-smi": SMI_LISTS}),
    ("nvd", {"dev/nvidia0": ""}, {"nvidia-smi": SMI_LISTS}),
    ("amd", {"dev/kfd": "", NODE.format(0): CPU_NODE, NODE.format(1): GPU_NODE}, {}),
    ("amd", {"dev/kfd": "", NODE.format(1): GPU_NODE}, {"rocm-smi": ROCM_BROKEN}),
    ("amd", {"dev/kfd": ""}, {"rocm-smi": ROCM_LISTS}),
    ("amd", {"dev/kfd": ""}, {"amd-smi": '[ "$1" = list ] && ' + AMD_LISTS}),
]


@pytest.mark.parametrize(("platform", "files", "tools"), VENDORS)
def test_a_gpu_that_its_driver_knows_is_the_vendors_platform(platform, files, tools, machine):
    says(machine(files, tools), platform)


@pytest.mark.parametrize(
    ("files", "tools"),
    [
        ({}, {"nvidia-smi": SMI_BROKEN, "rocm-smi": ROCM_BROKEN}),
        ({"dev/nvidiactl": "", "dev/nvidia-uvm": ""}, {"nvidia-smi": SMI_EMPTY}),
        ({"dev/kfd": "", NODE.format(0): CPU_NODE}, {"rocm-smi": ROCM_BROKEN}),
        ({NODE.format(0): CPU_NODE}, {"amd-smi": "exit 1"}),
    ],
)
def test_a_driver_tool_without_a_gpu_is_cpu(files, tools, machine):
    says(machine(files, tools), "cpu")


@pytest.mark.parametrize(
    ("platform", "files", "tools"),
    [
        ("nvd", {"dev/nvidia0": ""}, {}),
        ("nvd", {"dev/nvidia3": ""}, {"nvidia-smi": SMI_BROKEN}),
        ("nvd", {"dev/nvidia0": ""}, {"nvidia-smi": SMI_EMPTY}),
        ("nvd", {"proc/driver/nvidia/gpus/0000:01:00.0/information": ""}, {}),
        ("amd", {"dev/kfd": ""}, {}),
        ("amd", {"dev/kfd": ""}, {"rocm-smi": ROCM_BROKEN, "amd-smi": "exit 1"}),
        ("amd", {"dev/kfd": "", NODE.format(0): CPU_NODE, NODE.format(1) + "/unreadable": ""}, {}),
        ("amd", {}, {"rocm-smi": ROCM_LISTS}),
    ],
)
def test_a_device_that_its_driver_does_not_answer_for_is_not_guessed_away(platform, files, tools, machine):
    refuses(machine(files, tools), f"PLATFORM={platform}", "PLATFORM=cpu")


def test_both_vendors_in_one_machine_are_an_error(machine):
    files = {"dev/nvidia0": "", "dev/kfd": "", NODE.format(1): GPU_NODE}
    refuses(machine(files, {"nvidia-smi": SMI_LISTS}), "PLATFORM=amd", "PLATFORM=nvd")


@pytest.mark.parametrize(
    ("files", "tools"),
    [
        ({"dev/accel/accel0": ""}, {}),
        ({"dev/habanalabs0": ""}, {}),
        ({"dev/davinci0": ""}, {}),
        ({"dev/neuron0": ""}, {}),
        ({"dev/dri/card0": ""}, {"xpu-smi": XPU_LISTS}),
    ],
)
def test_an_accelerator_of_another_kind_is_an_error(files, tools, machine):
    refuses(machine(files, tools), "neither AMD nor NVIDIA", "PLATFORM=cpu")


def test_an_accelerator_of_another_kind_beside_a_gpu_is_an_error_too(machine):
    refuses(machine({"dev/accel/accel0": ""}, {"nvidia-smi": SMI_LISTS}), "PLATFORM=nvd")


@pytest.mark.parametrize("platform", ["amd", "nvd", "cpu"])
def test_platform_from_the_environment_or_the_arguments_is_taken_as_it_is(platform, tmp_path):
    trouble = {"PATH": "/usr/bin:/bin", "TPRIMAT_SYSROOT": str(tmp_path), "PLATFORM": platform}
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "davinci0").touch()
    says(subprocess.run([SCRIPT], env=trouble, capture_output=True, text=True, check=False), platform)
    trouble["PLATFORM"] = "bad"
    command = [SCRIPT, f"PLATFORM={platform}"]
    says(subprocess.run(command, env=trouble, capture_output=True, text=True, check=False), platform)


@pytest.mark.parametrize("value", ["nvidia", "AMD", "gpu", "cpu "])
def test_a_bad_platform_is_an_error(value, machine):
    refuses(machine(environ={"PLATFORM": value}), f"PLATFORM={value}", "wanted amd, nvd or cpu")


def test_an_empty_platform_is_no_override(machine):
    says(machine(tools={"nvidia-smi": SMI_LISTS}, environ={"PLATFORM": ""}), "nvd")


def test_an_unknown_argument_is_an_error_and_help_is_help(machine, tmp_path):
    refuses(machine(arguments=["--gpu"]), "'--gpu'")
    done = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Usage:" in done.stdout
