"""A plan names time, memory, driver and layers of its jobs; a job that cannot fit or lacks something never starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from importlib import metadata

import pytest
import torch
from checkout import ROOT, settings_of
from smi_machine import H100, mi300x_metric, mi300x_static

from train.preflight import fit
from utils.memory import estimate

FULL = ("MODEL_SIZE=full", "MODEL=llama", "RUNS=1")
BOTH, MEGA, HF = (*FULL, "FRAMEWORK=mega,hf"), (*FULL, "FRAMEWORK=mega"), (*FULL, "FRAMEWORK=hf")


def lines(ended, start):
    assert ended.code == 0, ended
    return [line for line in ended.err.splitlines() if line.startswith((start, f"warning: {start}"))]


def of_h100s(host, memory_gb=85.0, count=1):
    same = H100 | {"memory.total": f"{memory_gb * 1e9 / 2**20:.0f}"}
    host.nvidia(*(same | {"index": str(index), "uuid": f"GPU-{index}"} for index in range(count)))


def test_time_is_the_work_of_all_steps_at_half_of_the_peak_and_says_so(job):
    # 500 steps x 64 x 2048 tokens x 46.639 GFLOP (design.md) over 8 GPUs x 989.4 / 2 TFLOP/s: 772.3 s a job
    (line,) = lines(job.plan(*BOTH, gpus=8), "time: ")
    assert line.startswith(
        "time: about 25:45 (if the steps reach 50 % of the 989.4 TFLOP/s of NVIDIA H100 SXM 80GB (bf16"
    )
    (line,) = lines(job.plan(*BOTH, "RUNS=auto", "COOLDOWN_SECONDS=5", gpus=8), "time: ")
    # 6 jobs and 5 pauses at least, 14 more jobs and pauses at most
    assert line.startswith("time: at least 1:17:39, at most 4:19:01 (")


@pytest.mark.parametrize(
    ("settings", "gpus", "why"),
    [
        (("PRECISION=fp32",), 8, "no dense fp32 peak of NVIDIA H100 SXM 80GB is kept"),
        (("LAUNCHER=slurm", "GPUS_PER_NODE=8"), 0, "Slurm selects the nodes"),
        (("GPUS_PER_NODE=8",), 0, "GPUs are missing, different or not in utils/hardware/devices.py"),
    ],
)
def test_time_without_a_peak_is_unknown_with_the_reason(settings, gpus, why, job):
    (line,) = lines(job.plan(*MEGA, *settings, gpus=gpus), "time: ")
    assert line.startswith("time: unknown") and line.endswith(f"{why})")


DRAWN = 4 * (128_256 * 4_096 + 12 * 4_096 * 14_336) / 1e9
"""Being drawn: numbers of 4 bytes, on 12 threads, 4.92 GB."""


@pytest.mark.parametrize(
    ("settings", "gpus", "cores", "gigabytes"),
    [
        (MEGA, 8, 96, 8 * (0.43 + DRAWN)),
        (HF, 8, 96, 8 * 0.53 + 4 * 8.030261248 + DRAWN),
        (HF, 1, 12, 0.53 + 2 * 8.030261248 + DRAWN),  # bf16 on one rank
        ((*MEGA, "INIT=native"), 8, 96, 8 * 0.43),
    ],
)
def test_host_memory_of_all_ranks_by_hand(settings, gpus, cores, gigabytes, job, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    (line,) = lines(job.plan(*settings, gpus=gpus), "host memory: ")
    ranks = "1 rank" if gpus == 1 else f"{gpus} ranks"
    assert f" llama about {gigabytes:.1f} GB for {ranks} of " in line


def test_host_that_has_less_memory_than_its_ranks_need_is_warned_of(job, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr("train.preflight.fit.cpu_capacity_gb", lambda ranks: (32.0, "physical memory"))
    fits, warning = lines(job.plan(*BOTH, gpus=8), "host memory: ")
    assert fits == "host memory: mega llama about 22.1 GB for 8 ranks of 32.0 GB (physical memory)"
    assert warning.startswith("warning: host memory: hf llama about 38.7 GB for 8 ranks of 32.0 GB")
    assert "use FRAMEWORK=mega or one with more memory" in warning


def test_memory_is_that_of_the_smallest_gpu_that_the_job_sees(host, job, monkeypatch):
    host.nvidia(
        *(
            H100 | {"index": str(n), "memory.total": f"{size * 1e9 / 2**20:.0f}"}
            for n, size in enumerate((85.0, 141.0, 40.0))
        )
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    (line,) = lines(job.plan(*HF), "memory: ")
    assert "of a device with 85.0 GB" in line and line.endswith("(NVIDIA H100 80GB HBM3)")


def test_job_that_cannot_fit_is_an_oom_result_with_every_term_and_what_would_fit_and_starts_nothing(host, job):
    of_h100s(host, count=8)
    big = ("MODEL_SIZE=full", "SL=8192", "GBS=64", "MBS=1", "TRAIN_ITERS=500", "ALLOW_REPEAT=true", "GPUS_PER_NODE=1")
    ended = job.run(*big, ranks="print('started')", platform="nvd")
    reason = ended.result["reason"]
    assert ended.code == 1 and ended.result["status"] == "oom" and ended.result["steps"] == []
    assert re.match(r"predicted, not run: at least [\d.]+ GB are needed of a device with 85.0 GB", reason)
    for term in ("weights 16.1", "gradients 32.1", "optimizer ", "activations", "logits", "workspace"):
        assert term in reason
    assert reason.endswith("FIT=ignore starts it anyway") and "started" not in ended.out
    assert "started" in job.run(*big, "FIT=ignore", ranks="print('started')", platform="nvd").out


def test_plan_names_what_would_fit_by_the_table_of_the_documentation(host, job):
    of_h100s(host, count=8)
    (said,) = lines(job.plan(*MEGA, "SL=8192", gpus=8), "memory: ")
    # 100.8 GB by the table of docs/generated/fit.md, less the 4 % that the estimate may be too high
    assert "predicted, not run: at least 96.8 GB are needed of a device with 85.0 GB" in said
    assert "optimizer 10.0" in said
    assert "should fit: RECOMPUTE=full, or TP=2, or PP=2 (on both sides of a comparison)" in said
    assert "use more GPUs" in lines(job.plan(*MEGA), "memory: ")[0]
    moe = ("MODEL_SIZE=full", "RUNS=1", "FRAMEWORK=mega", "MODEL=qwen3moe")
    assert "should fit: PP=8, or RECOMPUTE=selective EP=8, or" in lines(job.plan(*moe, gpus=8), "memory: ")[0]
    assert "use more GPUs with EP, a lower SL" in lines(job.plan(*moe), "memory: ")[0]


def test_plan_leaves_out_what_the_driver_reserves_of_a_gpu(host, job):
    host.nvidia(H100 | {"memory.total": "143771", "memory.reserved": "616", "name": "NVIDIA H200"})
    (said,) = lines(job.plan(*MEGA, "OPTIMIZER_STATE=bf16"), "memory: ")
    assert said.startswith("memory: mega llama about 107.8 GB of 150.1 GB (NVIDIA H200)")  # 143,155 MiB


def test_automatic_micro_batch_is_the_largest_that_fits(host, job):
    asked = ("METHOD=best", "MBS=auto", "CP=1", "SL=2048", "GBS=128", *MEGA)

    def plan(memory_gb):
        of_h100s(host, memory_gb, count=8)
        return job.plan(*asked, gpus=8)

    plans = [plan(memory_gb) for memory_gb in (85.0, 192.0)]
    smaller, larger = (float(re.search(r"about ([\d.]+) GB of", one.err)[1]) for one in plans)
    assert smaller < 85.0 < larger < 192.0
    many, few = (int(re.search(r"DP 8, GA (\d+),", one.out)[1]) for one in plans)
    assert few < many < 16, "GBS / DP is 16"
    assert "does not fit 40.0 GB at MBS=1" in plan(40.0).err
    (host.bin / "nvidia-smi").unlink()
    refused = job.plan(*asked, gpus=8)
    assert refused.code == 2 and "MBS=auto: the memory of the device is unknown" in refused.err
    assert "METHOD=best allows" in job.plan(*MEGA, "MBS=auto").err


@pytest.mark.parametrize(
    ("platform", "settings", "gpus", "device"),
    [
        ("nvd", ("MODEL=llama,qwen",), 8, ""),
        ("amd", ("MODEL=llama,qwen",), 8, ""),
        ("nvd", ("OPTIMIZER_STATE=bf16",), 1, "NVIDIA H200"),
        ("amd", ("OPTIMIZER_STATE=bf16",), 1, "AMD Instinct MI300X"),
    ],
)
def test_table_of_a_plan_without_a_gpu_says_that_the_usual_jobs_fit(platform, settings, gpus, device, job):
    ended = job.plan(*BOTH, *settings, f"GPUS_PER_NODE={gpus}", platform=platform, gpus=0)
    _, table = ended.out.split("memory of one GPU by the estimate, GB; not measured")
    assert "TransformerEngine's are not estimated" in table.splitlines()[0]
    rows = [line for line in table.splitlines()[1:] if line.startswith("    ") and device in line]
    assert len(rows) >= 2 and all(line.endswith("  fits") for line in rows), table


@pytest.mark.parametrize(
    ("platform", "built_for", "driver", "wanted"),
    [
        (
            "nvd",
            "13.0",
            "570.133.20",
            "NVIDIA 570.133.20 is older than 580, which CUDA 13.0 of this torch needs; install",
        ),
        (
            "nvd",
            "12.8",
            "470.256.02",
            "NVIDIA 470.256.02 is older than 525, which CUDA 12.8 of this torch needs; install",
        ),
        (
            "amd",
            "7.0.51831",
            "6.1.5",
            "amdgpu 6.1.5 is older than 6.2, which ROCm 7.0.51831 of this torch needs; install",
        ),
        # 580.95 is the driver that PyTorch 25.10 was built with; drivers after 6.4.x are called 30.10
        ("nvd", "13.0", "580.95.05", None),
        ("nvd", "12.8", "525.60.13", None),
        ("amd", "7.0.2", "30.10.1", None),
        ("amd", "6.4.1", "6.1.0", None),
        # one that cannot be judged is never passed
        ("amd", "7.15.1", "30.30.2", "amdgpu 30.30.2 with ROCm 7.15.1: no row in "),
        ("amd", "7.0.2", os.uname().release, "has no version to hold against ROCm 7.0.2"),
    ],
)
def test_driver_that_is_too_old_is_named_with_both_versions_and_one_that_cannot_be_judged_is_a_note(
    platform, built_for, driver, wanted, host, job, monkeypatch
):
    monkeypatch.setattr(torch.version, {"nvd": "cuda", "amd": "hip"}[platform], built_for)
    host.nvidia(H100 | {"driver_version": "999.1"}, H100 | {"driver_version": driver})
    host.amd([mi300x_static() | {"driver": {"version": driver}}], [mi300x_metric()])
    found = [line for line in job.plan(*HF, platform=platform).err.splitlines() if "driver: " in line]
    assert len(found) == bool(wanted)
    if wanted:
        assert wanted in found[0] and found[0].startswith("warning" if "older" in wanted else "note")


@pytest.fixture
def headers(tmp_path, monkeypatch):
    """A made-up folder of the headers of Python."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    return tmp_path


