"""shell/platform.sh and the pre-flight checks agree on a machine: both read the same stand-ins of driver tools."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from smi_machine import FIELDS, H100, OLD, Machine, mi300x_metric, mi300x_static

from train.machine import conditions
from train.preflight import job_checks
from utils.hardware.devices import find_device

SCRIPT = Path(__file__).parents[2] / "shell" / "platform.sh"
NEEDED = ("bash", "cat", "grep", "sed", "timeout")
ROCM = {"card0": {"Card Series": "AMD Instinct MI300X", "Max Graphics Package Power (W)": "750.0"}}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    for tool in NEEDED:
        (made.bin / tool).symlink_to(shutil.which(tool) or tool)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(conditions, "BUSY_SAMPLE_SECONDS", 0.0)
    return made


def platform(host: Machine) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT], env=host.environment, capture_output=True, text=True, timeout=60)


def add_nvidia_470(host: Machine) -> None:
    host.nvidia(H100 | {"driver_version": "470.57.02", OLD: "0x0000000000000001"}, fields=FIELDS)


def add_nvidia_550(host: Machine) -> None:
    host.nvidia(H100)


def add_amd_smi(host: Machine) -> None:
    (host.root / "dev").mkdir()
    (host.root / "dev" / "kfd").touch()
    host.amd([mi300x_static()], [mi300x_metric()])


def add_amd_smi_of_rocm_7(host: Machine) -> None:
    add_amd_smi(host)
    limit = {"ppt0": {key: {"value": 750, "unit": "W"} for key in ("socket_power_limit", "max_power_limit")}}
    host.amd({"gpu_data": [mi300x_static() | {"limit": limit}]}, {"gpu_data": [mi300x_metric()]})


def add_rocm_smi(host: Machine) -> None:
    (host.root / "dev").mkdir()
    (host.root / "dev" / "kfd").touch()
    host.rocm(json.dumps(ROCM))


MACHINES = [
    ("nvd", add_nvidia_470, "nvidia-smi", 700.0),
    ("nvd", add_nvidia_550, "nvidia-smi", 700.0),
    ("amd", add_amd_smi, "amd-smi", 750.0),
    ("amd", add_amd_smi_of_rocm_7, "amd-smi", 750.0),
    ("amd", add_rocm_smi, "rocm-smi", 750.0),
]


@pytest.mark.parametrize(("name", "add", "tool", "cap"), MACHINES)
def test_the_platform_that_is_detected_is_the_one_whose_gpus_are_looked_at(
    host: Machine, name: str, add: Any, tool: str, cap: float
) -> None:
    add(host)
    done = platform(host)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name}\n", "")
    seen = conditions.take_snapshot(name, {})
    assert seen.tool == tool and [gpu.power_cap_watts for gpu in seen.gpus] == [cap]
    assert [line for line in job_checks.warnings(name, seen) if line.startswith("gpu")] == []


def test_both_vendors_are_an_error_until_one_is_named_and_then_only_its_gpus_count(host: Machine) -> None:
    add_nvidia_550(host)
    add_amd_smi(host)
    done = platform(host)
    assert done.returncode == 2 and "PLATFORM=amd or PLATFORM=nvd" in done.stderr
    for name, gpu in (("nvd", "NVIDIA H100 80GB HBM3"), ("amd", "AMD Instinct MI300X")):
        assert [one.name for one in conditions.take_snapshot(name, {}).gpus] == [gpu]


def test_a_gpu_that_no_table_knows_has_its_conditions_and_no_peak(host: Machine) -> None:
    host.nvidia(H100 | {"name": "NVIDIA H900", "power.default_limit": "1100.00", "enforced.power.limit": "900.00"})
    assert platform(host).stdout == "nvd\n"
    (gpu,) = conditions.take_snapshot("nvd", {}).gpus
    assert find_device(gpu.name or "") is None
    (line,) = [one for one in job_checks.warnings("nvd", conditions.take_snapshot("nvd", {})) if one.startswith("gpu")]
    assert line.startswith("gpu 0: power cap 900 W, below the default of 1100 W")


def test_a_driver_in_trouble_is_not_guessed_away_by_either(host: Machine) -> None:
    host.nvidia(broken="Failed to initialize NVML: Driver/library version mismatch", code=18)
    (host.root / "dev").mkdir()
    (host.root / "dev" / "nvidia0").touch()
    assert platform(host).returncode == 2
    (line,) = [one for one in job_checks.warnings("nvd", conditions.take_snapshot("nvd", {})) if one.startswith("gpu")]
    assert "the conditions are unknown: nvidia-smi: ended with exit code 18" in line
