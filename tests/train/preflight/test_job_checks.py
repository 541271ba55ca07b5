"""Warnings about a job are printed before it and recorded in its result; with STRICT=1 they refuse the job."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from smi_machine import H100, Machine, amd_process, mi300x_metric, mi300x_static
from toydata import write_toy_data

from example import example_result
from train import launch, matrix
from train.job.job import Job
from train.machine import conditions, job_processes
from train.machine.conditions import MachineState
from train.machine.gpu_state import GpuProcess, GpuState
from train.preflight import job_checks
from train.runner import plan, run_job
from train.runner.state import JobState, MatrixState
from train.runner.view import View
from utils.results import store
from utils.results.step_line import Step
from utils.settings.config import load

QUIET = MachineState(False, 1, "performance", 1.0, 0.0, 64.0, 65536, None)
HEALTHY = {
    "nvd": GpuState(
        "nvd",
        0,
        "NVIDIA H100 80GB HBM3",
        memory_used_gb=0.6,
        utilization_percent=0.0,
        power_cap_watts=700.0,
        default_power_cap_watts=700.0,
        max_power_cap_watts=700.0,
        clock_limit_mhz=1980.0,
        default_clock_limit_mhz=1980.0,
        throttle_reasons=("gpu_idle", "sw_power_cap"),
        persistence="Enabled",
        compute_mode="Default",
        partition="Disabled",
    ),
    "amd": GpuState(
        "amd",
        0,
        "AMD Instinct MI300X",
        memory_used_gb=0.3,
        power_cap_watts=750.0,
        max_power_cap_watts=750.0,
        performance_level="AMDSMI_DEV_PERF_LEVEL_AUTO",
        partition="SPX/NPS1",
    ),
}


def seen(platform: str, state: MachineState = QUIET, *more: GpuState, **changes: Any) -> conditions.Snapshot:
    states = () if platform == "cpu" else (GpuState(**(vars(HEALTHY[platform]) | changes)), *more)
    return conditions.Snapshot(0.0, state, "tool", states, ())


def warned(platform: str, state: MachineState = QUIET, nodes: int = 1, **changes: Any) -> list[str]:
    return job_checks.warnings(platform, seen(platform, state, **changes), nodes)


def changed(**changes: Any) -> MachineState:
    return MachineState(**(vars(QUIET) | changes))


@pytest.mark.parametrize("platform", ["cpu", "nvd", "amd"])
def test_a_machine_that_is_as_it_should_be_is_not_warned_of(platform: str) -> None:
    assert warned(platform) == []


def test_an_ordinary_cpu_machine_is_not_warned_of() -> None:
    laptop = MachineState(False, 1, "powersave", 8.0, 3.0, 0.06, 1024, 0.008)
    assert warned("cpu", laptop) == []
    assert warned("cpu", MachineState()) == []


@pytest.mark.parametrize("platform", ["cpu", "nvd", "amd"])
def test_other_work_and_numa_balancing_are_warned_of_everywhere(platform: str) -> None:
    (line,) = warned(platform, changed(busy_percent=50.0))
    assert line.startswith("machine: 50 % of the cores' time went to other work")
    (line,) = warned(platform, changed(numa_balancing=True, numa_nodes=2))
    assert line == "machine: NUMA balancing is on; as root: sysctl kernel.numa_balancing=0"
    assert warned(platform, changed(numa_balancing=True, numa_nodes=1)) == [], "there is nothing to balance"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shared_memory_gb": 0.067}, "machine: /dev/shm has 0.07 GB; start the container with --ipc=host"),
        ({"open_files_limit": 1024}, "machine: a process may open 1024 files"),
        ({"locked_memory_gb": 0.008, "has_infiniband": True}, "machine: a process may lock 0.008 GB"),
        ({"cpu_governor": "powersave"}, "machine: the cores' governor is powersave"),
        ({"swap_used_gb": 5.0}, "machine: 5.0 GB are swapped out"),
    ],
)
@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_what_slows_the_host_of_gpus_is_warned_of_there_only(platform: str, changes: dict[str, Any], said: str) -> None:
    (line,) = warned(platform, changed(**changes))
    assert line.startswith(said)
    assert warned("cpu", changed(**changes)) == []


def test_a_limit_of_locked_memory_matters_between_nodes_only() -> None:
    assert warned("nvd", changed(locked_memory_gb=0.008)) == []
    assert len(warned("nvd", changed(locked_memory_gb=0.008), nodes=2)) == 1


@pytest.mark.parametrize(
    ("platform", "changes", "said"),
    [
        ("nvd", {"memory_used_gb": 31.25}, "gpu 0: 31.2 GB are in use before the job"),
        ("amd", {"utilization_percent": 97.0}, "gpu 0: is 97 % busy before the job"),
        (
            "nvd",
            {"power_cap_watts": 500.0},
            "gpu 0: power cap 500 W, below the default of 700 W; as root: nvidia",
        ),
        (
            "amd",
            {"power_cap_watts": 600.0, "default_power_cap_watts": 750.0},
            "gpu 0: power cap 600 W, below the default of 750 W; as root: rocm-smi --resetpoweroverdrive",
        ),
        ("amd", {"power_cap_watts": 600.0}, "gpu 0: power cap 600 W of 750 W at most, and the default is unknown"),
        ("nvd", {"clock_limit_mhz": 1200.0}, "gpu 0: clock limited to 1200 MHz, default 1980 MHz"),
        ("amd", {"performance_level": "low"}, "gpu 0: performance level low, usual: auto"),
        ("nvd", {"throttle_reasons": ("hw_thermal_slowdown",)}, "gpu 0: is slowed down before the job (hw_thermal"),
        (
            "amd",
            {"throttle_reasons": ("ppt", "socket_thermal")},
            "gpu 0: is slowed down before the job (socket_",
        ),
        ("nvd", {"persistence": "Disabled"}, "gpu 0: persistence mode is off"),
        ("nvd", {"compute_mode": "Exclusive_Process"}, "gpu 0: compute mode Exclusive_Process, usual: Default"),
        ("nvd", {"partition": "Enabled"}, "gpu 0: MIG is on"),
    ],
)
def test_each_handicap_of_a_gpu_is_one_line(platform: str, changes: dict[str, Any], said: str) -> None:
    (line,) = warned(platform, **changes)
    assert line.startswith(said)


def test_a_cap_of_a_rounded_watt_less_and_one_above_the_default_are_none() -> None:
    assert warned("nvd", power_cap_watts=699.0) == []
    assert warned("nvd", power_cap_watts=750.0) == []
    assert warned("amd", power_cap_watts=None, default_power_cap_watts=750.0) == []


def test_gpus_that_differ_are_said_once() -> None:
    slower = GpuState(
        **(vars(HEALTHY["amd"]) | {"index": 1, "power_cap_watts": 600.0, "default_power_cap_watts": 600.0})
    )
    (line,) = job_checks.warnings("amd", seen("amd", QUIET, slower))
    assert line == "gpu: power caps differ, 600 to 750 W; the slowest holds up all others"


@pytest.mark.parametrize(("more", "words"), [(1, "1 more process holds"), (2, "2 more processes hold")])
def test_only_the_first_processes_are_listed_and_the_others_counted(more: int, words: str) -> None:
    count = job_checks.MOST_PROCESSES + more
    processes = tuple(GpuProcess(99_000_000 + number, 0, "python", 1.0) for number in range(count))
    lines = job_checks.warnings("nvd", replace(seen("nvd"), processes=processes))
    assert len(lines) == job_checks.MOST_PROCESSES + 1
    assert lines[-1] == f"gpu: {words} GPUs; see ./shell/gpu.sh"


def test_gpus_that_nobody_answers_for_are_a_warning_with_the_reason() -> None:
    unknown = conditions.Snapshot(0.0, QUIET, why_no_gpus="nvidia-smi is not installed")
    (line,) = job_checks.warnings("nvd", unknown)
    assert line == "gpu: the conditions are unknown: nvidia-smi is not installed; see ./shell/gpu.sh"


def test_a_gpu_that_cooling_slowed_is_said_after_the_job_and_one_at_its_cap_is_not() -> None:
    hot = seen("nvd", throttle_reasons=("hw_thermal_slowdown",))
    assert job_checks.after(seen("nvd"), {"sw_power_cap": 90.0, "hw_thermal_slowdown": 0.4}) == []
    (line,) = job_checks.after(hot, {"hw_thermal_slowdown": 12.4})
    assert line == "gpu: slowed down for 12 % of the job (hw_thermal_slowdown); look at the cooling"
    (line,) = job_checks.after(hot, None)
    assert line == "gpu: slowed down after the job (hw_thermal_slowdown); look at the cooling"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    folder = tmp_path / "machine"
    folder.mkdir()
    made = Machine(folder)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CC", sys.executable)  # PATH has only the tools of the made machine
    monkeypatch.setattr(conditions, "BUSY_SAMPLE_SECONDS", 0.0)
    return made


def job(platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> int:
    """Launch a job whose trainer only prints the name of its job."""
    prefix = write_toy_data(tmp_path / "text")
    script = f"import os; print('belongs to', os.environ[{job_processes.MARKER!r}].split(':')[3])"
    monkeypatch.setattr(launch, "_command", lambda job, settings: [sys.executable, "-c", script])
    monkeypatch.setattr(plan, "visible_gpus", lambda platform: None if platform == "cpu" else 1)
    where = [f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={tmp_path}", f"DATASET={prefix}", "TRAIN_ITERS=6"]
    command = ["launch", "--platform", platform, "--framework", "hf", "--model", "llama", *where, "MODEL_SIZE=tiny"]
    shape = ("GBS=8", "MBS=2", "SL=128", "WARMUP_ITERS=2")
    monkeypatch.setattr(sys, "argv", [*command, *shape, *settings])
    return launch.main()


def test_a_job_on_a_quiet_machine_has_its_conditions_and_no_warning(
    host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert job("cpu", tmp_path, monkeypatch) == 1  # the trainer left no result
    (path,) = store.find([tmp_path / "output"])
    result = store.read(path)
    assert "warning" not in capfd.readouterr().err
    assert (result["status"], result["warnings"]) == ("failed", [])
    assert result["conditions"]["reasons"]["gpu_tool"] == "no GPU"
    assert "belongs to train_cpu_hf_llama_run1" in result["reason"]


def test_warnings_are_on_stderr_and_in_the_result(
    host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    busy = {"gpu_uuid": H100["uuid"], "pid": "4000000", "used_memory": "30000", "process_name": "/opt/x/python"}
    host.nvidia(H100 | {"memory.used": "30003", "enforced.power.limit": "500.00"}, processes=[busy])
    assert job("nvd", tmp_path, monkeypatch, "GPUS_PER_NODE=1") == 1
    (path,) = store.find([tmp_path / "output"])
    result = store.read(path)
    said = [line.removeprefix("warning: ") for line in capfd.readouterr().err.splitlines() if "warning: gpu" in line]
    assert said == [line for line in result["warnings"] if line.startswith("gpu")]
    assert [line.split(";")[0] for line in said] == [
        "gpu: process 4000000 (python) holds 31.5 GB of GPU 0",  # 30,000 MiB
        "gpu 0: 31.5 GB are in use before the job",
        "gpu 0: power cap 500 W, below the default of 700 W",
    ]
    assert result["conditions"]["power_cap_watts"] == 500.0 and result["conditions"]["other_processes"] == 1


def test_strict_refuses_with_one_line_and_starts_nothing(
    host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    held = [{"gpu": 0, "process_list": [amd_process(os.getpid() + 10**6, 5 * 10**9)]}]
    host.amd([mi300x_static(cap=600)], [mi300x_metric()], held)
    assert job("amd", tmp_path, monkeypatch, "GPUS_PER_NODE=1", "STRICT=1") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: STRICT=1: gpu: process ") and "power cap 600 W of 750 W" in line
    assert list((tmp_path / "output").rglob("train_*")) == []


def test_strict_lets_a_job_pass_that_nothing_speaks_against(
    host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_checks, "warnings", lambda *seen: [])
    host.amd([mi300x_static()], [mi300x_metric()])
    assert job("amd", tmp_path, monkeypatch, "GPUS_PER_NODE=1", "STRICT=1") == 1
    (path,) = store.find([tmp_path / "output"])
    assert store.read(path)["conditions"]["gpu_tool"] == "amd-smi"


def test_a_result_that_cannot_be_written_again_keeps_its_numbers(
    host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train_cpu_hf_llama_run1.json"
    store.write(example_result(framework="hf"), path)
    before = path.read_bytes()

    def full(*anything: Any) -> bool:
        raise OSError(28, "No space left on device")

    config = load("cpu", None, arguments=["FRAMEWORK=hf", "MODEL=llama"])
    with monkeypatch.context() as patched:
        patched.setattr(store, "write", full)
        job_checks.record(path, config, seen("cpu"), ["machine: a warning"])
    assert path.read_bytes() == before
    assert "the conditions of the job are not in it: [Errno 28] No space left" in capfd.readouterr().err
    job_checks.record(path, config, seen("cpu"), ["machine: a warning"], is_interrupted=True)
    result = store.read(path)
    assert result["warnings"] == ["machine: a warning"]
    assert result["conditions"]["reasons"]["throttle_after"] == "nobody looked after the job"


def test_the_matrix_takes_the_warnings_before_the_first_step_for_its_end_and_its_log(tmp_path: Path) -> None:
    state = JobState(1, Job(load("cpu", None, arguments=["FRAMEWORK=hf", "MODEL=llama"]), "hf", "llama"))
    output = run_job.LauncherOutput(state)
    for line in ("warning: gpu 0: is 97 % busy\n", "a line\n", "  warning: indented\n"):
        output.take(line)
    state.take_step(Step(1, 6, 1.0, 1.0, 8.0, 1.0))
    output.take("warning: of some library\n")
    shown = StringIO()
    matrix = MatrixState([state])
    view = View(matrix, tmp_path / "matrix.log", shown)
    run_job._take_warnings(output, view, state)
    run_job._take_warnings(output, view, state)
    assert matrix.warnings == [("hf llama run 1", "gpu 0: is 97 % busy")] and shown.getvalue() == ""
    assert (tmp_path / "matrix.log").read_text().endswith("Z     warning: gpu 0: is 97 % busy\n")


def test_strict_refuses_a_whole_matrix_before_its_data_are_made(
    host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in ("node0", "node1"):
        (host.root / "sys/devices/system/node" / node).mkdir(parents=True)
    (host.root / "proc/sys/kernel").mkdir(parents=True)
    (host.root / "proc/sys/kernel/numa_balancing").write_text("1\n")
    where = [f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={tmp_path / 'data'}", "DATASET=synth", "FRAMEWORK=hf"]
    command = ["matrix", "--platform", "cpu", *where, "MODEL=llama", "TRAIN_ITERS=4", "WARMUP_ITERS=1", "STRICT=1"]
    monkeypatch.setattr(sys, "argv", command)
    assert matrix.main() == 2
    assert "error: STRICT=1: machine: NUMA balancing is on" in capsys.readouterr().err
    assert not (tmp_path / "data").exists() and list(tmp_path.rglob("train_*")) == []
