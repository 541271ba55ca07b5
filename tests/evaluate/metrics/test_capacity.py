"""The micro batch that would fit agrees with a computation by hand, and is unknown if one run is not enough."""

from __future__ import annotations

from typing import Any

import pytest
from sides import run

from evaluate.metrics.capacity import micro_batch_that_would_fit

SETTINGS = {
    "sequence_length": 2048,
    "global_batch_size": 128,
    "micro_batch_size": 1,
    "gradient_accumulation": 16,
    "num_gpus": 8,
    "dp": 8,
    "precision": "bf16",
}
PARAMETERS = 8_030_261_248
"""Llama 3.1 8B, by its model card's configuration."""
STATES_GB = PARAMETERS * (2 + 4 + 10 / 8) / 1e9
"""Bytes a parameter of megatron-core with the distributed optimizer over eight ranks: bf16 weight, fp32 gradient, and
an eighth of 16 bits that complete the fp32 weight and of two fp32 moments. 58.2 GB."""


def llama(peak_gb: float | None, **changes: Any) -> dict[str, Any]:
    result = run("nvd", 1, 1.0, model_size="full", framework="mega")
    for section in ("training_config", "resolved_config"):
        result[section] |= SETTINGS
    result["resolved_config"] |= {"num_layers": 32, "vocab_size": 128256}
    result["memory_metrics"]["peak_memory_allocated_gb"] = peak_gb
    for name, value in changes.items():
        section, _, key = name.partition("__")
        result[section][key] = value
    return result


def test_what_the_peak_has_beyond_the_states_grows_with_the_micro_batch() -> None:
    # 4 GB a sequence; 0.95 x 85 GB - 58.2 GB = 22.5 GB hold 5 of them; of 16 a rank, 4 divides
    found = micro_batch_that_would_fit(llama(STATES_GB + 4.0))
    assert found.value == 4.0 and found.unit == "sequences"
    assert found.how.startswith("estimate from one run: (95% of 85 GB - 58.2 GB of weights, gradients and bf16 states)")
    assert "/ 4 GB a sequence, a divisor of the 16 sequences of a rank" in found.how


def test_a_run_at_a_larger_micro_batch_says_the_same() -> None:
    both = {f"{s}__{key}": value for s in ("training_config", "resolved_config") for key, value in
            {"micro_batch_size": 2, "gradient_accumulation": 8}.items()}  # fmt: skip
    assert micro_batch_that_would_fit(llama(STATES_GB + 8.0, **both)).value == 4.0


@pytest.mark.parametrize(("a_sequence_gb", "expected"), [(0.5, 16.0), (9.0, 2.0), (15.0, 1.0), (24.0, 1.0)])
def test_it_is_at_most_all_sequences_of_a_rank_and_never_below_what_ran(a_sequence_gb: float, expected: float) -> None:
    assert micro_batch_that_would_fit(llama(STATES_GB + a_sequence_gb)).value == expected


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (llama(None), "not in the result: peak memory"),
        (llama(70.0, gpu_info__total_memory_gb=None), "not in the result: memory of the device"),
        (llama(70.0, training_config__tp=None), "not in the result: tp"),
        (llama(57.0), "the peak of 57 GB is not above the 58.2 GB that weights and states should take"),
        (llama(70.0) | {"framework": "nemo"}, "the memory of nemo's states has no formula yet"),
        (llama(70.0) | {"model": "gpt"}, "gpt"),
    ],
)
def test_what_one_run_does_not_tell_is_unknown_for_its_reason(result: dict[str, Any], said: str) -> None:
    found = micro_batch_that_would_fit(result)
    assert found.value is None and said in found.how


def test_the_ranks_of_a_cpu_share_its_memory() -> None:
    result = run("nvd", 1, 1.0, framework="mega") | {"platform": "cpu"}
    shape = {"num_gpus": 2, "dp": 2, "tp": 1, "micro_batch_size": 1, "global_batch_size": 8, "gradient_accumulation": 4}
    for section in ("training_config", "resolved_config"):
        result[section] |= shape | {"sequence_length": 128, "precision": "fp32"}
    result["gpu_info"] |= {"device_name": "CPU", "total_memory_gb": 8.0}
    result["memory_metrics"]["peak_memory_allocated_gb"] = 3.0
    # tiny: 0.03 GB of states and 0.43 GB of process, so 2.5 GB a sequence; 0.95 x 8 / 2 = 3.8 GB hold one
    found = micro_batch_that_would_fit(result)
    assert found.value == 1.0 and "95% of 4 GB" in found.how
