"""A job that cannot fit into its device is not started; the fit table shows what fits where."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from train.job.job import Job
from train.machine import capacity, gpus
from train.machine.gpu_state import GpuReading, GpuState, GpuToolError
from train.preflight import fit, fit_table
from train.runner import plan
from utils.errors import ConfigError
from utils.results import store
from utils.settings.config import ROOT, load


def job_of(*settings, gpus=1, framework="mega", platform="nvd"):
    arguments = ["DATASET=synth", "MODEL_SIZE=full", f"FRAMEWORK={framework}", "MODEL=llama", *settings]
    return Job(load(platform, gpus, arguments=arguments, environ={}), framework, "llama")


def test_job_that_cannot_fit_is_refused_with_every_term_and_what_would_fit():
    said = fit.refusal(job_of("SL=8192", gpus=8), 85.0)
    # 100.8 GB by the table of docs/memory.md, less the 4 % that the estimate may be too high
    assert said.startswith("predicted, not run: at least 96.8 GB are needed of a device with 85.0 GB")
    for term in ("weights 16.1", "gradients 32.1", "optimizer 10.0", "activations", "logits", "workspace"):
        assert term in said
    assert "should fit: RECOMPUTE=full, or TP=2, or PP=2 (on both sides of a comparison)" in said
    assert said.endswith("FIT=ignore starts it anyway")


def test_job_without_any_fitting_settings_is_told_to_use_more_gpus():
    assert "use more GPUs" in fit.refusal(job_of(), 85.0)


@pytest.mark.parametrize(
    ("settings", "framework", "capacity_gb"),
    [(("FIT=ignore",), "mega", 85.0), ((), "mega", None), ((), "mega", 141.0), ((), "nemo", 10.0)],
    ids=["ignored", "unknown device", "may fit", "no formula"],
)
def test_job_that_may_fit_is_not_refused(settings, framework, capacity_gb):
    job = job_of(*settings)
    assert fit.refusal(Job(job.config, framework, "llama"), capacity_gb) is None


def reading_of(*sizes_gb):
    return GpuReading(
        "a tool", tuple(GpuState("nvd", i, name="a GPU", memory_total_gb=s) for i, s in enumerate(sizes_gb))
    )


def test_capacity_is_that_of_the_smallest_visible_gpu(monkeypatch):
    config = job_of(gpus=2).config
    monkeypatch.setattr(gpus, "read", lambda platform: reading_of(85.0, 141.0, 40.0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert capacity.capacity_gb(config) == (85.0, "a GPU")

    def broken(platform):
        raise GpuToolError("nvidia-smi is not installed")

    monkeypatch.setattr(gpus, "read", broken)
    assert capacity.capacity_gb(config) == (None, "nvidia-smi is not installed")


def test_refused_job_leaves_an_oom_result_and_starts_no_rank(tmp_path):
    """One layer of full width needs 20 GB on a CPU, 16 bytes a parameter; the process may have 8.6 GB."""
    settings = ["DATASET=synth", "MODEL_SIZE=proxy", "PROXY_LAYERS=1", "TRAIN_ITERS=2", "WARMUP_ITERS=1", "CPU_RANKS=1"]
    settings += ["GBS=1", "MBS=1", f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path / 'out'}"]
    settings += ["MODEL=llama", "FRAMEWORK=mega"]
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY)); "
    prepare = [sys.executable, "-m", "data.prepare", "--platform", "cpu", *settings]
    assert subprocess.run(prepare, cwd=ROOT, capture_output=True).returncode == 0
    launch = limited + "sys.argv[0] = 'launch'; runpy.run_module('train.launch', run_name='__main__')"
    command = [sys.executable, "-c", launch, "--platform", "cpu", "--framework", "mega", "--model", "llama", *settings]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr
    (path,) = (tmp_path / "out").rglob("train_cpu_mega_llama_run1.json")
    result = store.read(path)
    assert result["status"] == "oom" and result["reason"].startswith("predicted, not run: at least ")
    assert result["steps"] == [] and result["performance_metrics"]["avg_step_time_seconds"] is None
    assert not list((tmp_path / "out" / "logs").glob("*.log")), "no rank was started"


# MBS=auto


def auto(monkeypatch, capacity_gb, *settings, framework="mega"):
    monkeypatch.setattr(plan, "capacity_gb", lambda config: (capacity_gb, "a GPU"))
    job = job_of("METHOD=best", f"FRAMEWORK={framework}", "CP=1", "MBS=auto", *settings, gpus=8, framework=framework)
    values = {"MBS": SimpleNamespace(text="auto")}
    return plan.with_micro_batch(job.config, values, framework, "llama")


def test_automatic_micro_batch_is_the_largest_that_fits(monkeypatch):
    found = auto(monkeypatch, 141.0, "SL=2048", "GBS=128")
    assert found.micro_batch_size * found.gradient_accumulation * 8 == 128
    fits = [auto(monkeypatch, 141.0, "SL=2048", "GBS=128", f"MBS={size}") for size in (1, 2, 4, 8, 16)]
    assert found.micro_batch_size in [one.micro_batch_size for one in fits]
    smaller = auto(monkeypatch, 85.0, "SL=2048", "GBS=128")
    assert smaller.micro_batch_size < found.micro_batch_size
    with pytest.raises(ConfigError, match="MBS=auto: the memory of the device is unknown"):
        auto(monkeypatch, None)
    with pytest.raises(ConfigError, match="does not fit 40.0 GB at MBS=1"):
        auto(monkeypatch, 40.0, "SL=2048")


def test_automatic_micro_batch_is_for_the_method_best():
    with pytest.raises(ConfigError, match="METHOD=best allows"):
        job_of("MBS=auto")


# The table


def test_documented_table_is_the_generated_one():
    text = (ROOT / "docs" / "memory.md").read_text(encoding="utf8")
    assert fit_table.documented_table() in text, "run python -m train.preflight.fit_table --write docs/memory.md"


@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_default_matrix_fits_eight_gpus_of_every_device(platform):
    for framework in ("mega", "hf"):
        for model in ("llama", "qwen"):
            config = load(platform, 8, arguments=["DATASET=synth", f"FRAMEWORK={framework}"], environ={})
            needed, *fits = fit_table.row(Job(config, framework, model), fit_table.devices_of(platform))
            assert set(fits) == {"fits"}, (framework, model, needed)


@pytest.mark.parametrize(("platform", "device"), [("nvd", "NVIDIA H200 SXM 141GB"), ("amd", "AMD Instinct MI300X")])
@pytest.mark.parametrize("framework", ["mega", "hf"])
def test_llama_fits_one_device_with_bf16_states(platform, device, framework):
    job = job_of("OPTIMIZER_STATE=bf16", framework=framework, platform=platform)
    devices = [one for one in fit_table.devices_of(platform) if one.name == device]
    assert fit_table.row(job, devices)[1:] == ["fits"]


def test_dry_run_on_a_machine_without_a_gpu_prints_the_table(tmp_path):
    command = [sys.executable, "-m", "train.matrix", "--platform", "nvd", "--dry-run", "GPUS_PER_NODE=8"]
    settings = ["FRAMEWORK=mega,hf", "DATASET=synth", f"DATA_DIR={tmp_path}", f"OUTPUT_DIR={tmp_path / 'out'}"]
    ran = subprocess.run([*command, *settings], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "memory of one GPU by the estimate, GB; not measured" in ran.stdout
    for job in ("mega llama", "hf llama", "mega qwen", "hf qwen"):
        assert job in ran.stdout
