"""Lines that Primus and its launchers print, devices, and the checkpoint of the equal weights, each read or written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.tied_model import LLAMA_1B
from tests.train.prim.conftest import STANDIN
from train.prim import arguments, install, yaml_config
from utils import models

SEED, STD = 42, 0.02
QWEN = models.get("qwen", "tiny")
PREFIX = "[\x1b[32m20251110 10:00:00\x1b[0m][\x1b[36mrank-0/8\x1b[0m][DEBUG] [---arguments.py:1198] : "


def table(**values: object) -> list[str]:
    """Return the lines of Megatron's `_print_args` behind the prefix of a console of Primus."""
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    return [f"{PREFIX}{line}\x1b[0m\n" for line in ("---- arguments ----", *lines, "---- end of arguments ----")]


def read(*lines: str) -> arguments.Arguments:
    found = arguments.Arguments()
    for line in lines:
        found.take(line)
    return found


def test_arguments_keep_the_kind_of_their_values_and_other_lines_are_none() -> None:
    wanted = {"lr": 0.0003, "seed": 42, "bf16": True, "load": None, "train_data_path": ["/a b/c"], "fp8": "hybrid"}
    lines = table(**wanted)
    lines.insert(1, "loading weights ..... 5\n")
    assert read(*lines).is_complete and read(*lines).values == wanted
    assert not read(*lines[:-1]).is_complete


UNTIED = {"untie_embeddings_and_output_weights": False}
SMALL = {"num_layers": 2, "hidden_size": 4}
# two layers of width 4: norms are (2 * 2 + 1) * 4 = 20 elements, which each of two tensor ranks holds; those of queries
# and keys 2 * 2 * 2; of a tied model each of two stages has the embedding of 4 x 10, and 500 parameters else
COUNTS = [
    (replace(models.get("llama", "full"), **SMALL), 2, 1, {}, 120, 220),
    (replace(models.get("qwen3", "full"), **SMALL, num_attention_heads=2), 2, 1, {}, 128, 228),
    (replace(LLAMA_1B.spec, **SMALL, vocab_size=10), 1, 2, UNTIED, 540, 1040),
]


@pytest.mark.parametrize(("spec", "tensor", "pipeline", "more", "printed", "wanted"), COUNTS)
def test_parameters_that_several_ranks_hold_are_counted_once(spec, tensor, pipeline, more, printed, wanted) -> None:
    sizes = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    ranks = [(first, second) for first in range(tensor) for second in range(pipeline)]
    said = [f" > number of parameters on (tensor, pipeline) model parallel rank {rank}: {printed}\n" for rank in ranks]
    first = read(*table(**sizes, **more), said[0])
    assert first.resolved(spec)["parameter_count"] is None, "one rank has not printed its number"
    first.take(said[1])
    assert first.resolved(spec)["parameter_count"] == wanted
    assert first.resolved(spec).get("tie_word_embeddings", False) == bool(more)


RESOLVED = [
    ({"apply_wd_to_qk_layernorm": True}, "", {"parameters_without_weight_decay": None}),
    ({"norm_epsilon": 1e-6, "layernorm_epsilon": 1e-5}, "", {"norm_eps": 1e-5}),
    ({"norm_epsilon": 1e-6}, "", {"norm_eps": 1e-6}),
    ({"load": "/logs/job.primus/equal_weights", "finetune": True}, "", {"init": "equal"}),
    # it would take step and samples from it
    ({"load": "/logs/job.primus/equal_weights", "finetune": False}, "", {"init": "native"}),
    ({"load": "/their/checkpoint", "finetune": True}, "", {"init": "native"}),
    ({"load": None, "finetune": False}, "", {"init": "native"}),
    ({}, "", {"attention_backend": "transformer_engine:auto", "attention_library": None}),
    (
        *({}, "[INFO     | DotProductAttention]: Running with FusedAttention backend (sub-backend 1)"),
        {"attention_backend": "transformer_engine:fused", "attention_library": "ck"},
    ),
    ({}, "Running with FusedAttention backend (sub-backend 0)", {"attention_library": "aotriton"}),
    (
        *({}, "Running with FlashAttention backend (version 2.8.3)"),
        {"attention_backend": "transformer_engine:flash", "attention_library": "flash_attn 2.8.3"},
    ),
    ({}, "Running with UnfusedDotProductAttention backend", {"attention_library": "torch"}),
]


