"""`resolved_config` is read from the built objects: a change of the built model or optimizer shows in it."""

import json
import math
import os
import subprocess
import sys

import pytest
from toydata import write_toy_data

from tests.train.test_parity import free_port
from tests.workers.built_worker import QUERY_EPSILON, ROPE_POSITIONS
from train.common.trainer import model_differences
from utils import models
from utils.settings.config import ROOT

CHANGED = {
    "norm_eps": 3e-3,
    "qkv_bias": False,
    "sliding_window": 10,
    "adam_eps": 1e-5,
    "beta1": 0.8,
    "weight_decay": 0.3,
    "lr": 0.5,
    "warmup_iters": 7,
    "clip_grad": 5.0,
    "init_std": 0.5,
    "dataloader_workers": 3,
}
ONLY_MEGA = {"min_lr": 0.25, "overlap_grad_reduce": True, "rope_base": 1000.0}
CASES = [(framework, key) for framework in ("mega", "hf") for key in CHANGED] + [("mega", key) for key in ONLY_MEGA]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("built")
    prefix = write_toy_data(scratch / "toy" / "text")
    facts = {}
    for framework in ("mega", "hf"):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
        command = [sys.executable, "-m", "tests.workers.built_worker", framework, str(prefix), str(scratch)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
        assert ran.returncode == 0, ran.stderr[-3000:]
        facts[framework] = json.loads(ran.stdout.strip().splitlines()[-1])
    return facts


@pytest.mark.parametrize(("framework", "key"), CASES)
def test_changing_what_was_built_changes_resolved_config(built, framework, key):
    change = built[framework]["after"][key]
    before, after = built[framework]["before"][change["model"]], change["resolved"]
    wanted = (CHANGED | ONLY_MEGA)[key]
    assert before[key] != pytest.approx(wanted)
    assert after[key] == pytest.approx(wanted)


@pytest.mark.parametrize("framework", ["mega", "hf"])
def test_a_missing_norm_of_queries_or_keys_shows_and_stops_the_job(built, framework):
    spec = models.get("qwen3", "tiny")
    before, after = built[framework]["before"]["qwen3"], built[framework]["after"]["query_key_norm"]["resolved"]
    assert before["query_key_norm"] is True and model_differences(spec, before) == []
    assert "query_key_norm: asked True, built False" in model_differences(spec, after)


@pytest.mark.parametrize("framework", ["mega", "hf"])
def test_an_epsilon_of_the_norm_of_queries_alone_is_refused(built, framework):
    said = built[framework]["after"][QUERY_EPSILON]["refused"]
    assert said == "norms of one layer: got epsilons 1e-06, 0.003, wanted one for all"


@pytest.mark.parametrize("model", models.NAMES)
def test_both_frameworks_read_back_the_same_model(built, model):
    mega, hf = (built[framework]["before"][model] for framework in ("mega", "hf"))
    spec = models.get(model, "tiny")
    assert mega["parameter_count"] == hf["parameter_count"] == spec.parameter_count
    for key in (
        *("vocab_size", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
        *("norm_eps", "qkv_bias", "rope_base", "sliding_window", "init_std", "seed", "sequence_length", "precision"),
        *("lr", "min_lr", "warmup_iters", "weight_decay", "beta1", "beta2", "adam_eps", "clip_grad"),
        *("global_batch_size", "micro_batch_size", "gradient_accumulation", "parameters_without_weight_decay"),
        "dataloader_workers",
    ):
        assert mega[key] == pytest.approx(hf[key]), key
    assert mega.get("query_key_norm", False) == hf.get("query_key_norm", False) == spec.query_key_norm
    assert mega["rope_scaling"] == pytest.approx(hf["rope_scaling"])
    assert (mega["rope_scaling"] is None) == (spec.rope_scaling is None)


@pytest.mark.parametrize("model", models.NAMES)
def test_weight_decay_passes_over_norms_and_biases_only(built, model):
    spec = models.get(model, "tiny")
    matrices = spec.matmul_parameter_count + spec.vocab_size * spec.hidden_size
    for framework in ("mega", "hf"):
        resolved = built[framework]["before"][model]
        assert resolved["parameters_without_weight_decay"] == spec.parameter_count - matrices


def angle(spec: models.ModelSpec, position: int, pair: int) -> float:
    """Rotary angle by the published rule: Su et al., arXiv 2104.09864; scaling of Llama 3.1 as Meta released it."""
    frequency = spec.rope_base ** (-2 * pair / spec.head_dim)
    scaling = spec.rope_scaling
    if scaling is not None:
        wavelength = 2 * math.pi / frequency
        original = scaling.original_max_position_embeddings
        low_wavelength = original / scaling.low_frequency_factor
        high_wavelength = original / scaling.high_frequency_factor
        if wavelength > low_wavelength:
            frequency /= scaling.factor
        elif wavelength > high_wavelength:
            smooth = (original / wavelength - scaling.low_frequency_factor) / (
                scaling.high_frequency_factor - scaling.low_frequency_factor
            )
            frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency
    return position * frequency


@pytest.mark.parametrize("framework", ["mega", "hf"])
@pytest.mark.parametrize("model", models.NAMES)
def test_rotary_angles_are_right_beyond_position_8192(built, framework, model):
    spec = models.get(model)
    for place, position in enumerate(ROPE_POSITIONS):
        by_rule = [angle(spec, position, pair) for pair in range(spec.head_dim // 2)]
        assert built[framework]["rope"][model][place] == pytest.approx(by_rule, rel=2e-6)
