"""With the method `best`, each side is compared with the best published figure for its device and work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reports import report
from sides import both, run

from evaluate.metrics import published
from evaluate.metrics.published import Published, table, tuning
from utils import models


def work(length: int = 8192, gpus: int = 8, precision: str = "bf16", **changes: Any) -> dict[str, Any]:
    settings = {"sequence_length": length, "num_gpus": gpus, "dp": gpus, "precision": precision}
    settings |= {"gradient_accumulation": 64 // gpus}
    return {"model_size": "full", "method": "best"} | both(**settings) | changes


def experts(routing: str, length: int = 4096, **changes: Any) -> dict[str, Any]:
    return work(length, model="qwen3moe", resolved_config__routing=routing, **changes)


def sides(seconds: float, other: float, **changes: Any) -> list[dict[str, Any]]:
    found = [run("nvd", number, seconds, framework="nemo", **work(**changes)) for number in (1, 2, 3)]
    return found + [run("amd", number, other, framework="prim", **work(**changes)) for number in (1, 2, 3)]


ON_8_H100 = "on 8 x NVIDIA H100 SXM 80GB is known to be published"


@pytest.mark.parametrize(
    ("platform", "changes", "said"),
    [
        ("nvd", work(2048), f"no figure of llama full in bf16, SL 2048, {ON_8_H100}"),
        ("nvd", work(gpus=4), "no figure of llama full in bf16, SL 8192, on 4 x NVIDIA H100 SXM 80GB"),
        ("nvd", experts("learned"), "on 8 x NVIDIA H100 SXM 80GB with learned routing is known to be published"),
        ("nvd", work(model="qwen"), f"no figure of qwen full in bf16, SL 8192, {ON_8_H100}"),
        (
            "nvd",
            work(model_size="proxy"),
            f"no figure of llama proxy in bf16, SL 8192, {ON_8_H100}",
        ),
        ("nvd", work(precision="fp32"), f"no figure of llama full in fp32, SL 8192, {ON_8_H100}"),
        ("nvd", work(gpu_info__device_name="NVIDIA H100 PCIe"), "the device is not known here, so no published figure"),
        ("nvd", work(gpu_info__device_name="Some GPU"), "the device is not known here, so no published figure"),
        ("nvd", work(gpu_info__device_name=None), "the device is not known here, so no published figure"),
        ("amd", work(), "410 TFLOP/s as logged, without its formula"),
    ],
)
def test_a_figure_of_other_work_or_device_or_without_a_formula_is_none_and_says_so(
    platform: str, changes: dict[str, Any], said: str
) -> None:
    found = tuning([run(platform, 1, 6.0, **changes)])
    assert (found.share.value, found.is_untuned, found.age_months) == (None, None, None) and said in found.share.how


# NeMo 25.09 of September 2025 gave 14,079, NeMo 25.11 of November 2025 gave 14,451 tokens/s/GPU (Megatron-Bridge)
@pytest.mark.parametrize(
    ("start", "tokens", "months"),
    [("2025-08-31", None, None), ("2025-09-01", 14_079, 0), ("2025-11-01", 14_451, 0), ("2026-11-25", 14_451, 12)],
)
def test_a_figure_is_used_by_runs_after_its_publication_with_its_age(
    start: str, tokens: int | None, months: int | None
) -> None:
    times = {"provenance__started_utc": f"{start}T01:00:00Z", "provenance__finished_utc": f"{start}T02:00:00Z"}
    found = tuning([run("nvd", 1, 4.5, **work(precision="fp8"), **times)])
    assert (found.published and found.published.tokens_per_second_per_gpu, found.age_months) == (tokens, months)
    if tokens is None:
        assert found.share.value is None and found.share.how.count("published after the runs: ") == 2
    else:
        assert f"({published.METHODS['step']}, as published), {months} months before the runs" in found.share.how


def test_without_the_time_of_the_runs_the_age_is_unknown_and_never_0() -> None:
    result = run("nvd", 1, 6.0, **work())
    result["provenance"] |= {"started_utc": None, "finished_utc": None}
    found = tuning([result])
    assert found.age_months is None and found.share.how.endswith(", age unknown")


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


def figures(device: str, precision: str, gpus: int) -> list[Published]:
    """Return the figures of Llama at 8,192 tokens."""
    work = ("llama", device, precision, 8192, gpus)
    return [one for one in table() if (one.model, one.device, one.precision, one.sequence_length, one.gpus) == work]


# TFLOP/s beside the tokens/s: NVIDIA's own column (Megatron-Bridge), and MLPerf's logs recomputed with causal attention
@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA H100 SXM 80GB", "fp8", 744),
        ("NVIDIA H100 SXM 80GB", "fp8", 725),
        ("NVIDIA B200 180GB", "fp8", 1544),
        ("NVIDIA GB200 186GB", "fp8", 1614),
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
    # 51.470 GFLOP a token: 6 N and causal attention at 8,192 tokens
    rates = [(one.tokens_per_second_per_gpu or 0) * 51.470e-3 for one in figures(device, precision, 8)]
    assert len([rate for rate in rates if rate == pytest.approx(tflops, abs=0.6)]) == 1


# TFLOP/s of the same sources, which leave the router out (0.3 %); AutoModel and Megatron-Bridge
@pytest.mark.parametrize(
    ("gpus", "precision", "routing", "tokens", "tflops"),
    [
        (8, "bf16", "balanced", 12_040, 277),
        (16, "bf16", "balanced", 13_011, 299.352),
        (16, "bf16", "learned", 8_655, 199.120),
        (16, "fp8", "balanced", 9_058, 208),
    ],
)
def test_a_mixture_of_experts_is_compared_with_figures_of_its_routing(
    gpus: int, precision: str, routing: str, tokens: int, tflops: float
) -> None:
    found = tuning([run("nvd", 1, 2.0, **experts(routing, gpus=gpus, precision=precision))]).published
    assert found is not None and (found.tokens_per_second_per_gpu, found.routing) == (tokens, routing)
    assert tokens * models.get("qwen3moe", "full").flops_per_token(4096) * 1e-12 == pytest.approx(tflops, rel=6e-3)


@pytest.mark.parametrize(("recipe", "tokens"), [(None, 30_624), ("mxfp8", 30_624), ("nvfp4", 37_302)])
def test_a_run_in_four_bits_is_compared_with_figures_in_four_bits(recipe: str | None, tokens: int) -> None:
    gpu = {"gpu_info__device_name": "NVIDIA B200", "gpu_info__total_memory_gb": 192.3, "gpu_info__gpu_cores": 18944}
    result = run("nvd", 1, 2.0, **work(precision="fp8"), **gpu)
    result["training_config"]["fp8_recipe"] = result["resolved_config"]["fp8_recipe"] = recipe
    found = tuning([result]).published
    assert found is not None and found.tokens_per_second_per_gpu == tokens


def test_every_figure_stands_once_and_has_its_method_grade_date_and_source() -> None:
    works = [
        (one.model, one.device, one.precision, one.sequence_length, one.gpus, one.source, one.routing)
        for one in table()
    ]
    assert len(works) == len(set(works)) > 40
    for one in table():
        assert one.method in ("wall", "step") and one.grade in ("log", "pub", "thr") and len(one.source) > 10, one
