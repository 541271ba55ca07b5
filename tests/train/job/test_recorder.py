"""The recorder measures whole steps, works at their boundaries and never inside them, in every trainer."""

import inspect
import io
import math
import re
import time
from pathlib import Path
from unittest.mock import Mock, call

import pytest
import torch
from smi_machine import Clock

from tests.train.common.test_adamw import NoHostRead
from train.job.recorder import CpuDevice, NonFiniteError, StepRecorder


def fake_device(clock):
    """A device; its `pending_seconds` of queued work pass in the next synchronisation."""

    def synchronize():
        clock.sleep(device.pending_seconds)
        device.pending_seconds = 0.0

    device = Mock(source="fake", pending_seconds=0.0, synchronize=Mock(side_effect=synchronize))
    device.configure_mock(allocated_gb=lambda: 1.23, peak_allocated_gb=lambda: 2.5, peak_reserved_gb=lambda: 3.5)
    return device


def slow_profile(clock, steps):
    """A profile; starting it takes 3 s, stopping it 7 s, a mark 0.25 s."""
    profile = Mock(steps=steps)
    profile.start.side_effect = lambda: clock.sleep(3.0)
    profile.begin_step.side_effect = lambda number: clock.sleep(0.25)
    profile.stop.side_effect = lambda: clock.sleep(7.0)
    return profile


@pytest.fixture
def clock(monkeypatch):
    """Replaces time.perf_counter; moves only when a test or the fake parts move it."""
    clock = Clock()
    clock.sleep(100.0)
    monkeypatch.setattr(time, "perf_counter", clock.now)
    return clock


def make(clock, total=30, device=None, stream=None, is_started=True, **options):
    recorder = StepRecorder(total, device=device or fake_device(clock), stream=stream or io.StringIO(), **options)
    if is_started:
        recorder.start()
    return recorder


def step(recorder, loss=6.0, grad_norm=2.0):
    recorder.end_step(loss=loss, grad_norm=grad_norm, learning_rate=1e-3)


def test_a_step_lasts_from_boundary_to_boundary_with_queued_work_for_which_it_waits_once(clock):
    recorder = make(clock, is_started=False)
    recorder.device.pending_seconds = 50.0  # work from before the first step
    recorder.start()
    assert recorder.device.synchronize.call_count == 1
    assert recorder.loop_seconds == 0, "no step has ended"
    clock.sleep(0.25)
    step(recorder)
    clock.sleep(0.5)  # e.g. loading data, right after the boundary
    recorder.device.pending_seconds = 2.0  # launched, not done
    step(recorder)
    assert recorder.samples.step_times == [0.25, 2.5]
    assert recorder.samples.steps == [1, 2]
    assert recorder.device.synchronize.call_count == 3, "once at each boundary, never in between"


def test_the_clock_stands_while_the_recorder_prints(clock):
    recorder = make(clock, stream=Mock(write=lambda text: clock.sleep(1.0)))
    for _ in range(3):
        clock.sleep(0.5)
        step(recorder)
    assert clock.seconds > 103, "a terminal that takes a second for every line"
    assert recorder.samples.step_times == [0.5, 0.5, 0.5]
    # from 100 s on: the terminal takes 1 s between two steps, in which other processes' samples are of no step
    assert recorder.samples.step_ends == [100.5, 102.0, 103.5]


def test_two_tensors_are_read_by_one_copy_and_one_tensor_is_read_once(clock, monkeypatch):
    copied = []

    def counted(read):
        return lambda tensor: copied.append(tensor.shape) or read(tensor)

    for name in ("tolist", "__float__", "item"):
        monkeypatch.setattr(torch.Tensor, name, counted(getattr(torch.Tensor, name)))
    recorder = make(clock)
    with NoHostRead():
        step(recorder, torch.tensor(6.0), torch.tensor([2.0]))
    assert copied == [(2,)]
    step(recorder, None, torch.tensor(3.0))
    assert copied == [(2,), ()]
    assert recorder.samples.grad_norms == [2.0, 3.0]
    assert recorder.samples.loss_values[0] == 6.0
    assert math.isnan(recorder.samples.loss_values[1])


def test_no_collective_is_called_at_a_boundary(clock, monkeypatch):
    called = []
    functions = [name for name, member in vars(torch.distributed).items() if inspect.isfunction(member)]
    for name in functions:
        monkeypatch.setattr(torch.distributed, name, lambda *a, _name=name, **k: called.append(_name))
    recorder = make(clock)
    step(recorder, torch.tensor(6.0), torch.tensor(2.0))
    assert called == []
    recorder.merge_ranks()
    assert called, "this test sees a call where there is one"


@pytest.mark.parametrize(("loss", "grad_norm"), [(math.nan, 1.0), (math.inf, 1.0), (6.0, math.nan), (6.0, -math.inf)])
def test_a_number_that_is_not_finite_ends_the_training_and_is_noted(clock, loss, grad_norm):
    recorder = make(clock)
    step(recorder)
    with pytest.raises(NonFiniteError, match=f"step 2: loss {loss}, gradient norm {grad_norm}"):
        step(recorder, loss, grad_norm)
    assert recorder.samples.steps == [1, 2]
    assert str(recorder.samples.loss_values[1]) == str(loss)
    assert str(recorder.samples.grad_norms[1]) == str(grad_norm)


def test_a_step_that_cannot_be_read_leaves_lists_of_equal_length(clock):
    recorder = make(clock)
    with pytest.raises(TypeError):
        step(recorder, grad_norm=None)
    assert [values for values in vars(recorder.samples).values() if values] == [] and len(vars(recorder.samples)) == 8


