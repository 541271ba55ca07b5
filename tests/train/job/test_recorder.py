"""The recorder measures whole steps, works at their boundaries and never inside them, in every trainer."""

import inspect
import io
import json
import math
import subprocess
import sys

import pytest
import torch

from tests.support.host_reads import NoHostRead
from train.job import recorder as monitor
from train.job.callbacks import hf_callback, lightning_callback
from train.job.device import CpuDevice
from train.job.recorder import NonFiniteError, StepRecorder
from utils.settings.config import ROOT


class Clock:
    """Replaces time.perf_counter; moves only when a test or the fake parts below move it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pass_seconds(self, seconds):
        self.now += seconds


class FakeDevice:
    """Counts its synchronisations; `pending_seconds` of queued work pass in the next one."""

    source = "fake"

    def __init__(self, clock):
        self.synchronizations = 0
        self.pending_seconds = 0.0
        self._clock = clock

    def synchronize(self):
        self.synchronizations += 1
        self._clock.pass_seconds(self.pending_seconds)
        self.pending_seconds = 0.0

    def allocated_gb(self):
        return 1.23

    def peak_allocated_gb(self):
        return 2.5

    def peak_reserved_gb(self):
        return 3.5


class SlowStream(io.StringIO):
    """A terminal that takes a second for every line."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def write(self, text):
        self._clock.pass_seconds(1.0)
        return super().write(text)


class CountedScalar:
    """A loss that knows how often it was read, as each reading of a tensor waits for the device."""

    def __init__(self, value):
        self.value = value
        self.readings = 0

    def __float__(self):
        self.readings += 1
        return self.value


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(monitor.time, "perf_counter", clock)
    return clock


def make(clock, **options):
    return StepRecorder(30, device=FakeDevice(clock), stream=io.StringIO(), **options)


def step(recorder, loss=6.0, grad_norm=2.0):
    recorder.end_step(loss=loss, grad_norm=grad_norm, learning_rate=1e-3)


def test_a_step_lasts_from_boundary_to_boundary_with_queued_work_in_it(clock):
    recorder = make(clock)
    recorder.device.pending_seconds = 50.0  # work from before the first step
    recorder.start()
    clock.pass_seconds(0.25)
    step(recorder)
    clock.pass_seconds(0.5)  # e.g. loading data, right after the boundary
    recorder.device.pending_seconds = 2.0  # launched, not done
    step(recorder)
    assert recorder.samples.step_times == [0.25, 2.5]
    assert recorder.samples.steps == [1, 2]


def test_the_clock_stands_while_the_recorder_prints(clock):
    stream = SlowStream(clock)
    recorder = StepRecorder(30, device=FakeDevice(clock), stream=stream)
    recorder.start()
    for _ in range(3):
        clock.pass_seconds(0.5)
        step(recorder)
    assert stream.getvalue() and clock.now > 103, "the stream has taken its time"
    assert recorder.samples.step_times == [0.5, 0.5, 0.5]
    # from 100 s on: the terminal takes 1 s between two steps, in which other processes' samples are of no step
    assert recorder.samples.step_ends == [100.5, 102.0, 103.5]


def test_the_device_is_waited_for_once_a_boundary_and_never_in_between(clock):
    recorder = make(clock)
    assert recorder.device.synchronizations == 0
    recorder.start()
    assert recorder.device.synchronizations == 1
    for count in (2, 3, 4):
        step(recorder)
        assert recorder.device.synchronizations == count


def test_loss_and_gradient_norm_are_read_once(clock):
    recorder = make(clock)
    recorder.start()
    loss, grad_norm = CountedScalar(6.0), CountedScalar(2.0)
    step(recorder, loss, grad_norm)
    assert (loss.readings, grad_norm.readings) == (1, 1)
    assert (recorder.samples.loss_values, recorder.samples.grad_norms) == ([6.0], [2.0])


def test_two_tensors_are_read_by_one_copy(clock, monkeypatch):
    copied = []
    original = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: copied.append(tensor.shape) or original(tensor))
    recorder = make(clock)
    recorder.start()
    with NoHostRead():
        step(recorder, torch.tensor(6.0), torch.tensor([2.0]))
    assert copied == [(2,)]
    step(recorder, None, torch.tensor(3.0))
    assert recorder.samples.grad_norms == [2.0, 3.0]
    assert recorder.samples.loss_values[0] == 6.0
    assert math.isnan(recorder.samples.loss_values[1])


