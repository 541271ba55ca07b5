"""Breakdowns of traces whose truth is worked out by hand, or painted microsecond by microsecond."""

import random
from functools import partial

import pytest
from made_traces import AUTOGRAD, MadeTrace, divided, painted
from reports import refused

from evaluate import trace as trace_command
from evaluate.timing.kinds import KINDS

US = 1e-6
NVIDIA = {
    "mm": "nvjet_tst_128x256_64x4",
    "comm": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "flash": "flash_fwd_kernel",
}
AMD = {"mm": "Cijk_Alik_Bljk_BBS_BH_MT256x256x64", "comm": "rcclGenericKernel<1, false>", "flash": "attn_fwd"}
ADD, MUL = (f"void at::native::vectorized_elementwise_kernel<4, {name}>" for name in ("add", "mul"))
REDUCE, ADAMW = "at::native::reduce_kernel", "Optimizer.step#AdamW.step"
DIMS = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}


def event(what):
    """Return a maker of events: name, start and length in microseconds, and more."""
    return lambda name, at, length, **more: (what, name, at, length, more)


op, kernel, span = map(event, ("op", "kernel", "span"))


def step(number, at, length):
    return span(f"ProfilerStep#{number}", at, length)


def made(tmp_path, *events, **header):
    """Write a trace of these events and return its path."""
    trace = MadeTrace(**header)
    for what, name, at, length, more in events:
        {"op": trace.op, "kernel": trace.kernel, "span": partial(trace.add, "user_annotation")}[what](
            name, at, length, **more
        )
    return trace.write(tmp_path / "trace.json")


def microseconds(result):
    return {kind: round(seconds / US, 3) for kind, seconds in result["kinds"].items() if seconds > 1e-12}


def agrees(found, wanted):
    """Return whether what was found has all that is wanted: some row for each of a list, each key of an object."""
    if isinstance(wanted, list):
        return all(any(agrees(one, row) for one in found) for row in wanted)
    if isinstance(wanted, dict):
        return all(agrees(found[key], value) for key, value in wanted.items())
    return wanted in found if isinstance(found, str) else found == wanted


def two_streams(names):
    #  step     0 ............................................ 1000
    #  stream 7    mm 100-400    flash 350-500           add 800-900
    #  stream 20             all-reduce 450-700    copy 690-750
    events = [
        *(step(1, 0, 1000), kernel(names["mm"], 100, 300), kernel(names["flash"], 350, 150), kernel(ADD, 800, 100)),
        kernel(names["comm"], 450, 250, stream=20),
        kernel("Memcpy HtoD (Pinned -> Device)", 690, 60, stream=21, category="gpu_memcpy"),
    ]
    kinds = {
        "matmul": 300,
        "attention": 100,  # 400 to 500; before that the product runs
        "communication_exposed": 200,  # 500 to 700
        "host_copy": 50,  # 700 to 750
        "memory_bound": 100,
        "idle": 250,  # 100 before, 50 between, 100 behind
    }
    return events, kinds, {"kernels": [{"name": names["flash"], "seconds": us(150)}]} | overlapped(50)


def us(value):
    return pytest.approx(value * US)


def overlapped(value):
    return {"communication_overlapped": us(value)}


