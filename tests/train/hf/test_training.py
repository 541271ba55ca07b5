"""Whole trainings of hf, on one rank and sharded over two gloo ranks by the Trainer's FSDP2."""

import json
import sys

import pytest
from toydata import write_toy_data

from tests.support import tied_model
from tests.support.ranks import start_ranks
from tests.train.test_parity import BF16_GRAD_NORM_BAND, BF16_LOSS_BAND, GRAD_NORM_BOUND, free_port

TIED = f"{tied_model.NAME} PRECISION=fp32"
BF16 = "llama PRECISION=bf16"
SMALLEST = "llama PRECISION=bf16 OPTIMIZER_STATE=bf16 GRADIENT_DTYPE=bf16 RECOMPUTE=selective"
CASES = (TIED, BF16, SMALLEST)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Facts by number of ranks and case."""
    scratch = tmp_path_factory.mktemp("hf")
    prefix = write_toy_data(scratch / "toy" / "text")
    return {ranks: facts_of(ranks, prefix, scratch) for ranks in (1, 2)}


def facts_of(ranks, prefix, scratch):
    command = [sys.executable, "-m", "tests.workers.hf_worker", str(prefix), str(scratch), *CASES]
    started = start_ranks(command, ranks, free_port())
    printed = [process.communicate(timeout=300) for process in started]
    for process, (_, errors) in zip(started, printed, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return json.loads(printed[-1][0].strip().splitlines()[-1])


def relative(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("case", "loss_bound", "norm_bound"),
    [
        (TIED, 1e-6, GRAD_NORM_BOUND),
        (BF16, BF16_LOSS_BAND, BF16_GRAD_NORM_BAND),
        (SMALLEST, BF16_LOSS_BAND, BF16_GRAD_NORM_BAND),
    ],
)
def test_two_sharded_ranks_give_the_curve_of_one(trained, case, loss_bound, norm_bound):
    one, two = trained[1][case], trained[2][case]
    assert relative(two["loss"], one["loss"]) < loss_bound
    assert relative(two["grad_norm"], one["grad_norm"]) < norm_bound


@pytest.mark.parametrize("case", CASES)
def test_each_of_two_ranks_holds_half_of_the_parameters_and_reads_back_all(trained, case):
    one, two = trained[1][case], trained[2][case]
    assert two["held_here"] == one["held_here"] / 2
    different = {key for key, value in one["resolved"].items() if two["resolved"][key] != value}
    assert different == {"distributed_optimizer", "gradient_accumulation", "num_gpus", "dp"}
    assert two["resolved"]["distributed_optimizer"] is True
    assert one["resolved"].get("tie_word_embeddings", False) == (case == TIED)


@pytest.mark.parametrize("case", CASES)
def test_the_first_rank_alone_draws_weights_and_holds_the_whole_model(trained, case):
    assert trained[1][case]["drawn_here"] > 0
    assert trained[2][case]["drawn_here"] == 0, "rank 1 of 2"


def test_one_rank_keeps_bf16_weights_with_remainders_and_sharded_ranks_float32_masters(trained):
    for case, moment in ((BF16, "torch.float32"), (SMALLEST, "torch.bfloat16")):
        moments = {"exp_avg": moment, "exp_avg_sq": moment}
        assert trained[1][case]["held_dtype"] == "torch.bfloat16"
        assert trained[1][case]["states"] == moments | {"remainder": "torch.int16"}
        assert trained[2][case]["held_dtype"] == "torch.float32"
        assert trained[2][case]["states"] == moments


@pytest.mark.parametrize("ranks", [1, 2])
def test_resolved_config_names_what_was_asked_for(trained, ranks):
    plain, smallest = (trained[ranks][case]["resolved"] for case in (BF16, SMALLEST))
    keys = ("precision", "parameter_dtype", "gradient_dtype", "gradient_reduce_dtype", "optimizer_state", "recompute")
    assert [plain[key] for key in keys] == ["bf16", "bfloat16", "fp32", "float32", "fp32", "none"]
    assert [smallest[key] for key in keys] == ["bf16", "bfloat16", "bf16", "bfloat16", "bf16", "selective"]
    assert plain["optimizer"] == "train.common.adamw.FusedAdamW"
    assert (plain["overlap_grad_reduce"], plain["overlap_param_gather"]) == (False, False), "gloo overlaps nothing"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_host_reads_no_number_of_the_device_inside_a_step(trained, ranks, case):
    assert trained[ranks][case]["reads"] == [0] * 3
