"""The command of the probe on this CPU, and the arithmetic behind its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from checkout import ROOT

from tests.support.launching import free_port
from train import probe
from train.probing import collectives, rates, report

CPU = torch.device("cpu")
JOB = [
    "FRAMEWORK=hf",
    "MODEL=llama",
    "SL=64",
    "GBS=8",
    "MBS=2",
    "TRAIN_ITERS=40",
    "WARMUP_ITERS=1",
    "ALLOW_REPEAT=true",
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rates.SIZES, "cpu", (64, 128))
    monkeypatch.setitem(rates.ATTENTION, "cpu", (1, 2, 64, 16))
    monkeypatch.setattr(rates, "array_bytes", lambda device: 2**20)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def measured(output: Path, *settings: str) -> dict[str, Any]:
    """Run the command and return the content of its file."""
    arguments = ("--platform", "cpu", "--seconds", "0.05", *JOB, *settings)
    assert probe.main([*arguments, f"DATA_DIR={output.parent / 'data'}", f"OUTPUT_DIR={output}"]) == 0
    (path,) = output.glob("probe_cpu_*.json")
    return dict(json.loads(path.read_text()))


def test_the_file_of_this_machine(small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = measured(tmp_path / "output", "CPU_RANKS=2", "DATASET=synth")
    printed = capsys.readouterr()
    (path,) = (tmp_path / "output").glob("probe_*")
    assert printed.out.splitlines()[-1] == str(path) and "fp8: not measured: a CPU has no fp8" in printed.err
    assert set(content["rates"]) == {"bf16", "fp32"} and set(content["reasons"]) == {"fp8", "host_to_device"}
    assert content["environment"]["OMP_NUM_THREADS"] == "1"
    for rate in content["rates"].values():
        every = [*rate["rounds"], *(value for one in rate["tried"] for value in one["tflops"])]
        assert rate["best_tflops"] == max(every) and len(rate["rounds"]) >= rates.LEAST_BLOCKS
        assert rate["shape"] in [[64, 64, 64], [128, 128, 128]]
    assert set(content["bandwidth"]) == {"copy", "triad"}
    assert [tuple(one[key] for key in ("name", "bytes", "ranks", "nodes")) for one in content["collectives"]] == [
        (name, size, 2, 1)
        for name in ("all_reduce", "all_gather", "reduce_scatter")
        for size in (2**20, 2**22, 2**24, 2**26)
    ]
    assert content["attention"]["tflops"] > 0 and content["attention"]["shape"] == [1, 2, 64, 16]
    assert {"power_cap_watts", "other_processes", "cpu_governor", "reasons"} <= set(content["conditions"])


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
    assert found["collectives"] == [] and "one rank" in found["reasons"]["collectives"]
    monkeypatch.setattr(rates, "rate", lambda *anything: without_bf16(None, None, "bf16"))
    assert (
        probe.main(["--platform", "cpu", "--seconds", "0.05", *JOB, "CPU_RANKS=1", f"OUTPUT_DIR={tmp_path / 'none'}"])
        == 1
    )
    assert "error: no rate could be measured" in capsys.readouterr().err
    assert list((tmp_path / "none").glob("probe_*")) == []


@pytest.mark.parametrize(("platform", "name"), [("nvd", "PYTORCH_CUDA_ALLOC_CONF"), ("amd", "GPU_MAX_HW_QUEUES")])
def test_the_probe_measures_with_the_variables_of_a_job(
    platform: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It starts itself anew with those of docs/fair.md that the user has not set, and only once."""
    start = Mock(side_effect=SystemExit)
    monkeypatch.setattr(probe.os, "execve", start)
    monkeypatch.setattr(probe, "detect_platform", Mock(side_effect=probe.HardwareError("it has come this far")))
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    arguments = ["--platform", platform, "FRAMEWORK=hf", f"OUTPUT_DIR={tmp_path}"]
    with pytest.raises(SystemExit):
        probe.main(arguments)
    environ = start.call_args.args[2]
    assert name in environ
    for one in environ.keys() - os.environ.keys():
        monkeypatch.setenv(one, environ[one])
    monkeypatch.setenv(name, "7")
    assert probe.main(arguments) == 2 and start.call_count == 1, "what the user has set takes precedence"


def test_a_rate_is_twice_m_n_k_over_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 x 100 x 200 x 300 = 12 MFLOP; at 0.01 s a product that is 1.2 GFLOP/s
    monkeypatch.setattr(rates, "measured", lambda multiply, seconds: [0.01, 0.02])
    assert rates.rounds(CPU, "fp32", (100, 200, 300), 0.0) == pytest.approx([1.2e-3, 0.6e-3])


