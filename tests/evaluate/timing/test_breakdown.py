"""Breakdowns of traces whose truth is worked out by hand, or painted microsecond by microsecond."""

import random
from functools import partial

import pytest
from made_traces import AUTOGRAD, MadeTrace, divided, painted
from reports import refused

from evaluate import trace as trace_command
from utils.kinds import KINDS

US = 1e-6
NVIDIA = {
    "mm": "nvjet_tst_128x256_64x4",
    "comm": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "flash": "flash_fwd_kernel",
}
AMD = {"mm": "Cijk_Alik_Bljk_BBS_BH_MT256x256x64", "comm": "rcclGenericKernel<1, false>", "flash": "attn_fwd"}


def one_step(length=100):
    """Return a trace of one step of so many microseconds."""
    trace = MadeTrace()
    trace.step(1, 0, length)
    return trace


def found(trace, tmp_path, *options):
    return divided(trace.write(tmp_path / "trace.json"), *options)


def microseconds(result):
    return {kind: round(seconds / US, 3) for kind, seconds in result["kinds"].items() if seconds > 1e-12}


@pytest.mark.parametrize("names", [NVIDIA, AMD], ids=["nvidia", "amd"])
def test_two_streams_count_once_and_communication_is_exposed_only_where_nothing_computes(names, tmp_path):
    #  step     0 ............................................ 1000
    #  stream 7    mm 100-400    flash 350-500           add 800-900
    #  stream 20             all-reduce 450-700    copy 690-750
    trace = one_step(1000)
    trace.kernel(names["mm"], 100, 300)
    trace.kernel(names["flash"], 350, 150)
    trace.kernel("void at::native::vectorized_elementwise_kernel<4, add>", 800, 100)
    trace.kernel(names["comm"], 450, 250, stream=20)
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 690, 60, stream=21, category="gpu_memcpy")
    result = found(trace, tmp_path)
    assert result["step_seconds"] == pytest.approx(1000 * US)
    assert list(result["kinds"]) == list(KINDS)
    assert microseconds(result) == {
        "matmul": 300,
        "attention": 100,  # 400 to 500; before that the product runs
        "communication_exposed": 200,  # 500 to 700
        "host_copy": 50,  # 700 to 750
        "memory_bound": 100,
        "idle": 250,  # 100 before, 50 between, 100 behind
    }
    assert result["communication_overlapped"] == pytest.approx(50 * US)
    assert {row["name"]: round(row["seconds"] / US) for row in result["kernels"]}[names["flash"]] == 150


def test_communication_behind_computation_is_named_overlapped(tmp_path):
    trace = one_step()
    trace.kernel(NVIDIA["mm"], 0, 100)
    trace.kernel(NVIDIA["comm"], 10, 50, stream=20)
    trace.kernel("ncclDevKernel_AllGather_RING_LL", 80, 40, stream=20)
    result = found(trace, tmp_path)
    assert {row["name"]: row["kind"] for row in result["kernels"]}[NVIDIA["comm"]] == "communication_overlapped"
    assert result["kinds"]["communication_exposed"] == 0  # what runs behind the step is not of it
    assert result["communication_overlapped"] == pytest.approx(70 * US)


@pytest.mark.parametrize("seed", range(3))
def test_random_schedules_of_four_streams_are_divided_as_painted(seed, tmp_path):
    draw = random.Random(seed)
    names = {
        "matmul": NVIDIA["mm"],
        "attention": AMD["flash"],
        "memory_bound": "at::native::reduce_kernel",
        "communication_exposed": AMD["comm"],
        "host_copy": "Memcpy DtoH (Device -> Pinned)",
        "unattributed": "nobody_knows",
        "optimizer": "multi_tensor_apply_kernel<AdamFunctor>",
    }
    trace, pieces = MadeTrace(), []
    for number, start in enumerate((0, 500, 1000)):
        trace.step(number, start, 500)
    for stream in range(4):
        time = draw.randrange(40)
        while time < 1500:
            kind, length = draw.choice(list(names)), draw.randrange(1, 60)
            trace.kernel(
                names[kind], time, length, stream=stream, category="gpu_memcpy" if kind == "host_copy" else "kernel"
            )
            pieces.append((kind, time, time + length))
            time += length + draw.randrange(80)
    result = found(trace, tmp_path)
    truth = painted(pieces, 0, 1500)
    for kind, seconds in result["kinds"].items():
        assert seconds == pytest.approx(truth[kind] / 3 * US, abs=0.3 * US), kind
    assert result["communication_overlapped"] == pytest.approx(truth["communication_overlapped"] / 3 * US, abs=0.3 * US)
    assert sum(result["kinds"].values()) == pytest.approx(result["step_seconds"], rel=1e-9)


