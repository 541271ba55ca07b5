"""A result beyond the limits of its device is rejected, and the honest twin passes."""

from __future__ import annotations

from typing import Any

import pytest
from sides import run

from evaluate.checks.entries import check_result
from evaluate.checks.limits import (
    claimed_utilisation_agrees,
    energy_agrees,
    energy_follows_from_its_sources,
    energy_has_two_sources,
    memory_fits,
    utilisation_is_possible,
)


def llama(seconds: float, **changes: Any) -> dict[str, Any]:
    """Return a run of Llama 3.1 8B at 8,192 tokens on eight H100, with `seconds` per step of 64 sequences."""
    both = {f"{s}__sequence_length": 8192 for s in ("training_config", "resolved_config")}
    known = {"resolved_config__num_layers": 32, "resolved_config__vocab_size": 128256, "model_size": "full"}
    return run("nvd", 1, seconds, **both, **known, **changes)


def test_more_than_the_peak_is_rejected() -> None:
    # 64 x 8192 tokens x 51.47 GFLOP / 8 GPUs = 3,373 TFLOP a step and GPU; 989.4 TFLOP/s take 3.41 s
    assert utilisation_is_possible(llama(3.6)) == []
    (line,) = utilisation_is_possible(llama(0.6))
    assert line.startswith("model FLOP/s: 56") and "% of the dense peak, which cannot be" in line
    assert line in check_result(llama(0.6)).rejections


@pytest.mark.parametrize("size", ["num_gpus", "global_batch_size", "sequence_length"])
def test_a_size_of_zero_is_rejected_without_a_traceback(size: str) -> None:
    result = llama(3.6)
    result["training_config"][size] = 0
    assert check_result(result).rejections == (f"{size}: got 0, wanted more than 0",)


def test_an_unknown_device_is_not_judged_by_anothers_peak() -> None:
    assert utilisation_is_possible(llama(0.6, gpu_info__device_name="NVIDIA H900")) == []


def test_full_attention_may_be_above_the_peak_where_causal_is_not() -> None:
    # 96 % causal is 108 % by the full formula: which is why one formula is used
    assert utilisation_is_possible(llama(3.55)) == []


def test_more_memory_than_the_device_has_is_rejected() -> None:
    assert memory_fits(llama(3.6, memory_metrics__peak_memory_allocated_gb=84.0)) == []
    assert memory_fits(llama(3.6, memory_metrics__peak_memory_allocated_gb=86.0)) == [
        "peak_memory_allocated_gb: got 86.0 GB on a device of 85.0 GB"
    ]


def energy(**values: float | None) -> dict[str, Any]:
    result = llama(3.6)
    result["energy_metrics"] = {"source": "counter", "interval": "all steps", "reasons": {}} | values
    return result


# 100 steps of 3.6 s, 10 of warm-up (their noise is below 1 %), 524,288 tokens each; eight GPUs at 600 W are 4,800 W
STEADY = {"joules": 4800.0 * 324, "avg_watts": 4800.0, "joules_per_token": 4800 * 324 / (90 * 524_288)}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (STEADY, None),
        (STEADY | {"avg_watts": 600.0}, None),  # of one GPU on average
        (STEADY | {"joules_per_token": None}, None),
        ({"joules": 4800.0 * 360, "avg_watts": 4800.0, "joules_per_token": 4800 * 360 / 52_428_800}, None),  # all steps
        ({key: value / 2 if "joules" in key else value for key, value in STEADY.items()}, "they are not of one thing"),
        (STEADY | {"joules": STEADY["joules"] / 2, "joules_per_token": None}, "they are not of one thing"),
        (STEADY | {"avg_watts": 4800 * 1.08}, "they are not of one thing"),
        (STEADY | {"joules_per_token": STEADY["joules_per_token"] / 2}, "tokens, 52,428,800 were trained"),
        ({"joules": 0.0, "avg_watts": 0.0, "joules_per_token": 0.0}, "wanted more than 0"),
    ],
)
def test_energy_that_two_sources_disagree_on_is_rejected(values: dict[str, Any], said: str | None) -> None:
    result = energy(**values)
    found = energy_agrees(result)
    assert (not found) if said is None else said in found[0]
    assert energy_has_two_sources(result) == []
    assert set(found) <= set(check_result(result).rejections)


