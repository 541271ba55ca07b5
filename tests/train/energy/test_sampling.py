"""The sampler as a process: it samples a job from beginning to end, dies with its launcher, and never disturbs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from smi_stand_ins import FOLDER
from toydata import write_toy_data

from tests.support.launching import SHORT
from train.energy import sample_file
from train.energy.sample_file import SampleFileError, Writer
from train.job.step_clock import shift_seconds
from utils.housekeeping import archive
from utils.housekeeping.layout import OUTPUT_LAYOUT
from utils.results import store
from utils.settings.config import ROOT

SAMPLER = [sys.executable, "-m", "train.energy.sampler", "--platform", "cpu", "--gpus", "1", "--node", "0", "--output"]
AS_NVIDIA = """
import sys
from train import launch
from train.energy import sampling, section
section.LEAST_SECONDS = 0.5
of_cpu = sampling.command
sampling.command = lambda job: ["nvd" if word == "cpu" else word for word in of_cpu(job)]
sampling._has_idle_period = lambda platform: True
sys.exit(launch.main())
"""
"""A job on the cores whose sampler reads the GPUs of stand-ins."""


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def started(path: Path) -> subprocess.Popen:
    sampler = subprocess.Popen([*SAMPLER, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert sampler.stdout.readline() == b"ready\n"
    time.sleep(1.5)
    return sampler


def test_it_ends_on_sigterm_with_0_and_a_whole_file(tmp_path):
    path = tmp_path / "samples.jsonl"
    sampler = started(path)
    sampler.terminate()
    assert sampler.wait(10) == 0
    header, *samples = lines_of(path)
    assert (
        header["energy_samples_version"] == 1 and header["platform"] == "cpu" and header["reasons"]["gpus"] == "no GPU"
    )
    times = [sample["t"] for sample in samples]
    assert len(times) > 5 and times == sorted(times)
    assert abs(times[-1] - time.perf_counter()) < 60, "the clock of the samples is that of every process"


def test_samples_of_a_killed_sampler_are_read_as_far_as_they_go(tmp_path):
    path = tmp_path / "samples.jsonl"
    sampler = started(path)
    sampler.kill()
    sampler.wait()
    found = sample_file.read(path)
    assert found.samples and found.header["node"] == 0


@pytest.mark.parametrize("content", [b"", b"no JSON", b"\xff\xfe", b'{"a": 1}\n', b"[]\n"])
def test_file_that_holds_no_samples_is_one_line(tmp_path, content):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(content)
    with pytest.raises(SampleFileError):
        sample_file.read(path)
    with pytest.raises(SampleFileError, match="the sampler left no samples"):
        sample_file.read(tmp_path / "missing.jsonl")


def test_every_line_before_the_cut_is_read(tmp_path):
    path = tmp_path / "samples.jsonl"
    with Writer(path, {"node": 3}) as file:
        for second in range(100):
            file.line({"t": float(second + 1), "cpu": 1.0}, float(second + 1))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3 - 5])
    found = sample_file.read(path)
    assert found.header["node"] == 3 and 10 < len(found.samples) < 100
    assert [sample["t"] for sample in found.samples] == [float(n + 1) for n in range(len(found.samples))]


def test_sample_file_has_a_name_that_purge_knows_and_is_not_packed():
    logs = OUTPUT_LAYOUT.layout_of("logs")
    for name in ("train_nvd_mega_llama_run1_attempt1", "nodes2_train_amd_prim_llama_run2_attempt3_node1"):
        assert logs.kind_of(f"{name}.energy.jsonl") == "energy samples"
    assert "energy samples" not in archive.PACKED, "25 MB an hour for 8 GPUs"


def test_time_of_one_machine_is_found_on_the_clock_of_another():
    # the same moment: 10 s after the boot at 1,000 s of the day, 60 s after the boot at 950 s
    here, there = {"boot": "a", "unix_at_zero": 1000.0}, {"boot": "b", "unix_at_zero": 950.0}
    assert 10.0 + shift_seconds(here, there) == 60.0
    assert shift_seconds(here, {"boot": "a", "unix_at_zero": 999.5}) == 0.0


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("data") / "text")


def job(folder, prefix, *settings, program=("-m", "train.launch"), **variables):
    where = (f"OUTPUT_DIR={folder}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
    arguments = ("--platform", "cpu", "--framework", "mega", "--model", "llama", *SHORT, *where, *settings)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def sampler_of(launcher):
    """Wait for the sampler of a launcher and return it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in psutil.Process(launcher.pid).children():
            if "train.energy.sampler" in process.cmdline():
                return process
        time.sleep(0.05)
    raise AssertionError("no sampler was started")


def test_job_whose_sampler_is_killed_ends_well_and_has_null_energy_with_the_reason(tmp_path, prefix):
    launcher = job(tmp_path, prefix, "TRAIN_ITERS=12")
    time.sleep(0.5)
    sampler_of(launcher).kill()
    said = launcher.communicate(timeout=200)[0]
    assert launcher.returncode == 0, said
    (path,) = store.find([tmp_path])
    energy = store.read(path)["energy_metrics"]
    assert energy["joules"] is None and energy["reasons"]["joules"]
    assert "step_clock" not in energy


def test_sampler_dies_with_a_launcher_that_is_killed(tmp_path, prefix):
    launcher = job(tmp_path, prefix)
    sampler = sampler_of(launcher)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    sampler.wait(20)
    assert not sampler.is_running()


def test_job_with_a_gpu_of_500_watts_has_its_energy(tmp_path, prefix):
    pytest.importorskip("zeus", reason="zeus is not installed: ./shell/setup.sh")
    boards = json.dumps([{"bus_id": "0000:17:00.0", "watts": 500.0, "use": 3}])
    path = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    variables = {"CUDA_STAND_IN_BOARDS": boards, "PYTHONPATH": path}
    launcher = job(tmp_path, prefix, "TRAIN_ITERS=20", program=("-c", AS_NVIDIA), **variables)
    said = launcher.communicate(timeout=300)[0]
    assert launcher.returncode == 0, said
    (file,) = store.find([tmp_path])
    result = store.read(file)
    energy, skipped = result["energy_metrics"], result["performance_metrics"]["warmup_steps_excluded"]
    seconds = sum(result["step_times"][skipped:])
    assert energy["joules"] == pytest.approx(500 * seconds, rel=0.02), energy
    assert energy["avg_watts"] == pytest.approx(500, rel=1e-3) and energy["idle_watts"] == pytest.approx(500, rel=1e-3)
    assert energy["joules_per_token"] == pytest.approx(energy["joules"] / ((20 - skipped) * 8 * 128), rel=0.01)
    assert "GPU counter, not the wall" in energy["source"] and energy["sample_hz"] >= 10
