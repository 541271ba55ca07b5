"""A training leaves one valid result however it ends, and a job is the same job only if all of it is the same."""

import dataclasses
import io
import math

import pytest
import torch

from example import example_result
from train.job import job as job_module
from train.job.job import Job, reserve
from train.job.recorder import NonFiniteError, StepRecorder
from train.job.report import IncompleteError, JobReport, MismatchError, classify
from utils.results import schema, store
from utils.settings.config import load
from utils.settings.keys import KEYS, InResults, Key

SHA = "a" * 64
SETTINGS = [
    "GBS=64",
    "MBS=8",
    "SL=128",
    "TRAIN_ITERS=5",
    "WARMUP_ITERS=2",
    "LR=1e-3",
    "PRECISION=fp32",
    "MODEL_SIZE=tiny",
    "CPU_RANKS=1",
]


@pytest.fixture
def config(tmp_path):
    return load("cpu", arguments=[*SETTINGS, f"OUTPUT_DIR={tmp_path}"], environ={})


@pytest.fixture
def job(config):
    return Job(config, "mega", "llama")


def known(report, losses=(8.3, 8.2, 8.1, 8.0, 7.9), is_reporter=True):
    """Fill in the report as a trainer does, and train as many steps as there are losses."""
    example = example_result()
    report.gpu_info, report.fingerprint = example["gpu_info"], example["fingerprint"]
    report.resolved = example["resolved_config"] | {"max_steps": 5}
    report.recorder = StepRecorder(5, is_reporter=is_reporter, stream=io.StringIO())
    report.recorder.start()
    for loss in losses:
        report.recorder.end_step(loss=loss, grad_norm=2.0, learning_rate=1e-3)


def report_of(job, **options):
    return JobReport(job, "1" * 64, "a command", **options)


def stored(job):
    return store.read(job.result_path)


def test_out_of_memory_of_the_real_allocators_is_oom():
    with pytest.raises(RuntimeError) as cpu:
        torch.empty(2**55, dtype=torch.uint8)
    assert classify(cpu.value, [])[0] == "oom", cpu.value
    assert classify(torch.OutOfMemoryError("CUDA: tried to allocate 2 GiB"), [])[0] == "oom"
    assert classify(MemoryError(), [])[0] == "oom"


def test_not_finite_is_nan_and_says_where():
    assert classify(NonFiniteError("step 3: loss nan, gradient norm 1.0"), []) == (
        "nan",
        "step 3: loss nan, gradient norm 1.0",
    )


def test_anything_else_is_failed_with_the_last_lines_of_the_traceback():
    def deep(level):
        if level:
            deep(level - 1)
        raise KeyError("the cause")

    with pytest.raises(KeyError) as caught:
        deep(20)
    status, reason = classify(caught.value, [])
    assert status == "failed"
    assert reason.endswith("KeyError: 'the cause'")
    assert "in deep" in reason and len(reason.splitlines()) <= 6


def test_a_finished_training_leaves_an_ok_result_with_what_was_measured(job):
    with report_of(job) as report:
        known(report)
    result = stored(job)
    assert result["status"] == "ok" and result["reason"] is None
    assert (result["steps"], result["loss_values"]) == ([1, 2, 3, 4, 5], [8.3, 8.2, 8.1, 8.0, 7.9])
    assert result["performance_metrics"]["warmup_steps_excluded"] == 3
    assert result["memory_metrics"]["source"].startswith("resident set")
    assert result["training_config"]["global_batch_size"] == 64
    assert (result["framework"], result["model"], result["identity_sha256"]) == ("mega", "llama", "1" * 64)


def test_one_steady_step_has_no_spread_and_says_why(tmp_path):
    short = load("cpu", arguments=[*SETTINGS, "TRAIN_ITERS=2", "WARMUP_ITERS=1", f"OUTPUT_DIR={tmp_path}"], environ={})
    job = Job(short, "mega", "llama")
    with report_of(job) as report:
        known(report, losses=(8.3, 8.2))
    metrics = stored(job)["performance_metrics"]
    assert metrics["std_step_time_seconds"] is None
    assert "one steady step" in metrics["reasons"]["std_step_time_seconds"]


@pytest.mark.parametrize("losses", [(), (8.3, 8.2, 8.1)])
def test_training_that_returns_before_its_last_step_is_a_failure(job, losses):
    with pytest.raises(IncompleteError), report_of(job) as report:
        known(report, losses)
    result = stored(job)
    assert result["status"] == "failed"
    assert f"the training ended after {len(losses)} of 5 steps" in result["reason"]
    assert result["steps"] == list(range(1, len(losses) + 1))