ONE = step(1, 0, 100)
BY_HAND = {
    "two streams of NVIDIA": two_streams(NVIDIA),
    "two streams of AMD": two_streams(AMD),
    "communication behind computation, and behind the step": (
        [
            *(ONE, kernel(NVIDIA["mm"], 0, 100), kernel(NVIDIA["comm"], 10, 50, stream=20)),
            kernel("ncclDevKernel_AllGather_RING_LL", 80, 40, stream=20),
        ],
        {"matmul": 100},
        {"kernels": [{"name": NVIDIA["comm"], "kind": "communication_overlapped"}]} | overlapped(70),
    ),
    # a kernel of one name in an operator, in the optimizer, in attention, and on autograd's thread
    "the operator and the range that launched a kernel": (
        [
            *(step(1, 0, 1000), op("aten::scaled_dot_product_attention", 10, 50), op("aten::bmm", 20, 20)),
            kernel(NVIDIA["mm"], 100, 10, launched=25),
            op("autograd::engine::evaluate_function: MmBackward0", 70, 50, tid=AUTOGRAD),
            op("aten::mm", 80, 20, tid=AUTOGRAD, **DIMS),
            kernel("jit_kernel_17", 200, 20, launched=85, tid=AUTOGRAD),
            *(span(ADAMW, 300, 100), op("aten::mul", 310, 20), kernel(MUL, 400, 40, launched=315)),
            kernel(NVIDIA["comm"], 500, 80, launched=350, stream=20),
            kernel("jit_kernel_17", 600, 160, launched=450),
        ],
        *(
            {"attention": 10, "matmul": 20, "optimizer": 40, "communication_exposed": 80}
            | {"unattributed": 160, "idle": 690},
            {"operators": [{"name": "aten::mm", "kernel": "jit_kernel_17", "shapes": "(64, 32) x (32, 16)"}
                           | {"precision": "bf16", "tflops": pytest.approx(2 * 64 * 32 * 16 / (20 * US) / 1e12)}]},
        ),
    ),
    #  forward: mm 100-150   backward: mm 150-250 and reduction 240-300   optimizer: 300-340   no launch: 400-420
    "forward, backward and optimizer": (
        [
            *(step(1, 0, 1000), op("aten::mm", 10, 10, **DIMS), kernel(NVIDIA["mm"], 100, 50, launched=12)),
            op("autograd::engine::evaluate_function: MmBackward0", 30, 50, tid=AUTOGRAD),
            op("aten::mm", 40, 10, tid=AUTOGRAD, **DIMS),
            kernel(NVIDIA["mm"], 150, 100, launched=45, tid=AUTOGRAD),
            op("SomebodysFunctionBackward", 90, 10, tid=AUTOGRAD),  # of a schedule that calls it by itself
            kernel(REDUCE, 240, 60, launched=95, tid=AUTOGRAD, stream=8),
            *(span(ADAMW, 120, 20), kernel(MUL, 300, 40, launched=125), kernel(NVIDIA["mm"], 400, 20)),
        ],
        {"matmul": 170, "memory_bound": 50, "optimizer": 40, "idle": 740},
        {
            "phases": {"forward": us(50), "backward": us(150), "optimizer": us(40)},
            "operators": [  # of equal shapes, but apart
                *({"name": "aten::mm", "phase": phase, "seconds": us(t)} for phase, t in (("forward", 50),
                                                                                        ("backward", 100))),
                {"name": NVIDIA["mm"], "phase": None},
            ],
        },
    ),
    "an external id without a launch": (
        [
            *(ONE, span("Optimizer.step#SGD.step", 0, 20), op("aten::add_", 5, 5, **{"External id": 41})),
            *(op("aten::mm", 30, 5, **{"External id": 42}), kernel("jit_kernel", 40, 10, external=42)),
            kernel("jit_kernel", 60, 30, external=41),
        ],
        {"matmul": 10, "optimizer": 30, "idle": 60},
        {"operators": [{"name": name, "kernel": "jit_kernel"} for name in ("aten::mm", "aten::add_")]},
    ),
    # the host needs 100 a step, the device 400, of which 50 nothing runs
    "a host that runs ahead": (
        [
            *(step(number, 100 * number, 100) for number in (1, 2)),
            *(kernel(NVIDIA["mm"], 400 * number, 350, launched=100 * number + 20) for number in (1, 2)),
            kernel("at::native::copy", 1150, 50, launched=290),
        ],
        {"matmul": 350, "memory_bound": 25, "idle": 25},
        {"step_seconds": us(400), "remarks": ["host ran ahead"]},
    ),
    # own times: linear 10 to 15 and 45 to 50, addmm 15 to 20 and 30 to 45, MulBackward0 50 to 70 beside nothing else
    "nested operators of a CPU, over all threads": (
        [
            *(ONE, op("aten::linear", 10, 40), op("aten::addmm", 15, 30), op("aten::copy_", 20, 10)),
            op("MulBackward0", 40, 30, tid=AUTOGRAD),
            span("gloo:all_reduce", 60, 30, tid=AUTOGRAD + 1),
        ],
        {"matmul": 30, "memory_bound": 30, "communication_exposed": 20, "idle": 20},
        {
            **overlapped(10),
            "device": None,
            "kernels": [
                {"name": "aten::linear", "count": 1, "seconds": us(10)},
                {"name": "aten::addmm", "count": 1, "seconds": us(20)},
            ],
        },
    ),
    "products with a weight in a function of attention": (
        [
            *(ONE, op("FlashAttnFunc", 0, 50), op("LinearFunction", 10, 20), op("aten::bmm", 32, 8)),
            kernel("cutlass::device_kernel<GemmKernel>", 0, 10, launched=2),
            kernel(NVIDIA["flash"], 10, 20, launched=5),
            kernel(NVIDIA["mm"], 40, 5, launched=15),
            kernel("cast_kernel", 45, 2, launched=16),
            kernel(NVIDIA["mm"], 50, 7, launched=35),
        ],
        {"matmul": 15, "attention": 27, "memory_bound": 2, "idle": 56},
        {},
    ),
    "of operators that start together the longer contains the other": (
        [ONE, op("aten::mm", 10, 20), op("aten::add", 10, 60)],
        {"matmul": 20, "memory_bound": 40, "idle": 40},
        {},
    ),
    "the optimizer of a CPU": (
        [ONE, span(ADAMW, 10, 60), op("aten::add_", 20, 30), op("aten::add_", 80, 10)],
        {"optimizer": 30, "memory_bound": 10, "idle": 60},
        {},
    ),
    "a mark in which nothing runs is no step": (
        [ONE, kernel(NVIDIA["mm"], 10, 50), step(2, 100, 3)],
        {"matmul": 50, "idle": 50},
        {},
    ),
    "without steps all of it is one": (
        [op("aten::mm", 0, 10), kernel(NVIDIA["mm"], 30, 70, launched=5)],
        {"matmul": 70, "idle": 30},
        {"steps": [], "remarks": ["no ProfilerStep marks"]},
    ),
}  # fmt: skip
"""Events, the microseconds of each kind of time in a step, and what else is in the result."""


