"""What runs as one kernel on a GPU gives the gradients of plain PyTorch in float64, and so does what is recomputed."""

import json
import os
import subprocess
import sys

import pytest

from tests.support import tied_model
from tests.train.test_parity import free_port
from utils.settings.config import ROOT

PRODUCT = "gradient_accumulation_fusion"
ALL = f"{PRODUCT} apply_rope_fusion bias_activation_fusion bias_dropout_fusion cross_entropy_loss_fusion"
BOUND = {"fp32": 2e-6, "bf16": 2e-2}
"""Largest relative error of a gradient: some roundings of float32 (6e-8) in two layers, and of bf16 (4e-3)."""
TIED = tied_model.NAME
EXACT = [f"{model} {flags}" for model in ("llama", TIED) for flags in ("", PRODUCT, ALL)] + [f"mistral {ALL}"]
HALF = [f"llama PRECISION=bf16 {flags}" for flags in ("", PRODUCT, ALL)] + [f"{TIED} PRECISION=bf16 {ALL}"]
HALF_BUFFER = f"llama PRECISION=bf16 GRADIENT_DTYPE=bf16 {PRODUCT}"
AGAIN = [f"qwen {flags} RECOMPUTE={kind}" for flags in ("", ALL) for kind in ("none", "selective", "full")]
TWO_RANKS = [f"{TIED} {flags}" for flags in ("", PRODUCT, f"{PRODUCT} RECOMPUTE=selective")]


def run(cases, scratch, ranks=1):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "tests.workers.layers_worker", *cases]
    settings = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "MASTER_PORT": str(free_port())}
    settings["TMPDIR"] = str(scratch)  # where torchrun leaves a folder
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run([*EXACT, *HALF, HALF_BUFFER, *AGAIN], tmp_path_factory.mktemp("layers"))


@pytest.mark.parametrize("case", [*EXACT, *HALF, *AGAIN])
def test_gradients_of_two_micro_batches_are_those_of_plain_pytorch(found, case):
    one = found[case]
    assert one["error"] < BOUND["bf16" if "bf16" in case else "fp32"], one["worst"]
    assert [name for name, is_on in one["resolved"]["fused_ops"].items() if is_on] == sorted(
        word for word in case.split() if "fusion" in word
    )


@pytest.mark.parametrize("case", [case for case in [*EXACT, *HALF, *AGAIN] if PRODUCT in case])
def test_each_linear_weight_is_added_inside_its_product_in_each_micro_batch(found, case):
    # 2 layers with QKV, projection, gate and up, down; and the output layer, also where it is the embedding's weight
    assert found[case]["products"] == (2 * 4 + 1) * 2


def test_without_the_fusion_no_product_adds(found):
    assert found["llama "]["products"] == found[AGAIN[0]]["products"] == 0


def test_the_fused_operations_are_no_less_exact_in_bf16_than_megatron_cores(found):
    plain, fused = (found[case]["error"] for case in (HALF[0], HALF[2]))
    assert fused < 1.1 * plain


def test_a_bf16_buffer_of_gradients_costs_its_rounding_only(found):
    one = found[HALF_BUFFER]
    assert one["products"] == 18 and one["error"] < BOUND["bf16"]


@pytest.mark.parametrize("flags", ["", ALL])
def test_recomputing_changes_no_digit_and_keeps_fewer_bytes(found, flags):
    none, selective, full = (found[f"qwen {flags} RECOMPUTE={kind}"] for kind in ("none", "selective", "full"))
    assert none["losses"] == selective["losses"] == full["losses"]
    assert none["gradients"] == selective["gradients"] == full["gradients"]
    assert none["kept"] > selective["kept"] > full["kept"]
    assert [one["resolved"]["recompute"] for one in (none, selective, full)] == ["none", "selective", "full"]


def test_selective_drops_both_norms_results_and_the_activation_functions(found):
    none, selective = (found[f"qwen {ALL} RECOMPUTE={kind}"]["kept"] for kind in ("none", "selective"))
    hidden, ffn = (found["qwen  RECOMPUTE=none"]["resolved"][key] for key in ("hidden_size", "ffn_hidden_size"))
    tokens, layers, width = 2 * 16, 2, 4
    assert none - selective == layers * width * tokens * (2 * hidden + ffn)


def test_two_ranks_with_overlapped_reduction_get_the_same_gradients(tmp_path):
    """The buffers are complete when their reduction starts: the hooks fire for weights that were added in the product,
    and the tied weight waits for both of its gradients."""
    found = run(TWO_RANKS, tmp_path, ranks=2)
    assert all(one["error"] < BOUND["fp32"] for one in found.values()), found
    assert [one["products"] for one in found.values()] == [0, 18, 18]