@pytest.mark.parametrize(("known", "said"), [("joules", "joules from one source"), ("avg_watts", "power from one")])
def test_energy_of_one_source_is_marked(known: str, said: str) -> None:
    others = {"joules", "avg_watts", "joules_per_token"} - {known}
    result = energy(**{known: STEADY[known]}, **dict.fromkeys(others))
    assert any(said in line for line in check_result(result).warnings)
    assert not any("energy" in line for line in check_result(result).rejections)


JOULES = STEADY["joules"]


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({}, None),  # of an earlier version
        ({"counter_joules": JOULES, "integrated_joules": JOULES, "sample_hz": 12.5, "gpu_count": 8}, None),
        ({"counter_joules": JOULES, "integrated_joules": 0.96 * JOULES}, None),
        ({"counter_joules": JOULES, "integrated_joules": None}, None),
        ({"counter_joules": JOULES, "integrated_joules": 2 * JOULES}, "they are not of one thing"),
        ({"counter_joules": 0.9 * JOULES, "integrated_joules": 0.9 * JOULES}, "as its source has it"),
        ({"counter_joules": JOULES, "integrated_joules": JOULES, "sample_hz": 4.0}, "sampled 4 times a second"),
    ],
)
def test_energy_that_does_not_follow_from_its_sources_is_rejected(sources: dict[str, Any], said: str | None) -> None:
    result = energy(**STEADY, **sources)
    result["energy_metrics"]["reasons"] = {"integrated_joules": "N/A"}
    found = energy_follows_from_its_sources(result)
    assert (not found) if said is None else said in found[0]
    assert set(found) <= set(check_result(result).rejections)
    has_one = sources.get("integrated_joules", JOULES) is None
    assert [bool(energy_has_two_sources(result))] == [has_one]


def test_rejected_energy_does_not_reject_the_speed_of_its_result() -> None:
    values = {"joules": None, "avg_watts": None, "joules_per_token": None, "gpu_count": 7, "sample_hz": 3.0}
    result = energy(**values, counter_joules=JOULES, integrated_joules=2 * JOULES)
    assert not any("energy" in line for line in check_result(result).rejections)
    assert any("of 7 boards, and 8 trained" in line for line in check_result(energy(**STEADY, gpu_count=7)).rejections)


# 12.27 s a step of 128 sequences of 8,192 tokens on eight H100: 55.6 % causal, 62.5 % full, 550 and 619 TFLOP/s
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("mfu", 0.556, None),
        ("mfu", 55.6, None),
        ("model_tflops_per_gpu", 550.0, None),
        ("mfu_percent", 62.5, "it is by the full-attention formula"),
        ("mfu", 0.625, "it is by the full-attention formula"),
        ("tflops_per_gpu", 619.0, "it is by the full-attention formula"),
        ("mfu", 5.63, "the FLOP count or the peak behind it is wrong"),
        ("mfu_percent", 152.0, "the FLOP count or the peak behind it is wrong"),
    ],
)
def test_a_utilisation_that_does_not_follow_is_rejected(key: str, value: float, said: str | None) -> None:
    result = llama(12.27, training_config__global_batch_size=128)
    result["performance_metrics"][key] = value
    found = claimed_utilisation_agrees(result)
    assert (not found) if said is None else said in found[0]
    assert set(found) <= set(check_result(result).rejections)


def test_the_peak_of_another_precision_is_named() -> None:
    result = llama(9.07, training_config__global_batch_size=128, training_config__precision="fp8")
    for value, said in ((0.376, None), (0.752, "it is over the bf16 peak, and this ran in fp8")):  # 744 TFLOP/s
        result["performance_metrics"]["mfu"] = value
        found = claimed_utilisation_agrees(result)
        assert (not found) if said is None else said in found[0]


def test_a_claimed_utilisation_of_an_unknown_device_is_rejected() -> None:
    result = llama(12.27, training_config__global_batch_size=128, gpu_info__device_name="NVIDIA H900")
    assert claimed_utilisation_agrees(result) == []
    result["performance_metrics"]["mfu"] = 0.556
    assert "NVIDIA H900 is not known here, so it has no peak" in claimed_utilisation_agrees(result)[0]
