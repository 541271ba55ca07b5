"""Whole jobs as a user starts them: mega and hf do the same work, on one rank and on two, and a seed decides it."""

import pytest

from tests.support.frameworks import GRAD_NORM_BOUND, LOSS_BOUND
from tests.support.launching import run

BOTH = ("mega", "hf")


@pytest.fixture(scope="module")
def one_rank(prefix, tmp_path_factory):
    return {framework: run(framework, "llama", tmp_path_factory.mktemp(framework), prefix) for framework in BOTH}


@pytest.mark.full("jobs of one rank through the launcher, about 20 s")
def test_mega_and_hf_have_the_same_curve_data_and_weights(one_rank):
    mega, hf = (one_rank[framework] for framework in BOTH)
    assert mega["loss_values"] == pytest.approx(hf["loss_values"], rel=LOSS_BOUND)
    assert mega["grad_norms"] == pytest.approx(hf["grad_norms"], rel=GRAD_NORM_BOUND)
    assert mega["learning_rates"] == pytest.approx(hf["learning_rates"], abs=1e-9)
    assert mega["fingerprint"] == hf["fingerprint"] and mega["fingerprint"]["initial_weights_sha256"]
    assert {one["resolved_config"]["float32_matmul_precision"] for one in (mega, hf)} == {"highest"}


@pytest.mark.full("jobs of two ranks, about 20 s")
@pytest.mark.parametrize("framework", BOTH)
def test_two_ranks_give_the_loss_curve_of_one(one_rank, prefix, tmp_path, framework):
    one, two = one_rank[framework], run(framework, "llama", tmp_path, prefix, "CPU_RANKS=2")
    assert two["loss_values"] == pytest.approx(one["loss_values"], rel=1e-5)
    assert two["grad_norms"] == pytest.approx(one["grad_norms"], rel=GRAD_NORM_BOUND)
    assert two["training_config"]["num_gpus"] == two["resolved_config"]["num_gpus"] == 2
    assert two["fingerprint"] == one["fingerprint"]


@pytest.mark.full("two more jobs of mega, about 15 s")
def test_same_seed_gives_the_same_curve_and_another_seed_another(one_rank, prefix, tmp_path):
    first = one_rank["mega"]
    again = run("mega", "llama", tmp_path / "again", prefix)
    other = run("mega", "llama", tmp_path / "other", prefix, "SEED=43")
    assert again["loss_values"] == first["loss_values"] != other["loss_values"]
    for key in ("initial_weights_sha256", "token_stream_sha256"):
        assert other["fingerprint"][key] != again["fingerprint"][key] == first["fingerprint"][key]
