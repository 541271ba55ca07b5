"""The forecast of a plan that has no earlier result: time from the peak of the GPUs, and memory of the host."""

from __future__ import annotations

import pytest

from train.job.job import Job
from train.machine import capacity, planned_gpus
from train.preflight import host_memory, matrix_checks
from train.preflight.fit_table import terminal_table
from utils.settings.config import load


def job(framework: str = "mega", gpus: int = 8, platform: str = "nvd", *settings: str) -> Job:
    arguments = ["DATASET=synth", f"FRAMEWORK={framework}", "MODEL=llama", *settings]
    return Job(load(platform, gpus, arguments=arguments, environ={}), framework, "llama", 1)


def test_time_is_the_work_of_all_steps_at_half_of_the_peak_and_says_so(monkeypatch):
    monkeypatch.setattr(planned_gpus, "device", lambda platform: "H100")
    seconds, how = matrix_checks.matrix_seconds([job(), job("hf")], [job()])
    # 500 steps x 64 x 2048 tokens x 46.639 GFLOP (design.md) over 8 GPUs x 989.4 / 2 TFLOP/s: 772.3 s a job
    assert seconds == pytest.approx((2 * 772.3, 3 * 772.3), rel=1e-4)
    assert how.startswith("if the steps reach 50 % of the 989.4 TFLOP/s of NVIDIA H100 SXM 80GB (bf16, dense)")
    assert matrix_checks.matrix_seconds([job("mega", 8, "nvd", "COOLDOWN_SECONDS=5")] * 2)[0] == pytest.approx(
        (2 * 772.3 + 5,) * 2, rel=1e-4
    )


@pytest.mark.parametrize(
    ("device", "settings", "why"),
    [
        (None, (), "GPUs are missing, different or not in utils/hardware/devices.py"),
        ("H100", ("PRECISION=fp32",), "no dense fp32 peak of NVIDIA H100 SXM 80GB is kept"),
        ("H100", ("LAUNCHER=slurm", "GPUS_PER_NODE=8"), "Slurm selects the nodes"),
    ],
)
def test_time_without_a_peak_is_unknown_with_the_reason(monkeypatch, device, settings, why):
    monkeypatch.setattr(planned_gpus, "device", lambda platform: device)
    seconds, how = matrix_checks.matrix_seconds([job("mega", 8, "nvd", *settings)])
    assert seconds is None and how.endswith(why)


def test_host_memory_of_eight_ranks_is_one_model_in_float32_for_hf_and_what_is_being_drawn_for_mega(monkeypatch):
    monkeypatch.setattr(capacity.os, "cpu_count", lambda: 96)
    # being drawn: 128,256 x 4,096 and 12 x 4,096 x 14,336 numbers of 4 bytes, 4.92 GB; 0.43 and 0.53 GB a process
    drawn = 4 * (128_256 * 4_096 + 12 * 4_096 * 14_336) / 1e9
    assert host_memory.host_gb(job("mega")) == pytest.approx(8 * (0.43 + drawn))
    assert host_memory.host_gb(job("hf")) == pytest.approx(8 * 0.53 + 4 * 8.030261248 + drawn)
    monkeypatch.setattr(capacity.os, "cpu_count", lambda: 12)
    assert host_memory.host_gb(job("hf", 1)) == pytest.approx(0.53 + 2 * 8.030261248 + drawn), "bf16 on one rank"
    assert host_memory.host_gb(job("mega", 8, "nvd", "INIT=native")) == pytest.approx(8 * 0.43)


def test_a_machine_with_less_memory_than_its_ranks_need_is_warned_of(monkeypatch):
    monkeypatch.setattr(host_memory, "cpu_capacity_gb", lambda ranks: (32.0, "physical memory"))
    monkeypatch.setattr(capacity.os, "cpu_count", lambda: 8)
    fits, warning = host_memory.lines([job("mega"), job("hf")], is_here=True)
    assert fits == "host memory: mega llama about 22.1 GB for 8 ranks of 32.0 GB (physical memory)"
    assert warning.startswith("warning: host memory: hf llama about 38.7 GB for 8 ranks of 32.0 GB")
    assert "use FRAMEWORK=mega or one with more memory" in warning
    (elsewhere,) = host_memory.lines([job("hf")], is_here=False)
    assert elsewhere.endswith("for 8 ranks, of an unknown amount (the plan is for another machine)")
    assert host_memory.lines([job("titan", 1)], is_here=True) == [
        "host memory: titan llama unknown (no formula for this framework yet)"
    ]


@pytest.mark.parametrize("memory_gb", [192.0, 68.0, 20.0, None])
def test_every_estimate_of_mega_on_a_gpu_names_the_layers_that_it_is_for(monkeypatch, memory_gb):
    monkeypatch.setattr(matrix_checks, "capacity_gb", lambda config: (memory_gb, "a card"))
    of_mega, of_hf = matrix_checks.memory_lines([job("mega"), job("hf")])
    assert of_mega.endswith("(a card); mega: torch's layers, TransformerEngine's are not estimated")
    assert of_hf.endswith("(a card)")
    assert "TransformerEngine's are not estimated" in str(terminal_table([job("mega")])).splitlines()[0]