@pytest.mark.parametrize("name", BY_HAND)
def test_each_event_counts_for_its_kind_operator_and_phase(name, tmp_path):
    events, kinds, more = BY_HAND[name]
    result = divided(made(tmp_path, *events))
    assert (microseconds(result), list(result["kinds"])) == (kinds, list(KINDS))
    assert result["step_seconds"] == us(sum(kinds.values()))
    assert agrees(result, more), result


@pytest.mark.parametrize("seed", range(3))
def test_random_schedules_of_four_streams_are_divided_as_painted(seed, tmp_path):
    draw = random.Random(seed)
    names = {
        "matmul": NVIDIA["mm"],
        "attention": AMD["flash"],
        "memory_bound": REDUCE,
        "communication_exposed": AMD["comm"],
        "host_copy": "Memcpy DtoH (Device -> Pinned)",
        "unattributed": "nobody_knows",
        "optimizer": "multi_tensor_apply_kernel<AdamFunctor>",
    }
    events, pieces = [step(number, 500 * number, 500) for number in range(3)], []
    for stream in range(4):
        time = draw.randrange(40)
        while time < 1500:
            kind, length = draw.choice(list(names)), draw.randrange(1, 60)
            category = "gpu_memcpy" if kind == "host_copy" else "kernel"
            events.append(kernel(names[kind], time, length, stream=stream, category=category))
            pieces.append((kind, time, time + length))
            time += length + draw.randrange(80)
    result, truth = divided(made(tmp_path, *events)), painted(pieces, 0, 1500)
    for kind, seconds in [*result["kinds"].items(), ("communication_overlapped", result["communication_overlapped"])]:
        assert seconds == pytest.approx(truth[kind] / 3 * US, abs=0.3 * US), kind
    assert sum(result["kinds"].values()) == pytest.approx(result["step_seconds"], rel=1e-9)


TENSOR = {"Process Group Name": "3", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "Group size": 8}
UNDEFINED = {"Process Group Name": "0", "Process Group Description": "undefined"}


def test_communication_is_apart_by_process_group_where_the_trace_names_it(tmp_path, capsys):
    path = made(
        tmp_path,
        *(ONE, kernel(NVIDIA["mm"], 0, 40), kernel(NVIDIA["comm"], 30, 20, stream=20, **TENSOR)),  # 10 exposed
        kernel("ncclDevKernel_ReduceScatter", 60, 10, stream=20, **TENSOR),
        kernel(NVIDIA["comm"], 70, 5, stream=21, **UNDEFINED),
        kernel(NVIDIA["comm"], 90, 5, stream=21),  # of no group that the trace names
    )
    assert divided(path)["communication_groups"] == [
        {"group": TENSOR["Process Group Description"], "ranks": 8, "count": 2}
        | {"seconds": us(30), "exposed_seconds": us(20)},
        {"group": "0", "ranks": None, "count": 1, "seconds": us(5), "exposed_seconds": us(5)},
    ]
    assert trace_command.main([str(path)]) == 0
    assert "Of TENSOR_MODEL_PARALLEL_GROUP (8 ranks): 0.03 ms, 0.02 ms exposed." in capsys.readouterr().out


def test_unattributed_time_is_a_share_of_the_step_and_of_the_kernels(tmp_path, capsys):
    # 5 of 100 of the step, and 55 of 120 of the time of kernels
    unknown = kernel("nobody_knows", 10, 55, stream=20)
    path = made(tmp_path, ONE, kernel(NVIDIA["mm"], 0, 60), unknown, kernel(REDUCE, 70, 5))
    assert divided(path)["unattributed_percent"] == pytest.approx({"of_step": 5, "of_kernel_time": 100 * 55 / 120})
    assert trace_command.main([str(path)]) == 0
    assert capsys.readouterr().out.count("5.0% of the step, 45.8% of kernel time") == 2  # a sentence, and the table