@pytest.mark.parametrize("framework", ["mega", "hf"])
@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_what_kernels_need_is_refused_with_one_line_where_it_is_missing(platform, framework, headers, job, monkeypatch):
    def refused():
        ended = job.run(platform=platform, framework=framework)
        assert ended.code == 2 and ended.err.count("\n") == 1
        return ended.err.removeprefix("error: ")

    assert job.run(platform=platform, framework=framework).code == 1, "a complete machine starts the ranks"
    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/1/fdinfo")
    said = refused()
    assert said.startswith("machine: /proc/1/fdinfo cannot be written") and "set TRITON_CACHE_DIR" in said
    (headers / "Python.h").unlink()
    assert f"{headers}/Python.h is missing" in refused()
    monkeypatch.setattr(job, "compiler", "my-gcc")
    assert refused().startswith("machine: no C compiler (CC=my-gcc) on PATH")
    monkeypatch.setattr(job, "compiler", "")
    assert refused().startswith("machine: no C compiler (gcc, cc, clang) on PATH")
    assert job.run(framework=framework).code == 1, "nothing is compiled on a CPU"


@pytest.mark.parametrize(
    ("name", "version", "is_refused"),
    [
        ("torch", "2.8.0", True),
        ("torch", "2.11.0+cu130", False),
        ("torch", "2.10.0a0+git1234", False),
        ("transformers", "4.57.0", True),
        ("transformers", "5.17.0", False),
        ("transformers", "5.25.0", True),
    ],
)
def test_versions_outside_the_supported_range_are_refused(name, version, is_refused, job, monkeypatch):
    of = metadata.version
    monkeypatch.setattr(metadata, "version", lambda one: version if one == name else of(one))
    ended = job.run("STRICT=0", framework="hf")
    assert (ended.code == 2) == is_refused
    assert not is_refused or ended.err.startswith(f"error: {name}: got version {version}, wanted ")