def test_full_disk_is_the_reason_when_the_result_cannot_be_written(job, monkeypatch):
    reserve(job.result_path)
    write, tries = store.write, []

    def full_once(*arguments, **options):
        tries.append(arguments)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        return write(*arguments, **options)

    monkeypatch.setattr(store, "write", full_once)
    with pytest.raises(OSError, match="No space left"), report_of(job) as report:
        known(report)
    result = stored(job)
    assert result["status"] == "failed" and result["reason"].startswith("the disk of ")
    assert len(result["steps"]) == 5, "what was measured is kept"
    assert list(job.result_path.parent.iterdir()) == [job.result_path], "the reserve was given back"


def test_out_of_memory_names_what_was_held_and_what_should_fit(job):
    with pytest.raises(MemoryError), report_of(job) as report:
        known(report)
        raise MemoryError
    reason = stored(job)["reason"]
    assert stored(job)["status"] == "oom"
    assert "GB were in use" in reason and "GB are needed by the estimate" in reason


def with_waits(report, waits):
    """Give the report five steps of a second each; the last two are steady."""
    known(report)
    report.recorder.samples.step_times = [1.0] * 5
    report.recorder.samples.data_wait_seconds = waits


def test_waiting_for_data_above_one_percent_of_the_steady_steps_is_a_warning_in_the_result(job):
    with report_of(job) as report:
        with_waits(report, [0.0, 0.0, 0.0, 0.03, 0.02])
    result = stored(job)
    assert result["performance_metrics"]["data_wait_fraction"] == 0.025  # 0.05 s of 2 s
    assert result["data_wait_seconds"] == [0.0, 0.0, 0.0, 0.03, 0.02]
    (warning,) = result["warnings"]
    assert warning.startswith("data: waiting for samples took 2.5 % of a step (limit 1 %)")


def test_waiting_for_data_in_the_warm_up_is_no_warning(job):
    with report_of(job) as report:
        with_waits(report, [0.9, 0.9, 0.9, 0.004, 0.008])
    result = stored(job)
    assert result["performance_metrics"]["data_wait_fraction"] == 0.006
    assert result["warnings"] == []


def test_a_wait_that_the_framework_does_not_tell_is_null_with_its_reason(job):
    with report_of(job) as report:
        known(report)
    result = stored(job)
    metrics = result["performance_metrics"]
    assert metrics["data_wait_fraction"] is None
    assert "does not tell how long it waits" in metrics["reasons"]["data_wait_fraction"]
    assert result["data_wait_seconds"] == [None] * 5
    assert result["warnings"] == []


def test_only_the_reporter_writes_the_ok_result(job):
    with report_of(job, is_reporter=False) as report:
        known(report)
    assert not job.result_path.exists()


def test_any_rank_writes_its_failure_and_the_error_goes_on(job):
    with pytest.raises(ZeroDivisionError), report_of(job, is_reporter=False):
        _ = 1 / 0
    result = stored(job)
    assert result["status"] == "failed"
    assert "ZeroDivisionError" in result["reason"]
    assert result["steps"] == []


def test_the_first_failure_stays(job):
    for text in ("the cause", "its consequence"):
        with pytest.raises(RuntimeError, match=text), report_of(job):
            raise RuntimeError(text)
    assert stored(job)["reason"].endswith("RuntimeError: the cause")


def test_an_ok_result_is_not_written_over_a_failure(job):
    with pytest.raises(RuntimeError), report_of(job):
        raise RuntimeError("another rank")
    with pytest.raises(store.ResultError, match="another attempt"), report_of(job) as report:
        known(report)
    assert stored(job)["status"] == "failed"


def test_an_interrupted_training_leaves_a_failed_result_with_the_steps_it_made(job):
    with pytest.raises(KeyboardInterrupt), report_of(job) as report:
        known(report, losses=(8.3, 8.2, 8.1))
        raise KeyboardInterrupt
    result = stored(job)
    assert (result["status"], result["steps"]) == ("failed", [1, 2, 3])
    assert "KeyboardInterrupt" in result["reason"]