def test_steps_are_chosen_by_their_numbers_and_averaged(tmp_path):
    steps = ((7, 0, 100), (8, 110, 200), (9, 310, 400))
    path = made(
        tmp_path, *(step(*one) for one in steps), *(kernel(NVIDIA["mm"], at + 10, 10 * n) for n, at, _ in steps)
    )
    result = divided(path, "--steps", "8-9")
    assert (result["steps"], result["step_seconds"]) == ([8, 9], us(300))
    assert microseconds(result) == {"matmul": 85, "idle": 215}
    assert [(row["count"], row["seconds"]) for row in result["kernels"]] == [(1, us(85))]
    for wanted in ("6-8", "9-10", "1-2"):
        assert "the trace has step 7 to 9" in refused(trace_command.main, path, "--steps", wanted)


def test_devices_are_not_mixed(tmp_path):
    names = [{"id": 0, "name": "GPU A"}, {"id": 1, "name": "GPU B"}]
    kernels = (kernel(NVIDIA["mm"], 0, 30, device=0), kernel(AMD["flash"], 20, 60, device=1))
    path = made(tmp_path, ONE, *kernels, deviceProperties=names)
    busiest, other = divided(path), divided(path, "--device", "0")
    assert (busiest["device_name"], microseconds(busiest)) == ("GPU B", {"attention": 60, "idle": 40})
    assert (other["device_name"], microseconds(other)) == ("GPU A", {"matmul": 30, "idle": 70})
    assert "device 1 counts, not 0" in busiest["remarks"][0]
    assert "--device: got 5, the trace has 0, 1" in refused(trace_command.main, path, "--device", "5")


# Operations and sizes from the shapes of a trace; the places of arguments are those of torch's own schemas.

BF16 = ["c10::BFloat16"] * 3
SDPA = "aten::_scaled_dot_product"
NAMES = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
ATTENTION = f"{SDPA}_{NAMES[0]}"
EQUAL, LONG = [[2, 4, 8, 32]] * 3, [[2, 4, 8, 32], [2, 4, 16, 32], [2, 4, 16, 32]]


def work(folder, name, dims, concrete=""):
    """Return operations and sizes of an operator that launches a kernel."""
    launching = op(name, 0, 20, **{"Input Dims": dims, "Input type": BF16, "Concrete Inputs": concrete})
    (row,) = divided(made(folder, ONE, launching, kernel("a_kernel", 30, 10, launched=5)))["operators"]
    return row["flops"], row["shapes"]


@pytest.mark.parametrize(
    ("name", "dims", "wanted"),
    [
        ("aten::mm", [[8, 2], [2, 4]], (128, "(8, 2) x (2, 4)")),
        ("aten::addmm", [[4], [8, 2], [2, 4], [], []], (128, "(8, 2) x (2, 4)")),
        ("aten::bmm", [[3, 8, 2], [3, 2, 4]], (384, "3 of (8, 2) x (2, 4)")),
        ("aten::mm", [[8, 2], [3, 4]], (None, "(8, 2) (3, 4)")),
        ("aten::mm", [[8], [8, 4]], (None, "(8) (8, 4)")),
        ("aten::mm", "nonsense", (None, "")),
        ("aten::mul", [[8, 2], [8, 2]], (None, "(8, 2) (8, 2)")),
        ("aten::linear", [[8, 2], [4, 2], []], (None, "(8, 2) (4, 2)")),
    ],
)
def test_a_product_counts_two_operations_for_each_multiplication(tmp_path, name, dims, wanted):
    assert work(tmp_path, name, dims) == wanted


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        # 2 batches, 4 heads, 8 queries, 16 keys, width 32: a product has 2*2*4*8*16*32 = 65,536 operations
        *((f"{SDPA}_{name}", LONG, 131_072) for name in NAMES),
        *((f"{SDPA}_{name}_backward", [[2, 4, 8, 32], *LONG], 327_680) for name in NAMES),
        ("aten::_flash_attention_forward", [[2, 8, 4, 32], [2, 16, 4, 32], [2, 16, 4, 32]], 131_072),
        ("aten::_flash_attention_backward", [[2, 8, 4, 32]] * 2 + [[2, 16, 4, 32]] * 2, 327_680),
    ],
)
def test_attention_counts_its_products_and_half_of_them_where_it_is_causal(tmp_path, name, dims, flops, causal):
    torch = pytest.importorskip("torch")
    schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
    concrete = [str(causal) if argument.name == "is_causal" else "" for argument in schema.arguments]
    assert work(tmp_path, name, dims, concrete)[0] == (flops / 2 if causal else flops)


def test_attention_of_which_nobody_knows_whether_it_is_causal_has_no_operations(tmp_path):
    assert work(tmp_path, ATTENTION, LONG, [""] * 5)[0] is None
    assert work(tmp_path, ATTENTION, EQUAL, [""] * 4 + ["False"])[0] == 65_536
