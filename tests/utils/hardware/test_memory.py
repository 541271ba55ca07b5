"""Memory of the boards: what their drivers report, and the datasheet's number where no report is known."""

from __future__ import annotations

import json
import re

import pytest
from checkout import ROOT

from utils.hardware.devices import DEVICES, find_device, named

BY_NAME = {device.name: device for device in DEVICES}
FIRST_GPU = ROOT / "tests" / "h200"
# In bytes or GB by another source than that of the row: Modal's own conversion of the MiB, rocm-smi beside amd-smi.
REPORTED = {
    **{"NVIDIA H100 SXM 80GB": 85.52, "NVIDIA A100 SXM 80GB": 85.89, "NVIDIA A100 SXM 40GB": 42.94},
    **{"NVIDIA L40S 48GB": 48.30, "NVIDIA H200 SXM 141GB": 150.75},
    **{"AMD Instinct MI300X": 206_141_652_992 / 1e9, "AMD Instinct MI355X": 309_220_868_096 / 1e9},
}
MARKETED = {"NVIDIA H100 PCIe 80GB": 80.0, "NVIDIA H200 NVL 141GB": 141.0, "AMD Instinct MI210": 64.0}


@pytest.mark.parametrize("name", REPORTED)
def test_memory_is_that_of_the_driver_in_gb_of_1e9_bytes_and_no_longer_the_number_in_the_name(name):
    device = BY_NAME[name]
    assert device.memory_gb == pytest.approx(REPORTED[name], abs=0.01)
    assert device.sources["memory_gb"].startswith(("nvidia-smi", "rocm-smi", "amd-smi"))


@pytest.mark.parametrize("name", MARKETED)
def test_a_board_without_a_known_report_keeps_the_number_of_its_datasheet_and_says_so(name):
    device = BY_NAME[name]
    assert device.memory_gb == MARKETED[name] and "-smi" not in device.sources["memory_gb"]


def test_memory_of_the_first_gpu_is_that_of_its_driver_and_torch_has_it_without_what_the_driver_reserves():
    page = (FIRST_GPU / "facts" / "nvidia_smi_q.txt").read_text()
    said = re.search(r"FB Memory Usage\s+Total +: (\d+) MiB\s+Reserved +: (\d+) MiB", page)
    total, reserved = (int(size) * 2**20 / 1e9 for size in said.groups())
    h200 = named("H200")
    assert h200.memory_gb == pytest.approx(total, rel=1e-9)
    for path in (FIRST_GPU / "results").glob("*.json"):
        info = json.loads(path.read_text())["gpu_info"]
        assert info["total_memory_gb"] == pytest.approx(total - reserved, abs=2e-3)
        assert find_device(info["device_name"], info["total_memory_gb"], info["gpu_cores"]) == h200
