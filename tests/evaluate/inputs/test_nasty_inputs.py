"""Whatever stands in an MLPerf log, an earlier format, a probe or a price table: one line of an error, or harmless."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nasty import NASTY, as_text, changed, no_hang, places, without
from reports import save
from sides import run

from evaluate import compare, mlperf, validate
from evaluate.metrics.measured_rate import load_probes
from tests.evaluate.inputs.test_earlier import content as earlier_content
from tests.evaluate.test_mlperf import log

PART = 60
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
    for case in random.Random(15).sample(cases, PART):
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
