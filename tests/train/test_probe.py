"""The command of the probe on this CPU, and the arithmetic behind its figures."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkout import ROOT
from scipy import stats
from toydata import write_toy_data

from train import probe
from train.probing import bandwidth, collectives, place, rates, whole

CPU = torch.device("cpu")
JOB = (
    "FRAMEWORK=hf",
    "MODEL=llama",
    "SL=64",
    "GBS=8",
    "MBS=2",
    "TRAIN_ITERS=40",
    "WARMUP_ITERS=1",
    "ALLOW_REPEAT=true",
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rates.SIZES, "cpu", (64, 128))
    monkeypatch.setattr(rates, "ROUND_SECONDS", 0.002)
    monkeypatch.setattr(bandwidth, "array_bytes", lambda place: 2**20)
    monkeypatch.setitem(collectives.SIZES, "cpu", (2**20, 2**21))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def measured(output: Path, *settings: str) -> dict[str, Any]:
    """Run the command and return the content of its file."""
    arguments = ("--platform", "cpu", "--seconds", "0.05", *JOB, *settings)
    assert probe.main([*arguments, f"DATA_DIR={output.parent / 'data'}", f"OUTPUT_DIR={output}"]) == 0
    (path,) = output.glob("probe_cpu_*.json")
    return dict(json.loads(path.read_text()))


def test_the_file_of_this_machine(small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = measured(tmp_path / "output", "CPU_RANKS=2", f"DATASET={write_toy_data(tmp_path / 'toy')}")
    printed = capsys.readouterr()
    (path,) = (tmp_path / "output").glob("probe_*")
    assert printed.out.splitlines()[-1] == str(path) and "fp8: not measured: a CPU has no fp8" in printed.err
    assert set(content["rates"]) == {"bf16", "fp32"} and set(content["reasons"]) == {"fp8", "host_to_device"}
    assert content["environment"]["OMP_NUM_THREADS"] == "1"
    for rate in content["rates"].values():
        every = [*rate["rounds"], *(value for one in rate["tried"] for value in one["tflops"])]
        assert rate["best_tflops"] == max(every) and len(rate["rounds"]) >= rates.LEAST_ROUNDS
        assert rate["shape"] in [[64, 64, 64], [128, 128, 128]]
    assert set(content["bandwidth"]) == {"copy", "triad"}
    assert [tuple(one[key] for key in ("name", "bytes", "ranks", "nodes")) for one in content["collectives"]] == [
        (name, size, 2, 1) for name in ("all_reduce", "all_gather", "reduce_scatter") for size in (2**20, 2**21)
    ]
    assert content["loader_samples_per_second"] > 0
    assert not (tmp_path / "data").exists(), "the index of the loader's samples is not left"
    assert {"power_cap_watts", "other_processes", "cpu_governor", "reasons"} <= set(content["conditions"])


def test_one_rank_without_data_has_reasons(small: None, tmp_path: Path) -> None:
    found = measured(tmp_path / "output", "CPU_RANKS=1", "DATASET=synth")
    assert found["collectives"] == [] and "one rank" in found["reasons"]["collectives"]
    assert found["loader_samples_per_second"] is None
    assert "./tprimat data" in found["reasons"]["loader_samples_per_second"]


def test_a_precision_that_the_device_lacks_is_missing_with_its_reason(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = rates.multiplication

    def without_bf16(shape: Any, device: Any, precision: str) -> Any:
        if precision == "bf16":
            raise RuntimeError('"addmm_impl" not implemented for BFloat16\nsecond line')
        return real(shape, device, precision)

    monkeypatch.setattr(rates, "multiplication", without_bf16)
    found = measured(tmp_path / "one", "CPU_RANKS=1")
    assert set(found["rates"]) == {"fp32"}
    assert found["reasons"]["bf16"] == '"addmm_impl" not implemented for BFloat16'
    monkeypatch.setattr(rates, "rate", lambda *anything: without_bf16(None, None, "bf16"))
    assert probe.main(["--platform", "cpu", "--seconds", "0.05", *JOB, f"OUTPUT_DIR={tmp_path / 'none'}"]) == 1
    assert "error: no rate could be measured" in capsys.readouterr().err
    assert list((tmp_path / "none").glob("probe_*")) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--platform", "nvd"],
        ["--platform", "cpu", "NONSENSE=1"],
        ["--platform", "cpu", "OUTPUT_DIR=/proc/nowhere"],
        ["--platform", "cpu", "GBS=63"],
        ["--platform", "cpu", "TP=5"],
    ],
)
def test_bad_input_is_one_line_and_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    assert probe.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


@pytest.mark.parametrize("seconds", ["0", "-1", "601"])
def test_a_time_that_makes_no_sense_is_refused(seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        probe.main(["--platform", "cpu", "--seconds", seconds])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("platform", "name"), [("nvd", "TORCH_NCCL_AVOID_RECORD_STREAMS"), ("amd", "GPU_MAX_HW_QUEUES")]
)
def test_the_probe_measures_with_the_variables_of_a_job(
    platform: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It starts itself anew with those of docs/fair.md that the user has not set, and only once."""
    started: list[dict[str, str]] = []

    def start(python: str, command: list[str], environ: dict[str, str]) -> None:
        started.append(dict(environ))
        raise SystemExit

    def stop(*_: Any) -> None:
        raise probe.HardwareError("it has come this far")

    monkeypatch.setattr(probe.os, "execve", start)
    monkeypatch.setattr(probe, "detect_platform", stop)
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    arguments = ["--platform", platform, "FRAMEWORK=hf", f"OUTPUT_DIR={tmp_path}"]
    with pytest.raises(SystemExit):
        probe.main(arguments)
    assert name in started[0]
    others = {one: value for one, value in started[0].items() if one not in (name, *os.environ)}
    for one, value in others.items():
        monkeypatch.setenv(one, value)
    monkeypatch.setenv(name, "7")
    assert probe.main(arguments) == 2 and len(started) == 1, "what the user has set takes precedence"