def launching_trace():
    """A kernel of one name launched in an operator, in the optimizer, in attention, and on autograd's thread."""
    trace = one_step(1000)
    trace.op("aten::scaled_dot_product_attention", 10, 50)
    trace.op("aten::bmm", 20, 20)
    trace.kernel(NVIDIA["mm"], 100, 10, launched=25)
    trace.op("autograd::engine::evaluate_function: MmBackward0", 70, 50, tid=AUTOGRAD)
    dims = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    trace.op("aten::mm", 80, 20, tid=AUTOGRAD, **dims)
    trace.kernel("jit_kernel_17", 200, 20, launched=85, tid=AUTOGRAD)
    trace.add("user_annotation", "Optimizer.step#AdamW.step", 300, 100)
    trace.op("aten::mul", 310, 20)
    trace.kernel("void at::native::vectorized_elementwise_kernel<4, mul>", 400, 40, launched=315)
    trace.kernel(NVIDIA["comm"], 500, 80, launched=350, stream=20)
    trace.kernel("jit_kernel_17", 600, 160, launched=450)
    return trace


def test_a_kernel_belongs_to_the_operator_and_the_range_that_launched_it(tmp_path):
    result = found(launching_trace(), tmp_path)
    assert microseconds(result) == {
        "attention": 10,
        "matmul": 20,
        "optimizer": 40,
        "communication_exposed": 80,
        "unattributed": 160,
        "idle": 690,
    }
    row = next(row for row in result["operators"] if row["name"] == "aten::mm")
    assert (row["kernel"], row["shapes"], row["precision"]) == ("jit_kernel_17", "(64, 32) x (32, 16)", "bf16")
    assert row["tflops"] == pytest.approx(2 * 64 * 32 * 16 / (20 * US) / 1e12)


def test_forward_backward_and_optimizer_are_apart(tmp_path):
    #  forward: mm 100-150   backward: mm 150-250 and reduction 240-300   optimizer: 300-340   no launch: 400-420
    trace = one_step(1000)
    dims = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    trace.op("aten::mm", 10, 10, **dims)
    trace.kernel(NVIDIA["mm"], 100, 50, launched=12)
    trace.op("autograd::engine::evaluate_function: MmBackward0", 30, 50, tid=AUTOGRAD)
    trace.op("aten::mm", 40, 10, tid=AUTOGRAD, **dims)
    trace.kernel(NVIDIA["mm"], 150, 100, launched=45, tid=AUTOGRAD)
    trace.op("SomebodysFunctionBackward", 90, 10, tid=AUTOGRAD)  # of a schedule that calls it by itself
    trace.kernel("at::native::reduce_kernel", 240, 60, launched=95, tid=AUTOGRAD, stream=8)
    trace.add("user_annotation", "Optimizer.step#AdamW.step", 120, 20)
    trace.kernel("void at::native::vectorized_elementwise_kernel<4, mul>", 300, 40, launched=125)
    trace.kernel(NVIDIA["mm"], 400, 20)
    result = found(trace, tmp_path)
    assert result["phases"] == pytest.approx({"forward": 50 * US, "backward": 150 * US, "optimizer": 40 * US})
    products = {row["phase"]: round(row["seconds"] / US) for row in result["operators"] if row["name"] == "aten::mm"}
    assert products == {"forward": 50, "backward": 100}  # of equal shapes, but apart
    assert {row["phase"] for row in result["operators"] if row["name"] == NVIDIA["mm"]} == {None}