def test_no_collective_is_called_at_a_boundary(clock, monkeypatch):
    called = []
    functions = [name for name, member in vars(torch.distributed).items() if inspect.isfunction(member)]
    for name in functions:
        monkeypatch.setattr(torch.distributed, name, lambda *a, _name=name, **k: called.append(_name))
    recorder = make(clock)
    recorder.start()
    step(recorder, torch.tensor(6.0), torch.tensor(2.0))
    assert called == []
    recorder.merge_ranks()
    assert called, "this test sees a call where there is one"


@pytest.mark.parametrize(("loss", "grad_norm"), [(math.nan, 1.0), (math.inf, 1.0), (6.0, math.nan), (6.0, -math.inf)])
def test_a_number_that_is_not_finite_ends_the_training_and_is_noted(clock, loss, grad_norm):
    recorder = make(clock)
    recorder.start()
    step(recorder)
    with pytest.raises(NonFiniteError, match=f"step 2: loss {loss}, gradient norm {grad_norm}"):
        step(recorder, loss, grad_norm)
    assert recorder.samples.steps == [1, 2]
    assert str(recorder.samples.loss_values[1]) == str(loss)
    assert str(recorder.samples.grad_norms[1]) == str(grad_norm)


def test_a_rank_without_a_loss_has_none_noted_and_trains_on(clock):
    recorder = make(clock, is_reporter=False)
    recorder.start()
    step(recorder, loss=None)
    assert math.isnan(recorder.samples.loss_values[0])
    assert recorder.samples.steps == [1]


def test_a_step_that_cannot_be_read_leaves_lists_of_equal_length(clock):
    recorder = make(clock)
    recorder.start()
    with pytest.raises(TypeError):
        step(recorder, grad_norm=None)
    assert {key: len(values) for key, values in vars(recorder.samples).items()} == dict.fromkeys(
        (
            *("steps", "step_times", "step_ends", "data_wait_seconds", "loss_values", "grad_norms"),
            *("learning_rates", "allocated_gb"),
        ),
        0,
    )


def test_what_a_step_waits_for_its_micro_batches_is_noted(clock):
    def loader():
        for seconds in (0.25, 0.5, 0.0, 2.0):
            clock.pass_seconds(seconds)
            yield seconds

    recorder = make(clock)
    batches = recorder.timed(loader())
    clock.pass_seconds(7.0)  # before the first step
    recorder.start()
    taken = []
    for _ in range(2):
        for _ in range(2):
            taken.append(next(batches))
            clock.pass_seconds(1.0)  # training on it, which is no waiting
        step(recorder)
    assert taken == [0.25, 0.5, 0.0, 2.0], "nothing is lost or taken ahead"
    assert recorder.samples.data_wait_seconds == [0.75, 2.0]
    assert recorder.samples.step_times == [2.75, 4.0]
    assert list(batches) == []


def test_a_loader_that_is_timed_step_by_step_goes_on_where_it_was(clock):
    source = iter(range(4))  # the Trainer asks for each step's micro batches anew
    recorder = make(clock)
    recorder.start()
    assert [next(recorder.timed(source)) for _ in range(4)] == [0, 1, 2, 3]


def test_an_error_of_the_loader_reaches_the_training(clock):
    def loader():
        yield 1
        raise OSError("the disk is gone")

    batches = make(clock).timed(loader())
    assert next(batches) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_the_loader_is_started_before_the_first_step(clock):
    started = []

    class Loader:
        def __iter__(self):
            started.append(True)
            return iter([1])

    make(clock).timed(Loader())
    assert started == [True]


def test_a_wait_that_nobody_times_is_unknown_and_not_zero(clock):
    recorder = make(clock)
    recorder.start()
    step(recorder)
    recorder.merge_ranks()
    assert recorder.samples.data_wait_seconds == [None]


def test_end_step_before_start_is_an_error(clock):
    with pytest.raises(RuntimeError, match="before start"):
        step(make(clock))


def test_the_progress_line_says_time_average_without_step_1_loss_and_memory(clock):
    stream = io.StringIO()
    recorder = StepRecorder(30, device=FakeDevice(clock), title="CPU", stream=stream)
    recorder.start()
    for seconds in (9.0, 0.4, 0.43):
        clock.pass_seconds(seconds)
        step(recorder, loss=6.02)
    assert stream.getvalue().splitlines() == [
        "[CPU] Step 1/30 | 9.000 s | avg 9.000 s | loss 6.0200 | 1.2 GB",
        "[CPU] Step 2/30 | 0.400 s | avg 0.400 s | loss 6.0200 | 1.2 GB",
        "[CPU] Step 3/30 | 0.430 s | avg 0.415 s | loss 6.0200 | 1.2 GB",
    ]


