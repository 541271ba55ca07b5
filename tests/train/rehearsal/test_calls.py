"""A recorded call names the operator and all arguments exactly enough to repeat it."""

import json
from collections import Counter

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from train.rehearsal.calls import call_of
from train.rehearsal.events import Operator
from train.rehearsal.ledger import Ledger

CPU = torch.device("cpu")
aten = torch.ops.aten


def recorded(function):
    """Return the operators that a function calls on tensors without data."""
    ledger = Ledger(CPU)
    ledger.is_building = False
    with FakeTensorMode(allow_non_fake_inputs=True), ledger:
        ledger.segment = Counter()
        function()
        return [event for event in ledger.segment if isinstance(event, Operator)]


def test_a_product_keeps_the_layout_of_its_matrices():
    (row_major,) = recorded(lambda: torch.empty(6, 10) @ torch.empty(10, 4))
    (transposed,) = recorded(lambda: torch.empty(6, 10) @ torch.empty(4, 10).t())
    first, second = json.loads(row_major.call), json.loads(transposed.call)
    assert first["operator"] == second["operator"] == "aten::mm.default"
    assert first["args"][0] == {"shape": [6, 10], "stride": [10, 1], "dtype": "float32"}
    assert [one["args"][1]["stride"] for one in (first, second)] == [[4, 1], [1, 10]]
    assert row_major != transposed and row_major.shapes == transposed.shapes


def test_a_tensor_that_stands_twice_in_a_call_is_one_tensor():
    total = torch.ones(3)
    call = json.loads(call_of(aten.add.out, (total, torch.ones(3)), {"alpha": 2, "out": total}, CPU))
    assert call["operator"] == "aten::add.out"
    assert call["kwargs"] == {"alpha": 2, "out": {"same": 0}}
    assert call["args"][1]["shape"] == [3]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        (float("-inf"), {"float": "-inf"}),
        ("mean", "mean"),
        (torch.bfloat16, {"dtype": "bfloat16"}),
        (torch.strided, {"layout": "strided"}),
        (torch.preserve_format, {"memory_format": "preserve_format"}),
        (CPU, {"device": "job"}),
        ((1, [2, None]), [1, [2, None]]),
    ],
)
def test_every_kind_of_argument_has_a_form(value, wanted):
    assert json.loads(call_of(aten.relu.default, (value,), {}, CPU))["args"] == [wanted]


def test_tensors_of_a_list_stay_together():
    (one,) = recorded(lambda: torch._foreach_add_([torch.empty(2), torch.empty(3)], 1.0))
    call = json.loads(one.call)
    assert call["operator"] == "aten::_foreach_add_.Scalar"
    assert [tensor["shape"] for tensor in call["args"][0]] == [[2], [3]]


def test_a_tensor_of_the_host_is_marked_where_the_job_has_a_device():
    call = json.loads(call_of(aten.relu.default, (torch.ones(2),), {"device": CPU}, torch.device("cuda", 0)))
    assert call["args"][0]["host"] is True and call["kwargs"]["device"] == {"device": "host"}


def test_an_argument_without_a_form_leaves_the_call_out():
    assert call_of(aten.relu.default, (object(),), {}, CPU) == ""


def test_a_region_of_torch_compile_has_no_call():
    ledger = Ledger(CPU)
    ledger.is_building = False
    with FakeTensorMode(allow_non_fake_inputs=True), ledger:
        ledger.segment = Counter()
        ledger.as_one_operator("compiled::double", lambda x: x * 2, (torch.empty(3),), {})
        (one,) = ledger.segment
    assert one.call == ""
