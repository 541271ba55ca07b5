"""The sampler as a process: it samples a job from beginning to end, dies with its launcher, and never disturbs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from checkout import ROOT
from smi_stand_ins import FOLDER

from tests.support.launching import Launcher
from utils.housekeeping import archive
from utils.housekeeping.layout import OUTPUT_LAYOUT

CHILDREN = "((one, one.as_dict(['cmdline'])['cmdline']) for one in psutil.Process(os.getppid()).children())"
SAMPLER = f"[one for one, words in {CHILDREN} if words and 'train.energy.sampler' in words]"  # a zombie has no words
STEPS = f"""
import psutil
while not list(output.glob("logs/*.energy.jsonl")):
    time.sleep(0.05)
(sampler,) = {SAMPLER}
(samples,) = output.glob("logs/*.energy.jsonl")
ends = []
for number in range(10):
    time.sleep({{seconds}})
    ends.append(time.perf_counter())
    if number == {{killed_in}}:
        sampler.kill()
{{after}}
clock = {{{{"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "ends": ends}}}}
clock["unix_at_zero"] = time.time() - time.perf_counter()
result(step_times=[{{seconds}}] * 10, energy_metrics__step_clock=clock)
"""
"""Ranks of ten steps, of which the last seven are steady; the sampler can be killed after one of them."""
KILLED = {
    "killed": "",
    "empty": "samples.write_bytes(b'')",
    "no JSON": "samples.write_bytes(b'no JSON')",
    "no text": "samples.write_bytes(bytes([255, 254]))",
    "no samples": "samples.write_text('{\"a\": 1}\\n')",
    "a list": "samples.write_text('[]\\n')",
    "missing": "samples.unlink()",
}
"""What happens to the samples of a sampler that is killed."""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job on one GPU of 500 W, of a stand-in of NVIDIA's library."""
    pytest.importorskip("zeus", reason="zeus is not installed: ./shell/setup.sh")
    launcher = Launcher(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_STAND_IN_BOARDS", json.dumps([{"bus_id": "0000:17:00.0", "watts": 500.0, "use": 3}]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ["PYTHONPATH"]]))
    return launcher


def run(job, seconds=0.05, killed_in=-1, after=""):
    ended = job.run(ranks=STEPS.format(seconds=seconds, killed_in=killed_in, after=after), platform="nvd")
    assert ended.code == 0, ended
    return ended.result["energy_metrics"]


def test_job_on_a_gpu_of_500_watts_has_its_energy(job):
    energy = run(job, seconds=1.5)
    # seven steady steps of 1.5 s, 64 sequences of 128 tokens each
    assert energy["joules"] == pytest.approx(500 * 10.5, rel=0.05), energy
    assert energy["avg_watts"] == pytest.approx(500, rel=1e-3) and energy["idle_watts"] == pytest.approx(500, rel=1e-3)
    assert energy["joules_per_token"] == pytest.approx(energy["joules"] / (7 * 64 * 128), rel=1e-3)
    assert "GPU counter, not the wall" in energy["source"] and "step_clock" not in energy


def test_samples_are_read_as_far_as_they_go(job):
    energy = run(job, seconds=1.5, killed_in=6, after="os.truncate(samples, samples.stat().st_size - 20)")
    assert energy["joules"] is None and "before the last steady step" in energy["reasons"]["joules"]
    assert energy["samples"] > 5, "those before the cut"


@pytest.mark.parametrize("fault", KILLED)
def test_job_ends_well_with_null_energy_and_the_reason_whatever_happens_to_its_samples(fault, tmp_path, monkeypatch):
    job = Launcher(tmp_path, monkeypatch)
    ended = job.run(ranks=STEPS.format(seconds=0.05, killed_in=1, after=KILLED[fault]))
    energy = ended.result["energy_metrics"]
    assert ended.code == 0 and ended.result["status"] == "ok"
    assert energy["joules"] is None and energy["reasons"]["joules"] and "step_clock" not in energy
    assert fault != "missing" or "the sampler left no samples" in energy["reasons"]["joules"]


def test_it_ends_on_sigterm_with_0_and_a_whole_file(tmp_path):
    path = tmp_path / "samples.jsonl"
    command = [sys.executable, "-m", "train.energy.sampler", "--platform", "cpu", "--gpus", "1", "--node", "0"]
    sampler = subprocess.Popen([*command, "--output", str(path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert sampler.stdout.readline() == b"ready\n"
    time.sleep(1.5)
    sampler.terminate()
    assert sampler.wait(10) == 0
    header, *samples = [json.loads(line) for line in path.read_text().splitlines()]
    assert (header["energy_samples_version"], header["platform"]) == (1, "cpu")
    times = [sample["t"] for sample in samples]
    assert len(times) > 5 and times == sorted(times)
    assert abs(times[-1] - time.perf_counter()) < 60, "the clock of the samples is that of every process"


def test_sampler_dies_with_a_launcher_that_is_killed(tmp_path, monkeypatch):
    job = Launcher(tmp_path, monkeypatch)
    ranks = f"import psutil; print('sampler', *(one.pid for one in {SAMPLER}), flush=True); time.sleep(600)"
    launcher = job.start(ranks=ranks)
    number = next(line.split()[1] for line in launcher.stdout if line.startswith("sampler"))
    sampler = psutil.Process(int(number))
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    sampler.wait(20)
    assert not sampler.is_running()


def test_sample_file_has_a_name_that_purge_knows_and_is_not_packed():
    logs = OUTPUT_LAYOUT.layout_of("logs")
    for name in ("train_nvd_mega_llama_run1_attempt1", "nodes2_train_amd_prim_llama_run2_attempt3_node1"):
        assert logs.kind_of(f"{name}.energy.jsonl") == "energy samples"
    assert "energy samples" not in archive.PACKED, "25 MB an hour for 8 GPUs"
