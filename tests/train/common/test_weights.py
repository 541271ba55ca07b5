"""INIT=equal: every framework starts from the same numbers, whatever it calls them and however it cuts them."""

import random
import re

import pytest
import torch

from tests.support import tied_model
from train.common.weights import EqualWeights, combined_digest, shapes
from train.mega.weights import part_of
from train.train_hf import WarmupCosine, build_model, fill
from utils import models


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("size", models.SIZES)
def test_shapes_are_those_of_transformers(name, size):
    spec = models.get(name, size)
    with torch.device("meta"):
        model = build_model(spec)
    # all experts of a layer are one parameter there: (experts, rows, columns), gate above up
    found = {}
    for name, shape in shapes(spec).items():
        stack = re.sub(r"experts\.\d+\.(?:gate|up)_proj\.weight", "experts.gate_up_proj", name)
        stack = re.sub(r"experts\.\d+\.down_proj\.weight", "experts.down_proj", stack)
        before = found.get(stack, (spec.num_experts, 0))
        found[stack] = shape if stack == name else (before[0], before[1] + shape[0] / spec.num_experts, shape[1])
    assert found == {key: tuple(parameter.shape) for key, parameter in model.named_parameters()}


def test_a_tied_output_layer_has_no_weight_of_its_own_and_keeps_the_embedding(monkeypatch):
    monkeypatch.setitem(models.MODELS, tied_model.NAME, tied_model.LLAMA_1B)
    spec = models.get(tied_model.NAME, "tiny")
    model = build_model(spec, draw_weights=False)
    assert shapes(spec) == {key: tuple(parameter.shape) for key, parameter in model.named_parameters()}
    fill(model, EqualWeights(spec, 42, 0.02))
    assert torch.equal(model.lm_head.weight, EqualWeights(spec, 42, 0.02)("model.embed_tokens.weight"))


def test_every_parameter_has_the_asked_spread_and_is_its_own_draw():
    spec = models.get("qwen", "tiny")
    source = EqualWeights(spec, seed=42, std=0.02)
    matrix = source("model.layers.0.mlp.gate_proj.weight")
    assert float(matrix.mean()) == pytest.approx(0, abs=3e-4)
    assert float(matrix.std()) == pytest.approx(0.02, rel=0.02)
    assert not torch.equal(matrix, source("model.layers.0.mlp.up_proj.weight"))
    assert torch.equal(source("model.norm.weight"), torch.ones(spec.hidden_size))
    assert not source("model.layers.0.self_attn.q_proj.bias").any()
    for name in ("self_attn.o_proj", "mlp.down_proj"):  # which Megatron's own rule would scale down
        assert float(source(f"model.layers.3.{name}.weight").std()) == pytest.approx(0.02, rel=0.03)


def test_order_of_drawing_changes_nothing():
    spec = models.get("llama", "tiny")
    forwards, backwards = EqualWeights(spec, 42, 0.02), EqualWeights(spec, 42, 0.02)
    names = list(shapes(spec))
    for name in names:
        forwards(name)
    for name in reversed(names):
        backwards(name)
    assert combined_digest(forwards.digests) == combined_digest(backwards.digests)


@pytest.mark.parametrize(("seed", "std"), [(43, 0.02), (42, 0.01)])
def test_seed_and_spread_change_the_digest(seed, std):
    spec = models.get("llama", "tiny")
    name = "lm_head.weight"
    first, other = EqualWeights(spec, 42, 0.02), EqualWeights(spec, seed, std)
    first(name), other(name)
    assert combined_digest(first.digests) != combined_digest(other.digests)


def test_a_model_that_is_filled_draws_no_number_of_its_own_and_holds_the_drawn_weights():
    spec, before = models.get("mistral", "tiny"), torch.get_rng_state()
    model = build_model(spec, draw_weights=False)
    fill(model, EqualWeights(spec, 42, 0.02))
    assert torch.equal(torch.get_rng_state(), before)
    again = EqualWeights(spec, 42, 0.02)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again(name))


