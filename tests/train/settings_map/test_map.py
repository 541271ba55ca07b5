"""What the settings map names for mega and hf is what their built objects hold, key by key."""

import json
import os
import subprocess
import sys

import pytest
from toydata import write_toy_data

from tests.train.test_parity import free_port
from train import launch
from train.job.job import Job
from train.job.rank_environment import select
from utils import models
from utils.settings.config import ROOT, load

CHANGED = {"mega": "OptimizerConfig.adam_eps", "hf": "TrainingArguments.adam_epsilon"}


@pytest.fixture(scope="module", params=CHANGED)
def looked_up(request, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("map")
    prefix = write_toy_data(scratch / "toy" / "text")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "tests.workers.map_worker", request.param, str(prefix), str(scratch)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return request.param, json.loads(ran.stdout.strip().splitlines()[-1])


def test_each_key_of_the_map_holds_the_wanted_value_in_the_built_objects(looked_up):
    framework, facts = looked_up
    for model in models.NAMES:
        assert facts[model]["before"] == {}, model
        assert facts[model]["keys"] >= {"mega": 70, "hf": 39}[framework]


def test_a_changed_default_is_seen_under_its_key(looked_up):
    framework, facts = looked_up
    assert all(facts[model]["after"] == [CHANGED[framework]] for model in models.NAMES)


def test_the_launcher_sets_the_variables_of_the_map_and_none_over_a_persons_own(monkeypatch):
    monkeypatch.delenv("HSA_NO_SCRATCH_RECLAIM", raising=False)
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "4")
    started = launch._environment(Job(load("amd", 8, environ={}), "mega", "llama", 1), select(os.environ).variables)
    assert (started["HSA_NO_SCRATCH_RECLAIM"], started["GPU_MAX_HW_QUEUES"]) == ("1", "4")
    assert "NCCL_NVLS_ENABLE" not in started