def test_a_rate_is_twice_m_n_k_over_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 x 100 x 200 x 300 = 12 MFLOP; at 0.01 s a product that is 1.2 GFLOP/s, whatever the number in a round
    monkeypatch.setattr(rates, "timed", lambda multiply, count, device: 0.01 * count)
    found = rates.rounds(lambda: None, (100, 200, 300), CPU, 0.0)
    assert found == pytest.approx([1.2e-3] * rates.LEAST_ROUNDS)


def test_what_is_multiplied_has_the_shape_and_the_type_that_is_said() -> None:
    for precision, kind in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        product = rates.multiplication((3, 5, 7), CPU, precision)()
        assert (tuple(product.shape), product.dtype) == ((3, 5), kind)


def test_the_time_is_that_of_all_products() -> None:
    done: list[float] = []
    seconds = rates.timed(lambda: (time.sleep(0.01), done.append(0.0)), 5, CPU)
    assert len(done) == 5 and seconds >= 0.05


def test_a_copy_counts_two_arrays_and_a_triad_three(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []

    def in_a_millisecond(self: Any, function: Any) -> float:
        results.append(function())
        return 1e-3

    monkeypatch.setattr(bandwidth, "array_bytes", lambda place: 10**6)
    monkeypatch.setattr(place.Place, "seconds", in_a_millisecond)
    found, reasons = bandwidth.measure(place.Place(CPU), 0.0)
    # 2 and 3 million bytes in a millisecond
    figures = {name: (one["gb_per_second"], one["gb"]) for name, one in found.items()}
    assert figures == {"copy": (2.0, 0.002), "triad": (3.0, 0.003)} and set(reasons) == {"host_to_device"}
    assert torch.equal(results[-1], torch.full((250_000,), 1.5 + 3.0 * 1.5)), "b plus three times c"


@pytest.mark.parametrize(
    ("cache", "free", "wanted"), [(2**30, 2**40, 4 * 2**30), (1, 2**40, 2**26), (2**30, 6 * 2**20, 2**20)]
)
def test_an_array_is_four_times_the_cache_and_fits_into_memory(
    monkeypatch: pytest.MonkeyPatch, cache: int, free: int, wanted: int
) -> None:
    monkeypatch.setattr(place, "cache_bytes", lambda device: cache)
    monkeypatch.setattr(place.Place, "free_bytes", free)
    assert bandwidth.array_bytes(place.Place(CPU)) == wanted


@pytest.mark.parametrize(
    ("caches", "wanted"),
    [
        (((0, 0, 1, "32K", "0"), (0, 3, 3, "32768K", "0-1"), (1, 3, 3, "32768K", "0-1")), 32 * 2**20),
        # two dies with a cache each, of which a process on both may use 64 MiB
        (((0, 3, 3, "32M", "0"), (1, 3, 3, "32M", "1")), 64 * 2**20),
        (((0, 2, 2, "1M", "0"),), 2**20),
        (((0, 3, 3, "many", "0"),), place.UNKNOWN_CACHE_BYTES),
        ((), place.UNKNOWN_CACHE_BYTES),
    ],
)
def test_the_last_level_counts_once_for_all_cores_that_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caches: Any, wanted: int
) -> None:
    for core, index, level, size, shared in caches:  # as sysfs shows them
        folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert place.cache_bytes(CPU, tmp_path) == wanted


@pytest.mark.parametrize(
    ("name", "ranks", "wanted"),
    # nccl-tests, doc/PERFORMANCE.md: all-reduce S/t * 2(n-1)/n, all-gather and reduce-scatter S/t * (n-1)/n
    [("all_reduce", 8, 175.0), ("all_gather", 8, 87.5), ("reduce_scatter", 8, 87.5), ("all_reduce", 2, 100.0)],
)
def test_the_bus_bandwidth_is_that_of_nccl_tests(name: str, ranks: int, wanted: float) -> None:
    assert collectives.bus_gb_per_second(name, 10**9, 0.01, ranks) == pytest.approx(wanted)


