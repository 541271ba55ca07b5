"""The command of the probe, on this CPU; evaluate finds its file, wrap packs it and purge removes it."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from train import probe
from train.machine import conditions
from train.probing import bandwidth, rates, whole
from train.probing.whole import Plan
from train.settings_map import map as frameworks
from utils.housekeeping import archive, purge
from utils.kinds import KINDS
from utils.results import probe_file
from utils.results.schema import OPTIONAL_SECTIONS
from utils.settings.config import load


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rates.SIZES, "cpu", (64, 128))
    monkeypatch.setattr(rates, "ROUND_SECONDS", 0.002)
    monkeypatch.setattr(bandwidth, "array_bytes", lambda place: 2**20)


def test_a_rate_is_twice_m_n_k_over_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 x 100 x 200 x 300 = 12 MFLOP; at 0.01 s a product that is 1.2 GFLOP/s, whatever the number in a round
    monkeypatch.setattr(rates, "timed", lambda multiply, count, device: 0.01 * count)
    found = rates.rounds(lambda: None, (100, 200, 300), torch.device("cpu"), 0.0)
    assert found == pytest.approx([1.2e-3] * rates.LEAST_ROUNDS)


def test_what_is_multiplied_has_the_shape_and_the_type_that_is_said() -> None:
    for precision, kind in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        product = rates.multiplication((3, 5, 7), torch.device("cpu"), precision)()
        assert (tuple(product.shape), product.dtype) == ((3, 5), kind)


def test_the_time_is_that_of_all_products() -> None:
    done: list[float] = []
    seconds = rates.timed(lambda: (time.sleep(0.01), done.append(0.0)), 5, torch.device("cpu"))
    assert len(done) == 5 and seconds >= 0.05


def test_the_file_of_this_machine(
    small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert probe.main(["--platform", "cpu", "--seconds", "0.1", "--operators", "none", f"OUTPUT_DIR={output}"]) == 0
    printed = capsys.readouterr()
    (path,) = output.glob("probe_cpu_*.json")
    assert printed.out.splitlines()[-1] == str(path) and "fp8: not measured: a CPU has no fp8" in printed.err
    found = probe_file.read(path)
    assert set(found.rates) == {"bf16", "fp32"} and set(found.reasons) >= {"fp8", "operators"}
    content = json.loads(path.read_text())
    assert content["environment"]["OMP_NUM_THREADS"] == "1"
    for rate in content["rates"].values():
        every = [*rate["rounds"], *(value for one in rate["tried"] for value in one["tflops"])]
        assert rate["best_tflops"] == max(every) and len(rate["rounds"]) >= rates.LEAST_ROUNDS
        assert rate["shape"] in [[64, 64, 64], [128, 128, 128]]
    assert set(content["conditions"]) == {*OPTIONAL_SECTIONS["conditions"], "reasons"}
    _is_packed_and_removed(output, path)


def _is_packed_and_removed(output: Path, path: Path) -> None:
    other = output / "probe_cpu_other.json"  # a name of ours, and no probe
    other.write_text("{}")
    written, packed = archive.write(output, {})
    assert path.name in packed and other.name not in packed
    with zipfile.ZipFile(written) as content:
        assert any(name.endswith(path.name) for name in content.namelist())
    assert purge.main(["--platform", "cpu", f"OUTPUT_DIR={output}", f"DATA_DIR={output.parent / 'data'}"]) == 0
    assert not path.exists() and other.exists()


def test_a_precision_that_the_device_lacks_is_missing_with_its_reason(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = rates.multiplication

    def without_bf16(shape: Any, device: Any, precision: str) -> Any:
        if precision == "bf16":
            raise RuntimeError('"addmm_impl" not implemented for BFloat16\nsecond line')
        return real(shape, device, precision)

    monkeypatch.setattr(rates, "multiplication", without_bf16)
    content = whole.measure("cpu", 0.05, Plan(None, (), (), {}), conditions.take_snapshot("cpu"))
    assert set(content["rates"]) == {"fp32"}
    assert content["reasons"]["bf16"] == '"addmm_impl" not implemented for BFloat16'
    monkeypatch.setattr(rates, "rate", lambda *anything: without_bf16(None, None, "bf16"))
    assert probe.main(["--platform", "cpu", "--operators", "none", f"OUTPUT_DIR={tmp_path}"]) == 1
    assert "error: no rate could be measured" in capsys.readouterr().err
    assert list(tmp_path.glob("probe_*")) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--platform", "nvd"],
        ["--platform", "cpu", "NONSENSE=1"],
        ["--platform", "cpu", "OUTPUT_DIR=/proc/nowhere"],
        ["--platform", "cpu", "GBS=63"],
        ["--platform", "cpu", "--operators", "all", "TP=5"],
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


@pytest.mark.parametrize("seconds", ["0", "-1", "601", "x"])
def test_a_time_that_makes_no_sense_is_refused(seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        probe.main(["--platform", "cpu", "--seconds", seconds])
    assert ended.value.code == 2


@pytest.mark.parametrize("option", [("--framework", "titan"), ("--model", "lama"), ("--operators", "some")])
def test_a_job_that_cannot_be_rehearsed_is_refused(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        probe.main(["--platform", "cpu", *option])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and option[1] in said and "wanted" in said


def test_operators_of_a_real_job_are_measured_on_this_machine(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sizes = ("CPU_RANKS=1", "SL=64", "GBS=4", "MBS=2", f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path}")
    arguments = ("--seconds", "0.05", "--framework", "hf", "--model", "llama", *sizes)
    assert probe.main(["--platform", "cpu", *arguments]) == 0
    printed = capsys.readouterr()
    (path,) = tmp_path.glob("probe_cpu_*.json")
    found = probe_file.read(path)
    (job,) = found.jobs
    assert (job.framework, job.model, job.model_size, job.ranks, job.threads) == ("hf", "llama", "tiny", 1, 1)
    assert job.settings["sequence_length"] == 64 and len(job.calls) == len(found.operators)
    step = {kind: 0.0 for kind in KINDS}
    for place, count in job.calls:
        step[found.operators[place].kind] += count * found.operators[place].least_seconds
    assert step["matmul"] > 0 and step["attention"] > 0 and step["optimizer"] > 0 and step["memory_bound"] > 0
    ran = sum(
        count * one.least_seconds for place, count in job.calls if (one := found.operators[place]).method == "replayed"
    )
    assert ran > 0.95 * sum(step.values()), "most of the step is run, not estimated by copies"
    flops = sum(count * found.operators[place].flops for place, count in job.calls)
    spec = load("cpu", arguments=[*sizes, "FRAMEWORK=hf", "MODEL=llama"], environ={}).spec("llama")
    # forward and backward are three times the forward products, and attention computes its scores again
    assert flops / (4 * 64) == pytest.approx(spec.flops_per_token(64, causal=False), rel=0.05)
    assert found.bandwidth["copy"].gb_per_second > 0 and found.collectives == ()
    assert "one rank" in found.reasons["collectives"] and "./tprimat data" in found.reasons["loader_samples_per_second"]
    assert "hf llama (tiny), one of 1 rank, 1 thread" in printed.out and printed.out.splitlines()[-1] == str(path)


@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_the_probe_measures_with_the_variables_of_a_job(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, str] = {}
    config = load(platform, 8, environ={})
    job = frameworks.environment("hf", config, config.spec("llama"))
    name = {"nvd": "TORCH_NCCL_AVOID_RECORD_STREAMS", "amd": "GPU_MAX_HW_QUEUES"}[platform]
    assert name in job
    for one in job:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, "7")
    monkeypatch.setattr(probe.matrix, "resolve", lambda *_: (config, {}))

    def start(python: str, command: list[str], environ: dict[str, str]) -> None:
        started.update(environ)
        raise SystemExit

    monkeypatch.setattr(probe.os, "execve", start)
    arguments = ["--platform", platform, "--framework", "hf"]
    with pytest.raises(SystemExit):
        probe.main(arguments)
    assert {one: started[one] for one in job} == job | {name: "7"}, "what the user has set takes precedence"
    for one, value in started.items():
        monkeypatch.setenv(one, value)
    monkeypatch.setattr(probe.os, "execve", lambda *_: pytest.fail("started anew a second time"))
    probe._become_a_job(probe._arguments(arguments))