@pytest.mark.parametrize(("values", "printed", "wanted"), RESOLVED)
def test_what_was_built_is_read_from_the_arguments_and_the_line_of_the_attention(values, printed, wanted) -> None:
    found = read(*table(attention_backend="auto", **values), f"rank-0 {printed}").resolved(QWEN)
    assert {key: found.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[NODE-0(n1)] [INFO] NCCL_SOCKET_IFNAME: eth0", ("NCCL_SOCKET_IFNAME", "eth0")),
        ("[NODE-0(n1)] [INFO] NCCL_DEBUG: ", None),
        # of primus-cli, with its colours and time
        ("\x1b[34m[2026-11-22 12:45:36] [NODE-0(n1)] [INFO]\x1b[0m     NCCL_CROSS_NIC=0", ("NCCL_CROSS_NIC", "0")),
        ("\x1b[34m[NODE-0(n1)] [INFO]\x1b[0m     NCCL_PXN_DISABLE=1", ("NCCL_PXN_DISABLE", "1")),
        ("\x1b[34m[NODE-0(n1)] [INFO]\x1b[0m     NCCL_ALGO=<unset>", None),
        ("[NODE-0(n1)] [INFO] [Hooks] exported env from hook: TE_TUNING=0", ("TE_TUNING", "0")),
        ("[NODE-0(n1)] [INFO] [direct] Loaded config: /x", None),
        ("[NODE-0(n1)] [INFO] ========== RCCL Settings ==========", None),
    ],
)
def test_variables_that_a_launcher_prints_are_read(line, found) -> None:
    assert install.printed_variable(arguments.plain(f"{line}\n")) == found


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI325X OAM", "MI325X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("AMD Instinct MI350X VF", "MI355X"),
        ("AMD Instinct MI300A", "MI300X"),
        (None, "MI300X"),
    ],
)
def test_a_device_has_the_folder_of_its_generation(device, folder) -> None:
    assert install.gpu_folder(device) == folder


def test_a_precision_without_a_file_of_its_own_takes_the_one_for_all() -> None:
    primus = install.find({"PRIMUS_PATH": str(STANDIN)})
    assert primus.shipped_path("llama", "fp8", "MI300X") == primus.shipped_path("llama", "bf16", "MI300X")


def written(
    folder: Path, spec: models.ModelSpec, tensor: int, pipeline: int
) -> tuple[str, list[dict[str, torch.Tensor]]]:
    """Return the digest of a checkpoint and the weights of its ranks, by their folders."""
    digest = yaml_config.write_weights(folder, spec, SEED, STD, tensor, pipeline)
    return digest, [torch.load(path / "model_optim_rng.pt")["model"] for path in sorted((folder / "release").iterdir())]


@pytest.mark.parametrize("is_tied", [False, True])
def test_shards_and_stages_of_a_checkpoint_are_its_whole_weights(tmp_path: Path, is_tied: bool) -> None:
    spec = replace(QWEN, tie_word_embeddings=is_tied)
    digest, (whole,) = written(tmp_path / "one", spec, 1, 1)
    digest_of_two, (left, right) = written(tmp_path / "two", spec, 2, 1)
    _, (first, last) = written(tmp_path / "stages", spec, 1, 2)
    assert digest == digest_of_two
    # rows of the input are divided; gate and up one after the other, each
    name = "decoder.layers.0.self_attention.linear_proj.weight"
    assert torch.equal(torch.cat([left[name], right[name]], dim=1), whole[name])
    gate, up = whole["decoder.layers.0.mlp.linear_fc1.weight"].chunk(2)
    assert torch.equal(left["decoder.layers.0.mlp.linear_fc1.weight"], torch.cat([gate.chunk(2)[0], up.chunk(2)[0]]))
    # layers of a stage are numbered from 0 and hold their own weights
    half, embedding = spec.num_layers // 2, "embedding.word_embeddings.weight"
    wanted = whole[f"decoder.layers.{half}.mlp.linear_fc2.weight"]
    assert torch.equal(last["decoder.layers.0.mlp.linear_fc2.weight"], wanted)
    assert f"decoder.layers.{half}.mlp.linear_fc2.weight" not in {*first, *last}
    assert embedding in first and embedding not in last and "output_layer.weight" not in first
    # a tied model has a copy of the embedding on its last stage, and only if that is not the first
    assert ("output_layer.weight" in whole) != is_tied
    assert torch.equal(last["output_layer.weight"], first[embedding]) == is_tied


def test_names_that_megatron_could_not_load_are_found_in_its_output() -> None:
    line = "load_return: _IncompatibleKeys(missing_keys=['output_layer.weight'], unexpected_keys=[])\n"
    assert yaml_config.unloaded(line) == "_IncompatibleKeys(missing_keys=['output_layer.weight'], unexpected_keys=[])"
    assert yaml_config.unloaded(" loading release checkpoint from /x/equal_weights\n") is None