def test_a_loss_that_is_not_finite_leaves_a_nan_result_with_null_in_its_place(job):
    with pytest.raises(NonFiniteError), report_of(job) as report:
        known(report, losses=(8.3, 8.2, 8.1, math.nan))
    result = stored(job)
    assert result["status"] == "nan"
    assert result["reason"] == "step 4: loss nan, gradient norm 2.0"
    assert result["loss_values"] == [8.3, 8.2, 8.1, None]


def test_a_rank_without_a_loss_says_null_and_not_zero_when_it_fails(job):
    with pytest.raises(RuntimeError), report_of(job, is_reporter=False) as report:
        known(report, losses=(None, None), is_reporter=False)
        raise RuntimeError("a stage of the pipeline died")
    assert stored(job)["loss_values"] == [None, None]


def test_what_was_built_must_be_what_was_asked(job):
    report = report_of(job)
    known(report)
    report.check_resolved()
    report.resolved |= {"tp": 4, "precision": "bf16", "seed": None}
    with pytest.raises(MismatchError) as caught:
        report.check_resolved()
    assert "tp: asked 1, built 4" in str(caught.value)
    assert "precision: asked 'fp32', built 'bf16'" in str(caught.value)
    assert "seed" not in str(caught.value), "not read back is not different; the result says so instead"


def another(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    return 1 if value is None else value * 2 + 1


# every field of RunConfig that decides what is trained; `dataset` itself is a name, its hash is what counts
SETTING_FIELDS = [
    "train_iterations",
    "global_batch_size",
    "micro_batch_size",
    "sequence_length",
    "num_gpus",
    "gradient_accumulation",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "data_parallel_size",
    "precision",
    "seed",
    "learning_rate",
    "min_learning_rate",
    "warmup_iterations",
    "weight_decay",
    "beta1",
    "beta2",
    "adam_epsilon",
    "clip_grad",
    "init",
    "init_std",
    "samples",
    "allow_repeat",
    "platform",
    "method",
]


@pytest.mark.parametrize("field", SETTING_FIELDS)
def test_another_setting_is_another_job(job, field):
    changed = dataclasses.replace(job.config, **{field: another(getattr(job.config, field))})
    assert dataclasses.replace(job, config=changed).identity(SHA) != job.identity(SHA)


def test_other_data_model_size_framework_run_code_or_machine_is_another_job(job, monkeypatch):
    identities = [
        job.identity(SHA),
        job.identity("b" * 64),
        dataclasses.replace(job, model="qwen").identity(SHA),
        dataclasses.replace(job, config=dataclasses.replace(job.config, model_size="full")).identity(SHA),
        dataclasses.replace(job, framework="hf").identity(SHA),
        dataclasses.replace(job, run=2).identity(SHA),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(job_module.platform, "node", lambda: "another-machine")
        identities.append(job.identity(SHA))
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "sha256_code", lambda root: "c" * 64)
        identities.append(job.identity(SHA))
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize(
    "setting", ["FORCE=1", "RUNS=5", "OUTPUT_DIR=elsewhere", "LABEL=night", "COOLDOWN_SECONDS=5", "DATA_DIR=elsewhere"]
)
def test_what_does_not_change_the_work_is_the_same_job(job, setting):
    same = load("cpu", arguments=[*SETTINGS, setting], environ={})
    assert Job(same, "mega", "llama", attempt=3).identity(SHA) == job.identity(SHA)


def test_an_empty_result_is_valid_for_every_status_but_ok(job):
    for status in schema.STATUSES:
        reason = None if status == "ok" else "a reason"
        result = job.empty_result(status, reason, "1" * 64, "a command", "2026-01-01T00:00:00+00:00")
        assert (store.problems(result) == []) == (status != "ok")


def test_an_empty_result_has_every_key_of_every_section(job):
    result = job.empty_result("failed", "a reason", "1" * 64, "a command", "2026-01-01T00:00:00+00:00")
    for section, keys in schema.SECTIONS.items():
        assert keys.keys() <= result[section].keys(), section
    assert result["warnings"] == []


def test_a_setting_that_a_framework_does_not_read_back_is_null_with_a_reason(job, monkeypatch):
    later = Key("seed", int, "a number", "a setting of a later version", InResults("later", int, before=1))
    monkeypatch.setitem(KEYS, "LATER", later)
    resolved = report_of(job)
    known(resolved)
    section = resolved.result("failed", "ended")["resolved_config"]
    assert (
        section["later"] is None and section["reasons"]["later"] == f"{job.framework} does not read this setting back"
    )
