"""With the method `best`, each side is compared with the best published figure for its device and work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reports import report
from sides import both, run

from evaluate.metrics.published import table, tuning


def work(length: int = 8192, gpus: int = 8, precision: str = "bf16", **changes: Any) -> dict[str, Any]:
    settings = {"sequence_length": length, "num_gpus": gpus, "dp": gpus, "precision": precision}
    settings |= {"gradient_accumulation": 64 // gpus}
    return {"model_size": "full", "method": "best"} | both(**settings) | changes


def sides(seconds: float, other: float, **changes: Any) -> list[dict[str, Any]]:
    found = [run("nvd", number, seconds, framework="nemo", **work(**changes)) for number in (1, 2, 3)]
    return found + [run("amd", number, other, framework="prim", **work(**changes)) for number in (1, 2, 3)]


def test_the_record_of_nvidias_own_recipe_is_100_percent() -> None:
    # 12.27 s a step of 128 sequences of 8,192 tokens on 8 GPUs is half of that with 64
    found = tuning([run("nvd", 1, 12.27 / 2, **work())])
    assert found.share.value == pytest.approx(100, rel=0.02)
    assert found.published is not None and found.published.tokens_per_second_per_gpu == 10_682
    assert "dgxc-benchmarking 85380ff" in found.share.how


@pytest.mark.parametrize(
    ("platform", "changes", "said"),
    [
        ("nvd", work(2048), "publish"),
        ("nvd", work(gpus=4), "publish"),
        ("nvd", work(model="qwen"), "publish"),
        ("nvd", work(model_size="proxy"), "publish"),
        ("nvd", work(precision="fp32"), "publish"),
        ("nvd", work(gpu_info__device_name="NVIDIA H100 PCIe"), "publish"),
        ("nvd", work(gpu_info__device_name="Some GPU"), "publish"),
        ("amd", work(), "410 TFLOP/s as logged, without its formula"),
    ],
)
def test_a_figure_of_other_work_or_device_or_without_a_formula_is_none_and_says_so(
    platform: str, changes: dict[str, Any], said: str
) -> None:
    found = tuning([run(platform, 1, 6.0, **changes)])
    assert (found.share.value, found.is_untuned) == (None, None) and said in found.share.how


def test_runs_of_different_work_have_no_share() -> None:
    assert tuning([run("nvd", 1, 6.0, **work()), run("nvd", 2, 6.0, **work(gpus=4))]).share.value is None


# 64 x 8,192 / 8 = 65,536 tokens a step and GPU; 95 % of 10,682 is 10,147.9: 6.458 s
@pytest.mark.parametrize(("seconds", "is_untuned"), [(6.40, False), (6.52, True)])
def test_below_95_percent_a_side_is_called_untuned(tmp_path: Path, seconds: float, is_untuned: bool) -> None:
    verdict = report(tmp_path, sides(seconds, 6.0), "--by", "platform").verdict
    left, right = verdict["published"]
    assert left["share_percent"] == pytest.approx(100 * 65_536 / seconds / 10_682, rel=0.005)
    assert left["is_untuned"] is is_untuned and left["published"]["date"] == "2025-06-09"
    assert right["share_percent"] is None and right["is_untuned"] is None and right["how"]
    assert f"NVIDIA H100 80GB HBM3: {'untuned, ' if is_untuned else ''}9" in verdict["sentence"]
    assert "no published figure to tell whether AMD Instinct MI300X is tuned" in verdict["sentence"]


def test_the_equal_track_says_nothing_of_tuning(tmp_path: Path) -> None:
    verdict = report(tmp_path, sides(6.4, 6.0, method="equal"), "--by", "platform").verdict
    assert verdict["published"] is None and "published" not in verdict["sentence"]


# TFLOP/s beside the tokens/s: NVIDIA's own column (Megatron-Bridge), and MLPerf's logs recomputed with causal attention
@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA H100 SXM 80GB", "fp8", 744),
        ("NVIDIA B200 180GB", "fp8", 1576),
        ("NVIDIA GB200 186GB", "fp8", 1622),
        ("NVIDIA GB300 279GB", "fp8", 1933),
        ("NVIDIA GB300 279GB", "nvfp4", 2433),
        ("NVIDIA GB200 186GB", "nvfp4", 2079),
        ("NVIDIA B300 270GB", "nvfp4", 2139),
        ("NVIDIA B200 180GB", "nvfp4", 1900),
        ("AMD Instinct MI355X", "fp8", 1617),
        ("AMD Instinct MI350X", "fp8", 1313),
        ("AMD Instinct MI350X", "mxfp4", 1550),
    ],
)
def test_tokens_and_tflops_of_one_source_agree(device: str, precision: str, tflops: int) -> None:
    (one,) = [one for one in table() if (one.device, one.precision, one.gpus) == (device, precision, 8)]
    # 51.470 GFLOP a token: 6 N and causal attention at 8,192 tokens
    assert (one.tokens_per_second_per_gpu or 0) * 51.470e-3 == pytest.approx(tflops, abs=0.6)


@pytest.mark.parametrize(("recipe", "published"), [(None, 30_624), ("mxfp8", 30_624), ("nvfp4", 36_917)])
def test_a_run_in_four_bits_is_compared_with_figures_in_four_bits(recipe: str | None, published: int) -> None:
    gpu = {"gpu_info__device_name": "NVIDIA B200", "gpu_info__total_memory_gb": 192.3, "gpu_info__gpu_cores": 18944}
    result = run("nvd", 1, 2.0, **work(precision="fp8"), **gpu)
    result["training_config"]["fp8_recipe"] = result["resolved_config"]["fp8_recipe"] = recipe
    found = tuning([result]).published
    assert found is not None and found.tokens_per_second_per_gpu == published


def test_amds_figure_in_four_bits_agrees_with_its_own_samples_a_second() -> None:
    (one,) = [one for one in table() if (one.device, one.precision) == ("AMD Instinct MI355X", "mxfp4")]
    # run 0: 184,320 samples, 5,038.2 s in train blocks, 5,176.4 s with evaluations; AMD's blog: 35.6 samples/s
    samples_per_second = (one.tokens_per_second_per_gpu or 0) * 8 / 8192
    assert samples_per_second == pytest.approx(184_320 / 5_038.174, rel=1e-4)
    assert samples_per_second * 5_038.2 / 5_176.4 == pytest.approx(35.6, abs=0.05)


def test_every_figure_stands_once_and_has_its_source() -> None:
    keys = [(one.device, one.precision, one.sequence_length, one.gpus) for one in table()]
    assert len(keys) == len(set(keys))
    assert all(one.source and one.grade for one in table())
