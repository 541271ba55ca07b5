"""A failure of a stand-in is reported as that; steps of several micro batches are counted without running all."""

import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from checkout import ROOT
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from train.rehearsal import device, failures, steps
from utils.errors import ConfigError

PROGRAM = """
import torch
from collections import Counter
from torch._subclasses.fake_tensor import FakeTensorMode
from train.rehearsal import failures, preparation
from utils.settings.config import load
config = load("nvd", 1, arguments=["FRAMEWORK=hf", "MODEL=llama", "MODEL_SIZE=tiny"])
ledger, _ = preparation.prepare(config, config.spec("llama"), 0, 80.0)
print(torch.cuda.is_available(), torch.cuda.device_count())
try:
    torch.cuda.can_device_access_peer(0, 1)
except Exception as error:
    print(failures.whose(error), error)
with FakeTensorMode(), ledger:
    gate = torch.zeros(4, device="cuda", requires_grad=True)
    result = torch.nn.functional.silu(gate)
    gradient = torch.ones_like(result)
    ledger.segment = Counter()
    result.backward(gradient)
    print(sorted({event.name for event in ledger.segment if "detach" not in event.name}))
"""
"""A program that changes torch."""


def caused(error, cause):
    error.__cause__ = cause
    return error


NOT_ALLOCATED = "The tensor has a non-zero number of elements, but its data is not allocated yet."
FAILURES = [
    (device.StandInError("not lent"), "stand_in"),
    (DynamicOutputShapeException(torch.ops.aten.nonzero.default), "stand_in"),
    (DataDependentOutputException(torch.ops.aten.item.default), "stand_in"),
    (RuntimeError(NOT_ALLOCATED), "stand_in"),
    (caused(RuntimeError("outer"), device.StandInError("inner")), "stand_in"),
    (ConfigError("CP: needs TE"), "settings"),
    (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), "job"),
    (TypeError("forward() got an unexpected keyword argument 'labels'"), "job"),
]


@pytest.mark.parametrize(("error", "whose"), FAILURES)
def test_a_failure_is_that_of_the_stand_in_the_settings_or_the_job(error, whose):
    assert failures.whose(error) == whose


def test_a_lent_device_refuses_by_name_what_it_has_not_and_has_its_own_kernels():
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.splitlines() == [
        "True 1",
        "stand_in __init__.py: `can_device_access_peer` of torch.cuda is not lent",
        "['aten::silu_backward']",  # with a kernel on the device it is not composed of others
    ]


@pytest.mark.parametrize(("accumulation", "products"), [(8, 2 + 3 + 3 + 5 * 3), (3, 8)])
def test_micro_batches_left_out_are_like_the_last_but_one_that_ran(accumulation, products):
    made = steps.Steps(SimpleNamespace(memory=SimpleNamespace()))
    # before the first micro batch; the first, a steady one, and the last with the optimizer's step
    made.segments = [Counter({"zero": 1}), Counter({"first": 1, "mm": 2}), Counter(mm=3), Counter(mm=3, reduce=5)]
    total = made.events(SimpleNamespace(gradient_accumulation=accumulation))
    assert total == {"zero": 1, "first": 1, "mm": products, "reduce": 5}
