"""FusedAdamW inside megatron-core's distributed optimizer: states, precisions, norm, clipping, no reads in a step."""

import json
import sys

import pytest
from toydata import write_toy_data

from tests.support.ranks import start_ranks
from tests.train.test_parity import free_port

FP32 = "PRECISION=fp32 CLIP_GRAD=100"
WIDE = "OPTIMIZER_STATE=fp32"
NARROW = "OPTIMIZER_STATE=bf16"
NARROWEST = "OPTIMIZER_STATE=bf16 GRADIENT_DTYPE=bf16"
CASES = (FP32, WIDE, NARROW, NARROWEST)


def start(prefix, scratch, cases, ranks):
    command = [sys.executable, "-m", "tests.workers.optimizer_worker", str(prefix), str(scratch), *cases]
    return start_ranks(command, ranks, free_port())


def finish(processes):
    printed = [process.communicate(timeout=300) for process in processes]
    for process, (_, errors) in zip(processes, printed, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return json.loads(printed[0][0].splitlines()[-1])


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("optimizer") / "text")


@pytest.fixture(scope="module")
def one_rank(prefix):
    return finish(start(prefix, prefix.parent, CASES, 1))


@pytest.fixture(scope="module")
def two_ranks(prefix):
    return finish(start(prefix, prefix.parent, (NARROW, NARROWEST), 2))


@pytest.mark.parametrize(
    ("case", "bytes_of_states", "dtypes"),
    [
        (FP32, 4 + 4, ["torch.float32"]),
        (WIDE, 2 + 4 + 4, ["torch.float32", "torch.int16"]),
        (NARROW, 2 + 2 + 2, ["torch.bfloat16", "torch.int16"]),
        (NARROWEST, 2 + 2 + 2, ["torch.bfloat16", "torch.int16"]),
    ],
)
def test_states_have_the_bytes_and_dtypes_of_the_setting(one_rank, case, bytes_of_states, dtypes):
    facts = one_rank[case]
    assert facts["state_dtypes"] == dtypes
    assert facts["state_bytes"] == bytes_of_states * facts["resolved"]["parameter_count"]


@pytest.mark.parametrize("case", CASES)
def test_precisions_are_read_back(one_rank, case):
    resolved = one_rank[case]["resolved"]
    assert resolved["optimizer"] == "train.common.adamw.FusedAdamW"
    assert resolved["optimizer_state"] == ("bf16" if "OPTIMIZER_STATE=bf16" in case else "fp32")
    assert resolved["gradient_dtype"] == ("bf16" if "GRADIENT_DTYPE=bf16" in case else "fp32")
    assert resolved["precision"] == ("fp32" if case == FP32 else "bf16")


@pytest.mark.parametrize("case", CASES)
def test_the_norm_is_that_of_float64_and_clips(one_rank, case):
    facts = one_rank[case]
    # a CPU adds the squares of a matrix one after another, in float32
    assert facts["grad_norm"] == pytest.approx(facts["norm_in_float64"], rel=1e-4)
    limit = facts["resolved"]["clip_grad"]
    assert facts["clip_coefficient"] == pytest.approx(min(1.0, limit / facts["norm_in_float64"][-1]), rel=1e-4)


def test_a_step_reads_nothing_from_the_device_but_its_end(one_rank, two_ranks):
    # the recorder reads loss and norm by one copy (test_recorder.py)
    assert {case: facts["host_reads"] for case, facts in one_rank.items()} == dict.fromkeys(CASES, 0)
    assert {facts["host_reads"] for facts in two_ranks.values()} == {0}


@pytest.mark.parametrize("case", [NARROW, NARROWEST])
def test_smaller_states_and_gradients_train_as_the_wide_ones(one_rank, case):
    wide, narrow = one_rank[WIDE], one_rank[case]
    assert wide["loss"][-1] < wide["loss"][0] - 0.2
    assert narrow["loss"] == pytest.approx(wide["loss"], rel=2e-3)
    assert narrow["loss"] != wide["loss"]


@pytest.mark.parametrize("case", [NARROW, NARROWEST])
def test_two_ranks_hold_half_the_states_each_and_give_the_curve_of_one(one_rank, two_ranks, case):
    one, two = one_rank[case], two_ranks[case]
    assert two["state_bytes"] == one["state_bytes"]
    assert two["resolved"]["dp"] == 2
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-3)
    assert two["grad_norm"][:4] == pytest.approx(one["grad_norm"][:4], rel=1e-2), "later ones amplify roundings"
