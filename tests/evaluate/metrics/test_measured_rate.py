"""A measured matrix-multiply rate applies to results of its device, precision and week; a faster result is rejected."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sides import run

from evaluate import probe
from evaluate.checks.entries import load_results
from evaluate.checks.limits import utilisation_is_possible
from evaluate.metrics.measured_rate import NONE_MEASURED, attach, load_probes
from evaluate.metrics.metrics import metrics
from utils.results import store
from utils.results.probe_file import ProbeError, name, read

DAY = datetime(2026, 11, 21, tzinfo=timezone.utc)
"""The day of the example result."""


def content(**changes: Any) -> dict[str, Any]:
    rates = {"bf16": {"best_tflops": 800.0, "sustained_tflops": 700.0, "spread_percent": 1.0}}
    known = {"probe_version": 1, "platform": "nvd", "host": "nvd-1", "device_name": "NVIDIA H100 80GB HBM3"}
    known |= {"total_memory_gb": 85.0, "started_utc": DAY.isoformat(), "pytorch_version": "2.13.0"}
    return known | {"rates": rates, "reasons": {"fp8": "torch cannot"}} | changes


def write(folder: Path, **changes: Any) -> Path:
    known = content(**changes)
    path = folder / name(known["platform"], known["host"])
    path.write_text(json.dumps(known))
    return path


def llama(seconds: float, **changes: Any) -> dict[str, Any]:
    """Llama 3.1 8B at 8,192 tokens: 64 x 8192 x 51.470e9 / 8 GPUs = 3,373 TFLOP a step and GPU."""
    both = {f"{section}__sequence_length": 8192 for section in ("training_config", "resolved_config")}
    known = {"resolved_config__num_layers": 32, "resolved_config__vocab_size": 128256, "model_size": "full"}
    return run("nvd", 1, seconds, **(both | known | changes))


def test_the_share_is_of_the_best_rate_measured_there(tmp_path: Path) -> None:
    write(tmp_path)
    result = llama(8.0)
    attach(result, load_probes([tmp_path]))
    figure = metrics(result)["share_of_measured_matmul"]
    assert figure.value == pytest.approx(100 * 3373.1 / 8.0 / 800.0, rel=0.01)
    assert "best of probe_nvd_nvd-1.json, measured 2026-11-21 00:00 UTC" in figure.how


def test_a_result_above_the_measured_rate_is_rejected_and_its_honest_twin_is_not(tmp_path: Path) -> None:
    write(tmp_path)
    # 3,373 / 4.0 = 843 TFLOP/s: below the peak of 989, above the 800 that were measured
    for number, (seconds, count) in enumerate(((4.0, 1), (4.4, 0)), 1):
        result = llama(seconds, run=number)
        store.write(result, tmp_path / f"train_nvd_mega_llama_run{number}.json")
        (entry,) = [one for one in load_results([tmp_path]).entries if one.result["run"] == number]
        lines = [line for line in entry.findings.rejections if "measured rate" in line]
        assert len(lines) == count, entry.findings
        assert not count or "model FLOP/s: 105 % of the measured rate, which cannot be" in lines[0]
    assert utilisation_is_possible(llama(4.0)) == [], "without the probe nobody could know"


def test_an_fp8_rate_says_nothing_of_a_run_in_four_bits(tmp_path: Path) -> None:
    write(tmp_path, rates={"fp8": {"best_tflops": 800.0, "sustained_tflops": 700.0, "spread_percent": 1.0}})
    eight = llama(4.0, training_config__precision="fp8", resolved_config__precision="fp8")
    four = llama(4.0, training_config__precision="fp8", resolved_config__precision="fp8")
    four["training_config"]["fp8_recipe"] = four["resolved_config"]["fp8_recipe"] = "nvfp4"
    for result in (eight, four):
        attach(result, load_probes([tmp_path]))
    assert [len(utilisation_is_possible(one)) for one in (eight, four)] == [1, 0]
    assert "has no rate of nvfp4: not measured" in metrics(four)["share_of_measured_matmul"].how


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host": "nvd-2"}, NONE_MEASURED),
        ({"device_name": "NVIDIA H200"}, "device 'NVIDIA H200', the result's is 'NVIDIA H100 80GB HBM3'"),
        ({"total_memory_gb": 42.0}, "memory 42 GB, the result's is 85 GB"),
        ({"rates": {}}, "has no rate of bf16: not measured"),
        ({"conditions": {"other_processes": 2}}, "was measured while 2 other processes on the GPU; measure again"),
        ({"rates": {}, "reasons": {"bf16": "torch cannot"}}, "has no rate of bf16: torch cannot"),
        ({"started_utc": (DAY - timedelta(days=9)).isoformat()}, "was measured 9 days from the run, wanted 7 at most"),
        ({"started_utc": (DAY + timedelta(days=8)).isoformat()}, "was measured 8 days from the run"),
    ],
)
def test_a_probe_of_something_else_does_not_count_and_says_why(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    write(tmp_path, **changes)
    figure = load_probes([tmp_path]).rate_of(llama(4.0))
    assert figure.value is None and said in figure.how


def test_of_two_the_nearer_in_time_counts(tmp_path: Path) -> None:
    for days, best in ((3, 700.0), (-1, 810.0)):
        folder = tmp_path / str(days)
        folder.mkdir()
        rates = {"bf16": {"best_tflops": best, "sustained_tflops": 600.0, "spread_percent": 1.0}}
        write(folder, rates=rates, started_utc=(DAY + timedelta(days=days)).isoformat())
    assert load_probes([tmp_path]).rate_of(llama(4.0)).value == 810.0


def test_the_probe_of_an_output_folder_serves_results_of_a_label_in_it(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "best").mkdir()
    assert load_probes([tmp_path / "best"]).rate_of(llama(4.0)).value == 800.0


def test_the_ranks_of_a_cpu_share_the_rate_of_the_machine(tmp_path: Path) -> None:
    write(tmp_path, platform="cpu", host="cpu-1", device_name="CPU", total_memory_gb=None)
    result = run("nvd", 1, 1.0, host="cpu-1", gpu_info__device_name="CPU") | {"platform": "cpu"}
    figure = load_probes([tmp_path]).rate_of(result)
    assert figure.value == 100.0 and figure.how.endswith("shared by 8 ranks")
    busy = {"busy_before_percent": 55.0, "other_processes": None}
    write(tmp_path, platform="cpu", host="cpu-1", device_name="CPU", total_memory_gb=None, conditions=busy)
    figure = load_probes([tmp_path]).rate_of(result)
    assert figure.value is None and "while 55 % of the cores' time went to other work" in figure.how
    write(tmp_path, conditions=busy)
    assert load_probes([tmp_path]).rate_of(llama(4.0)).value == 800.0, "a GPU's rate is not the cores'"


BROKEN = {
    "no JSON": "{",
    "another version": json.dumps(content(probe_version=2)),
    "no host": json.dumps(content(host="")),
    "a time without a zone": json.dumps(content(started_utc="2026-11-21T00:00:00")),
    "no time": json.dumps(content(started_utc="today")),
    "an unknown precision": json.dumps(content(rates={"int8": {}})),
    "a rate of 0": json.dumps(
        content(rates={"bf16": {"best_tflops": 0.0, "sustained_tflops": 0.0, "spread_percent": 0}})
    ),
    "sustained above best": json.dumps(
        content(rates={"bf16": {"best_tflops": 1.0, "sustained_tflops": 2.0, "spread_percent": 0}})
    ),
    "a text for a rate": json.dumps(content(rates={"bf16": {"best_tflops": "800"}})),
    "NaN": json.dumps(content(rates={"bf16": {"best_tflops": float("nan")}})),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_probe_is_no_rate_and_is_named(tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "probe_nvd_nvd-1.json"
    path.write_text(BROKEN[fault])
    with pytest.raises(ProbeError, match="probe_nvd_nvd-1"):
        read(path)
    figure = load_probes([tmp_path]).rate_of(llama(4.0))
    assert figure.value is None and "probe_nvd_nvd-1.json" in figure.how
    assert probe.main([str(tmp_path)]) == 1
    assert "error: " in capsys.readouterr().err


def test_the_command_line_shows_what_is_held_against_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    store.write(llama(4.4), tmp_path / "train_nvd_mega_llama_run1.json")
    store.write(llama(4.4, run=2, provenance__host="other"), tmp_path / "train_nvd_mega_llama_run2.json")
    assert probe.main([str(tmp_path)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert "NVIDIA H100 80GB HBM3 on nvd-1: bf16 800 TFLOP/s" in first
    assert "run1.json: best of probe_nvd_nvd-1.json" in second
    assert "run2.json: no measured rate: no matrix-multiply rate was measured" in third
    assert probe.main([str(tmp_path / "nowhere")]) == 2


def test_a_hosts_name_cannot_leave_the_folder() -> None:
    assert name("nvd", "../../x y") == "probe_nvd_..-..-x-y.json"