def test_only_the_reporter_prints(clock):
    stream = io.StringIO()
    recorder = StepRecorder(30, device=FakeDevice(clock), is_reporter=False, stream=stream)
    recorder.start()
    step(recorder)
    assert stream.getvalue() == ""
    assert recorder.samples.steps == [1]


def test_memory_of_one_rank_is_its_own(clock):
    recorder = make(clock)
    recorder.start()
    step(recorder)
    recorder.merge_ranks()
    assert (recorder.avg_allocated_gb, recorder.peak_allocated_gb, recorder.peak_reserved_gb) == (1.23, 2.5, 3.5)
    assert recorder.memory_scope == "this rank"


def test_the_resident_set_of_this_process_is_what_the_kernel_says():
    said = {}
    with open("/proc/self/status") as status:  # noqa: PTH123 - the second source, read at the same moment
        for line in status:
            key, _, value = line.partition(":")
            said[key] = value.strip()
    kib = int(said["VmRSS"].removesuffix(" kB"))
    assert CpuDevice().allocated_gb() == pytest.approx(kib * 1024 / 1e9, rel=0.05)
    assert CpuDevice().peak_allocated_gb() >= 0.95 * CpuDevice().allocated_gb()
    assert CpuDevice().peak_reserved_gb() is None


TWO_RANKS = """
import io, json, os, sys
import torch
from train.job.device import CpuDevice
from train.job.recorder import StepRecorder

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
    said = [process.communicate(timeout=120)[0] for process in ranks]
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


def test_hf_callback_records_each_optimizer_step_with_the_loss_that_the_trainer_logs(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    from train.train_hf import BenchmarkTrainer

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            pad_token_id=0,
        )
    )
    samples = [{"input_ids": torch.randint(1, 32, (8,))} for _ in range(32)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        logging_strategy="steps",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    labelled = [sample | {"labels": sample["input_ids"]} for sample in samples]
    trainer = BenchmarkTrainer(model=model, args=arguments, train_dataset=labelled)
    trainer.remove_callback(PrinterCallback)
    recorder = StepRecorder(3, stream=io.StringIO())
    trainer.add_callback(hf_callback(recorder, trainer.read_step))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    recorded = recorder.samples
    assert recorded.steps == [entry["step"] for entry in logged] == [1, 2, 3]
    assert recorded.loss_values == pytest.approx([float(entry["loss"]) for entry in logged], rel=1e-4)
    assert recorded.grad_norms == pytest.approx([float(entry["grad_norm"]) for entry in logged], rel=1e-4)
    assert all(seconds > 0 for seconds in recorded.step_times)


def test_lightning_callback_records_optimizer_steps_and_not_micro_batches(tmp_path):
    from lightning.pytorch import LightningModule, Trainer

    class Regression(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.losses = []

        def training_step(self, batch, batch_index):
            loss = self.layer(batch).pow(2).mean()
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Regression()
    seen = []

    def read_step():
        seen.append(len(model.losses))
        return model.losses[-1], 1.0, 0.1

    recorder = StepRecorder(3, stream=io.StringIO())
    trainer = Trainer(
        max_steps=3,
        accumulate_grad_batches=2,
        accelerator="cpu",
        devices=1,
        barebones=True,
        default_root_dir=tmp_path,
        callbacks=[lightning_callback(recorder, read_step)],
    )
    trainer.fit(model, torch.utils.data.DataLoader(torch.ones(20, 4), batch_size=2))
    assert recorder.samples.steps == [1, 2, 3]
    assert seen == [2, 4, 6], "each step is read after its second micro batch"
    assert recorder.samples.loss_values == [float(model.losses[place]) for place in (1, 3, 5)]


def test_memory_in_use_is_read_at_the_first_step_and_every_tenth_after_it():
    class CountingDevice(FakeDevice):
        readings = 0

        def allocated_gb(self):
            self.readings += 1
            return float(self.readings)

    device = CountingDevice(Clock())
    recorder = StepRecorder(25, device=device, stream=io.StringIO())
    recorder.start()
    for _ in range(25):
        recorder.end_step(loss=1.0, grad_norm=1.0, learning_rate=1e-3)
    assert device.readings == 3  # steps 1, 11, 21
    recorder.note_memory()
    assert recorder.avg_allocated_gb == 2.0