SEES_A_GPU = """
import sys, torch
from types import SimpleNamespace
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
torch.cuda.get_device_name = lambda *index: "NVIDIA H100 80GB HBM3"
properties = SimpleNamespace(total_memory=85.0e9, multi_processor_count=132, major=9, minor=0, gcnArchName="")
torch.cuda.get_device_properties = lambda *index: properties
from train import matrix
sys.exit(matrix.main())
"""
"""The command in a process of its own, which has imported no TransformerEngine yet."""
ENGINES = {
    "print('a library speaks')\nraise OSError('libcudart.so.13: cannot open')": (
        "TransformerEngine cannot be imported: OSError: libcudart.so.13: cannot open"
    ),
    "": "megatron-core cannot read this version",
    "__import__('os')._exit(7)": "exit code 7",
}


@pytest.mark.parametrize("content", ENGINES)
def test_refused_transformer_engine_is_one_line_of_the_plan_for_jobs_that_want_its_layers(
    content, job, host, monkeypatch
):
    package = host.root / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(host.root))
    where = ("DATASET=synth", f"OUTPUT_DIR={job.output}", f"DATA_DIR={job.output}")
    command = [sys.executable, "-c", SEES_A_GPU, "--platform", "nvd", "--dry-run", *where, *BOTH]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = (line for line in ran.stderr.splitlines() if "mega: LAYERS=" in line)
    assert line.startswith("warning: mega: LAYERS=auto: ") and ENGINES[content] in line
    assert "the layers are torch's, on this side only; LAYERS=local on both sides makes them equal" in line
    assert lines(job.plan(*BOTH, "LAYERS=local"), "mega: ") == lines(job.plan(*HF), "mega: ") == []