def test_causal_attention_counts_half_of_two_products(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1 x 2 heads, 64 x 64 tokens, width 16: two products of 2 x 64 x 64 x 16 a head, half of them: 262,144 FLOP
    monkeypatch.setitem(rates.ATTENTION, "cpu", (1, 2, 64, 16))
    monkeypatch.setattr(rates, "measured", lambda call, seconds: [0.99e-6, 1e-6, 1.01e-6])
    assert rates.attention(CPU, 0.0) == {"tflops": 0.2621, "spread_percent": 1.0, "shape": [1, 2, 64, 16]}


def test_what_is_multiplied_has_the_shape_and_the_type_that_is_said() -> None:
    for precision, kind in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        product = rates.multiplication((3, 5, 7), CPU, precision)()
        assert (tuple(product.shape), product.dtype) == ((3, 5), kind)


def test_a_copy_counts_two_arrays_and_a_triad_three(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Any] = []
    monkeypatch.setattr(rates, "array_bytes", lambda device: 10**6)
    monkeypatch.setattr(rates, "measured", lambda function, _: results.append(function()) or [1e-3, 1e-3])
    found = {name: rates.bandwidth(CPU, name, 0.0) for name in ("copy", "triad")}
    # 2 and 3 million bytes in a millisecond
    figures = {name: (one["gb_per_second"], one["gb"]) for name, one in found.items()}
    assert figures == {"copy": (2.0, 0.002), "triad": (3.0, 0.003)}
    with pytest.raises(NotImplementedError):
        rates.bandwidth(CPU, "host_to_device", 0.0)
    assert torch.equal(results[-1], torch.full((250_000,), 1.5 + 3.0 * 1.5)), "b plus three times c"


@pytest.mark.parametrize(("free", "wanted"), [(2**40, 4 * 2**30), (6 * 2**20, 2**20)])
def test_an_array_is_four_times_the_largest_cache_and_fits_into_memory(
    monkeypatch: pytest.MonkeyPatch, free: int, wanted: int
) -> None:
    monkeypatch.setattr(rates.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    assert rates.array_bytes(CPU) == wanted


@pytest.mark.parametrize(
    ("name", "ranks", "wanted"),
    # nccl-tests, doc/PERFORMANCE.md: all-reduce S/t * 2(n-1)/n, all-gather and reduce-scatter S/t * (n-1)/n
    [("all_reduce", 8, 175.0), ("all_gather", 8, 87.5), ("reduce_scatter", 8, 87.5), ("all_reduce", 2, 100.0)],
)
def test_the_bus_bandwidth_is_that_of_nccl_tests(name: str, ranks: int, wanted: float) -> None:
    assert collectives.bus_gb_per_second(name, 10**9, 0.01, ranks) == pytest.approx(wanted)


@pytest.mark.full("two processes that load torch, about 8 s")
def test_ranks_that_fail_are_a_reason(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no such interface")
    found = measured(tmp_path / "output", "CPU_RANKS=2")
    assert "torchrun ended with exit code 1" in found["reasons"]["collectives"] and found["rates"]


WORLD = """
import json, sys
from train.probing import collectives
collectives.SIZES["cpu"] = (2**20,)
rows = collectives.in_this_world("cpu", 0.05 if collectives.world()[0] == 0 else 600.0)
if collectives.world()[0] == 0:
    json.dump(rows, open(sys.argv[1], "w"))
else:
    assert rows == []
"""


@pytest.mark.full("four processes that load torch, about 10 s")
def test_under_torchrun_its_processes_are_the_ranks_of_all_nodes_and_of_one(tmp_path: Path) -> None:
    program, found = tmp_path / "program.py", tmp_path / "rows.json"
    program.write_text(WORLD)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common = os.environ | where | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    processes = []
    for rank in range(4):  # two nodes of two ranks each, on this machine
        world = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2}
        environment = common | {name: str(value) for name, value in world.items()}
        processes.append(subprocess.Popen([sys.executable, str(program), str(found)], env=environment, cwd=ROOT))
    assert [process.wait(timeout=600) for process in processes] == [0] * 4
    rows = json.loads(found.read_text())
    assert [(one["name"], one["ranks"], one["nodes"]) for one in rows] == [
        *((name, 4, 2) for name in collectives.OPERATIONS),
        *((name, 2, 1) for name in collectives.OPERATIONS),
    ]


def test_the_spread_is_half_of_the_middle_half_by_hand() -> None:
    # quartiles of 1 to 7: 2, 4 and 6
    assert rates.spread_percent([7.0, 1.0, 2.0, 6.0, 3.0, 5.0, 4.0]) == 50.0


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
    assert len(report.impossible(content, h100)) == count
    assert report.impossible(content, None) == []
