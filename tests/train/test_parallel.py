"""The same global batch on more ranks is the same training: data, tensor and pipeline parallelism over gloo."""

import pytest
from toydata import write_toy_data

from tests.support.launching import run


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture(scope="module")
def one_rank(prefix, tmp_path_factory):
    return {
        framework: run(framework, "llama", tmp_path_factory.mktemp(framework), prefix) for framework in ("mega", "hf")
    }


def test_first_step_loss_of_mega_and_hf_is_the_same_number(one_rank):
    mega, hf = (one_rank[framework] for framework in ("mega", "hf"))
    assert mega["loss_values"][0] == pytest.approx(hf["loss_values"][0], rel=1e-6)
    assert mega["fingerprint"]["initial_weights_sha256"] == hf["fingerprint"]["initial_weights_sha256"]
    assert mega["fingerprint"]["token_stream_sha256"] == hf["fingerprint"]["token_stream_sha256"]


def test_whole_jobs_of_mega_and_hf_have_the_same_curve(one_rank):
    mega, hf = (one_rank[framework] for framework in ("mega", "hf"))
    assert mega["loss_values"] == pytest.approx(hf["loss_values"], rel=2e-6)
    assert mega["grad_norms"] == pytest.approx(hf["grad_norms"], rel=2e-4)
    assert mega["learning_rates"] == pytest.approx(hf["learning_rates"], abs=1e-9)
    assert {one["resolved_config"]["float32_matmul_precision"] for one in (mega, hf)} == {"highest"}


@pytest.mark.parametrize(
    ("framework", "settings"),
    [
        ("mega", ["CPU_RANKS=2"]),
        ("hf", ["CPU_RANKS=2"]),
        ("mega", ["CPU_RANKS=2", "TP=2"]),
        ("mega", ["CPU_RANKS=2", "PP=2"]),
    ],
    ids=["mega-dp2", "hf-dp2", "mega-tp2", "mega-pp2"],
)
def test_two_ranks_give_the_loss_curve_of_one(one_rank, prefix, tmp_path, framework, settings):
    one, two = one_rank[framework], run(framework, "llama", tmp_path, prefix, *settings)
    assert two["loss_values"] == pytest.approx(one["loss_values"], rel=1e-5)
    assert two["grad_norms"] == pytest.approx(one["grad_norms"], rel=2e-4)
    assert two["training_config"]["num_gpus"] == two["resolved_config"]["num_gpus"] == 2
    for key in ("parameter_count", "parameters_without_weight_decay", "num_layers", "num_attention_heads"):
        assert two["resolved_config"][key] == one["resolved_config"][key]
    assert two["fingerprint"]["initial_weights_sha256"] == one["fingerprint"]["initial_weights_sha256"]


def test_qwen_biases_survive_tensor_parallelism(prefix, tmp_path):
    one = run("mega", "qwen", tmp_path / "one", prefix)
    two = run("mega", "qwen", tmp_path / "two", prefix, "CPU_RANKS=2", "TP=2")
    assert two["loss_values"] == pytest.approx(one["loss_values"], rel=1e-5)


def test_same_seed_gives_the_same_curve_and_another_seed_another(one_rank, prefix, tmp_path):
    again = run("mega", "llama", tmp_path / "again", prefix)
    other = run("mega", "llama", tmp_path / "other", prefix, "SEED=43")
    assert again["loss_values"] == one_rank["mega"]["loss_values"]
    assert other["loss_values"] != one_rank["mega"]["loss_values"]
    for key in ("initial_weights_sha256", "token_stream_sha256"):
        assert other["fingerprint"][key] != again["fingerprint"][key]


def test_bf16_is_close_to_fp32_and_says_so(one_rank, prefix, tmp_path):
    for framework in ("mega", "hf"):
        result = run(framework, "llama", tmp_path / framework, prefix, "PRECISION=bf16")
        assert result["resolved_config"]["precision"] == "bf16"
        assert result["loss_values"] == pytest.approx(one_rank[framework]["loss_values"], rel=5e-3)
        assert result["loss_values"] != one_rank[framework]["loss_values"]
