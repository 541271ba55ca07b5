"""The ledger counts work, traffic and live bytes as by hand, and as torch's own counters do on a small model."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, masking_utils

from train.rehearsal.events import Operator
from train.rehearsal.ledger import Ledger

CPU = torch.device("cpu")
ROWS, WIDE, OUT = 6, 10, 4


@pytest.fixture
def ledger():
    """A ledger that records, and tensors without data."""
    made = Ledger(CPU)
    made.is_building = False
    with FakeTensorMode(allow_non_fake_inputs=True), made:
        yield made


def recorded(ledger, function):
    """Return what the function gives back, and the operators it called with their numbers of calls."""
    from collections import Counter

    ledger.segment = Counter()
    result = function()
    events, ledger.segment = ledger.segment, None
    return result, {one: count for one, count in events.items() if isinstance(one, Operator)}


def moved(ledger, function):
    """Return the bytes that the operators of a function read and write."""
    return sum(one.bytes * count for one, count in recorded(ledger, function)[1].items())


def test_a_linear_layer_does_2_m_n_k_each_way_and_moves_its_three_matrices_once(ledger):
    layer = torch.nn.Linear(WIDE, OUT, bias=False)
    rows = torch.zeros(ROWS, WIDE, requires_grad=True)
    result, operators = recorded(ledger, lambda: layer(rows))
    (product,) = operators
    assert (product.kind, product.phase, operators[product]) == ("matmul", "forward", 1)
    assert product.flops == 2 * ROWS * OUT * WIDE
    assert product.bytes == 4 * (ROWS * WIDE + WIDE * OUT + ROWS * OUT)
    gradient = torch.zeros(ROWS, OUT)
    _, operators = recorded(ledger, lambda: result.backward(gradient))
    products = [one for one in operators if one.kind == "matmul"]
    assert [one.phase for one in products] == ["backward"] * 2
    assert sum(one.flops for one in products) == 2 * 2 * ROWS * OUT * WIDE


def test_a_product_that_is_added_in_place_counts_and_reads_what_it_adds_to(ledger):
    total, left, right = torch.zeros(ROWS, OUT), torch.zeros(ROWS, WIDE), torch.zeros(WIDE, OUT)
    _, operators = recorded(ledger, lambda: total.addmm_(left, right))
    (one,) = operators
    assert (one.name, one.kind, one.flops) == ("aten::addmm_", "matmul", 2 * ROWS * OUT * WIDE)
    assert one.bytes == 4 * (ROWS * WIDE + WIDE * OUT + 2 * ROWS * OUT)


def test_shapes_and_dtypes_of_an_operator_are_those_of_its_arguments(ledger):
    left, right = torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(3, 5, dtype=torch.bfloat16)
    _, operators = recorded(ledger, lambda: left @ right)
    (one,) = operators
    assert (one.name, one.shapes, one.dtypes) == ("aten::mm", ((2, 3), (3, 5)), ("bfloat16", "bfloat16"))


@pytest.mark.parametrize(
    ("operation", "passes"),
    [
        ("a.add_(b)", 3),  # reads both, writes one
        ("a + b", 3),
        ("a.copy_(b)", 2),
        ("a.zero_()", 1),
        ("a * a", 2),  # one tensor, read once
        ("a.view(-1)[3:]", 0),
        ("torch.empty_like(a)", 0),
        ("torch.add(a, b, out=c)", 3),
        ("torch.add(a, b, out=a)", 3),
        ("torch._foreach_add_([a, b], 1.0)", 4),
        ("a + b[:1].expand_as(b)", 2 + 1 / ROWS),
    ],
)
def test_each_tensor_passes_once_between_memory_and_processor(ledger, operation, passes):
    names = {name: torch.zeros(ROWS, WIDE) for name in "abc"} | {"torch": torch}
    assert moved(ledger, lambda: eval(operation, names)) == pytest.approx(passes * ROWS * WIDE * 4)


def test_an_embedding_reads_only_the_chosen_rows(ledger):
    table, chosen = torch.zeros(1000, WIDE), torch.zeros(ROWS, dtype=torch.int64)
    assert moved(ledger, lambda: torch.nn.functional.embedding(chosen, table)) == ROWS * 8 + 2 * ROWS * WIDE * 4


def test_a_compiled_region_moves_its_arguments_and_results_once_and_keeps_no_temporaries(ledger):
    a, b = torch.zeros(ROWS, WIDE), torch.zeros(ROWS, WIDE)
    before = ledger.memory.total_bytes
    ledger.memory.forget_peak()

    def update(a, b):
        a.mul_(0.5)  # written in place: read and written
        return (a * 2 + b).exp()

    run = lambda: ledger.as_one_operator("compiled::update", update, (a, b), {})  # noqa: E731
    result, operators = recorded(ledger, run)
    (one,) = operators
    size = ROWS * WIDE * 4
    assert (one.name, one.bytes, one.flops) == ("compiled::update", 4 * size, 0)
    assert ledger.memory.peak_bytes == ledger.memory.total_bytes == before + size
    del result
    assert ledger.memory.total_bytes == before


def test_live_bytes_of_a_small_step_are_those_by_hand(ledger):
    memory, four = ledger.memory, 4
    weight = torch.nn.Parameter(torch.zeros(WIDE, OUT))
    ledger.file("weights", [weight])
    rows = torch.zeros(ROWS, WIDE)
    hidden = rows @ weight
    loss = hidden.relu().sum()
    # sum() keeps nothing; relu keeps its result, so `hidden` and its relu live on, and one number
    kept = rows.numel() + 2 * ROWS * OUT + 1
    assert memory.bytes_by_kind["weights"] == four * WIDE * OUT
    del hidden
    kept -= ROWS * OUT  # nobody keeps the input of relu
    assert memory.bytes_by_kind["activations"] == four * kept
    memory.forget_peak()
    loss.backward()
    # the gradient of the weight; before it, at most two gradients of the hidden state beside the rest
    assert memory.bytes_by_kind["workspace"] == four * WIDE * OUT
    assert memory.peak_bytes >= memory.total_bytes
    ledger.file("gradients", [weight.grad])
    assert memory.bytes_by_kind["gradients"] == four * WIDE * OUT
    weight.grad = None
    assert memory.bytes_by_kind["gradients"] == 0
    assert sum(memory.peak_by_kind.values()) == memory.peak_bytes


def test_a_storage_that_is_given_back_and_taken_again_counts_as_such(ledger):
    tensor = torch.zeros(100)
    assert ledger.memory.total_bytes == 400
    tensor.untyped_storage().resize_(0)
    assert ledger.memory.total_bytes == 0
    tensor.untyped_storage().resize_(400)
    assert ledger.memory.total_bytes == 400


def test_views_share_one_storage(ledger):
    whole = torch.zeros(100)
    parts = whole.view(10, 10).unbind()
    assert len(parts) == 10
    assert ledger.memory.total_bytes == 400


def small_model():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=128, attn_implementation="eager", use_cache=False)
    )


def step_of(model, optimizer):
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_flops_of_a_model_are_those_of_torchs_own_counter(ledger, monkeypatch):
    monkeypatch.setattr(masking_utils, "is_tracing", lambda tensor=None: False)
    model = small_model()
    with FlopCounterMode(display=False) as counter:
        _, operators = recorded(ledger, lambda: step_of(model, torch.optim.SGD(model.parameters())))
    ours = sum(one.flops * count for one, count in operators.items())
    assert ours == counter.get_total_flops() > 0
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) + 64 * 128  # weights of two layers and the output
    attention = 2 * 2 * 16 * 64  # scores and values, both layers, each token to 16
    assert ours == pytest.approx(3 * 2 * 32 * (linear + attention), rel=0.01)  # rope has a small product


def test_peak_memory_of_a_model_is_that_of_torchs_own_tracker(ledger, monkeypatch):
    monkeypatch.setattr(masking_utils, "is_tracing", lambda tensor=None: False)
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    step_of(model, optimizer)  # makes the states
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    ledger.memory.forget_peak()
    with tracker:
        step_of(model, optimizer)
    tracked = tracker.get_tracker_snapshot("peak")[CPU]["Total"]
    assert math.isclose(ledger.memory.peak_bytes, tracked, rel_tol=0.005)
