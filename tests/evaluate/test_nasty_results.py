"""Whatever stands in a result, reading it, checking it and comparing it gives a line or a harmless report."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changes import AMD, NVIDIA, energy, stated
from nasty import NASTY, Place, as_text, changed, no_hang, places, without
from reports import save
from sides import both, run, write

from evaluate import compare, history, mlperf, validate
from evaluate.metrics.measured_rate import load_probes
from example import put
from tests.evaluate.inputs.test_earlier import content as earlier_content
from tests.evaluate.test_mlperf import log

PART, WHOLE = 40, 300
"""Numbers of cases of the quick part and of everything."""
BY = ("platform", "framework", "machine", "nodes", "label")


def full_run(platform: str = "nvd", number: int = 1) -> dict[str, Any]:
    """Return an honest result with a value in each of its sections."""
    result = run(platform, number, model_size="full")
    stated(throttle_after=["hw_slowdown"])(result)
    energy(5000.0, 5000 / 4800, 5000 / 4800)(result)
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


# Whatever stands in an MLPerf log, an earlier format, a probe or a price table: one line of an error, or harmless.

OF_EACH_KIND = 60
"""Number of cases of each kind of input."""
MARK = ":::MLLOG "
PROBE: dict[str, Any] = {
    "probe_version": 2,
    "platform": "nvd",
    "host": "example",
    "device_name": "Example",
    "started_utc": "2026-11-21T00:00:00+00:00",
    "pytorch_version": "2.13.0",
    "total_memory_gb": 80.0,
    "rates": {"bf16": {"best_tflops": 2.0, "sustained_tflops": 1.0, "spread_percent": 0.1}},
    "reasons": {"fp8": "none"},
    "conditions": {"other_processes": 0, "busy_before_percent": 1.0},
    "collectives": [
        {"name": "all_reduce", "bytes": 1048576, "ranks": 2, "nodes": 1, "seconds": 1e-3, "spread_percent": 2.0}
        | {"bus_gb_per_second": 1.05}
    ],
    "bandwidth": {"copy": {"gb_per_second": 20.0, "spread_percent": 0.5, "gb": 0.27}},
    "loader_samples_per_second": 9000.0,
    "findings": ["impossible"],
    "machine": {"pytorch_version": "2.13.0", "threads": 2},
}
PRICES = {"currency": "USD", "prices": {"AMD Instinct MI300X": {"price": 2.0, "date": "2026-05-18", "source": "s"}}}
SYSTEM = {"number_of_nodes": "1", "accelerators_per_node": 8, "accelerator_model_name": "AMD Instinct MI300X"}
HONEST_LOG = log(100.0, tracked={"throughput": 2.6})
EVENTS = [json.loads(line.partition(MARK)[2]) for line in HONEST_LOG.splitlines()]
ONE_OF_EACH = [number for number, one in enumerate(EVENTS) if one["key"] not in [e["key"] for e in EVENTS[:number]]]
Read = Callable[[Path, Any], int]


def of_mlperf(folder: Path, description: str, lines: str) -> int:
    """Read a system of two runs, of which the second has these lines: as logs of MLPerf, and as results."""
    logs = folder / "s" / "one" / "llama31_8b"
    logs.mkdir(parents=True, exist_ok=True)
    (logs.parent / "system.json").write_text(description)
    (logs / "result_0.txt").write_text(HONEST_LOG)
    (logs / "result_1.txt").write_text(lines)
    assert validate.main([str(folder)]) in (0, 1, 2)
    return mlperf.main([str(folder)])


def of_earlier(folder: Path, content: Any) -> int:
    (folder / "benchmark_cuda_llama.json").write_text(as_text(content))
    return validate.main([str(folder)])


def of_probe(folder: Path, content: Any) -> int:
    (folder / "probe_nvd_example.json").write_text(as_text(content))
    return int(bool(load_probes([folder]).errors))


def of_prices(folder: Path, content: Any) -> int:
    if not (folder / "in").exists():
        save(folder / "in", run("amd", 1))
    (folder / "prices.json").write_text(as_text(content))
    options = ["--output", str(folder / "out"), "--format", "json", "--prices", str(folder / "prices.json")]
    return compare.main([str(folder / "in"), *options])


def everywhere(honest: Any) -> tuple[Any, list[Any], list[Any]]:
    """Return an input, the places in it, and inputs that are another JSON as a whole."""
    return honest, list(places(honest)), [value for value in NASTY if not value]


IN_LINES = [(number, *place) for number in ONE_OF_EACH for place in ((), *places(EVENTS[number]))]
KINDS: dict[str, tuple[Read, tuple[Any, list[Any], list[Any]]]] = {
    "a system of MLPerf": (
        lambda folder, content: of_mlperf(folder, as_text(content), log(100.2, tracked={"throughput": 2.6})),
        everywhere(SYSTEM),
    ),
    "lines of MLPerf": (
        lambda folder, content: of_mlperf(
            folder, as_text(SYSTEM), "".join(f"{MARK}{as_text(one)}\n" for one in content)
        ),
        (EVENTS, IN_LINES, []),
    ),
    "an earlier format": (of_earlier, everywhere(earlier_content())),
    "a probe": (of_probe, everywhere(PROBE)),
    "prices": (of_prices, everywhere(PRICES)),
}


@pytest.mark.full("60 nasty values in each of five kinds of input, about 50 s")
@pytest.mark.parametrize("kind", KINDS)
def test_a_nasty_value_in_any_place_is_an_error_of_the_reader_or_harmless(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    read, (honest, inside, others) = KINDS[kind]
    read(tmp_path, honest)
    cases = [changed(honest, place, value) for place in inside for value in NASTY]
    cases += [without(honest, place) for place in inside] + others
    unexpected = []
    for case in random.Random(15).sample(cases, OF_EACH_KIND):
        with no_hang():
            try:
                code = read(tmp_path, case)
            except Exception as error:  # noqa: BLE001 - any of them is a finding
                unexpected.append((as_text(case)[:500], repr(error)[:500]))
            else:
                shown = capsys.readouterr().err
                lines = [line for line in shown.splitlines() if line.startswith("error: ")]
                assert code in (0, 1, 2, 3) and "Traceback" not in shown, shown
                assert all(len(line) < 3000 for line in lines), as_text(case)[:3000]
    assert unexpected == []


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        *((f":::MLLOG {text}", True) for text in ("{}", "[1]", "{", "5", "[" * 100_000)),
        (":::MLLOG", False),  # without a space behind it, it is no line of an event
    ],
)
def test_a_line_of_mlperf_without_a_key_is_named_with_its_number(
    tmp_path: Path, line: str, is_refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    of_mlperf(tmp_path, as_text(SYSTEM), f"{line}\n{log(100.2, tracked={'throughput': 2.6})}")
    assert ("result_1.txt:1: " in capsys.readouterr().err) is is_refused


def test_as_many_steps_as_no_run_has_are_an_error_and_no_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = log(1e9, tracked={"throughput": 1e3}, samples=4 * 10**12).replace('"step": 1024', '"step": 4000000000000')
    for lines in (HONEST_LOG.replace('"samples_count": 1024', '"samples_count": 1e300'), many):
        with no_hang():
            assert of_mlperf(tmp_path, as_text(SYSTEM), lines) in (1, 2)
        assert "result_1.txt" in capsys.readouterr().err
