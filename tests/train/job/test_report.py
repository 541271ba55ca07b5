"""A training leaves one valid result however it ends in its rank, with what was measured until then.

Before it, the samples of the ranks are merged; Lightning feeds the recorder at each of its optimizer steps.
"""

from __future__ import annotations

import errno
import io
import json
import math
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from checkout import ROOT

from example import example_result
from tests.train.job.test_recorder import NonFiniteError, StepRecorder, profiled
from train.job import job, report
from utils.results import schema, store
from utils.settings.config import load

SETTINGS = ("GBS=64", "MBS=8", "SL=128", "TRAIN_ITERS=5", "WARMUP_ITERS=2", "LR=1e-3", "PRECISION=fp32", "CPU_RANKS=1")


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output"


@pytest.fixture
def report_of(output):
    """Returns a function that makes a report as a trainer does, after as many steps as there are losses."""

    def make(losses=(8.3, 8.2, 8.1, 8.0, 7.9), waits=None, settings=(), is_reporter=True, platform="cpu"):
        output.mkdir(exist_ok=True)
        where = (f"OUTPUT_DIR={output}", "MODEL_SIZE=tiny", "FRAMEWORK=mega", *settings)
        config = load(platform, None if platform == "cpu" else 1, arguments=[*SETTINGS, *where], environ={})
        made = report.JobReport(job.Job(config, "mega", "llama"), "1" * 64, "a command", is_reporter=is_reporter)
        example = example_result()
        made.gpu_info, made.fingerprint = example["gpu_info"], example["fingerprint"]
        made.resolved = example["resolved_config"] | {"max_steps": config.train_iterations}
        made.recorder = StepRecorder(config.train_iterations, is_reporter=is_reporter, stream=io.StringIO())
        made.recorder.start()
        for loss in losses:
            made.recorder.end_step(loss=loss, grad_norm=2.0, learning_rate=1e-3)
        if waits:
            made.recorder.samples.step_times, made.recorder.samples.data_wait_seconds = [1.0] * 5, waits
        return made

    return make


@pytest.fixture
def stored(output):
    return lambda: store.read(output / "train_cpu_mega_llama_run1.json")


def raising(report, error):
    """Run a training that ends by an error, which goes on."""
    with pytest.raises(type(error)), report:
        raise error


def test_finished_training_leaves_an_ok_result_with_what_was_measured(report_of, stored):
    with report_of():
        pass
    result = stored()
    assert result["status"] == "ok" and result["reason"] is None and result["warnings"] == []
    assert (result["steps"], result["loss_values"]) == ([1, 2, 3, 4, 5], [8.3, 8.2, 8.1, 8.0, 7.9])
    metrics = result["performance_metrics"]
    assert metrics["warmup_steps_excluded"] == 3
    assert metrics["data_wait_fraction"] is None and result["data_wait_seconds"] == [None] * 5
    assert "does not tell how long it waits" in metrics["reasons"]["data_wait_fraction"]
    assert result["memory_metrics"]["source"].startswith("resident set")
    assert result["training_config"]["global_batch_size"] == 64
    assert (result["framework"], result["model"], result["identity_sha256"]) == ("mega", "llama", "1" * 64)


def test_one_steady_step_has_no_spread_and_says_why(report_of, stored):
    with report_of((8.3, 8.2), settings=("TRAIN_ITERS=2", "WARMUP_ITERS=1")):
        pass
    metrics = stored()["performance_metrics"]
    assert metrics["std_step_time_seconds"] is None
    assert "one steady step" in metrics["reasons"]["std_step_time_seconds"]


@pytest.mark.parametrize(
    ("waits", "fraction", "is_warned"),
    [
        ([0.0, 0.0, 0.0, 0.03, 0.02], 0.025, True),  # 0.05 s of 2 s: the last two steps are steady
        ([0.9, 0.9, 0.9, 0.004, 0.008], 0.006, False),
    ],
)
def test_waiting_for_data_above_one_percent_of_the_steady_steps_is_a_warning(
    waits, fraction, is_warned, report_of, stored
):
    with report_of(waits=waits):
        pass
    result = stored()
    assert result["performance_metrics"]["data_wait_fraction"] == fraction and result["data_wait_seconds"] == waits
    assert [line[:5] for line in result["warnings"]] == ["data:"] * is_warned


def cannot_save():
    error = RuntimeError("cannot save")
    error.__cause__ = OSError(errno.ENOSPC, "No space left")
    return error


