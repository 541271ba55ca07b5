"""Whatever stands in a result, reading it, checking it and comparing it gives a line or a harmless report."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from changes import AMD, NVIDIA, stated
from nasty import NASTY, Place, as_text, changed, no_hang, places, without
from sides import both, run, write

from evaluate import compare, history, validate
from example import put

PART, WHOLE = 40, 300
"""Numbers of cases of the quick part and of everything."""
BY = ("platform", "framework", "machine", "nodes", "label")


def full_run(platform: str = "nvd", number: int = 1) -> dict[str, Any]:
    """Return an honest result with a value in each of its sections."""
    result = run(platform, number, model_size="full")
    stated(throttle_after=["hw_slowdown"])(result)
    seconds = sum(result["step_times"])
    known = {"joules": 5000 * seconds, "avg_watts": 5000.0, "joules_per_token": 5000 * seconds / (64 * 128 * 100)}
    result["energy_metrics"] |= known | {"source": "counter", "interval": "all"}
    result["provenance"] |= {"hosts": ["node0"], "environment": {"NCCL_NVLS_ENABLE": "1", "OTHER": "x"}}
    return result


HONEST = full_run()
OTHERS = [full_run(platform, number) for platform in ("nvd", "amd") for number in (1, 2, 3)][1:]
CASES: list[tuple[Place, Any]] = [(place, value) for place in places(HONEST) for value in NASTY]
PLANTED: list[dict[str, Any]] = [
    *(
        both(**change)
        for change in (
            {"pp": 1_000_000, "num_gpus": 8_000_000},
            {"pp": 1024, "num_gpus": 8192},
            {"micro_batch_size": 0, "global_batch_size": 0},
            {"micro_batch_size": -1, "gradient_accumulation": -8},
            {"gradient_accumulation": 10**8, "global_batch_size": 8 * 10**8},
            {"dp": 0, "num_gpus": 0},
            {"max_steps": 10**12},
            {"sequence_length": 10**9},
        )
    ),
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
    {"provenance__started_utc": "9999-12-31T23:59:59-12:00"},
    {"provenance__finished_utc": "0001-01-01T00:00:00+12:00"},
    {"gpu_info__total_memory_gb": 1e-310},
    {"memory_metrics__peak_memory_allocated_gb": 1e308},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("results"), OTHERS)


def judged(folder: Path, content: Any, number: int = 0) -> tuple[int, dict[str, Any]]:
    """Check and compare a result beside honest ones; return the exit code of the check and the compare.json.

    Case by case another property differs, and every tenth has pages too, and a history.
    """
    (folder / "train_999.json").write_text(as_text(content), encoding="utf8")
    formats = "json,md,html" if number % 10 == 0 else "json,md"
    with no_hang():
        code = validate.main([str(folder)])
        compared = compare.main([str(folder), "--format", formats, "--by", BY[number % len(BY)]])
        if number % 10 == 0:
            assert history.main([str(folder), "--output", str(folder)]) in (0, 1, 3)
    assert code in (0, 1) and compared in (0, 1, compare.NOTHING_COMPARABLE)
    return code, json.loads((folder / "compare.json").read_text(), parse_constant=pytest.fail)


def is_harmless(folder: Path, content: Any, number: int, capsys: pytest.CaptureFixture[str], what: str) -> None:
    try:
        _, found = judged(folder, content, number)
    except Exception as error:
        raise AssertionError(what) from error
    shown = capsys.readouterr()
    assert shown.out.replace("\n", "").isprintable(), what
    assert all(len(one["reason"].splitlines()) == 1 and len(one["reason"]) < 8000 for one in found["unreadable"]), what
    (folder / "compare.md").read_text(encoding="utf8")


def test_the_honest_results_count(folder: Path) -> None:
    code, found = judged(folder, HONEST)
    assert code == 0 and found["verdicts"][0]["runs"] == [3, 3]
    assert {*NVIDIA} == {*AMD} - {"performance_level"}


@pytest.mark.parametrize(
    "count", [PART, pytest.param(WHOLE, marks=pytest.mark.full("300 cases of nasty values, about 60 s"))]
)
def test_a_nasty_value_or_a_missing_one_in_any_place_is_refused_or_harmless(
    folder: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    draw = random.Random(15)
    for number, (place, value) in enumerate(draw.sample(CASES, count)):
        is_harmless(folder, changed(HONEST, place, value), number, capsys, f"{place} = {str(value)[:60]!r}")
    for number, place in enumerate(draw.sample(list(places(HONEST)), count // 6)):
        is_harmless(folder, without(HONEST, place), number, capsys, f"without {place}")


@pytest.mark.parametrize("change", PLANTED, ids=lambda change: ", ".join(change))
def test_values_that_fit_one_another_and_no_training_are_refused_or_harmless(
    folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    is_harmless(folder, put(full_run(), change), 0, capsys, str(change))


@pytest.mark.parametrize("value", [value for value in NASTY if not isinstance(value, dict)], ids=lambda v: str(v)[:20])
def test_a_file_that_is_another_json_than_a_result_is_refused(tmp_path: Path, value: Any) -> None:
    (tmp_path / "train_999.json").write_text(as_text(value))
    assert validate.main([str(tmp_path)]) == 1
