"""Whoever fetches the samples, they are the same in the same order; and waiting for them is measured and said."""

import math
import os
import subprocess
import sys
import tempfile

import psutil
import pytest
from checkout import ROOT
from processes import wait_until_gone
from toydata import write_toy_data

from tests.support.launching import case, train
from train import train_hf
from utils.settings.config import load

STEPS, GLOBAL_BATCH, MICRO_BATCHES = 5, 8, 4
SLEEP_SECONDS = 0.05
SHORT = (f"TRAIN_ITERS={STEPS}",)
WATCHED = ("note_samples", STEPS * GLOBAL_BATCH)
CASES = {
    "alone": case("llama", *SHORT, plants=(WATCHED,)),
    "slow": case("llama", *SHORT, plants=(WATCHED, ("slow_samples", 1))),
    # every second micro batch is slow, so one of the two workers is always late
    "workers": case("llama", *SHORT, plants=(WATCHED, ("slow_samples", 2), ("workers", 2))),
}


@pytest.mark.full("loading by workers and from a slow disk in mega and hf, about 30 s")
@pytest.mark.parametrize("framework", ["mega", "hf"])
def test_workers_change_no_sample_and_waiting_for_slow_ones_is_measured_and_said(framework, tmp_path):
    prefix = write_toy_data(tmp_path / "toy" / "text")
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # workers of loaders leave their sockets there
        trained = train(framework, CASES, tmp_path / framework, prefix, temporary=folder)
    alone, slow, by_workers = (trained[name] for name in CASES)
    assert {ran.notes[0]["tokens"] for ran in trained.values()} == {alone.notes[0]["tokens"]}
    assert by_workers.ok["loss_values"] == slow.ok["loss_values"] == alone.ok["loss_values"]
    assert by_workers.notes[0]["workers"] == [2] * STEPS * MICRO_BATCHES, "they live through the last step"
    assert alone.notes[0]["workers"] == [0] * STEPS * MICRO_BATCHES

    waits, planted = slow.ok["data_wait_seconds"], GLOBAL_BATCH * SLEEP_SECONDS
    # accelerate holds one micro batch more than the Trainer has asked for, and the last step has nothing to ask for
    ahead = planted / MICRO_BATCHES if framework == "hf" else 0.0
    assert waits[-1] >= planted - ahead and all(wait >= planted for wait in waits[:-1])
    assert all(wait <= seconds for wait, seconds in zip(waits, slow.ok["step_times"], strict=True))
    fraction = slow.ok["performance_metrics"]["data_wait_fraction"]
    assert 0 <= alone.ok["performance_metrics"]["data_wait_fraction"] < fraction <= 1
    (warning,) = slow.ok["warnings"]  # 0.4 s for the samples of a step: above 1 % of any shorter than 40 s
    assert warning.startswith(f"data: waiting for samples took {100 * fraction:.3g} % of a step (limit 1 %)")
    assert f"warning: {warning}" in slow.printed


def config_of(platform, *settings):
    return load(platform, 1, arguments=["DATASET=synth", *settings], environ={})


@pytest.mark.parametrize("platform", ["nvd", "amd"])
@pytest.mark.parametrize("accumulation", [1, 2, 7, 8, 64])
def test_on_a_gpu_a_whole_step_and_one_micro_batch_more_are_fetched_ahead_and_pinned(platform, accumulation):
    arguments = train_hf.loader_arguments(config_of(platform, f"GBS={accumulation}", "MBS=1"))
    assert arguments["num_workers"] == 2, "the default of Megatron-LM"
    assert arguments["prefetch_factor"] == math.ceil((accumulation + 1) / 2)
    assert arguments["pin_memory"] and arguments["persistent_workers"]


@pytest.mark.parametrize(("platform", "is_gpu"), [("cpu", False), ("nvd", True), ("amd", True)])
def test_the_trainer_takes_the_arguments_of_the_loader_and_copies_without_waiting(monkeypatch, platform, is_gpu):
    known = train_hf.TrainingArguments.__dataclass_fields__
    taken = {}
    monkeypatch.setattr(train_hf, "TrainingArguments", lambda **keywords: taken.update(keywords))
    config = config_of(platform)
    train_hf.training_arguments(config)
    for name, value in train_hf.loader_arguments(config).items():
        assert taken[f"dataloader_{name}"] == value
        assert f"dataloader_{name}" in known
    assert taken["accelerator_config"]["non_blocking"] is is_gpu


RANK = """
import os, sys, time, torch
from train import train_hf
from utils.settings.config import load

arguments = train_hf.loader_arguments(load("cpu", arguments=["CPU_RANKS=1"], environ={}))
arguments |= {"num_workers": 2, "persistent_workers": True}
# torch's worker looks who its rank is only after this
initialize = (lambda worker: time.sleep(1)) if "starting" in sys.argv else None
loader = torch.utils.data.DataLoader(torch.arange(100), worker_init_fn=initialize, **arguments)
train_hf.tie_workers(loader)
batches = iter(loader)
if "running" in sys.argv:
    next(batches)
print(*(worker.pid for worker in batches._workers), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("moment", ["running", "starting"])
def test_workers_end_when_their_rank_is_killed(moment):
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # multiprocessing leaves its sockets in it
        command = [sys.executable, "-c", RANK, moment]
        environment = {**os.environ, "TMPDIR": folder}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as rank:
            workers = [psutil.Process(int(pid)) for pid in rank.stdout.readline().split()]
            rank.kill()
        assert len(workers) == 2
        wait_until_gone(workers)