def test_what_a_step_waits_for_its_micro_batches_is_noted(clock):
    recorder = make(clock, is_started=False)
    batches = recorder.timed(clock.sleep(seconds) or seconds for seconds in (0.25, 0.5, 0.0, 2.0))
    clock.sleep(7.0)  # before the first step
    recorder.start()
    taken = []
    for _ in range(2):
        for _ in range(2):
            taken.append(next(batches))
            clock.sleep(1.0)  # training on it, which is no waiting
        step(recorder)
    assert taken == [0.25, 0.5, 0.0, 2.0], "nothing is lost or taken ahead"
    assert recorder.samples.data_wait_seconds == [0.75, 2.0]
    assert recorder.samples.step_times == [2.75, 4.0]
    assert list(batches) == []


def test_a_loader_that_is_timed_step_by_step_goes_on_where_it_was(clock):
    source = iter(range(4))  # the Trainer asks for each step's micro batches anew
    recorder = make(clock)
    assert [next(recorder.timed(source)) for _ in range(4)] == [0, 1, 2, 3]


def test_a_loader_is_started_before_the_first_step_and_its_error_reaches_the_training(clock):
    started = []

    class Loader:
        def __iter__(self):
            started.append(True)
            return map(open, ["/no/such/file"])

    batches = make(clock, is_started=False).timed(Loader())
    assert started
    with pytest.raises(FileNotFoundError):
        next(batches)


def test_the_resident_set_of_this_process_is_what_the_kernel_says():
    status = Path("/proc/self/status").read_text()
    kib = int(re.search(r"VmRSS:\s*(\d+) kB", status)[1])
    assert CpuDevice().allocated_gb() == pytest.approx(kib * 1024 / 1e9, rel=0.05)
    assert CpuDevice().peak_allocated_gb() >= 0.95 * CpuDevice().allocated_gb()
    assert CpuDevice().peak_reserved_gb() is None


def test_memory_in_use_is_read_at_the_first_step_and_every_tenth_after_it_and_is_that_of_one_rank(clock, monkeypatch):
    recorder = make(clock, 25)
    readings = iter((1.0, 2.0, 6.0))  # at steps 1, 11 and 21
    monkeypatch.setattr(recorder.device, "allocated_gb", lambda: next(readings))
    for _ in range(25):
        step(recorder)
    recorder.merge_ranks()
    assert recorder.samples.allocated_gb == [1.0, 2.0, 6.0]
    assert (recorder.avg_allocated_gb, recorder.peak_allocated_gb, recorder.peak_reserved_gb) == (3.0, 2.5, 3.5)
    assert recorder.memory_scope == "this rank"


def profiled(monkeypatch, steps, total=8, stream=None):
    """Train steps of 1, 2, 3, ... seconds, of which `steps` are profiled; return the recorder and the profile."""
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", clock.now)
        recorder = make(clock, total, stream=stream, profile=slow_profile(clock, steps))
        for number in range(1, total + 1):
            clock.sleep(float(number))
            step(recorder, loss=10.0 - number)
    return recorder, recorder.profile


@pytest.mark.parametrize("steps", [range(3, 5), range(1, 3), range(7, 9), range(4, 5)], ids=str)
def test_profiled_steps_are_no_samples_and_the_others_keep_their_time(steps, monkeypatch):
    recorder, profile = profiled(monkeypatch, steps)
    others = [number for number in range(1, 9) if number not in steps]
    assert recorder.samples.steps == others
    assert recorder.samples.step_times == [float(number) for number in others]
    assert recorder.samples.loss_values == [10.0 - number for number in others]
    assert {len(values) for key, values in vars(recorder.samples).items() if key != "allocated_gb"} == {len(others)}
    assert recorder.samples.allocated_gb == [1.23], "at the first step that is measured"
    assert recorder.profiled_seconds == [float(number) for number in steps]
    assert recorder.excluded_steps == dict.fromkeys(steps, "profiled")
    assert recorder.loop_seconds == pytest.approx(sum(others)), "the second timer stands during the profile"
    marks = [mark for number in steps for mark in (call.begin_step(number), call.end_step())]
    assert profile.mock_calls == [call.start(), *marks, call.stop()]


def test_progress_of_a_profiled_step_has_no_time_and_the_average_leaves_it_out(monkeypatch):
    stream = io.StringIO()
    profiled(monkeypatch, range(2, 4), total=5, stream=stream)
    assert stream.getvalue().splitlines() == [
        "[CPU] Step 1/5 | 1.000 s | avg 1.000 s | loss 9.0000 | 1.2 GB",
        "[CPU] Step 2/5 | profiled | loss 8.0000 | 1.2 GB",
        "[CPU] Step 3/5 | profiled | loss 7.0000 | 1.2 GB",
        "[CPU] Step 4/5 | 4.000 s | avg 4.000 s | loss 6.0000 | 1.2 GB",
        "[CPU] Step 5/5 | 5.000 s | avg 4.500 s | loss 5.0000 | 1.2 GB",
    ]


def test_wait_for_data_of_a_profiled_step_is_in_no_sample(clock):
    recorder = make(clock, 2, is_started=False, profile=slow_profile(clock, range(1, 2)))
    batches = recorder.timed(clock.sleep(0.5) for _ in range(2))
    recorder.start()
    for _ in range(2):
        next(batches)
        step(recorder)
    assert recorder.samples.data_wait_seconds == [0.5]


def test_loss_that_is_not_finite_in_a_profiled_step_ends_the_training(clock):
    recorder = make(clock, 8, profile=slow_profile(clock, range(2, 4)))
    clock.sleep(2.0)
    step(recorder)
    with pytest.raises(NonFiniteError, match="step 2"):
        step(recorder, loss=math.nan)
    assert (recorder.steps_done, recorder.excluded_steps) == (2, {2: "profiled"})
    assert recorder.loop_seconds == pytest.approx(2.0), "without the profile, which never ended"
