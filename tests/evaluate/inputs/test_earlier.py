"""Results of earlier formats are found, computed again from their raw step times, and prove only their own content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from sides import compared

from evaluate import compare, frame, validate
from evaluate.bundle.check import check
from evaluate.inputs.partly_known import named_in
from example import put
from utils.results import schema, store
from utils.settings.config import ROOT

DEVICES = {"cuda": ("NVIDIA H100 80GB HBM3", 85.0), "rocm": ("AMD Instinct MI300X", 206.0)}
# 20 steps: 4 s for the first, then 1 s and 1.1 s in turn, 64 sequences of 2,048 tokens on 8 GPUs
TIMES = [4.0, *[1.0, 1.1] * 9, 1.0]


def content(platform: str = "cuda", **changes: Any) -> dict[str, Any]:
    """Return a file of the earlier format, whose summary leaves out the first step as those did: 19.9 s of 19 steps."""
    name, memory = DEVICES.get(platform, ("Something", 1.0))
    return put(
        {
            "platform": platform,
            "gpu_info": {"device_name": name, "device_count": 8, "total_memory_gb": memory, "gpu_cores": 16896},
            "timestamp": "2025-01-01T12:00:00",
            "training_config": {
                "max_steps": 20,
                "global_batch_size": 64,
                "micro_batch_size": 1,
                "sequence_length": 2048,
                "num_gpus": 8,
                "tensor_parallel_size": 2,
                "learning_rate": 3e-4,
            },
            "performance_metrics": {
                "avg_step_time_seconds": 19.9 / 19,
                "tokens_per_second": 64 * 2048 * 19 / 19.9,
                "tokens_per_second_per_gpu": 64 * 2048 * 19 / 19.9 / 8,
                "steps_per_second": 19 / 19.9,
            },
            "memory_metrics": {"peak_memory_allocated_gb": 60.0},
            "raw_step_times": TIMES,
            "loss_values": [11 - 0.1 * step for step in range(20)],
        },
        changes,
    )


def save(folder: Path, name: str, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"benchmark_{name}.json"
    path.write_text(json.dumps(content(**{"platform": name.split("_")[0]} | changes)))
    return path


def row(folder: Path) -> dict[str, Any]:
    """Return the only result of a folder as a table of runs has it, with its reasons."""
    table = frame.load(folder)
    assert len(table) == 1 and not table.attrs["unreadable"]
    found = {key: None if pandas.isna(value) else value for key, value in table.iloc[0].items()}
    return found | {"reasons": json.loads(found["reasons"] or "{}")}


def test_speed_is_computed_again_and_the_rest_is_unknown_with_a_reason(tmp_path: Path) -> None:
    save(tmp_path, "cuda_llama")
    found = row(tmp_path)
    # three steps of warm-up are left out: 8 of 1.1 s and 9 of 1 s remain
    mean = (8 * 1.1 + 9 * 1.0) / 17
    wanted = {
        **{"platform": "nvd", "model": "llama", "framework": "unknown", "model_size": "unknown", "method": "unknown"},
        "avg_step_time_seconds": pytest.approx(mean),
        "tokens_per_second_per_gpu": pytest.approx(64 * 2048 / mean / 8),
        **{"tp": 2, "lr": 3e-4, "seed": None, "peak_memory_allocated_gb": 60.0},
        **{key: None for key in found if key.startswith("resolved_config.")},
    }
    assert {key: found[key] for key in wanted} == wanted
    missing = {found["reasons"][key] for key in ("seed", "dataset_bin_sha256", "resolved_config.tp")}
    assert len(missing) == 1 and "tp" not in found["reasons"]


@pytest.mark.parametrize(
    ("name", "platform", "model"),
    [
        ("cuda_llama", "nvd", "llama"),
        ("rocm_qwen", "amd", "qwen"),
        ("cuda_llama_20250101_120000", "nvd", "llama"),
        ("rocm_qwen2.5_7b_20250101120000", "amd", "qwen"),
        ("rocm_gpt_large", "amd", "gpt_large"),
    ],
)
def test_the_name_contains_platform_and_model(tmp_path: Path, name: str, platform: str, model: str) -> None:
    save(tmp_path, name)
    found = row(tmp_path)
    assert (found["platform"], found["model"]) == (platform, model)


@pytest.mark.parametrize(
    ("written", "framework"),
    [("Primus", "prim"), ("megatron-core", "mega"), ("nemo", "nemo"), ("deepspeed", "deepspeed")],
)
def test_a_framework_of_ours_has_our_name(tmp_path: Path, written: str, framework: str) -> None:
    save(tmp_path, "cuda_llama", framework=written)
    assert row(tmp_path)["framework"] == framework


def test_runs_are_numbered_by_time_and_two_copies_of_a_file_are_one_run(tmp_path: Path) -> None:
    for name, timestamp in (("_20250102_120000", "2"), ("_20250101_120000", "1"), ("", "1")):
        save(tmp_path, f"cuda_llama{name}", timestamp=timestamp)
    table = frame.load(tmp_path)
    found = {Path(file).stem[20:]: run for file, run in zip(table.file, table.run, strict=True)}
    assert found == {"": 1, "_20250101_120000": 1, "_20250102_120000": 2}


SHORT = [0.2, *[0.0523, 0.0526] * 9, 0.0523]
"""0.0524 s on average without the first, written as 0.052."""


def of_mean(times: list[float], left_out: int) -> dict[str, Any]:
    """Return changes to these step times and to a rounded summary that leaves out the first ones."""
    mean = sum(times[left_out:]) / (20 - left_out)
    rates = {"tokens_per_second": round(64 * 2048 / mean), "steps_per_second": round(1 / mean, 3)}
    return {"raw_step_times": times, "performance_metrics": {"avg_step_time_seconds": round(mean, 3)} | rates}


@pytest.mark.parametrize("changes", [*(of_mean(TIMES, left_out) for left_out in range(5)), of_mean(SHORT, 1)])
def test_a_summary_may_leave_out_any_warm_up_and_be_rounded(tmp_path: Path, changes: dict[str, Any]) -> None:
    save(tmp_path, "cuda_llama", **changes)
    assert validate.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"performance_metrics__avg_step_time_seconds": 0.9}, "avg_step_time_seconds"),
        ({"performance_metrics__tokens_per_second": 4 * 125_000}, "tokens_per_second: "),
        ({"training_config__sequence_length": 8192}, "tokens_per_second_per_gpu: "),
        ({"raw_step_times": [4.0, *[2.0] * 19]}, "avg_step_time_seconds: "),
        ({"training_config__max_steps": 500}, "steps: got 20"),
        ({"raw_step_times": [1.0] * 19 + [0.0]}, "step_times: got 0.0"),
        ({"memory_metrics__peak_memory_allocated_gb": 90.0}, "85.0 GB"),
        ({"performance_metrics__mfu": 5.63}, "mfu: says 5.63"),
        ({"training_config__num_gpus": 4}, "tokens_per_second_per_gpu: "),
        ({"training_config__dp": 2, "training_config__pp": 1, "training_config__cp": 1,
          "training_config__gradient_accumulation_steps": 32}, "DP x TP x PP x CP = 2 x 2 x 1 x 1 = 4"),
        (of_mean(SHORT, 1) | {"performance_metrics__avg_step_time_seconds": 0.05}, "avg_step_time_seconds: "),
        # unknown shapes
        ({"raw_step_times": [*TIMES[:-1], float("nan")]}, "step_times: got None"),
        ({"platform": "rocm"}, "platform: got 'rocm', None, 'cuda'"),
        ({"raw_step_times": [], "loss_values": []}, "raw_step_times"),
        ({"training_config": None}, "training_config"),
        ({"training_config__global_batch_size": None}, "training_config.global_batch_size"),
        ({"raw_step_times": 3}, "raw_step_times"),
        ({"raw_step_times": [1.0, "N/A"], "loss_values": []}, "step_times: got 'N/A'"),
        ({"loss_values": [1.0, 2.0]}, "loss_values: got 2"),
    ],
)  # fmt: skip
def test_an_unknown_shape_or_a_summary_that_contradicts_its_samples_is_rejected(
    tmp_path: Path, changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, "cuda_llama", **changes)
    assert validate.main([str(tmp_path)]) == 1
    assert "".join(said.split()) in "".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize(("losses", "first"), [(None, None), ([11 - 0.1 * step for step in range(20)], 10.9)])
def test_a_first_step_without_a_time_is_left_out_and_losses_may_be_missing(
    tmp_path: Path, losses: list[float] | None, first: float | None
) -> None:
    save(tmp_path, "rocm_qwen", raw_step_times=TIMES[1:], loss_values=losses)
    steps = frame.load_steps(tmp_path)
    assert list(steps.step) == list(range(2, 21)) and steps.loss_nats_per_token.isna().all() == (losses is None)
    assert losses is None or steps.loss_nats_per_token[0] == pytest.approx(first)
    assert validate.main([str(tmp_path)]) == 0


def test_a_comparison_names_unproven_items_first(tmp_path: Path) -> None:
    for platform in ("cuda", "rocm"):
        for day in (1, 2):
            save(tmp_path, f"{platform}_llama_2025010{day}_120000", timestamp=f"{day}")
        save(tmp_path, f"{platform}_qwen", loss_values=[])
    found = compared(tmp_path, "--target-loss", "9", code=compare.NOTHING_COMPARABLE)["verdicts"]
    assert [(verdict["model"], verdict["runs"]) for verdict in found] == [("llama", [2, 2]), ("qwen", [1, 1])]
    for verdict in found:
        assert verdict["reasons"][0].startswith("neither model nor data is proven to be the same")
        unknown = {item["name"] for item in verdict["certificate"] if item["state"] == "unknown"}
        assert {"data", "tokenizer", "number of parameters", "precision", "track", "model size"} <= unknown


def test_a_figure_that_could_not_be_measured_is_unknown(tmp_path: Path) -> None:
    path = save(tmp_path, "cuda_llama", memory_metrics={"peak_memory_allocated_gb": float("nan")})
    assert "NaN" in path.read_text() and row(tmp_path)["peak_memory_allocated_gb"] is None


@pytest.mark.parametrize(
    ("text", "found"),
    [("Llama3.1_8B", ["llama"]), ("Qwen3_8B", ["qwen3"]), ("Qwen3-30B-A3B-Base", ["qwen3moe"]), ("gpt", [])],
)
def test_a_name_that_holds_another_name_is_found_alone(text: str, found: list[str]) -> None:
    assert named_in(text) == found


@pytest.mark.parametrize("path", sorted((ROOT / "tests/h200/results").glob("*.json")), ids=lambda path: path.stem)
def test_the_kept_results_stay_readable(path: Path) -> None:
    assert store.read(path)["schema_version"] == schema.SCHEMA_VERSION


@pytest.mark.parametrize("path", sorted((ROOT / "docs/results").glob("*.zip")), ids=lambda path: path.stem)
def test_the_published_archives_stay_readable_and_without_a_fault(path: Path) -> None:
    checked = check(path)
    assert checked.faults == () and checked.loaded.entries and not checked.loaded.unreadable