def test_communication_is_apart_by_process_group_where_the_trace_names_it(tmp_path, capsys):
    trace = one_step()
    trace.kernel(NVIDIA["mm"], 0, 40)
    tensor = {"Process Group Name": "3", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "Group size": 8}
    trace.kernel(NVIDIA["comm"], 30, 20, stream=20, **tensor)  # 10 exposed
    trace.kernel("ncclDevKernel_ReduceScatter", 60, 10, stream=20, **tensor)
    trace.kernel(
        NVIDIA["comm"], 70, 5, stream=21, **{"Process Group Name": "0"}, **{"Process Group Description": "undefined"}
    )
    trace.kernel(NVIDIA["comm"], 90, 5, stream=21)  # of no group that the trace names
    result = found(trace, tmp_path)
    assert [{key: row[key] for key in ("group", "ranks", "count")} for row in result["communication_groups"]] == [
        {"group": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": 8, "count": 2},
        {"group": "0", "ranks": None, "count": 1},
    ]
    seconds = [(row["seconds"], row["exposed_seconds"]) for row in result["communication_groups"]]
    assert seconds == [pytest.approx((30 * US, 20 * US)), pytest.approx((5 * US, 5 * US))]
    assert trace_command.main([str(tmp_path / "trace.json")]) == 0
    assert "Of TENSOR_MODEL_PARALLEL_GROUP (8 ranks): 0.03 ms, 0.02 ms exposed." in capsys.readouterr().out


def test_unattributed_time_is_a_share_of_the_step_and_of_the_kernels(tmp_path, capsys):
    trace = one_step()
    trace.kernel(NVIDIA["mm"], 0, 60)
    trace.kernel("nobody_knows", 10, 55, stream=20)  # 5 of 100 of the step, and 55 of 120 of the time of kernels
    trace.kernel("at::native::reduce_kernel", 70, 5)
    result = found(trace, tmp_path)
    assert result["unattributed_percent"] == pytest.approx({"of_step": 5, "of_kernel_time": 100 * 55 / 120})
    assert trace_command.main([str(tmp_path / "trace.json")]) == 0
    assert capsys.readouterr().out.count("5.0% of the step, 45.8% of kernel time") == 2  # a sentence, and the table


def test_without_a_launch_the_external_id_ties_a_kernel_to_its_operator(tmp_path):
    trace = one_step()
    trace.add("user_annotation", "Optimizer.step#SGD.step", 0, 20)
    trace.op("aten::add_", 5, 5, **{"External id": 41})
    trace.op("aten::mm", 30, 5, **{"External id": 42})
    trace.kernel("jit_kernel", 40, 10, external=42)
    trace.kernel("jit_kernel", 60, 30, external=41)
    result = found(trace, tmp_path)
    assert microseconds(result) == {"matmul": 10, "optimizer": 30, "idle": 60}
    assert {row["name"]: row["kernel"] for row in result["operators"]} == {
        "aten::mm": "jit_kernel",
        "aten::add_": "jit_kernel",
    }


def test_steps_are_chosen_by_their_numbers_and_averaged(tmp_path):
    trace = MadeTrace()
    for number, start, length in ((7, 0, 100), (8, 110, 200), (9, 310, 400)):
        trace.step(number, start, length)
        trace.kernel(NVIDIA["mm"], start + 10, 10 * number)
    result = found(trace, tmp_path, "--steps", "8-9")
    assert result["steps"] == [8, 9]
    assert result["step_seconds"] == pytest.approx(300 * US)
    assert microseconds(result) == {"matmul": 85, "idle": 215}
    (row,) = result["kernels"]
    assert (row["count"], row["seconds"]) == (1, pytest.approx(85 * US))
    for wanted in ("6-8", "9-10", "1-2"):
        assert "the trace has step 7 to 9" in refused(trace_command.main, tmp_path / "trace.json", "--steps", wanted)


def test_a_trace_without_steps_counts_as_one_and_says_so(tmp_path):
    trace = MadeTrace()
    trace.op("aten::mm", 0, 10)
    trace.kernel(NVIDIA["mm"], 30, 70, launched=5)
    result = found(trace, tmp_path)
    assert result["steps"] == []
    assert microseconds(result) == {"matmul": 70, "idle": 30}
    assert "no ProfilerStep marks" in result["remarks"][0]
    assert "--steps: the trace has no ProfilerStep marks" in refused(
        trace_command.main, tmp_path / "trace.json", "--steps", "1"
    )


def test_steps_are_cut_on_the_device_where_the_host_runs_ahead(tmp_path):
    trace = MadeTrace()
    for number in (1, 2):  # the host needs 100 a step, the device 400, of which 50 nothing runs
        trace.step(number, 100 * number, 100)
        trace.kernel(NVIDIA["mm"], 400 * number, 350, launched=100 * number + 20)
    trace.kernel("at::native::copy", 1150, 50, launched=290)
    result = found(trace, tmp_path)
    assert result["step_seconds"] == pytest.approx(400 * US)
    assert microseconds(result) == {"matmul": 350, "memory_bound": 25, "idle": 25}
    assert "host ran ahead" in result["remarks"][0]


def test_devices_are_not_mixed(tmp_path):
    trace = MadeTrace(deviceProperties=[{"id": 0, "name": "GPU A"}, {"id": 1, "name": "GPU B"}])
    trace.step(1, 0, 100)
    trace.kernel(NVIDIA["mm"], 0, 30, device=0)
    trace.kernel(AMD["flash"], 20, 60, device=1)
    busiest, other = found(trace, tmp_path), found(trace, tmp_path, "--device", "0")
    assert (busiest["device_name"], microseconds(busiest)) == ("GPU B", {"attention": 60, "idle": 40})
    assert (other["device_name"], microseconds(other)) == ("GPU A", {"matmul": 30, "idle": 70})
    assert "device 1 counts, not 0" in busiest["remarks"][0]
    assert "--device: got 5, the trace has 0, 1" in refused(
        trace_command.main, tmp_path / "trace.json", "--device", "5"
    )


def test_nested_operators_of_a_cpu_count_only_their_own_time_over_all_threads(tmp_path):
    trace = one_step()
    trace.op("aten::linear", 10, 40)  # own time 10 to 15 and 45 to 50
    trace.op("aten::addmm", 15, 30)  # own time 15 to 20 and 30 to 45
    trace.op("aten::copy_", 20, 10)
    trace.op("MulBackward0", 40, 30, tid=AUTOGRAD)  # 50 to 70 beside nothing else
    trace.add("user_annotation", "gloo:all_reduce", 60, 30, tid=AUTOGRAD + 1)
    result = found(trace, tmp_path)
    assert microseconds(result) == {"matmul": 30, "memory_bound": 30, "communication_exposed": 20, "idle": 20}
    assert result["communication_overlapped"] == pytest.approx(10 * US)
    own = {row["name"]: (row["count"], round(row["seconds"] / US)) for row in result["kernels"]}
    assert own["aten::linear"] == (1, 10)
    assert own["aten::addmm"] == (1, 20)
    assert result["device"] is None


FLASH_ATTENTION = [
    *(("op", "FlashAttnFunc", 0, 50, {}), ("op", "LinearFunction", 10, 20, {}), ("op", "aten::bmm", 32, 8, {})),
    ("kernel", "cutlass::device_kernel<GemmKernel>", 0, 10, {"launched": 2}),
    ("kernel", NVIDIA["flash"], 10, 20, {"launched": 5}),
    ("kernel", NVIDIA["mm"], 40, 5, {"launched": 15}),
    ("kernel", "cast_kernel", 45, 2, {"launched": 16}),
    ("kernel", NVIDIA["mm"], 50, 7, {"launched": 35}),
]
OPTIMIZER_OF_A_CPU = [
    ("range", "Optimizer.step#AdamW.step", 10, 60, {}),
    *(("op", "aten::add_", 20, 30, {}), ("op", "aten::add_", 80, 10, {})),
]


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        # products with a weight in a function of attention are products
        (FLASH_ATTENTION, {"matmul": 15, "attention": 27, "memory_bound": 2, "idle": 56}),
        # of operators that start together the longer contains the other
        (
            [("op", "aten::mm", 10, 20, {}), ("op", "aten::add", 10, 60, {})],
            {"matmul": 20, "memory_bound": 40, "idle": 40},
        ),
        (OPTIMIZER_OF_A_CPU, {"optimizer": 30, "memory_bound": 10, "idle": 60}),
        # a mark in which nothing runs is no step
        ([("kernel", NVIDIA["mm"], 10, 50, {}), ("range", "ProfilerStep#2", 100, 3, {})], {"matmul": 50, "idle": 50}),
    ],
)
def test_each_event_counts_for_its_kind(events, wanted, tmp_path):
    trace = one_step()
    for event, name, at, length, more in events:
        add = {"op": trace.op, "kernel": trace.kernel, "range": partial(trace.add, "user_annotation")}[event]
        add(name, at, length, **more)
    assert microseconds(found(trace, tmp_path)) == wanted
