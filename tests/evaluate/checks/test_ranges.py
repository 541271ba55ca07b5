"""A number that no training has is rejected with its key; numbers at the edge of the honest pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nasty import no_hang
from sides import run

from evaluate import compare, validate
from evaluate.checks.entries import check_result
from evaluate.checks.ranges import out_of_range
from evaluate.metrics.capacity import micro_batch_that_would_fit
from example import example_result
from utils.results import store

BOTH = ("training_config", "resolved_config")


def with_settings(**values: Any) -> dict[str, Any]:
    return example_result(**{f"{section}__{key}": value for section in BOTH for key, value in values.items()})


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "micro batch 0": (with_settings(micro_batch_size=0), "training_config.micro_batch_size: got 0, wanted"),
    "negative batch": (with_settings(gradient_accumulation=-8), "training_config.gradient_accumulation: got -8"),
    "pp of a million": (with_settings(pp=1_000_000, num_gpus=1_000_000), "training_config.pp: got 1000000"),
    "more stages than layers": (with_settings(pp=8, num_gpus=8), "got 8 pipeline stages for 4 layers"),
    "beta above 1": (with_settings(beta2=1.5), "training_config.beta2: got 1.5"),
    "steps without end": (with_settings(max_steps=10**12), "training_config.max_steps: got 1000000000000"),
    "1e-310 J": (
        example_result(energy_metrics__joules=1e-310, energy_metrics__joules_per_token=1e-310),
        "energy_metrics.joules: got 1e-310, wanted 1e-12 or more",
    ),
    "loss of 1e-310": (example_result(loss_values=[8.3, *[1e-310] * 9]), "loss_values: got 1e-310"),
    "a step of a year": (example_result(step_times=[2.0, *[3.2e7] * 9]), "step_times: got 32000000.0"),
    "negative memory": (
        example_result(memory_metrics__peak_memory_allocated_gb=-1.0),
        "memory_metrics.peak_memory_allocated_gb: got -1.0",
    ),
    "memory of a device": (example_result(gpu_info__total_memory_gb=1e17), "gpu_info.total_memory_gb: got 1e+17"),
    "run 0": (example_result(run=0), "run: got 0, wanted"),
}
HONEST: dict[str, dict[str, Any]] = {
    "micro batch 1": with_settings(micro_batch_size=1),
    "a thousand stages of a thousand layers": with_settings(pp=1000, num_gpus=1000)
    | {"resolved_config": example_result()["resolved_config"] | {"num_layers": 1000, "pp": 1000, "num_gpus": 1000}},
    "stages for embedding and output": with_settings(pp=6, num_gpus=6),
    "no clipping": with_settings(clip_grad=0.0),
    "clipping that never acts": with_settings(clip_grad=1e9),
    "a small energy": example_result(energy_metrics__joules=5.0, energy_metrics__joules_per_token=1e-6),
    "a learning rate of rounding": example_result(learning_rates=[1e-3, *[-1e-23] * 9]),
    "a step of a day": example_result(step_times=[2.0, *[86_400.0] * 9]),
    "a loss of memory": example_result(loss_values=[8.3, *[1e-9] * 9]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_number_that_no_training_has_is_rejected_with_its_key(fault: str) -> None:
    result, words = FAULTS[fault]
    assert any(line.startswith(words) or words in line for line in out_of_range(result)), out_of_range(result)
    with no_hang():
        assert check_result(result).rejections


@pytest.mark.parametrize("twin", HONEST)
def test_a_number_at_the_edge_of_the_honest_passes(twin: str) -> None:
    assert out_of_range(HONEST[twin]) == []


def test_the_command_line_names_them_and_compares_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for platform, seconds in (("nvd", 1.0), ("amd", 0.9)):
        store.write(run(platform, 2, seconds), tmp_path / f"train_{platform}_mega_llama_run2.json")
    assert validate.main([str(tmp_path)]) == 0
    path = tmp_path / "train_amd_mega_llama_run2.json"
    content = json.loads(path.read_text())
    content["energy_metrics"] |= {"joules": 1e-310, "joules_per_token": 1e-310, "avg_watts": 1e-310}
    path.write_text(json.dumps(content))
    assert validate.main([str(tmp_path)]) == 1
    assert "energy_metrics.joules: got 1e-310" in " ".join(capsys.readouterr().out.split())
    assert compare.main([str(tmp_path), "--format", "json"]) == compare.NOTHING_COMPARABLE
    assert "Infinity" not in (tmp_path / "compare.json").read_text()


def test_the_micro_batch_of_a_large_share_is_found_without_trying_every_number() -> None:
    result = with_settings(micro_batch_size=1, gradient_accumulation=10**9, global_batch_size=10**9)
    assert out_of_range(result) == []
    with no_hang():
        assert micro_batch_that_would_fit(result).value is not None


def test_divisors_are_those_of_a_search_through_all_numbers() -> None:
    from evaluate.metrics.capacity import _divisors

    for number in (1, 2, 12, 16, 97, 64 * 3):
        assert sorted({*_divisors(number)}) == [size for size in range(1, number + 1) if number % size == 0]
