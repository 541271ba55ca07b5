"""A driver that is older than torch's CUDA or ROCm is named in the plan with both versions."""

from __future__ import annotations

import pytest
import torch

from train.machine import drivers, gpus, planned_gpus
from train.machine.gpu_state import GpuReading, GpuState, GpuToolError


def said(monkeypatch, platform: str, built_for: str, *found: str | None) -> str | None:
    monkeypatch.setattr(torch.version, {"nvd": "cuda", "amd": "hip"}[platform], built_for)
    states = tuple(GpuState(platform, index, driver_version=one) for index, one in enumerate(found))
    monkeypatch.setattr(gpus, "read", lambda _: GpuReading("a tool", states))
    return drivers.line(platform)


@pytest.mark.parametrize(
    ("platform", "built_for", "driver", "wanted"),
    [
        ("nvd", "13.0", "570.133.20", "NVIDIA 570.133.20 is older than 580, which CUDA 13.0 of this torch needs"),
        ("nvd", "12.8", "470.256.02", "NVIDIA 470.256.02 is older than 525, which CUDA 12.8 of this torch needs"),
        ("amd", "7.0.51831", "6.1.5", "amdgpu 6.1.5 is older than 6.2, which ROCm 7.0.51831 of this torch needs"),
    ],
)
def test_old_driver_is_named_with_both_versions_and_what_to_do(monkeypatch, platform, built_for, driver, wanted):
    line = said(monkeypatch, platform, built_for, "999.1", driver)
    assert line is not None and line.startswith(f"warning: driver: {wanted}; install a newer driver, or ")


@pytest.mark.parametrize(
    ("platform", "built_for", "driver"),
    # 580.95 is the driver that PyTorch 25.10 was built with; drivers after 6.4.x are called 30.10
    [
        ("nvd", "13.0", "580.95.05"),
        ("nvd", "12.8", "525.60.13"),
        ("amd", "7.0.2", "30.10.1"),
        ("amd", "6.4.1", "6.1.0"),
    ],
)
def test_driver_of_the_vendors_table_is_not_spoken_of(monkeypatch, platform, built_for, driver):
    assert said(monkeypatch, platform, built_for, driver) is None


def test_driver_that_cannot_be_judged_is_a_note_and_never_a_pass(monkeypatch):
    assert said(monkeypatch, "amd", "7.15.1", "30.30.2") == (
        "note: driver: amdgpu 30.30.2 with ROCm 7.15.1: no row in train/machine/drivers.py"
    )
    monkeypatch.setattr(drivers.python_platform, "release", lambda: "6.8.0-60-generic")
    line = said(monkeypatch, "amd", "7.0.2", "6.8.0-60-generic")
    assert line == "note: driver: the amdgpu of kernel 6.8.0-60-generic has no version to hold against ROCm 7.0.2"

    def fails(platform: str) -> GpuReading:
        raise GpuToolError("nvidia-smi is not installed")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpus, "read", fails)
    assert "version unknown (nvidia-smi is not installed); CUDA 13.0" in str(drivers.line("nvd"))
    monkeypatch.setattr(planned_gpus, "has_torch", lambda: False)
    assert drivers.line("nvd") is None
