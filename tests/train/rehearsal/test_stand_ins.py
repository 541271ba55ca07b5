"""A failure of a stand-in is reported as that; steps of several micro batches are counted without running all."""

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from train.rehearsal.device import StandInError
from train.rehearsal.failures import whose
from train.rehearsal.steps import Steps, shortened
from utils.errors import ConfigError
from utils.settings.config import ROOT, load

LENT = """
import torch
from train.rehearsal import device
from train.rehearsal.failures import whose
device.lend("nvd", 8, 80.0)
assert torch.cuda.is_available() and torch.cuda.device_count() == 8
try:
    torch.cuda.can_device_access_peer(0, 1)
except Exception as error:
    print(whose(error), error)
"""


@dataclass
class Case:
    error: BaseException
    whose: str


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "case",
    [
        Case(StandInError("not lent"), "stand_in"),
        Case(DynamicOutputShapeException(torch.ops.aten.nonzero.default), "stand_in"),
        Case(DataDependentOutputException(torch.ops.aten.item.default), "stand_in"),
        Case(
            RuntimeError("The tensor has a non-zero number of elements, but its data is not allocated yet."), "stand_in"
        ),
        Case(caused(RuntimeError("outer"), StandInError("inner")), "stand_in"),
        Case(ConfigError("CP: needs TE"), "settings"),
        Case(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), "job"),
        Case(TypeError("forward() got an unexpected keyword argument 'labels'"), "job"),
    ],
    ids=lambda case: f"{case.whose}: {type(case.error).__name__}",
)
def test_a_failure_is_that_of_the_stand_in_the_settings_or_the_job(case):
    assert whose(case.error) == case.whose


def test_what_is_not_lent_is_refused_by_name():
    ran = subprocess.run(
        [sys.executable, "-c", LENT], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout == "stand_in __init__.py: `can_device_access_peer` of torch.cuda is not lent\n"


def test_micro_batches_left_out_are_like_the_last_but_one_that_ran():
    steps = Steps(SimpleNamespace(memory=SimpleNamespace()))
    # before the first micro batch; the first, a steady one, and the last with the optimizer's step
    steps.segments = [Counter({"zero": 1}), Counter({"first": 1, "mm": 2}), Counter(mm=3), Counter(mm=3, reduce=5)]
    config = load("nvd", 8, arguments=["FRAMEWORK=mega", "MODEL=llama", "GBS=64"], environ={})
    assert config.gradient_accumulation == 8
    total = steps.events(config)
    assert total == {"zero": 1, "first": 1, "mm": 2 + 3 + 3 + 5 * 3, "reduce": 5}
    assert steps.events(config.__class__(**vars(config) | {"gradient_accumulation": 3}))["mm"] == 8


@pytest.mark.parametrize(("layout", "run"), [((), 3), (("PP=4",), 6), (("GBS=8",), 1), (("GBS=16",), 2)])
def test_a_rehearsal_runs_two_steps_of_as_few_micro_batches_as_show_the_steady_state(layout, run):
    config = load("nvd", 8, arguments=["FRAMEWORK=mega", "MODEL=llama", *layout], environ={})
    short = shortened(config)
    assert (short.gradient_accumulation, short.train_iterations) == (run, 2)
    assert short.global_batch_size == run * short.micro_batch_size * short.data_parallel_size
    assert short.sequence_length == config.sequence_length
