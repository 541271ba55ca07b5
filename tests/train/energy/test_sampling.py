"""The sampler beside a job: it samples it from beginning to end, ends with its launcher, and never disturbs it."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from smi_stand_ins import stand_ins

from tests.support.launching import Launcher
from train.energy import sampler
from utils.housekeeping import archive
from utils.housekeeping.layout import OUTPUT_LAYOUT

STEPS = """
while {is_sampled} and not list(output.glob("logs/*.energy.jsonl")):
    time.sleep(0.05)
samples = next(output.glob("logs/*.energy.jsonl"), None)
ends = []
for number in range(10):
    time.sleep({seconds})
    ends.append(time.perf_counter())
    if number == 6:
        {fault}
clock = {{"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "ends": ends}}
clock["unix_at_zero"] = time.time() - time.perf_counter()
result(step_times=[{seconds}] * 10, energy_metrics__step_clock=clock)
"""
"""Ranks of ten steps, of which the last seven are steady; something may happen after one of them."""
FAULTS = {
    "empty": "samples.write_bytes(b'')",
    "no JSON": "samples.write_bytes(b'no JSON')",
    "no text": "samples.write_bytes(bytes([255, 254]))",
    "no samples": "samples.write_text('{\"a\": 1}\\n')",
    "a list": "samples.write_text('[]\\n')",
    "missing": "samples.unlink()",
}
"""What happens to the samples."""


@pytest.fixture
def standin(monkeypatch):
    """Stand-ins of the vendors' libraries, in the process of the launcher."""
    with stand_ins(monkeypatch) as found:
        yield found


@pytest.fixture
def job(standin, tmp_path, monkeypatch):
    """A job on one GPU of 500 W, which hangs while the result's folder has a file `hang`."""
    launcher = Launcher(tmp_path, monkeypatch)
    board = standin.Board("0000:17:00.0", use=3, hangs_with=launcher.output / "hang")
    standin.MACHINE = standin.Machine([board])
    yield launcher
    board.hangs_with.unlink(missing_ok=True)


def run(job, seconds=0.05, fault="pass", platform="nvd", is_sampled=True):
    ended = job.run(ranks=STEPS.format(seconds=seconds, fault=fault, is_sampled=is_sampled), platform=platform)
    assert ended.code == 0 and ended.result["status"] == "ok", ended
    return ended.result["energy_metrics"], ended.err


def test_job_on_a_gpu_of_500_watts_has_its_energy(job):
    energy, _ = run(job, seconds=1.5)
    # seven steady steps of 1.5 s, 64 sequences of 128 tokens each
    assert energy["joules"] == pytest.approx(500 * 10.5, rel=0.05), energy
    assert energy["avg_watts"] == pytest.approx(500, rel=1e-3) and energy["idle_watts"] == pytest.approx(500, rel=1e-3)
    assert energy["joules_per_token"] == pytest.approx(energy["joules"] / (7 * 64 * 128), rel=1e-3)
    assert "GPU counter, not the wall" in energy["source"] and "step_clock" not in energy


def test_job_whose_library_hangs_ends_well_with_the_samples_before(job):
    energy, _ = run(job, seconds=1.5, fault="(output / 'hang').touch()")
    assert energy["joules"] is None and "before the last steady step" in energy["reasons"]["joules"]
    assert energy["samples"] > 5, "those before the hang"


def test_job_whose_library_raises_ends_well_and_says_so(job, standin, monkeypatch):
    monkeypatch.setattr(standin, "MACHINE", None)
    energy, err = run(job, is_sampled=False)
    assert "the sampler of energy ended: AttributeError" in err
    assert "the sampler left no samples" in energy["reasons"]["joules"]


@pytest.mark.parametrize("fault", FAULTS)
def test_job_ends_well_with_null_energy_and_the_reason_whatever_happens_to_its_samples(fault, tmp_path, monkeypatch):
    energy, _ = run(Launcher(tmp_path, monkeypatch), fault=FAULTS[fault], platform="cpu")
    assert energy["joules"] is None and energy["reasons"]["joules"] and "step_clock" not in energy
    assert fault != "missing" or "the sampler left no samples" in energy["reasons"]["joules"]


def test_samples_of_a_launcher_that_is_killed_are_readable(tmp_path, monkeypatch):
    job = Launcher(tmp_path, monkeypatch)
    launcher = job.start(ranks="time.sleep(2.5); print('rank', os.getpid(), flush=True); time.sleep(600)")
    rank = psutil.Process(int(next(line.split()[1] for line in launcher.stdout if line.startswith("rank"))))
    assert psutil.Process(launcher.pid).children() == [rank], "the sampler is no process"
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    rank.wait(20)
    (path,) = job.output.glob("logs/*.energy.jsonl")
    found = sampler.read_samples(path)
    assert found.header["platform"] == "cpu" and len(found.times) > 5 and found.times == sorted(found.times)
    assert abs(found.times[-1] - time.perf_counter()) < 60, "the clock of the samples is that of every process"


def test_sample_file_has_a_name_that_purge_knows_and_is_not_packed():
    logs = OUTPUT_LAYOUT.layout_of("logs")
    for name in ("train_nvd_mega_llama_run1_attempt1", "nodes2_train_amd_prim_llama_run2_attempt3_node1"):
        assert logs.kind_of(f"{name}.energy.jsonl") == "energy samples"
    assert "energy samples" not in archive.PACKED, "25 MB an hour for 8 GPUs"
