"""What no device can do is rejected, and the honest twin passes."""

from __future__ import annotations

from typing import Any

import pytest
from sides import run

from evaluate.limits import energy_agrees, memory_fits, utilisation_is_possible
from evaluate.validate import check


def llama(seconds: float, **changes: Any) -> dict[str, Any]:
    """A run of Llama 3.1 8B at 8,192 tokens on eight H100, `seconds` a step of 64 sequences."""
    both = {f"{s}__sequence_length": 8192 for s in ("training_config", "resolved_config")}
    known = {"resolved_config__num_layers": 32, "resolved_config__vocab_size": 128256, "model_size": "full"}
    return run("nvd", 1, seconds, **both, **known, **changes)


def test_more_than_the_peak_is_rejected() -> None:
    # 64 x 8192 tokens x 51.47 GFLOP / 8 GPUs = 3,373 TFLOP a step and GPU; 989.4 TFLOP/s take 3.41 s
    assert utilisation_is_possible(llama(3.6)) == []
    (line,) = utilisation_is_possible(llama(0.6))
    assert line.startswith("model FLOP/s: 56") and "% of the dense peak, which cannot be" in line
    assert line in check(llama(0.6)).rejections


def test_an_unknown_device_is_not_judged_by_anothers_peak() -> None:
    assert utilisation_is_possible(llama(0.6, gpu_info__device_name="NVIDIA H900")) == []


def test_full_attention_may_be_above_the_peak_where_causal_is_not() -> None:
    # 96 % causal is 108 % by the full formula: which is why one formula is used
    assert utilisation_is_possible(llama(3.55)) == []


def test_more_memory_than_there_is_is_rejected() -> None:
    assert memory_fits(llama(3.6, memory_metrics__peak_memory_allocated_gb=84.0)) == []
    assert memory_fits(llama(3.6, memory_metrics__peak_memory_allocated_gb=86.0)) == [
        "peak_memory_allocated_gb: got 86.0 GB on a device of 85.0 GB"
    ]


def energy(**values: float) -> dict[str, Any]:
    result = llama(3.6)
    result["energy_metrics"] = {"source": "counter", "interval": "all steps", "reasons": {}} | values
    return result


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"joules": 200_000.0, "avg_watts": 600.0, "joules_per_token": 0.005}, None),  # 333 of 360 s, 40 M tokens
        ({"joules": 400_000.0, "avg_watts": 600.0, "joules_per_token": 0.01}, "are 666.7 s, the steps took 36"),
        (
            {"joules": 200_000.0, "avg_watts": 600.0, "joules_per_token": 0.001},
            "make 200,000,000 tokens, 52,428,800 were",
        ),
        ({"joules": 0.0, "avg_watts": 0.0, "joules_per_token": 0.0}, "wanted more than 0"),
    ],
)
def test_energy_that_disagrees_with_itself_is_rejected(values: dict[str, float], said: str | None) -> None:
    found = energy_agrees(energy(**values))
    assert (not found) if said is None else said in found[0]
