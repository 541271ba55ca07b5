"""A measured matrix-multiply rate applies to results of its device, precision and week; a faster result is rejected."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from reports import probed, report, write_probe
from sides import both, compared, run, write

from evaluate import validate
from evaluate.checks.entries import load_probes
from evaluate.metrics import profile_file
from utils.settings import profiling

DAY = datetime(2026, 11, 21, tzinfo=timezone.utc)
"""The day of the example result."""
NONE_MEASURED = "no matrix-multiply rate was measured on this device; measure it: python -m train.probe"
CPU = {"platform": "cpu", "host": "cpu-1", "device_name": "CPU", "total_memory_gb": None}


def llama(seconds: float, **changes: Any) -> dict[str, Any]:
    """Llama 3.1 8B at 8,192 tokens: 64 x 8192 x 51.470e9 / 8 GPUs = 3,373 TFLOP a step and GPU."""
    known = {"resolved_config__num_layers": 32, "resolved_config__vocab_size": 128256, "model_size": "full"}
    return run("nvd", 1, seconds, **(both(sequence_length=8192) | known | changes))


def test_the_share_is_of_the_best_rate_measured_there(tmp_path: Path) -> None:
    write_probe(tmp_path / "in")
    figure = report(tmp_path, [llama(8.0)]).metrics["share_of_measured_matmul"]
    assert figure["value"] == pytest.approx(100 * 3373.1 / 8.0 / 800.0, rel=0.01)
    assert "best of probe_nvd_nvd-1.json, measured 2026-11-21 00:00 UTC" in figure["how"]


# 3,373 / 4.0 = 843 TFLOP/s: below the peak of 989, above the 800 that were measured
FOUR_BITS = {"training_config__fp8_recipe": "nvfp4", "resolved_config__fp8_recipe": "nvfp4"}
IN_FP8 = {"fp8": probed()["rates"]["bf16"]}
FP8 = {"training_config__precision": "fp8", "resolved_config__precision": "fp8"}


@pytest.mark.parametrize(
    ("changes", "measured", "is_rejected"),
    [
        ({"seconds": 4.0}, {}, True),
        ({"seconds": 4.4}, {}, False),
        ({"seconds": 4.0}, {"host": "nvd-2"}, False),  # without the probe nobody could know
        ({"seconds": 4.0} | FP8, {"rates": IN_FP8}, True),
        (
            {"seconds": 4.0} | FP8 | FOUR_BITS,
            {"rates": IN_FP8},
            False,
        ),  # fp8 says nothing of four bits
    ],
)
def test_a_result_above_the_measured_rate_is_rejected_and_its_honest_twin_is_not(
    tmp_path: Path,
    changes: dict[str, Any],
    measured: dict[str, Any],
    is_rejected: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_probe(tmp_path, **measured)
    write(tmp_path, [llama(**changes)])
    validate.main([str(tmp_path)])
    said = " ".join(capsys.readouterr().out.split())
    assert ("of the measured rate, which cannot be" in said) is is_rejected, said


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
    write_probe(tmp_path, **changes)
    rate = load_probes([tmp_path]).rate_of(llama(4.4))
    assert rate.value is None and said in rate.how


def test_of_two_the_nearer_in_time_counts(tmp_path: Path) -> None:
    for days, best in ((3, 700.0), (-1, 810.0)):
        rates = {"bf16": {"best_tflops": best, "sustained_tflops": 600.0, "spread_percent": 1.0}}
        write_probe(tmp_path / "in" / str(days), rates=rates, started_utc=(DAY + timedelta(days=days)).isoformat())
    figure = report(tmp_path, [llama(8.0)]).metrics["share_of_measured_matmul"]
    assert figure["value"] == pytest.approx(100 * 3373.1 / 8.0 / 810.0, rel=0.01)


def test_the_probe_of_an_output_folder_serves_results_of_a_label_in_it(tmp_path: Path) -> None:
    write_probe(tmp_path)
    write(tmp_path / "best", [llama(4.4)])
    assert load_probes([tmp_path / "best"]).rate_of(llama(4.4)).how.startswith("best of probe_nvd_nvd-1.json")


def test_the_ranks_of_a_cpu_share_the_rate_of_the_machine(tmp_path: Path) -> None:
    busy = {"conditions": {"busy_before_percent": 55.0, "other_processes": None}}
    result = run("nvd", 1, 1.0, host="cpu-1", gpu_info__device_name="CPU") | {"platform": "cpu"}
    write_probe(tmp_path / "idle", **CPU)
    assert load_probes([tmp_path / "idle"]).rate_of(result).how.endswith("shared by 8 ranks")
    write_probe(tmp_path / "busy", **CPU, **busy)
    assert "while 55 % of the cores' time went to other work" in load_probes([tmp_path / "busy"]).rate_of(result).how


def rates(**changes: Any) -> dict[str, Any]:
    return {"bf16": {"best_tflops": 2.0, "sustained_tflops": 1.0, "spread_percent": 0} | changes}


BROKEN = {
    "no JSON": "{",
    "another version": json.dumps(probed(probe_version=3)),
    "no host": json.dumps(probed(host="")),
    "a time of another age": json.dumps(probed(started_utc="9999-12-31T00:00:00-12:00")),
    "no time": json.dumps(probed(started_utc="today")),
    "an unknown precision": json.dumps(probed(rates={"int8": {}})),
    "a rate of 0": json.dumps(probed(rates=rates(best_tflops=0.0, sustained_tflops=0.0))),
    "sustained above best": json.dumps(probed(rates=rates(sustained_tflops=3.0))),
    "a text for a rate": json.dumps(probed(rates=rates(best_tflops="800"))),
    "NaN": json.dumps(probed(rates=rates(best_tflops=float("nan")))),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_probe_is_no_rate_and_is_named(tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "probe_nvd_nvd-1.json").write_text(BROKEN[fault])
    found = compared(write(tmp_path, [llama(4.4)]))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert "probe_nvd_nvd-1.json" in line and line.endswith("; the file is not used")
    metric = found["groups"][0]["rows"][0]["metrics"]["share_of_measured_matmul"]
    assert metric["value"] is None and "probe_nvd_nvd-1.json" in metric["how"]


PROFILE = {
    "profile_version": 1,
    "platform": "cpu",
    "framework": "mega",
    "model": "llama",
    "model_size": "tiny",
    "run": 1,
    "host": "example",
    "device_name": "Example CPU",
    "started_utc": "2026-11-21T00:00:00+00:00",
    "settings": {"max_steps": 30, "profile": "none"},
    "steps": [11, 12],
    "ranks": [0, 1],
    "traces": {"0": {"file": "rank0.json.gz", "sha256": "0" * 64}},
    "profiled_step_seconds": [0.5, 0.6],
    "unprofiled_step_seconds": 0.4,
    "reasons": {"rank1": "the disk is full"},
}


def test_a_profile_is_read(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    profile = profile_file.read(path)
    assert profiling.is_profile(path)
    assert (profile.steps, profile.ranks) == ((11, 12), (0, 1))
    assert (profile.profiled_step_seconds, profile.unprofiled_step_seconds) == ((0.5, 0.6), 0.4)
    assert profile.trace_path(0) == tmp_path / "rank0.json.gz" and 1 not in profile.traces
    reasons = PROFILE["reasons"] | {"unprofiled_step_seconds": "no step was measured"}
    without = profile_file.parse(PROFILE | {"unprofiled_step_seconds": None, "reasons": reasons}, None)
    assert without.unprofiled_step_seconds is None, "a missing mean has a reason"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("profile_version", 2),
        ("platform", "tpu"),
        ("run", 0),
        ("host", None),
        ("started_utc", "0001-11-21T00:00:00"),
        ("settings", {}),
        ("steps", [11, 13]),
        ("ranks", [1, 0]),
        ("traces", {"2": {"file": "rank2.json.gz", "sha256": "0" * 64}}),
        ("traces", {"0": {"file": "../rank0.json.gz", "sha256": "0" * 64}}),
        ("traces", {"0": {"file": "rank0.json.gz", "sha256": "x"}}),
        ("traces", {}),
        ("profiled_step_seconds", [0.5]),
        ("profiled_step_seconds", [0.5, 0.0]),
        ("unprofiled_step_seconds", None),
        ("reasons", {"rank1": ""}),
    ],
)
def test_a_value_that_is_none_is_named(key, value):
    with pytest.raises(
        profile_file.ProfileError, match="profile.json: " if key != "profile_version" else "no profile of version 1"
    ):
        profile_file.parse(PROFILE | {key: value}, "profile.json")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"null"])
def test_other_files_are_no_profile(content, tmp_path):
    (tmp_path / "profile.json").write_bytes(content)
    with pytest.raises(profile_file.ProfileError):
        profile_file.read(tmp_path / "profile.json")
