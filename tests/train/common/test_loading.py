"""Whoever fetches the samples, they are the same in the same order; and waiting for them is measured and said."""

import io
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from toydata import write_toy_data

from tests.train.test_parity import free_port
from tests.workers.loading_worker import SLEEP_SECONDS, STEPS
from train.common import loading
from train.common.loading import loader_arguments
from train.job.recorder import StepRecorder
from utils.settings.config import ROOT, load

GLOBAL_BATCH, MICRO_BATCHES = 8, 4
BOTH = pytest.mark.parametrize("framework", ["mega", "hf"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("loading")
    prefix = write_toy_data(scratch / "toy" / "text")
    said = {}
    for framework in ("mega", "hf"):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
        command = [sys.executable, "-m", "tests.workers.loading_worker", framework, str(prefix), str(scratch)]
        with tempfile.TemporaryDirectory(prefix="t") as temporary:  # workers of loaders leave their sockets in it
            environment["TMPDIR"] = temporary
            ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
        assert ran.returncode == 0, ran.stderr[-3000:]
        said[framework] = json.loads(ran.stdout.strip().splitlines()[-1])
    return said


@BOTH
@pytest.mark.parametrize("case", ["alone", "workers"])
def test_the_model_sees_the_same_samples_in_the_same_order_with_workers_and_without(trained, framework, case):
    assert trained[framework][case]["tokens"] == trained[framework]["in_order"]
    assert trained[framework][case]["losses"] == trained[framework]["alone"]["losses"]


@BOTH
def test_workers_live_through_the_last_step(trained, framework):
    assert trained[framework]["workers"]["workers"] == [2] * STEPS * MICRO_BATCHES
    assert trained[framework]["alone"]["workers"] == [0] * STEPS * MICRO_BATCHES


@BOTH
def test_a_step_waits_at_least_as_long_as_its_samples_take(trained, framework):
    slow, fast = trained[framework]["alone_slow"], trained[framework]["alone"]
    planted = GLOBAL_BATCH * SLEEP_SECONDS
    # accelerate holds one micro batch more than the Trainer has asked for, and the last step has nothing to ask for
    ahead = planted / MICRO_BATCHES if framework == "hf" else 0.0
    assert slow["waits"][-1] >= planted - ahead
    assert all(wait >= planted for wait in slow["waits"][:-1])
    assert all(wait <= seconds for wait, seconds in zip(slow["waits"], slow["step_times"], strict=True))
    assert 0 <= fast["fraction"] < slow["fraction"] <= 1


@BOTH
def test_slow_data_is_a_warning_in_the_result_and_on_the_terminal(trained, framework):
    said = trained[framework]["alone_slow"]  # 0.4 s for the samples of a step: above 1 % of any shorter than 40 s
    (warning,) = said["warnings"]
    assert warning.startswith(f"data: waiting for samples took {100 * said['fraction']:.3g} % of a step (limit 1 %)")
    assert f"warning: {warning}" in said["printed"]


class Gated(torch.utils.data.Dataset):
    """Samples that a worker fetches SLEEP_SECONDS after the training has asked for them, and not ahead."""

    def __init__(self, count):
        self.asked = [multiprocessing.Event() for _ in range(count)]

    def __len__(self):
        return len(self.asked)

    def __getitem__(self, index):
        self.asked[index].wait()
        time.sleep(SLEEP_SECONDS)
        return index


def test_waiting_for_a_worker_is_noted(monkeypatch):
    monkeypatch.setattr(loading, "CPU_WORKERS", 2)
    samples = Gated(6)
    batches = iter(torch.utils.data.DataLoader(samples, **loader_arguments(config_of("cpu"))))

    def asking():
        for event in samples.asked:
            event.set()
            yield next(batches).item()

    recorder = StepRecorder(3, stream=io.StringIO())
    timed = recorder.timed(asking())
    recorder.start()
    for first in (0, 2, 4):
        assert [next(timed), next(timed)] == [first, first + 1]
        recorder.end_step(loss=1.0, grad_norm=1.0, learning_rate=1.0)
    assert all(wait >= 2 * SLEEP_SECONDS for wait in recorder.samples.data_wait_seconds)


def config_of(platform, *settings):
    return load(platform, 1, arguments=["DATASET=synth", *settings], environ={})


@pytest.mark.parametrize("platform", ["nvd", "amd"])
@pytest.mark.parametrize("accumulation", [1, 2, 7, 8, 64])
def test_on_a_gpu_a_whole_step_and_one_micro_batch_more_are_fetched_ahead_and_pinned(platform, accumulation):
    arguments = loader_arguments(config_of(platform, f"GBS={accumulation}", "MBS=1"))
    assert arguments["num_workers"] >= 1
    assert arguments["num_workers"] * arguments["prefetch_factor"] >= accumulation + 1
    assert arguments["prefetch_factor"] == math.ceil((accumulation + 1) / loading.GPU_WORKERS)
    assert arguments["pin_memory"] and arguments["persistent_workers"]


def test_on_a_cpu_the_rank_fetches_for_itself():
    arguments = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "pin_memory": False}
    assert loader_arguments(config_of("cpu")) == arguments


@pytest.mark.parametrize(("platform", "is_gpu"), [("cpu", False), ("nvd", True), ("amd", True)])
def test_the_trainer_takes_the_arguments_of_the_loader_and_copies_without_waiting(monkeypatch, platform, is_gpu):
    from transformers import TrainingArguments

    from train import train_hf

    taken = {}
    monkeypatch.setattr(train_hf, "TrainingArguments", lambda **keywords: taken.update(keywords))
    config = config_of(platform)
    train_hf.training_arguments(config)
    known = set(TrainingArguments.__dataclass_fields__)
    for name, value in loader_arguments(config).items():
        assert taken[f"dataloader_{name}"] == value
        assert f"dataloader_{name}" in known
    assert taken["accelerator_config"]["non_blocking"] is is_gpu


RANK = """
import os, sys, time, torch
from train.common import loading
from utils.settings.config import load

loading.CPU_WORKERS = 2
arguments = loading.loader_arguments(load("cpu", arguments=["CPU_RANKS=1"], environ={}))
# torch's worker looks who its rank is only after this
initialize = (lambda worker: time.sleep(1)) if "starting" in sys.argv else None
loader = torch.utils.data.DataLoader(torch.arange(100), worker_init_fn=initialize, **arguments)
loading.tie_workers(loader)
batches = iter(loader)
if "running" in sys.argv:
    next(batches)
print(*(worker.pid for worker in batches._workers), flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary():
    """A temporary folder, which train/job/temporary.py gives to a rank; multiprocessing leaves its sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield folder


@pytest.mark.parametrize("moment", ["running", "starting"])
def test_workers_end_when_their_rank_is_killed(moment, temporary):
    environment = {**os.environ, "TMPDIR": temporary}
    command = [sys.executable, "-c", RANK, moment]
    rank = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    workers = [Path("/proc") / pid for pid in rank.stdout.readline().split()]
    assert len(workers) == 2 and all(worker.exists() for worker in workers)
    os.kill(rank.pid, signal.SIGKILL)
    rank.wait()
    for _ in range(300):
        if not any(map(is_running, workers)):
            return
        time.sleep(0.1)
    left = [int(worker.name) for worker in workers if is_running(worker)]
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    pytest.fail(f"still running after 30 s: {left}")


def is_running(process):
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
