"""Whatever stands in a result, reading it, checking it and comparing it gives a line or a harmless report.

TPRIMAT_FUZZ=full runs every value in every place; by default a fixed part of them runs.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from nasty import NASTY, Place, as_text, changed, no_hang, places, without
from sides import entry, run

from evaluate.checks.entries import Entry, Findings, Loaded, check_result
from evaluate.metrics.measured_rate import Probes, attach
from evaluate.page.page import page
from evaluate.report.comparison import as_json, compare
from evaluate.report.text import markdown, terminal
from evaluate.verdict import pairs
from utils.results import store
from utils.results.schema import OPTIONAL_SECTIONS

IS_FULL = os.environ.get("TPRIMAT_FUZZ") == "full"
PART = 250
"""Number of cases that run by default."""
CONDITIONS = {
    "gpu_tool": "nvidia-smi",
    "gpu_count": 8,
    "power_cap_watts": 700.0,
    "default_power_cap_watts": 700.0,
    "max_sm_clock_mhz": 1980.0,
    "clock_limit_mhz": 1980.0,
    "default_clock_limit_mhz": 1980.0,
    "throttle_after": ["hw_slowdown"],
    "throttled_percent": {"hw_slowdown": 3.0, "power_cap": 50.0},
    "other_processes": 0,
    "busy_before_percent": 1.0,
    "numa_balancing": False,
    "numa_nodes": 2,
}


def full_run(platform: str = "nvd", number: int = 1) -> dict[str, Any]:
    """Return an honest result with a value in each of its sections."""
    result = run(platform, number, model_size="full")
    missing = {key: "not shown" for key in OPTIONAL_SECTIONS["conditions"] if key not in CONDITIONS}
    result["conditions"] = CONDITIONS | {"reasons": missing}
    seconds = sum(result["step_times"])
    tokens = 64 * 128 * len(result["steps"])
    result["energy_metrics"] |= {"joules": 5000 * seconds, "avg_watts": 5000.0, "source": "counter", "interval": "all"}
    result["energy_metrics"]["joules_per_token"] = 5000 * seconds / tokens
    result["provenance"]["hosts"] = ["node0"]
    result["provenance"]["environment"] = {"NCCL_NVLS_ENABLE": "1", "OTHER": "x"}
    return result


HONEST = full_run()
OTHERS = [entry(full_run(platform, number)) for platform in ("nvd", "amd") for number in (1, 2, 3)][1:]
PLACES = list(places(HONEST))
CASES = [(place, value) for place in PLACES for value in NASTY]
PLANTED: list[dict[str, Any]] = [
    {f"{section}__{key}": value for section in ("training_config", "resolved_config") for key, value in one.items()}
    for one in (
        {"pp": 1_000_000, "num_gpus": 8_000_000},
        {"pp": 1024, "num_gpus": 8192},
        {"micro_batch_size": 0, "global_batch_size": 0},
        {"micro_batch_size": -1, "gradient_accumulation": -8},
        {"gradient_accumulation": 10**8, "global_batch_size": 8 * 10**8},
        {"dp": 0, "num_gpus": 0},
        {"max_steps": 10**12},
        {"sequence_length": 10**9},
    )
]
PLANTED += [
    {"energy_metrics__joules": 1e-310, "energy_metrics__joules_per_token": 1e-310},
    {"energy_metrics__joules_per_token": 5e-324, "energy_metrics__joules": None, "energy_metrics__avg_watts": None},
    {"loss_values": [1e-310] * 100},
    {"loss_values": [1e308] * 100},
    {"step_times": [1e-310] * 100},
    {"step_times": [1e-6] * 100},
    {"step_times": [1e6] * 100},
    {"excluded_steps": {"9" * 18: "far"}, "source": "log"},
    {"source": "earlier", "earlier": {"performance_metrics": 5}},
    {"source": "mlperf", "framework": "mlperf"},
    {"probe": {"matmul_tflops": "x", "how": 5}},
    {"platform": "unknown", "gpu_info__device_name": None},
    {"provenance__started_utc": "2026-11-21T00:00:00", "provenance__finished_utc": "2026-11-21T00:00:10+00:00"},
    {"gpu_info__total_memory_gb": 1e-310},
    {"memory_metrics__peak_memory_allocated_gb": 1e308},
]


def chosen() -> list[tuple[Place, Any]]:
    return CASES if IS_FULL else random.Random(15).sample(CASES, PART)


def read(folder: Path, text: str) -> tuple[dict[str, Any] | None, str]:
    """Return the result in a file with this text, or None and the error."""
    path = folder / "train_nvd_mega_llama_run1.json"
    path.write_text(text, encoding="utf8")
    try:
        return store.read(path), ""
    except store.ResultError as error:
        return None, str(error)


def check(folder: Path, content: Any, number: int = 0) -> Findings | None:
    """Read, check, compare and report; return the findings, None if the file is refused. Each line is a short one."""
    result, error = read(folder, as_text(content))
    if result is None:
        assert error.startswith(str(folder)) and len(error.splitlines()) == 1 and len(error) < 8000, error[:200]
        return None
    attach(result, Probes())
    findings = check_result(result)
    for line in (*findings.rejections, *findings.warnings):
        assert line and len(line) < 8000
    report([Entry(folder / "train_nvd_mega_llama_run1.json", result, findings), *OTHERS], number)
    return findings


def report(entries: list[Entry], number: int) -> None:
    """Make the reports of a comparison; case by case, another property differs, and every tenth has a page too."""
    comparison = compare(Loaded(tuple(entries), ()), [Path("output")], list(pairs.BY)[number % len(pairs.BY)])
    json.dumps(as_json(comparison), allow_nan=False)
    markdown(comparison).encode()
    assert terminal(comparison, 100).replace("\n", "").isprintable()
    if number % 10 == 0:
        page(comparison).encode()


def test_the_honest_result_counts(tmp_path: Path) -> None:
    assert check(tmp_path, HONEST) == Findings(warnings=check_result(HONEST).warnings)
    assert all(one.is_counted for one in OTHERS), [one.why_not_counted for one in OTHERS]


def test_a_nasty_value_in_any_place_is_refused_or_harmless(tmp_path: Path) -> None:
    for number, (place, value) in enumerate(chosen()):
        with no_hang():
            try:
                check(tmp_path, changed(HONEST, place, value), number)
            except Exception as error:
                raise AssertionError(f"{place} = {str(value)[:60]!r}") from error


def test_a_key_or_an_element_that_is_missing_is_refused_or_harmless(tmp_path: Path) -> None:
    for number, place in enumerate(PLACES if IS_FULL else random.Random(15).sample(PLACES, 40)):
        with no_hang():
            try:
                check(tmp_path, without(HONEST, place), number)
            except Exception as error:
                raise AssertionError(f"without {place}") from error


@pytest.mark.parametrize("change", PLANTED, ids=lambda change: ", ".join(change))
def test_values_that_fit_one_another_and_no_training_are_refused_or_harmless(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    content = full_run()
    for name, value in change.items():
        section, _, key = name.partition("__")
        if key:
            content[section][key] = value
        else:
            content[section] = value
    with no_hang():
        check(tmp_path, content)


@pytest.mark.parametrize("value", [value for value in NASTY if not isinstance(value, dict)], ids=lambda v: str(v)[:20])
def test_a_file_that_is_another_json_than_a_result_is_refused(tmp_path: Path, value: Any) -> None:
    assert read(tmp_path, as_text(value))[0] is None
