"""shell/gpu.sh: its tables for either vendor, and the rule that it ends only permitted processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from smi_machine import H100, Machine, amd_process, mi300x_metric, mi300x_static

from tests.support.setups import ROOT, link_tools
from train.machine import gpu_command, job_processes

SLEEP = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine with nothing else on PATH: this one may have tools of a vendor."""
    made = Machine(tmp_path)
    link_tools(made.bin, "bash", "dirname", "readlink", "sed")
    return made


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """Process ids to be ended after the test."""
    found: list[int] = []
    yield found
    for process_id in found:
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)


def gpu_sh(machine: Machine, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | machine.environment
    command = [str(ROOT / "shell" / "gpu.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def start(sleepers: list[int], program: str = SLEEP, **environment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    sleepers.append(process.pid)
    return process


def left_behind(sleepers: list[int], job: str = "train_cpu_mega_llama_run1") -> int:
    """Start a launcher that starts a marked process and dies; return the id of that process."""
    launcher = (
        "import os, subprocess, sys; from train.machine import job_processes\n"
        f"environment = dict(os.environ, {job_processes.MARKER}=job_processes.marker({job!r}))\n"
        f"print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}], env=environment, "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    )
    done = subprocess.run([sys.executable, "-c", launcher], cwd=ROOT, capture_output=True, text=True, check=True)
    sleepers.append(int(done.stdout))
    return sleepers[-1]


@pytest.mark.parametrize(
    ("has_driver", "reason"),
    [(False, "neither nvidia-smi nor amd-smi is on PATH"), (True, "nvidia-smi lists none")],
)
def test_a_machine_without_a_gpu_says_so(machine: Machine, has_driver: bool, reason: str) -> None:
    if has_driver:
        machine.nvidia()
    done = gpu_sh(machine)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"no GPU: {reason}\n")


def test_both_vendors_are_shown_with_their_processes(machine: Machine) -> None:
    mine = {"gpu_uuid": H100["uuid"], "pid": str(os.getpid()), "used_memory": "1024", "process_name": "python"}
    other = mine | {"pid": "999999999", "process_name": "/opt/train"}
    hot = {"enforced.power.limit": "500.00", "clocks_event_reasons.active": "0x0000000000000044"}
    machine.nvidia(H100 | hot, processes=[mine, other])
    machine.amd([mi300x_static()], [mi300x_metric()])
    done = gpu_sh(machine)
    assert (done.returncode, done.stderr) == (0, "")
    command = Path(sys.executable).name  # of this process, whoever runs the tests
    for row in (
        "NVIDIA 0.*NVIDIA H100 80GB HBM3.*0.0 of 85.5.*70.*500 .default 700..*1980 of 1980.*2619 of 2619.*"
        "sw_power_cap, hw_thermal_slowdown\n",
        r"AMD 0.*AMD Instinct MI300X.*0.3 of 206.1.*132 of 2100.*\?\n",
        f" {os.getpid()} .*{command}",
        "/opt/train .not visible from here: in another container, or gone",
    ):
        assert re.search(row, done.stdout), (row, done.stdout)


def test_a_driver_in_trouble_is_an_error_and_the_other_vendor_is_shown(machine: Machine) -> None:
    machine.nvidia(broken="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", code=9)
    machine.amd([mi300x_static()], [mi300x_metric()])
    done = gpu_sh(machine)
    assert done.returncode == 1 and "AMD Instinct MI300X" in done.stdout
    assert done.stderr.startswith("error: nvidia-smi: ended with exit code 9 and said: NVIDIA-SMI has failed")


def test_a_named_process_on_a_gpu_is_ended_after_agreement_only(machine: Machine, sleepers: list[int]) -> None:
    process = start(sleepers)
    machine.amd(
        [mi300x_static()], [mi300x_metric()], [{"gpu": 0, "process_list": [amd_process(process.pid, 2_000_000_000)]}]
    )
    done = gpu_sh(machine, "--end", str(process.pid))
    assert done.returncode == 2 and "add --yes" in done.stderr and process.poll() is None
    done = gpu_sh(machine, "--end", str(process.pid), "--yes")
    assert done.returncode == 0 and f"ended: process {process.pid}:" in done.stdout, done.stderr
    assert process.wait(timeout=600) == -signal.SIGTERM


def test_a_process_that_ignores_the_first_signal_is_ended_too(
    machine: Machine, sleepers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_command, "GRACE_SECONDS", 0.2)
    process = start(sleepers, DEAF)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    found = job_processes.look_up(process.pid)
    assert found is not None and gpu_command.end([found]) == []
    assert process.wait(timeout=600) == -signal.SIGKILL


def test_a_number_that_another_process_has_by_now_is_never_signalled(sleepers: list[int]) -> None:
    process = start(sleepers)
    found = job_processes.look_up(process.pid)
    assert found is not None and gpu_command.end([replace(found, started="1")]) == []
    time.sleep(0.2)
    assert process.poll() is None


@pytest.mark.parametrize("whose", ["ours", "another user's"])
def test_a_process_that_holds_no_gpu_or_is_another_users_is_never_ended(
    machine: Machine, sleepers: list[int], whose: str
) -> None:
    if whose == "ours":
        process, holders, said = start(sleepers), [], "holds no GPU"
    elif os.getuid() == 0:
        process = subprocess.Popen(["sleep", "600"], user=65534, env={"PATH": "/usr/bin:/bin"}, text=True)
        sleepers.append(process.pid)
        holders = [{"gpu_uuid": "x", "pid": str(process.pid), "used_memory": "1", "process_name": "y"}]
        said = "only your own processes can be ended"
    else:
        pytest.skip("only root can start a process of another user")
    machine.nvidia(H100, processes=holders)
    done = gpu_sh(machine, "--end", str(process.pid), "--yes")
    assert done.returncode == 2 and said in done.stderr and process.poll() is None


def test_what_the_suite_left_behind_is_found_and_ended_and_nothing_else(
    machine: Machine, sleepers: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orphan = left_behind(sleepers)
    running = start(sleepers, **{job_processes.MARKER: job_processes.marker("train_cpu_hf_llama_run1")})
    stranger = start(sleepers, **{job_processes.MARKER: "1:2:3:of another container"})
    for _ in range(100):  # until exec, a child's environment is still its parent's
        if all((found := job_processes.look_up(one.pid)) and found.marker for one in (running, stranger)):
            break
        time.sleep(0.05)
    done = gpu_sh(machine)
    assert f"left behind by train_cpu_mega_llama_run1, without a GPU: process {orphan}:" in done.stdout
    assert str(running.pid) not in done.stdout and str(stranger.pid) not in done.stdout

    # what other tests may have left behind on this machine at this moment is theirs
    every, started_here = job_processes.left_behind, {orphan, running.pid, stranger.pid}
    monkeypatch.setattr(
        job_processes, "left_behind", lambda: [one for one in every() if one.process_id in started_here]
    )
    monkeypatch.setenv("PATH", str(machine.bin))
    assert gpu_command.main(["--end-ours", "--yes"]) == 0
    assert f"ended: process {orphan}:" in capsys.readouterr().out
    assert job_processes.look_up(orphan) is None and running.poll() is None and stranger.poll() is None
    assert gpu_command.main(["--end-ours"]) == 0
    assert "nothing was left behind" in capsys.readouterr().out
