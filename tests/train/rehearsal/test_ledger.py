"""The ledger counts work, traffic and live bytes as by hand and as torch's own counters do.

A failure of a stand-in is reported as that; steps of several micro batches are counted without running all.
"""

import math
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from checkout import ROOT
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, masking_utils

from train.rehearsal import account, device, events, ledger, one_rank
from utils.errors import ConfigError

CPU = torch.device("cpu")
ROWS, WIDE, OUT = 6, 10, 4
PRODUCT = 2 * ROWS * OUT * WIDE


@pytest.fixture
def recording():
    """A ledger that records, and tensors without data."""
    made = ledger.Ledger(CPU)
    made.is_building = False
    with FakeTensorMode(allow_non_fake_inputs=True), made:
        yield made


def recorded(recording, function):
    """Return what the function gives back, and the operators it called with their numbers of calls."""
    recording.segment = Counter()
    result = function()
    found, recording.segment = recording.segment, None
    return result, {one: count for one, count in found.items() if isinstance(one, events.Operator)}


MATRICES = {
    "a": (ROWS, WIDE),
    "b": (ROWS, WIDE),
    "c": (ROWS, WIDE),
    "left": (ROWS, WIDE),
    "right": (WIDE, OUT),
    "total": (ROWS, OUT),
    "table": (1000, WIDE),
}
SIZE = ROWS * WIDE


@pytest.mark.parametrize(
    ("operation", "numbers", "flops"),
    [
        ("a.add_(b)", 3 * SIZE, 0),  # reads both, writes one
        ("a + b", 3 * SIZE, 0),
        ("a.copy_(b)", 2 * SIZE, 0),
        ("a.zero_()", SIZE, 0),
        ("a * a", 2 * SIZE, 0),  # one tensor, read once
        ("a.view(-1)[3:]", 0, 0),
        ("torch.empty_like(a)", 0, 0),
        ("torch.add(a, b, out=c)", 3 * SIZE, 0),
        ("torch.add(a, b, out=a)", 3 * SIZE, 0),
        ("torch._foreach_add_([a, b], 1.0)", 4 * SIZE, 0),
        ("a + b[:1].expand_as(b)", 2 * SIZE + WIDE, 0),
        ("left @ right", SIZE + WIDE * OUT + ROWS * OUT, PRODUCT),
        ("total.addmm_(left, right)", SIZE + WIDE * OUT + 2 * ROWS * OUT, PRODUCT),  # reads what it adds to
        # only the chosen rows are read, by indices of 8 bytes
        ("torch.nn.functional.embedding(torch.zeros(6, dtype=torch.int64), table)", 2 * ROWS + 2 * SIZE, 0),
    ],
)
def test_each_tensor_passes_once_between_memory_and_processor(recording, operation, numbers, flops):
    names = {name: torch.zeros(*shape) for name, shape in MATRICES.items()} | {"torch": torch}
    if "int64" in operation:  # made before, so that its own write is not counted
        names["chosen"] = torch.zeros(6, dtype=torch.int64)
        operation = operation.replace("torch.zeros(6, dtype=torch.int64)", "chosen")
    _, operators = recorded(recording, lambda: eval(operation, names))
    assert sum(one.bytes * count for one, count in operators.items()) == 4 * numbers
    assert sum(one.flops * count for one, count in operators.items()) == flops


def test_a_linear_layer_is_products_each_way_with_the_shapes_of_its_arguments(recording):
    layer = torch.nn.Linear(WIDE, OUT, bias=False, dtype=torch.bfloat16)
    rows = torch.zeros(ROWS, WIDE, requires_grad=True, dtype=torch.bfloat16)
    result, operators = recorded(recording, lambda: layer(rows))
    ((product, count),) = operators.items()
    assert (product.name, product.kind, product.phase, product.flops, count) == (
        "aten::mm",
        "matmul",
        "forward",
        PRODUCT,
        1,
    )
    assert (product.shapes, product.dtypes) == (((ROWS, WIDE), (WIDE, OUT)), ("bfloat16", "bfloat16"))
    _, operators = recorded(recording, lambda: result.backward(torch.zeros(ROWS, OUT, dtype=torch.bfloat16)))
    products = [(one.phase, one.flops) for one in operators if one.kind == "matmul"]
    assert products == [("backward", PRODUCT)] * 2