@pytest.mark.full("two processes that load torch, about 8 s")
def test_ranks_that_fail_are_a_reason(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(collectives.SIZES, "cpu", ("no size",))
    found = measured(tmp_path / "output", "CPU_RANKS=2")
    assert "the ranks ended with codes" in found["reasons"]["collectives"] and found["rates"]


WORLD = """
import json, sys
from train.probing import collectives
rows = collectives.in_this_world("cpu", [2**20] if collectives.world()[0] == 0 else None, 0.05)
if collectives.world()[0] == 0:
    json.dump(rows, open(sys.argv[1], "w"))
else:
    assert rows == []
"""


@pytest.mark.full("four processes that load torch, about 10 s")
def test_under_torchrun_its_processes_are_the_ranks_of_all_nodes_and_of_one(tmp_path: Path) -> None:
    program, found = tmp_path / "program.py", tmp_path / "rows.json"
    program.write_text(WORLD)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    processes = []
    for rank in range(4):  # two nodes of two ranks each, on this machine
        world = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        environment = common | {name: str(value) for name, value in world.items()}
        processes.append(subprocess.Popen([sys.executable, str(program), str(found)], env=environment, cwd=ROOT))
    assert [process.wait(timeout=120) for process in processes] == [0] * 4
    rows = json.loads(found.read_text())
    assert [(one["name"], one["ranks"], one["nodes"]) for one in rows] == [
        *((name, 4, 2) for name in collectives.NAMES),
        *((name, 2, 1) for name in collectives.NAMES),
    ]


# Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, table A.1: n, and the smaller order
@pytest.mark.parametrize(("count", "wanted"), {6: 1, 8: 1, 9: 2, 15: 4, 20: 6, 30: 10, 50: 18}.items())
def test_the_orders_are_those_of_the_published_table(count: int, wanted: int) -> None:
    assert rates.order(count) == wanted


@pytest.mark.parametrize("count", [17, 100, 401, 3000])
def test_the_interval_covers_95_percent_and_the_next_narrower_one_does_not(count: int) -> None:
    k = rates.order(count)
    covered = 1 - 2 * stats.binom.cdf(k - 1, count, 0.5)
    narrower = 1 - 2 * stats.binom.cdf(k, count, 0.5)
    assert covered >= 0.95 > narrower


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        ([9.0, 1.0, 2.0, 4.0, 3.0, 5.0, 6.0, 8.0, 7.0, 10.0], (5.5, 2.0, 9.0)),
        ([3.0, 1.0, 2.0], (2.0, 1.0, 3.0)),  # of fewer than six samples the interval is their range
        ([2.0], (2.0, 2.0, 2.0)),
    ],
)
def test_median_and_interval_of_samples_by_hand(samples: list[float], wanted: tuple[float, ...]) -> None:
    found = rates.median(samples)
    assert (found.seconds, found.low, found.high) == wanted
    assert found.spread_percent == pytest.approx(100 * (wanted[2] - wanted[1]) / 2 / wanted[0])


CONTENT: dict[str, Any] = {
    "device_name": "Example",
    "rates": {"fp32": {"best_tflops": 4.0, "sustained_tflops": 3.9, "spread_percent": 0.5}},
    "bandwidth": {"copy": {"gb_per_second": 16.0, "spread_percent": 0.2, "gb": 0.27}},
    "loader_samples_per_second": 12345.6,
    "collectives": [
        {"name": "all_reduce", "bytes": 1048576, "ranks": 2, "nodes": 1, "seconds": 1e-3, "bus_gb_per_second": 1.05}
    ],
    "findings": ["impossible"],
}


def test_the_text_holds_every_part_in_figures_by_hand() -> None:
    assert whole.as_text(CONTENT).splitlines() == [
        "fp32: best 4, sustained 3.9 TFLOP/s, spread 0.5 % (Example)",
        "copy: 16 GB/s, +-0.2 % (0.27 GB a pass)",
        "data loader: 12,346 samples/s for one rank",
        "all-reduce of 1.0 MB, 2 ranks on 1 node: 1 ms, bus 1.05 GB/s",
        "finding: impossible",
    ]


@pytest.mark.parametrize(
    ("content", "count"),
    [
        # datasheet of the H100 SXM: 989.4 dense bf16 TFLOP/s, 3.35 TB/s
        ({"rates": {"bf16": {"best_tflops": 800.0}}, "bandwidth": {}}, 0),
        ({"rates": {"bf16": {"best_tflops": 1100.0}}, "bandwidth": {}}, 1),
        ({"rates": {}, "bandwidth": {"copy": {"gb_per_second": 3e3}, "host_to_device": {"gb_per_second": 9e3}}}, 0),
        ({"rates": {}, "bandwidth": {"triad": {"gb_per_second": 3500.0}}}, 1),
    ],
)
def test_no_figure_may_be_above_the_datasheet_of_a_known_device(content: dict[str, Any], count: int) -> None:
    h100 = SimpleNamespace(name="H100", dense_bf16_tflops=989.4, dense_fp8_tflops=1978.9)
    h100.memory_bandwidth_gb_per_second = 3350.0
    assert len(whole.impossible(content, h100)) == count
    assert whole.impossible(content, None) == []