# Changes that fit a job are few, allowed, and do fit.


def job_of(*settings, gpus=8, framework="mega", platform="nvd"):
    fixed = f"DATASET=synth MODEL_SIZE=full MODEL=llama FRAMEWORK={framework}"
    return settings_of(fixed, *settings, platform=platform, gpus=gpus)


def changes_of(config, capacity_gb):
    found = fit.changes_that_fit(config, config.frameworks[0], config.spec("llama"), capacity_gb)
    return [fit.change_text(change) for change in found]


@pytest.mark.parametrize("framework", ["mega", "hf"])
@pytest.mark.parametrize("capacity_gb", [30.0, 60.0, 85.0, 149.3, 206.0])
@pytest.mark.parametrize(
    "settings", [("SL=8192",), ("MBS=4",), ("SL=8192", "MBS=8"), ("SL=8192", "MBS=8", "RECOMPUTE=selective")]
)
def test_every_change_is_accepted_as_settings_and_fits(framework, capacity_gb, settings):
    config = job_of(*settings, framework=framework)
    for change in changes_of(config, capacity_gb):
        changed = job_of(*settings, *change.split(), framework=framework)
        needed = estimate.estimate(changed, framework, changed.spec("llama")).total_gb
        assert needed <= estimate.usable_gb(capacity_gb, config.platform)
        kept = ("sequence_length", "global_batch_size", "precision", "num_gpus")
        assert [getattr(changed, key) for key in kept] == [getattr(config, key) for key in kept]


@pytest.mark.parametrize(
    ("settings", "gpus", "framework", "capacity_gb", "wanted"),
    [
        ("SL=8192", 8, "mega", 85.0, ["RECOMPUTE=full", "TP=2", "PP=2"]),
        ("MBS=4", 8, "mega", 100.0, ["MBS=2", "RECOMPUTE=selective", "TP=2"]),
        ("SL=8192", 1, "hf", 130.0, ["RECOMPUTE=full OPTIMIZER_STATE=bf16"]),
        ("", 8, "mega", 149.3, [""]),  # it fits
        ("", 1, "mega", 85.0, []),  # nothing helps
    ],
)
def test_one_change_comes_before_two_and_no_change_contains_another(settings, gpus, framework, capacity_gb, wanted):
    assert changes_of(job_of(settings, gpus=gpus, framework=framework), capacity_gb) == wanted


def test_what_fits_an_mi300x_by_its_share_alone_is_changed_where_the_runtime_needs_more():
    on = {platform: job_of("SL=8192", "MBS=2", platform=platform) for platform in ("nvd", "amd")}
    needed = estimate.estimate(on["amd"], "mega", on["amd"].spec("llama")).total_gb
    capacity = needed + 10.0  # between 5 % and 10.9 GB more than the job needs
    assert 0.95 * capacity > needed and needed > 100
    assert changes_of(on["nvd"], capacity) == [""] and changes_of(on["amd"], capacity)[0] != ""
