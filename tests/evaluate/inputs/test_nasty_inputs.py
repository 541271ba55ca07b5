"""Whatever stands in an MLPerf log, an earlier format, a probe or a price table: an error of its reader or a result.

TPRIMAT_FUZZ=full runs every value in every place; by default a fixed part of them runs.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nasty import NASTY, as_text, changed, no_hang, places, without

from evaluate import mlperf
from evaluate.checks.entries import check_result
from evaluate.inputs import earlier, mlperf_logs
from evaluate.inputs.mlperf_run import MARK, MlperfLogError
from evaluate.metrics import prices
from evaluate.metrics.measured_rate import Probes, attach
from evaluate.metrics.prices import PriceError
from tests.evaluate.inputs.test_earlier import content as earlier_content
from tests.evaluate.test_mlperf import log
from tests.utils.results.test_probe_file import WHOLE as PROBE_WITH_OPERATORS
from utils.results import probe_file, store
from utils.results.probe_file import ProbeError

IS_FULL = os.environ.get("TPRIMAT_FUZZ") == "full"
PART = 60
"""Number of cases of each kind of input that run by default."""
Read = Callable[[Path, str], None]
PROBE: dict[str, Any] = {
    "probe_version": 1,
    "platform": "nvd",
    "host": "example",
    "device_name": "Example",
    "started_utc": "2026-11-21T00:00:00+00:00",
    "pytorch_version": "2.13.0",
    "total_memory_gb": 80.0,
    "rates": {"bf16": {"best_tflops": 2.0, "sustained_tflops": 1.0, "spread_percent": 0.1}},
    "reasons": {"fp8": "none"},
    "conditions": {"other_processes": 0, "busy_before_percent": 1.0},
}
PRICES = {"currency": "USD", "prices": {"AMD Instinct MI300X": {"price": 2.0, "date": "2026-05-18", "source": "s"}}}
SYSTEM = {"number_of_nodes": "1", "accelerators_per_node": 8, "accelerator_model_name": "AMD Instinct MI300X"}
EVENTS = [json.loads(line.partition(MARK.decode())[2]) for line in log(100.0, tracked={"throughput": 2.6}).splitlines()]

ONE_OF_EACH = [number for number, one in enumerate(EVENTS) if one["key"] not in [e["key"] for e in EVENTS[:number]]]


def of_mlperf(folder: Path, description: str, lines: str) -> None:
    """Read a system of two runs, of which the second has these lines; it is shown, judged and checked."""
    logs = folder / "s" / "one" / "llama31_8b"
    logs.mkdir(parents=True, exist_ok=True)
    (logs.parent / "system.json").write_text(description)
    (logs / "result_0.txt").write_text(log(100.0, tracked={"throughput": 2.6}))
    (logs / "result_1.txt").write_text(lines)
    try:
        systems = mlperf_logs.load(folder)
        json.dumps([mlperf._as_json(one) for one in systems] + mlperf.verdicts(systems), allow_nan=False)
    except MlperfLogError as error:
        is_short(error, folder)
    found, unreadable = mlperf_logs.results_of([folder])
    assert found or unreadable
    for _, result in found:
        attach(result, Probes())
        check_result(result)


def of_system(folder: Path, text: str) -> None:
    of_mlperf(folder, text, log(100.2, tracked={"throughput": 2.6}))


def of_earlier(folder: Path, text: str) -> None:
    path = folder / "benchmark_cuda_llama.json"
    path.write_text(text)
    try:
        result = earlier.read(path)
    except store.ResultError as error:
        is_short(error, folder)
        return
    earlier.number_runs([(path, result)])
    attach(result, Probes())
    check_result(result)


def of_probe(folder: Path, text: str) -> None:
    path = folder / "probe_nvd_example.json"
    path.write_text(text)
    try:
        probe_file.read(path)
    except ProbeError as error:
        is_short(error, folder)


def of_prices(folder: Path, text: str) -> None:
    path = folder / "prices.json"
    path.write_text(text)
    try:
        json.dumps(prices.as_json(prices.load(path)), allow_nan=False)
    except PriceError as error:
        is_short(error, folder)


def is_short(error: Exception, folder: Path) -> None:
    assert str(folder) in str(error) and len(str(error).splitlines()) == 1 and len(str(error)) < 3000, error


KINDS: dict[str, tuple[Any, Read]] = {
    "a system of MLPerf": (SYSTEM, of_system),
    "an earlier format": (earlier_content(), of_earlier),
    "a probe": (PROBE, of_probe),
    "a probe with operators": (PROBE_WITH_OPERATORS, of_probe),
    "prices": (PRICES, of_prices),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_nasty_value_in_any_place_is_an_error_of_the_reader_or_harmless(tmp_path: Path, kind: str) -> None:
    honest, read = KINDS[kind]
    read(tmp_path, as_text(honest))
    everywhere = list(places(honest))
    cases = [changed(honest, place, value) for place in everywhere for value in NASTY]
    cases += [without(honest, place) for place in everywhere] + [value for value in NASTY if not value]
    unexpected = []
    for case in cases if IS_FULL else random.Random(15).sample(cases, PART):
        with no_hang():
            try:
                read(tmp_path, as_text(case))  # asserts that the reader's own errors are one short line
            except Exception as error:  # noqa: BLE001 - any of them is a finding
                unexpected.append((as_text(case)[:500], repr(error)[:500]))
    assert unexpected == []


def test_a_nasty_line_of_mlperf_is_an_error_of_the_reader_or_harmless(tmp_path: Path) -> None:
    inside = [(number, *place) for number in ONE_OF_EACH for place in ((), *places(EVENTS[number]))]
    cases = [changed(EVENTS, place, value) for place in inside for value in NASTY]
    cases += [without(EVENTS, place) for place in inside]
    for case in cases if IS_FULL else random.Random(15).sample(cases, PART):
        lines = "".join(f":::MLLOG {as_text(one)}\n" for one in case)
        with no_hang():
            try:
                of_mlperf(tmp_path, as_text(SYSTEM), lines)
            except Exception as error:
                raise AssertionError(lines[:3000]) from error


@pytest.mark.parametrize(
    "line", [":::MLLOG {}", ":::MLLOG [1]", ":::MLLOG", ":::MLLOG {", ":::MLLOG 5", ":::MLLOG " + "[" * 100_000]
)
def test_a_line_of_mlperf_without_a_key_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    of_mlperf(tmp_path, as_text(SYSTEM), log(100.2, tracked={"throughput": 2.6}))
    path = tmp_path / "s" / "one" / "llama31_8b" / "result_1.txt"
    path.write_text(f"{line}\n{path.read_text()}")
    if line == ":::MLLOG":  # without a space behind it, it is no line of an event
        assert len(mlperf_logs.load(tmp_path)) == 1
        return
    with pytest.raises(MlperfLogError, match="result_1.txt:1: "):
        mlperf_logs.load(tmp_path)


def test_as_many_steps_as_no_run_has_are_an_error_and_no_wait(tmp_path: Path) -> None:
    lines = log(100.0, tracked={"throughput": 2.6}).replace('"samples_count": 1024', '"samples_count": 1e300')
    of_mlperf(tmp_path, as_text(SYSTEM), lines)
    many = log(1e9, tracked={"throughput": 1e3}, samples=4 * 10**12).replace('"step": 1024', '"step": 4000000000000')
    with no_hang():
        of_mlperf(tmp_path, as_text(SYSTEM), many)
    with pytest.raises(MlperfLogError, match="result_1.txt"):
        mlperf_logs.load(tmp_path)
