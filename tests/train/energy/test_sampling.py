"""The sampler beside a job: it samples it from beginning to end, ends with its launcher, and never disturbs it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from smi_machine import of_processors, stand_ins

from tests.support.launching import Launcher
from train.energy import gpu_reader, sampler

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


@pytest.mark.full("a job of 15 s whose library hangs, about 23 s")
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
    said = "the sampler left no samples" if fault == "missing" else "holds no samples of this version"
    assert energy["joules"] is None and said in energy["reasons"]["joules"] and "step_clock" not in energy


def test_samples_of_a_launcher_that_is_killed_are_readable(tmp_path, monkeypatch):
    job = Launcher(tmp_path, monkeypatch)
    launcher = job.start(ranks="time.sleep(2.5); print('rank', os.getpid(), flush=True); time.sleep(600)")
    rank = psutil.Process(int(next(line.split()[1] for line in launcher.stdout if line.startswith("rank"))))
    assert psutil.Process(launcher.pid).children() == [rank], "the sampler is no process"
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    rank.wait(600)
    (path,) = job.output.glob("logs/*.energy.jsonl")
    found = sampler.read_samples(path)
    assert found.header["platform"] == "cpu" and len(found.times) > 5 and found.times == sorted(found.times)
    assert abs(found.times[-1] - time.perf_counter()) < 60, "the clock of the samples is that of every process"


# RAPL counters of processors in a made-up /sys, and the reasons where there are none.

FOLDER = "sys/class/powercap"


def zones(root: Path, **names: str) -> Path:
    """Make a zone `intel-rapl:<key with _ as :>` for each name."""
    for key, name in names.items():
        zone = root / FOLDER / f"intel-rapl:{key[1:].replace('_', ':')}"
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "max_energy_range_uj").write_text("262143328850\n")
        (zone / "energy_uj").write_text("1000000\n")
    return root


@pytest.mark.parametrize("start_uj", [1e6, 262143328850 - 1.2e9])
def test_two_packages_of_150_and_50_watts_take_2000_joules_in_10_seconds(tmp_path, start_uj):
    # from the second start on, the counter of 150 W starts again after 8 s, in a steady step; parts do not count
    root = zones(tmp_path, z0="package-0", z0_0="core", z0_1="dram", z1="package-1", z2="psys")
    found = of_processors(root, {"package-0": 150.0, "package-1": 50.0}, start_uj)
    assert found["joules"] == pytest.approx(2000, abs=0.1) == found["counter_joules"] == found["cpu_joules"]
    assert found["avg_watts"] == pytest.approx(200, abs=0.1) and found["method"] == "cpu_rapl"
    assert found["source"] == "CPU RAPL counter of the processors (package-0, package-1), not the wall"
    assert found["integrated_joules"] is found["gpu_count"] is None
    assert found["reasons"]["integrated_joules"] == "RAPL has a counter and no power"


def test_machine_without_any_counter_has_null_energy_with_the_reason_and_the_use_of_its_cores(tmp_path):
    found = of_processors(tmp_path, {})
    assert found["joules"] is found["cpu_joules"] is found["source"] is None
    assert found["reasons"]["joules"] == found["reasons"]["idle_watts"]
    assert "the kernel shows no RAPL zone" in found["reasons"]["joules"]
    assert found["reasons"]["max_temperature_celsius"] == found["reasons"]["gpu_count"] == "no GPU"
    assert found["mean_cpu_use_percent"] is not None and found["sample_hz"] >= 10


def test_counter_that_only_root_may_read_is_a_reason_with_the_remedy(tmp_path, monkeypatch):
    root, read_text = zones(tmp_path, z0="package-0"), Path.read_text

    def refuse(path, *arguments, **options):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert "only root may read" in of_processors(root, {"package-0": 1.0})["reasons"]["joules"]


# Addresses of the job's GPUs, asked of stand-ins of libcuda and libamdhip64 that are compiled here.

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-ins of the runtimes need gcc")
CUDA = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* As CUDA: the fast GPU at 9b is device 0 unless CUDA_DEVICE_ORDER=PCI_BUS_ID; CUDA_VISIBLE_DEVICES hides. */
static const char *fast[] = {"0000:9B:00.0", "0000:17:00.0"};
static int order(int device) {
  const char *text = getenv("CUDA_DEVICE_ORDER"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  int place = visible ? atoi(visible) : device;
  return text && !strcmp(text, "PCI_BUS_ID") ? 1 - place : place;
}
int cuInit(unsigned flags) { return getenv("CUDA_BROKEN") ? 999 : 0; }
int cuDeviceGetCount(int *count) { *count = getenv("CUDA_VISIBLE_DEVICES") ? 1 : 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetPCIBusId(char *text, int length, int device) {
  snprintf(text, length, "%s", fast[order(device)]); return 0;
}
"""
HIP = """
#include <stdio.h>
int hipGetDeviceCount(int *count) { *count = 2; return 0; }
int hipDeviceGetPCIBusId(char *text, int length, int device) {
  snprintf(text, length, device ? "0000:05:00.0" : "0000:c5:00.0"); return 0;
}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runtimes")
    for name, source in (("libcuda.so.1", CUDA), ("libamdhip64.so", HIP)):
        (folder / "source.c").write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / name, folder / "source.c"], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("00000000:9B:00.0", "0000:9b:00.0"),
        (b"0000:9b:00.0\0\0", "0000:9b:00.0"),
        ("9b:00.0", "0000:9b:00.0"),
        ("0001:0A:1F.7", "0001:0a:1f.7"),
        ("0A000000:00:00.0", "a000000:00:00.0"),
    ],
)
def test_one_address_is_written_in_one_way(text, wanted):
    assert gpu_reader.normal(text) == wanted


@needs_compiler
@pytest.mark.parametrize(
    ("platform", "variables", "wanted"),
    [
        # the order is that of the job's own CUDA or HIP
        ("nvd", {}, (["0000:9b:00.0", "0000:17:00.0"], "")),
        ("nvd", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (["0000:17:00.0", "0000:9b:00.0"], "")),
        ("nvd", {"CUDA_VISIBLE_DEVICES": "1"}, (["0000:17:00.0"], "")),
        ("nvd", {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (["0000:9b:00.0"], "")),
        ("amd", {}, (["0000:c5:00.0", "0000:05:00.0"], "")),
        ("nvd", {"CUDA_BROKEN": "1"}, (None, "cuInit returned 999")),  # one that does not start is a reason
    ],
)
def test_addresses_of_a_job_come_from_its_runtime(libraries, platform, variables, wanted):
    assert gpu_reader.bus_ids_of_job(platform, libraries | variables) == wanted
