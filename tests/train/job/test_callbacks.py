"""Ranks are merged, and the trainers of other libraries feed the recorder at each of their optimizer steps."""

import io
import json
import subprocess
import sys

import pytest
import torch
from checkout import ROOT

from tests.train.job.test_recorder import StepRecorder
from train.job.callbacks import hf_callback, lightning_callback

TWO_RANKS = """
import io, json, os, sys
import torch
from tests.train.job.test_recorder import CpuDevice, StepRecorder

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
