"""A profile starts and stops between two steps: its steps are no samples, and no measured step holds a part of it."""

import io
import math

import pytest

from tests.train.job.test_recorder import Clock, FakeDevice, step
from train.job import recorder as monitor
from train.job.job import Job
from train.job.recorder import NonFiniteError, StepRecorder
from train.job.report import IncompleteError, JobReport
from utils.results import store
from utils.settings.config import load

START_SECONDS, STOP_SECONDS = 3.0, 7.0


class SlowProfile:
    """A profile that notes its calls; starting it takes 3 s, stopping it 7 s, a mark 0.25 s."""

    def __init__(self, clock, steps):
        self.steps = steps
        self.calls = []
        self._clock = clock

    def start(self):
        self.calls.append("start")
        self._clock.pass_seconds(START_SECONDS)

    def begin_step(self, number):
        self.calls.append(number)
        self._clock.pass_seconds(0.25)

    def end_step(self):
        self.calls.append("end")

    def stop(self):
        self.calls.append("stop")
        self._clock.pass_seconds(STOP_SECONDS)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(monitor.time, "perf_counter", clock)
    return clock


def trained(clock, steps, total=8, stream=None):
    """Train steps of 1, 2, 3, ... seconds."""
    profile = SlowProfile(clock, steps)
    recorder = StepRecorder(total, device=FakeDevice(clock), stream=stream or io.StringIO(), profile=profile)
    recorder.start()
    for number in range(1, total + 1):
        clock.pass_seconds(float(number))
        step(recorder, loss=10.0 - number)
    return recorder, profile


@pytest.mark.parametrize("steps", [range(3, 5), range(1, 3), range(7, 9), range(4, 5)], ids=str)
def test_profiled_steps_are_no_samples_and_the_others_keep_their_time(steps, clock):
    recorder, profile = trained(clock, steps)
    others = [number for number in range(1, 9) if number not in steps]
    assert recorder.samples.steps == others
    assert recorder.samples.step_times == [float(number) for number in others]
    assert recorder.samples.loss_values == [10.0 - number for number in others]
    assert {len(values) for key, values in vars(recorder.samples).items() if key != "allocated_gb"} == {len(others)}
    assert recorder.profiled_seconds == [float(number) for number in steps]
    assert recorder.excluded_steps == dict.fromkeys(steps, "profiled")
    assert profile.calls == ["start", *(call for number in steps for call in (number, "end")), "stop"]


@pytest.mark.parametrize("steps", [range(3, 5), range(1, 3), range(7, 9)], ids=str)
def test_the_second_timer_stands_during_the_profile(steps, clock):
    recorder, _ = trained(clock, steps)
    assert recorder.loop_seconds == pytest.approx(sum(recorder.samples.step_times))


def test_the_progress_of_a_profiled_step_has_no_time_and_the_average_leaves_it_out(clock):
    stream = io.StringIO()
    trained(clock, range(2, 4), total=5, stream=stream)
    assert stream.getvalue().splitlines() == [
        "[CPU] Step 1/5 | 1.000 s | avg 1.000 s | loss 9.0000 | 1.2 GB",
        "[CPU] Step 2/5 | profiled | loss 8.0000 | 1.2 GB",
        "[CPU] Step 3/5 | profiled | loss 7.0000 | 1.2 GB",
        "[CPU] Step 4/5 | 4.000 s | avg 4.000 s | loss 6.0000 | 1.2 GB",
        "[CPU] Step 5/5 | 5.000 s | avg 4.500 s | loss 5.0000 | 1.2 GB",
    ]


def test_memory_is_read_at_the_first_measured_step_when_the_first_ones_are_profiled(clock):
    recorder, _ = trained(clock, range(1, 3), total=12)
    assert recorder.samples.allocated_gb == [1.23, 1.23]  # at steps 3 and 11


def test_a_wait_for_data_of_a_profiled_step_is_in_no_sample(clock):
    profile = SlowProfile(clock, range(1, 2))
    recorder = StepRecorder(2, device=FakeDevice(clock), stream=io.StringIO(), profile=profile)
    batches = recorder.timed(slow_batches(clock))
    recorder.start()
    for _ in range(2):
        next(batches)
        step(recorder)
    assert recorder.samples.data_wait_seconds == [0.5]


def slow_batches(clock):
    while True:
        clock.pass_seconds(0.5)
        yield None


def test_a_loss_that_is_not_finite_in_a_profiled_step_ends_the_training(clock):
    recorder = StepRecorder(8, device=FakeDevice(clock), stream=io.StringIO(), profile=SlowProfile(clock, range(2, 4)))
    recorder.start()
    clock.pass_seconds(2.0)
    step(recorder)
    with pytest.raises(NonFiniteError, match="step 2"):
        step(recorder, loss=math.nan)
    assert (recorder.steps_done, recorder.excluded_steps) == (2, {2: "profiled"})
    assert recorder.loop_seconds == pytest.approx(2.0), "without the profile, which never ended"


def report_of(tmp_path, clock, total):
    arguments = ["PROFILING=true", "PROFILE_STEP_START=3", "PROFILE_STEP_END=4", "TRAIN_ITERS=8", "MODEL_SIZE=tiny"]
    config = load("cpu", 1, arguments=["FRAMEWORK=mega", f"OUTPUT_DIR={tmp_path}", *arguments], environ={})
    config.results_dir.mkdir(parents=True)
    job = Job(config, "mega", "llama")
    report = JobReport(job, "0" * 64, "train")
    report.recorder, _ = trained(clock, config.profiled.steps, total)
    return report


def test_the_result_has_the_measured_steps_and_names_the_profiled_ones(tmp_path, clock):
    report = report_of(tmp_path, clock, total=8)
    report.warnings.append("profile: rank0: the disk is full")
    result = store.rounded(report.result("failed", "no model was built"))
    store.validate(result, "result")
    assert result["steps"] == [1, 2, 5, 6, 7, 8] and result["label"] == "profiled"
    assert result["excluded_steps"] == {"3": "profiled", "4": "profiled"}
    # of six samples the first three are warm-up: (6 + 7 + 8) / 3
    assert result["performance_metrics"]["avg_step_time_seconds"] == 7.0
    assert "profile: rank0: the disk is full" in result["warnings"]


def test_a_profiled_training_that_ends_early_is_incomplete(tmp_path, clock):
    report = report_of(tmp_path, clock, total=7)
    with pytest.raises(IncompleteError, match="after 7 of 8 steps"):
        report._check_complete()
    report_of(tmp_path / "other", clock, total=8)._check_complete()
