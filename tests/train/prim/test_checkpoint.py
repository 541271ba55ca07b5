"""The equal weights as a checkpoint of Megatron-LM: names, shards and the proof that it was loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from train.common.weights import EqualWeights, combined_digest
from train.prim import checkpoint
from train.prim.arguments import Arguments
from utils import models

SEED, STD = 42, 0.02


@pytest.fixture
def spec():
    return models.get("qwen", "tiny")


def parts(folder, names):
    return [torch.load(folder / "release" / name / "model_optim_rng.pt")["model"] for name in names]


def test_layers_of_pipeline_stages_are_numbered_from_0_and_hold_their_own_weights(spec, tmp_path):
    checkpoint.write(tmp_path, spec, SEED, STD, 1, 2)
    first, last = parts(tmp_path, ["mp_rank_00_000", "mp_rank_00_001"])
    assert "embedding.word_embeddings.weight" in first and "output_layer.weight" not in first
    assert "output_layer.weight" in last and "embedding.word_embeddings.weight" not in last
    source, half = EqualWeights(spec, SEED, STD), spec.num_layers // 2
    wanted = source(f"model.layers.{half}.mlp.down_proj.weight")
    assert torch.equal(last["decoder.layers.0.mlp.linear_fc2.weight"], wanted)
    assert f"decoder.layers.{half}.mlp.linear_fc2.weight" not in {*first, *last}


def test_shards_of_tensor_ranks_are_the_whole_weights_and_the_digest_is_that_of_mega(spec, tmp_path):
    digest = checkpoint.write(tmp_path / "two", spec, SEED, STD, 2, 1)
    assert digest == checkpoint.write(tmp_path / "one", spec, SEED, STD, 1, 1)
    source = EqualWeights(spec, SEED, STD)
    for name in source._shapes:
        source(name)
    assert digest == combined_digest(source.digests)
    left, right = parts(tmp_path / "two", ["mp_rank_00", "mp_rank_01"])
    (whole,) = parts(tmp_path / "one", ["mp_rank_00"])
    name = "decoder.layers.0.self_attention.linear_proj.weight"  # rows of the input are divided
    assert torch.equal(torch.cat([left[name], right[name]], dim=1), whole[name])
    gate, up = whole["decoder.layers.0.mlp.linear_fc1.weight"].chunk(2)
    shard = left["decoder.layers.0.mlp.linear_fc1.weight"]
    assert torch.equal(shard, torch.cat([gate.chunk(2)[0], up.chunk(2)[0]]))


def test_a_tied_model_has_a_copy_of_the_embedding_on_its_last_stage_only(spec, tmp_path):
    tied = replace(spec, tie_word_embeddings=True)
    checkpoint.write(tmp_path / "one", tied, SEED, STD, 1, 1)
    (whole,) = parts(tmp_path / "one", ["mp_rank_00"])
    assert "output_layer.weight" not in whole
    checkpoint.write(tmp_path / "two", tied, SEED, STD, 1, 2)
    first, last = parts(tmp_path / "two", ["mp_rank_00_000", "mp_rank_00_001"])
    assert torch.equal(last["output_layer.weight"], first["embedding.word_embeddings.weight"])


def test_names_that_megatron_could_not_load_are_found_in_its_output():
    line = "load_return: _IncompatibleKeys(missing_keys=['output_layer.weight'], unexpected_keys=[])\n"
    assert checkpoint.unloaded(line) == "_IncompatibleKeys(missing_keys=['output_layer.weight'], unexpected_keys=[])"
    assert checkpoint.unloaded(" loading release checkpoint from /x/equal_weights\n") is None


@pytest.mark.parametrize(
    ("load", "finetune", "init"),
    [
        ("/logs/job.primus/equal_weights", True, "equal"),
        ("/logs/job.primus/equal_weights", False, "native"),  # it would take step and samples from it
        ("/their/checkpoint", True, "native"),
        (None, False, "native"),
    ],
)
def test_only_a_run_whose_own_arguments_name_the_checkpoint_has_equal_weights(load, finetune, init, spec):
    said = Arguments()
    said.values, said.is_complete = {"load": load, "finetune": finetune}, True
    assert said.resolved(spec)["init"] == init


def test_the_norm_epsilon_is_the_one_that_megatron_reads(spec):
    said = Arguments()
    said.values, said.is_complete = {"norm_epsilon": 1e-6, "layernorm_epsilon": 1e-5}, True
    assert said.resolved(spec)["norm_eps"] == 1e-5
    said.values = {"norm_epsilon": 1e-6}
    assert said.resolved(spec)["norm_eps"] == 1e-6