def test_a_compiled_region_moves_its_arguments_and_results_once_and_keeps_no_temporaries(recording):
    a, b = torch.zeros(ROWS, WIDE), torch.zeros(ROWS, WIDE)
    before = recording.memory.total_bytes
    recording.memory.forget_peak()

    def update(a, b):
        a.mul_(0.5)  # written in place: read and written
        return (a * 2 + b).exp()

    result, operators = recorded(recording, lambda: recording.as_one_operator("compiled::update", update, (a, b), {}))
    (one,) = operators
    assert (one.name, one.bytes, one.flops) == ("compiled::update", 4 * 4 * SIZE, 0)
    assert recording.memory.peak_bytes == recording.memory.total_bytes == before + 4 * SIZE
    del result
    assert recording.memory.total_bytes == before


def step_of(model, optimizer):
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_flops_and_peak_memory_of_a_model_are_those_of_torchs_own_counters(recording, monkeypatch):
    monkeypatch.setattr(masking_utils, "is_tracing", lambda tensor=None: False)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"num_hidden_layers": 2, "vocab_size": 128, "attn_implementation": "eager", "use_cache": False}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **more))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with FlopCounterMode(display=False) as counter:
        _, operators = recorded(recording, lambda: step_of(model, optimizer))  # makes the optimizer's states
    ours = sum(one.flops * count for one, count in operators.items())
    assert ours == counter.get_total_flops() > 0
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) + 64 * 128  # weights of two layers and the output
    attention = 2 * 2 * 16 * 64  # scores and values, both layers, each token to 16
    assert ours == pytest.approx(3 * 2 * 32 * (linear + attention), rel=0.01)  # rope has a small product
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    recording.memory.forget_peak()
    with tracker:
        step_of(model, optimizer)
    tracked = tracker.get_tracker_snapshot("peak")[CPU]["Total"]
    assert math.isclose(recording.memory.peak_bytes, tracked, rel_tol=0.005)


H200 = SimpleNamespace(dense_bf16_tflops=989.4, dense_fp8_tflops=1978.9, memory_bandwidth_gb_per_second=4800)
A100 = SimpleNamespace(dense_bf16_tflops=312, dense_fp8_tflops=None, memory_bandwidth_gb_per_second=2039)
"""NVIDIA's datasheets, dense."""


@pytest.mark.parametrize(
    ("device", "kind", "flops", "moved", "dtype", "seconds"),
    [
        (H200, "matmul", 989.4e12, 1.0, "bfloat16", 1.0),
        (H200, "matmul", 1.0, 2.4e12, "bfloat16", 0.5),  # its traffic
        (H200, "memory_bound", 0, 4.8e12, "bfloat16", 1.0),
        (H200, "attention", 989.4e12, 0, "bfloat16", 0.5),  # causal: half of the pairs
        (H200, "matmul", 1978.9e12, 0, "float8_e4m3fn", 1.0),
        (A100, "matmul", 312e12, 0, "float8_e4m3fn", 1.0),  # it has no fp8
        (H200, "host_copy", 0, 1e9, "bfloat16", 0.0),  # without a figure
    ],
)
def test_an_operator_needs_its_compute_or_its_traffic_whichever_is_more(device, kind, flops, moved, dtype, seconds):
    operator = {"kind": kind, "flops": flops, "bytes": moved, "dtypes": [dtype], "count": 2}
    found = account.seconds_by_kind([operator], device)
    assert found.get(kind, 0) == sum(found.values()) == pytest.approx(2 * seconds)


# Stand-ins of the device and of the other micro batches

PROGRAM = """
import torch
from collections import Counter
from torch._subclasses.fake_tensor import FakeTensorMode
from train.rehearsal import one_rank
from utils.settings.config import load
config = load("nvd", 1, arguments=["FRAMEWORK=hf", "MODEL=llama", "MODEL_SIZE=tiny"])
ledger, _ = one_rank.prepare(config, config.spec("llama"), 0, 80.0)
print(torch.cuda.is_available(), torch.cuda.device_count())
try:
    torch.cuda.can_device_access_peer(0, 1)
except Exception as error:
    print(one_rank.whose(error), error)
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
    assert one_rank.whose(error) == whose


def test_a_lent_device_refuses_by_name_what_it_has_not_and_has_its_own_kernels():
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    assert ran.stdout.splitlines() == [
        "True 1",
        "stand_in __init__.py: `can_device_access_peer` of torch.cuda is not lent",
        "['aten::silu_backward']",  # with a kernel on the device it is not composed of others
    ]
