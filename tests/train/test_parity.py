"""Megatron-core and transformers do the same work: equal curves from equal weights, and every planted fault is seen.

The bounds are from measurements of broken pairs (a correct pair stays under 3e-7 in loss): tighter than the weakest
fault, looser than rounding. In bf16 every weight and activation is rounded by up to 2**-9 = 2e-3, in another order of
operations on each side. Over 10 steps a correct pair stays under 3e-5 in loss and 9e-3 in gradient norm; a pair where
one side's weights lack the 16 bits that make them float32 masters is 1.8e-4 apart in loss.
"""

import json
import math
import subprocess
import sys

import pytest
from toydata import write_toy_data

from tests.support import tied_model
from utils.settings.config import ROOT

LOSS_BOUND = 2e-6
GRAD_NORM_BOUND = 2e-4
BF16_LOSS_BAND = 8e-5
BF16_GRAD_NORM_BAND = 2e-2
MODELS = ("llama", "qwen", "mistral", "qwen3", tied_model.NAME)
BF16 = "llama:bf16"
IN_BF16 = (BF16, "qwen3:bf16")
AS_ON_GPU = "as_on_gpu"
"""What a case of hf is called that runs what takes the place of transformers' functions on a GPU."""
FUSED = tuple(f"{model}:{AS_ON_GPU}" for model in ("qwen", "qwen3", tied_model.NAME))
FAULTS = (
    "llama:rope_base",
    "llama:no_rope_scaling",
    "llama:norm_epsilon",
    "llama:weight_decay_on_norms",
    "llama:loss_divided_by_micro_batches",
    "qwen:norm_epsilon",
    "qwen:rope_base",
    "qwen:no_qkv_bias",
    "mistral:window_one_more",
    "mistral:window_one_less",
    "qwen3:no_query_key_norm",
    "qwen3:norm_after_rope",
    "qwen3:query_key_epsilon",
    f"{tied_model.NAME}:untied",
)


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("parity")
    prefix = write_toy_data(scratch / "toy" / "text")

    return {
        # those as on a GPU come last: they change the rotary embedding of all models
        "hf": train("hf", prefix, scratch, *MODELS, *IN_BF16, *FUSED, f"{BF16}_{AS_ON_GPU}"),
        "mega": train("mega", prefix, scratch, *MODELS, *IN_BF16, "llama:bf16_no_master", *FAULTS),
        "TP=2": train("mega", prefix, scratch, tied_model.NAME, "qwen3", parallel="TP=2"),
        "PP=2": train("mega", prefix, scratch, tied_model.NAME, parallel="PP=2"),
    }