ERRORS = {
    "interrupted": (KeyboardInterrupt(), "failed", "KeyboardInterrupt"),
    "anything else": (KeyError("the cause"), "failed", r"^(.*\n){,5}KeyError: 'the cause'$"),
    "not finite": (
        NonFiniteError("step 3: loss nan, gradient norm 1.0"),
        "nan",
        "^step 3: loss nan, gradient norm 1.0$",
    ),
    "no memory": (MemoryError(), "oom", r"\d GB were in use, .* GB are needed by the estimate"),
    "no memory of a GPU": (torch.OutOfMemoryError("CUDA: tried to allocate 2 GiB"), "oom", "tried to allocate 2 GiB"),
    "full disk": (OSError(errno.ENOSPC, "No space left"), "failed", r"^the disk of .* is full \([\d,]+ bytes free\)$"),
    "full disk of numpy": (OSError("9 requested and 2 written"), "failed", "^the disk of .* is full"),
    "quota": (
        OSError(errno.EDQUOT, "", "/nowhere/at/all/file"),
        "failed",
        "^the disk quota for /nowhere/at/all is used up$",
    ),
    "limit of a file": (OSError(errno.EFBIG, "", "/gone/file"), "failed", r"^a file in /gone is larger .*ulimit -f\)$"),
    "no disk's": (
        FileNotFoundError(errno.ENOENT, "No such file", "/gone/file"),
        "failed",
        "No such file: '/gone/file'$",
    ),
    "full disk behind another error": (cannot_save(), "failed", "^the disk of "),
    "no disk's either": (KeyError("No space left"), "failed", "KeyError: 'No space left'$"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_error_of_a_training_is_its_status_and_reason_beside_the_steps_so_far(case, report_of, stored):
    error, status, reason = ERRORS[case]
    raising(report_of((8.3, 8.2, 8.1)), error)
    result = stored()
    assert (result["status"], result["steps"]) == (status, [1, 2, 3])
    assert re.search(reason, result["reason"], re.DOTALL if status == "oom" else 0), result["reason"]


def test_out_of_memory_of_the_real_allocator_is_oom(report_of, stored):
    with pytest.raises(RuntimeError), report_of():
        torch.empty(2**55, dtype=torch.uint8)
    assert stored()["status"] == "oom"


@pytest.mark.parametrize(
    ("memory_gb", "is_started", "said"),
    [
        (141.0, True, "70.0 GB were in use, 79.3 GB at the most, 79.9 GB reserved by the allocator"),
        (141.0, True, r"of 141.0 GB at MBS=32; MBS=(1|2|4|8|16) should fit"),
        (145.0, True, "MBS=1 should fit"),  # MBS=2 needs 140.0 GB, more than 95 % of it
        (148.0, True, "MBS=2 should fit"),
        (None, False, "it was before the first step.*is unknown"),
        (8.0, False, "it was before the first step.*raise TP or PP, or lower SL"),
    ],
)
def test_memory_of_a_gpu_that_ran_out_is_named_with_what_should_fit(memory_gb, is_started, said, report_of, output):
    settings = ("MODEL_SIZE=full", "GBS=64", "MBS=32", "SL=2048", "OPTIMIZER_STATE=bf16")
    gpu = report_of((), settings=settings, platform="nvd")
    gpu.gpu_info |= {"total_memory_gb": memory_gb, "reasons": {"*": "unknown"}}
    figures = {"allocated_gb": 70.04, "peak_allocated_gb": 79.26, "peak_reserved_gb": 79.9}
    gpu.recorder.device = SimpleNamespace(**{name: lambda value=value: value for name, value in figures.items()})
    if not is_started:
        gpu.recorder = None
    raising(gpu, MemoryError())
    assert re.search(said, store.read(output / "train_nvd_mega_llama_run1.json")["reason"])


@pytest.mark.parametrize("losses", [(), (8.3, 8.2, 8.1)])
def test_training_that_returns_before_its_last_step_is_a_failure(losses, report_of, stored):
    with pytest.raises(RuntimeError), report_of(losses):
        pass
    result = stored()
    assert result["status"] == "failed" and result["steps"] == list(range(1, len(losses) + 1))
    assert f"the training ended after {len(losses)} of 5 steps" in result["reason"]


def test_full_disk_is_the_reason_when_the_result_cannot_be_written(report_of, stored, output, monkeypatch):
    write = store.write

    def full_once(*arguments, **options):
        monkeypatch.setattr(store, "write", write)
        raise OSError(28, "No space left on device")

    report = report_of()
    reserve = output / ".train_cpu_mega_llama_run1.json.reserve"
    reserve.touch()
    monkeypatch.setattr(store, "write", full_once)
    with pytest.raises(OSError, match="No space left"), report:
        pass
    result = stored()
    assert result["status"] == "failed" and result["reason"].startswith("the disk of ")
    assert len(result["steps"]) == 5 and not reserve.exists(), "what was measured is kept, in the reserved room"


def test_only_the_reporter_writes_the_ok_result_and_any_rank_its_failure(report_of, stored, output):
    with report_of(is_reporter=False):
        pass
    assert not list(output.iterdir())
    raising(report_of((None, None), is_reporter=False), ZeroDivisionError("a stage died"))
    assert stored()["status"] == "failed" and stored()["loss_values"] == [None, None], "null and not zero"


def test_first_failure_stays(report_of, stored):
    for text in ("the cause", "its consequence"):
        raising(report_of(), RuntimeError(text))
    with pytest.raises(store.ResultError, match="another attempt"), report_of():
        pass
    assert stored()["status"] == "failed" and stored()["reason"].endswith("RuntimeError: the cause")


def test_loss_that_is_not_finite_leaves_null_in_its_place(report_of, stored):
    report = report_of((8.3, 8.2, 8.1))
    with pytest.raises(NonFiniteError), report:
        report.recorder.end_step(loss=math.nan, grad_norm=2.0, learning_rate=1e-3)
    assert (stored()["status"], stored()["loss_values"]) == ("nan", [8.3, 8.2, 8.1, None])


def test_what_was_built_must_be_what_was_asked(report_of):
    report = report_of()
    report.check_resolved()
    report.resolved |= {"tp": 4, "precision": "bf16", "seed": None}
    with pytest.raises(RuntimeError) as caught:
        report.check_resolved()
    assert "tp: asked 1, built 4" in str(caught.value) and "precision: asked 'fp32', built 'bf16'" in str(caught.value)
    assert "seed" not in str(caught.value), "not read back is not different; the result says so instead"


def test_setting_that_a_framework_does_not_read_back_is_null_with_a_reason(report_of):
    report = report_of()
    del report.resolved["seed"]
    section = report.result("failed", "ended")["resolved_config"]
    assert section["seed"] is None and section["reasons"]["seed"] == "mega does not read this setting back"


@pytest.mark.parametrize("status", schema.STATUSES)
def test_result_without_measurements_is_valid_and_whole_for_every_status_but_ok(status, report_of):
    report = report_of()
    report.recorder, report.gpu_info, report.resolved, report.fingerprint = None, {}, {}, {}
    result = report.result(status, None if status == "ok" else "a reason")
    assert (store.problems(result) == []) == (status != "ok")
    for section, keys in schema.SECTIONS.items():
        assert keys.keys() <= result[section].keys(), section


def test_result_has_the_measured_steps_and_names_the_profiled_ones(report_of, tmp_path, monkeypatch):
    of_profile = ("PROFILING=true", "PROFILE_STEP_START=3", "PROFILE_STEP_END=4", "TRAIN_ITERS=8")
    for total in (7, 8):
        report = report_of((), settings=of_profile)
        report.recorder = profiled(monkeypatch, range(3, 5), total)[0]
        if total < 8:
            with pytest.raises(RuntimeError, match="after 7 of 8 steps"), report:
                pass
    report.warnings.append("profile: rank0: the disk is full")
    result = store.rounded(report.result("failed", "no model was built"))
    store.validate(result, "result")
    assert result["steps"] == [1, 2, 5, 6, 7, 8] and result["label"] == "profiled"
    assert result["excluded_steps"] == {"3": "profiled", "4": "profiled"}
    # of six samples the first three are warm-up: (6 + 7 + 8) / 3
    assert result["performance_metrics"]["avg_step_time_seconds"] == 7.0
    assert "profile: rank0: the disk is full" in result["warnings"]


# Several ranks, and Lightning

TWO_RANKS = """
import io, json, os, sys
import torch
from train.job.recorder import CpuDevice, StepRecorder

rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


class Device(CpuDevice):
    def allocated_gb(self):
        return (1.0, 3.0)[rank]

    def peak_allocated_gb(self):
        return (7.0, 4.0)[rank]

    def peak_reserved_gb(self):
        return (8.0, 9.0)[rank]


def recorded(waits):
    recorder = StepRecorder(2, device=Device(), stream=io.StringIO())
    recorder.start()
    for loss in ((6.0, 5.0), (4.0, 4.5))[rank]:
        recorder.end_step(loss=loss, grad_norm=1.0 + rank, learning_rate=0.1)
    recorder.samples.data_wait_seconds = list(waits[rank])
    recorder.merge_ranks()
    return recorder


recorder = recorded(((0.5, 0.125), (0.25, 0.75)))
memory = [recorder.avg_allocated_gb, recorder.peak_allocated_gb, recorder.peak_reserved_gb]
print(json.dumps([recorder.samples.loss_values, memory, recorder.samples.grad_norms, recorder.memory_scope]))
waits = [recorder, recorded(((None, None), (0.25, 0.0))), recorded(((None, None), (None, None)))]
print(json.dumps([each.samples.data_wait_seconds for each in waits]))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # as train/common/trainer.py leaves: gloo's threads can abort the interpreter at its end
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Output of the two ranks: losses, memory, norms and scope, then the waits of three recorders."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS, str(rank), str(store)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=600)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    return [[json.loads(line) for line in text.splitlines()] for text in said]


def test_losses_are_averaged_over_ranks_and_memory_is_the_largest(two_ranks):
    first, second = (said[0] for said in two_ranks)
    expected = [[5.0, 4.75], [3.0, 7.0, 9.0]]  # (6 + 4) / 2 and (5 + 4.5) / 2; the larger of each pair above
    assert first == [*expected, [1.0, 1.0], "largest over ranks"]
    assert second == [*expected, [2.0, 2.0], "largest over ranks"]


def test_of_each_step_the_rank_that_waited_longest_for_data_is_taken(two_ranks):
    for _, (both, one, none) in two_ranks:
        assert both == [0.5, 0.75]
        assert one == [0.25, 0.0], "a rank that fetches nothing takes no part"
        assert none == [None, None], "unknown on every rank stays unknown"