@pytest.mark.parametrize(
    ("rule", "steps_done", "factor"),
    [
        (WarmupCosine(50, 500, 0.0), 0, 1 / 51),  # step 1 of a warm-up of 50: LR / 51
        (WarmupCosine(50, 500, 0.0), 49, 50 / 51),
        (WarmupCosine(50, 500, 0.0), 50, 1.0),  # step 51 is the peak
        (WarmupCosine(50, 500, 0.0), 275, 0.5),  # half of the 450 remaining steps: the middle of the cosine
        (WarmupCosine(50, 500, 0.0), 500, 0.0),
        (WarmupCosine(0, 10, 0.1), 0, 1.0),
        (WarmupCosine(0, 10, 0.1), 10, 0.1),
    ],
)
def test_warm_up_and_cosine_by_hand(rule, steps_done, factor):
    assert rule(steps_done) == pytest.approx(factor, abs=1e-12)


@pytest.fixture
def drawn(monkeypatch):
    """Names of the weights that are drawn, with three threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    names, draw = [], EqualWeights._draw
    monkeypatch.setattr(
        EqualWeights, "_draw", lambda self, name, shape: (names.append(name), draw(self, name, shape))[1]
    )
    return names


@pytest.mark.parametrize("is_announced", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_weights_are_drawn_once_each_in_whatever_order_they_are_requested(drawn, seed, is_announced):
    spec = models.get("qwen3moe", "tiny")
    source, names = EqualWeights(spec, 42, 0.02), list(shapes(spec))
    random.Random(seed).shuffle(names)
    if is_announced:
        source.announce(names)
    for name in names:
        source(name)
        assert len(source._ahead) <= 3, "as many ahead as there are threads"
    assert sorted(drawn) == sorted(names) == sorted(source.digests)


def test_an_order_that_was_announced_and_is_not_kept_still_draws_once_each(drawn):
    spec = models.get("llama", "tiny")
    source, names = EqualWeights(spec, 42, 0.02), list(shapes(spec))
    source.announce(names)
    for name in reversed(names):
        source(name)
    assert sorted(drawn) == sorted(names)


@pytest.mark.parametrize("name", ["llama", "qwen", "qwen3moe"])
def test_a_framework_announces_exactly_what_it_requests(drawn, monkeypatch, name):
    spec = models.get(name, "tiny")
    requests, call = [], EqualWeights.__call__
    monkeypatch.setattr(EqualWeights, "__call__", lambda self, one: (requests.append(one), call(self, one))[1])
    source = EqualWeights(spec, 42, 0.02)
    announced = []
    monkeypatch.setattr(EqualWeights, "announce", lambda self, names: announced.extend(names))
    fill(build_model(spec, draw_weights=False), source)
    assert requests == announced and sorted(requests) == sorted(shapes(spec))


PARTS = {
    # megatron-core's name, ours, and the dimension that tensor-parallel ranks divide; None for a copy on each
    "embedding.word_embeddings.weight": ("model.embed_tokens.weight", 0),
    "decoder.layers.1.self_attention.linear_proj.weight": ("model.layers.1.self_attn.o_proj.weight", 1),
    "decoder.layers.1.mlp.linear_fc2.weight": ("model.layers.1.mlp.down_proj.weight", 1),
    "decoder.final_layernorm.weight": ("model.norm.weight", None),
}


@pytest.mark.parametrize("name", PARTS)
def test_ranks_have_the_parts_of_one_weight(name):
    spec, (ours, dimension) = models.get("llama", "tiny"), PARTS[name]
    source = EqualWeights(spec, 1, 0.02)
    parts, whole = [part_of(name, spec, source, rank, 2) for rank in range(2)], source(ours)
    wanted = [whole, whole] if dimension is None else whole.chunk(2, dimension)
    assert all(torch.equal(part, one) for part, one in zip(parts, wanted, strict=True))