def train(framework, prefix, scratch, *cases, parallel=""):
    """Return the curves that the last rank prints, which has the loss also as a pipeline stage."""
    command = [sys.executable, "-m", "tests.workers.parity_worker", framework, str(prefix), str(scratch), *cases]
    environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(scratch), "PARALLEL": parallel}
    ranks = 2 if parallel else 1
    environment |= {"MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    started = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    printed = [process.communicate() for process in started]
    for process, (_, errors) in zip(started, printed, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return json.loads(printed[-1][0].strip().splitlines()[-1])


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def largest_difference(ours, theirs, steps=20):
    assert len(ours) == len(theirs) == steps
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_mega_and_hf_have_the_same_loss_and_gradient_norm_at_every_step(curves, model):
    mega, hf = curves["mega"][model], curves["hf"][model]
    assert largest_difference(mega["loss"], hf["loss"]) < LOSS_BOUND
    assert largest_difference(mega["grad_norm"], hf["grad_norm"]) < GRAD_NORM_BOUND


@pytest.mark.parametrize("case", IN_BF16)
def test_in_bf16_mega_and_hf_agree_within_the_band(curves, case):
    mega, hf = curves["mega"][case], curves["hf"][case]
    assert mega["loss"][:2] != curves["mega"][case.partition(":")[0]]["loss"][:2], "this is not bf16"
    assert largest_difference(mega["loss"], hf["loss"], 10) < BF16_LOSS_BAND
    assert largest_difference(mega["grad_norm"], hf["grad_norm"], 10) < BF16_GRAD_NORM_BAND


@pytest.mark.parametrize("case", FUSED)
def test_what_hf_fuses_on_a_gpu_keeps_the_curve(curves, case):
    mega, hf = curves["mega"][case.partition(":")[0]], curves["hf"][case]
    assert largest_difference(mega["loss"], hf["loss"]) < LOSS_BOUND
    assert largest_difference(mega["grad_norm"], hf["grad_norm"]) < GRAD_NORM_BOUND


def test_in_bf16_what_hf_fuses_on_a_gpu_stays_in_the_band(curves):
    mega, hf = curves["mega"][BF16], curves["hf"][f"{BF16}_{AS_ON_GPU}"]
    assert hf["loss"] != curves["hf"][BF16]["loss"], "nothing was fused"
    assert largest_difference(mega["loss"], hf["loss"], 10) < BF16_LOSS_BAND
    assert largest_difference(mega["grad_norm"], hf["grad_norm"], 10) < BF16_GRAD_NORM_BAND


def test_bf16_weights_without_a_float32_master_leave_the_band(curves):
    broken, hf = curves["mega"]["llama:bf16_no_master"], curves["hf"][BF16]
    assert largest_difference(broken["loss"], hf["loss"], 10) > BF16_LOSS_BAND


@pytest.mark.parametrize("parallel", ["TP=2", "PP=2"])
def test_a_tied_embedding_on_two_ranks_trains_as_on_one(curves, parallel):
    one, two = curves["mega"][tied_model.NAME], curves[parallel][tied_model.NAME]
    assert largest_difference(two["loss"], one["loss"]) < LOSS_BOUND
    assert largest_difference(two["grad_norm"], one["grad_norm"]) < GRAD_NORM_BOUND


def test_norms_of_queries_and_keys_train_on_two_tensor_ranks_as_on_one(curves):
    # each rank has the gradient of its own heads only; their sum is that of the weight that all heads share
    one, two = curves["mega"]["qwen3"], curves["TP=2"]["qwen3"]
    assert largest_difference(two["loss"], one["loss"]) < LOSS_BOUND
    assert largest_difference(two["grad_norm"], one["grad_norm"]) < GRAD_NORM_BOUND


@pytest.mark.parametrize("model", MODELS)
def test_the_loss_falls(curves, model):
    for framework in ("mega", "hf"):
        losses = curves[framework][model]["loss"]
        assert losses[0] == pytest.approx(math.log(4096), abs=0.15), "untrained, every token is about as likely"
        assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("case", FAULTS)
def test_planted_fault_breaks_parity(curves, case):
    broken, hf = curves["mega"][case], curves["hf"][case.partition(":")[0]]
    loss = largest_difference(broken["loss"], hf["loss"])
    grad_norm = largest_difference(broken["grad_norm"], hf["grad_norm"])
    assert loss > LOSS_BOUND or grad_norm > GRAD_NORM_BOUND, f"not seen: loss {loss:.1e}, grad norm {grad_norm:.1e}"


def rule(step: int, peak: float = 1e-3, warmup: int = 2, total: int = 20) -> float:
    """The rule of the settings, written down again: LR n / (W + 1), then a cosine that starts at the peak."""
    if step <= warmup:
        return peak * step / (warmup + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - 1 - warmup) / (total - warmup)))


@pytest.mark.parametrize("framework", ["mega", "hf"])
@pytest.mark.parametrize("model", MODELS)
def test_learning_rate_at_every_step_is_the_rule(curves, framework, model):
    rates = curves[framework][model]["learning_rate"]
    assert len(rates) == 20
    for step, rate in enumerate(rates, 1):
        assert rate == pytest.approx(rule(step), abs=1e-9)
