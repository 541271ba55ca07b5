"""Lines that Primus and its launchers print, devices, and the checkpoint of the equal weights, each read or written."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from tests.support.tied_model import LLAMA_1B
from tests.train.prim.conftest import FORCED, SHORT
from train import train_prim
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
EXPERTS = replace(models.get("qwen3moe", "full"), **SMALL, ffn_hidden_size=5, num_experts=6)
# two layers of width 4: norms are (2 * 2 + 1) * 4 = 20 elements, which each of two tensor ranks holds; those of queries
# and keys 2 * 2 * 2; of a tied model each of two stages has the embedding of 4 x 10, and 500 parameters else. An expert
# has 3 * 4 * 5 parameters; one of two expert ranks prints, with 3 of 6 experts in each of 2 layers
COUNTS = [
    (replace(models.get("llama", "full"), **SMALL), 2, 1, {}, 120, 220),
    (replace(models.get("qwen3", "full"), **SMALL, num_attention_heads=2), 2, 1, {}, 128, 228),
    (replace(LLAMA_1B.spec, **SMALL, vocab_size=10), 1, 2, UNTIED, 540, 1040),
    (EXPERTS, 1, 2, {"expert_model_parallel_size": 2}, 500, 1360),
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
    assert first.resolved(spec).get("tie_word_embeddings", False) == (more == UNTIED)


BALANCED = {
    **{"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 96, "moe_router_load_balancing_type": "none"},
    **{"moe_router_dtype": None, "moe_shared_expert_intermediate_size": None, "moe_expert_capacity_factor": None},
    **{"params_dtype": "torch.float32", FORCED: True},
}
RESOLVED = [
    *(
        (BALANCED | {f"{FORCED}_type": kind}, "", {"routing": wanted, "token_dropping": False})
        for kind, wanted in (("uniform", "balanced"), ("even", "balanced, in turn"))
    ),
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


def test_a_precision_or_a_gpu_without_a_file_of_its_own_takes_the_one_for_all(primus: Path) -> None:
    found = install.find({"PRIMUS_PATH": str(primus)})
    asked = [("bf16", "MI300X"), ("fp8", "MI300X"), ("bf16", "MI999X")]
    assert len({found.shipped_path("llama", precision, gpu) for precision, gpu in asked}) == 1


def written(
    folder: Path, spec: models.ModelSpec, tensor: int = 1, pipeline: int = 1, expert: int = 1
) -> tuple[str, list[dict[str, torch.Tensor]]]:
    """Return the digest of a checkpoint and the weights of its ranks, by their folders."""
    digest = yaml_config.write_weights(folder, spec, SEED, STD, tensor, pipeline, expert)
    return digest, [torch.load(path / "model_optim_rng.pt")["model"] for path in sorted((folder / "release").iterdir())]


@pytest.mark.parametrize("is_tied", [False, True])
def test_shards_and_stages_of_a_checkpoint_are_its_whole_weights(tmp_path: Path, is_tied: bool) -> None:
    spec = replace(QWEN, tie_word_embeddings=is_tied)
    digest, (whole,) = written(tmp_path / "one", spec)
    digest_of_two, (left, right) = written(tmp_path / "two", spec, 2)
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


def test_expert_ranks_of_a_checkpoint_hold_their_own_experts_and_all_else(tmp_path: Path) -> None:
    spec = models.get("qwen3moe", "tiny")
    digest, (whole,) = written(tmp_path / "one", spec)
    digest_of_four, ranks = written(tmp_path / "four", spec, 1, 2, 2)
    # megatron/training/checkpointing.py, get_checkpoint_name: tensor, pipeline and expert rank
    names = {f"mp_rank_00_{stage:03d}_{group:03d}" for stage in (0, 1) for group in (0, 1)}
    assert (digest, {path.name for path in (tmp_path / "four" / "release").iterdir()}) == (digest_of_four, names)
    expert = "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight".format
    router = "decoder.layers.{}.mlp.router.weight".format
    for number, rank in enumerate(ranks):
        layer, first = number // 2 * spec.num_layers // 2 + 1, number % 2 * 4
        assert torch.equal(rank[expert(1, 3)], whole[expert(layer, first + 3)]) and expert(1, 4) not in rank
        assert torch.equal(rank[router(1)], whole[router(layer)])


def test_names_that_megatron_could_not_load_are_found_in_its_output() -> None:
    line = "load_return: _IncompatibleKeys(missing_keys=['output_layer.weight'], unexpected_keys=[])\n"
    assert yaml_config.unloaded(line) == "_IncompatibleKeys(missing_keys=['output_layer.weight'], unexpected_keys=[])"
    assert yaml_config.unloaded(" loading release checkpoint from /x/equal_weights\n") is None


# What Primus is told: one YAML of keys that the installed version has, made from AMD's, and the check of the two.

MODULE = "primus/configs/modules/megatron/trainer_base.yaml"
SHIPPED = "examples/megatron/configs/MI300X/{}-pretrain.yaml"
FILES = {
    **{"llama": "llama3.1_8B", "qwen": "qwen2.5_7B", "mistral": "llama3.1_8B"},
    **{"qwen3": "qwen3_8B-BF16", "qwen3moe": "qwen3_30B_A3B-BF16"},
}


def check(root: Path, *arguments: str) -> SimpleNamespace:
    """Run `train_prim --check` in this process, which starts nothing and prints where AMD's YAML and ours differ.

    The rows have theirs, ours and the reason, by key.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("PRIMUS_PATH", str(root))
        patch.setattr(sys, "argv", ["train_prim", "--check", *arguments])
        code = train_prim.main()
    title, *lines = out.getvalue().splitlines() or [""]
    rows = [line.split(maxsplit=3) for line in lines if line.startswith("  ") and len(line.split(maxsplit=3)) == 4]
    return SimpleNamespace(code=code, title=title, rows={key: row for key, *row in rows}, err=err.getvalue())


TRAPS: dict[str, dict[str, Any]] = {
    "llama": {
        **{"add_qkv_bias": False, "norm_epsilon": 1e-5, "use_rope_scaling": True, "init_method_std": 0.02, "lr": 1e-3},
        **{"mock_data": False, "eod_mask_loss": False, "dataloader_type": "single", "stderr_sink_level": "DEBUG"},
        **{"disable_last_saving": True, "log_interval": 1, "adam_eps": 1e-8},
        "ckpt_format": "torch",  # of AMD's file, about which we say nothing
        "lr_warmup_init": 1e-3 / 10,  # LR / (W + 1)
    },
    "qwen": {"add_qkv_bias": True, "norm_epsilon": 1e-6},
    "qwen3": {"qk_layernorm": True, "add_qkv_bias": False},
    "qwen3moe": {
        **{"num_experts": 128, "moe_router_topk": 8, "moe_ffn_hidden_size": 768, "kv_channels": 128},
        **{
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_token_dispatcher_type": "alltoall",
        },
        **{"use_precision_aware_optimizer": False, "main_grads_dtype": "fp32", "exp_avg_dtype": "fp32"},
        **{FORCED: False, "moe_use_legacy_grouped_gemm": False, "use_turbo_deepep": False},
        **{"moe_grouped_gemm": True, "expert_model_parallel_size": 1},
    },
    "mistral": {
        **{"use_rope_scaling": False, "rotary_base": 10000, "num_query_groups": 8, "ffn_hidden_size": 14336},
        "vocab_size": 31999,  # the null tokenizer adds one
    },
}


@pytest.mark.parametrize("model", TRAPS)
def test_traps_of_the_shipped_files_are_overridden_and_check_prints_each_difference(
    run_job, tmp_path: Path, primus: Path, where, model: str
) -> None:
    settings = ("MODEL_SIZE=full", "SL=2048", "GBS=64", "LR=1e-3", "WARMUP_ITERS=9", "TRAIN_ITERS=30", "ADAM_EPS=1e-8")
    run_job(*settings, "ALLOW_REPEAT=true", model=model, fault="silent")
    (path,) = (tmp_path / "output" / "logs").glob("*.yaml")
    document = yaml.safe_load(path.read_text())
    assert (document["exp_name"], document["workspace"]) == (path.stem, str(path.with_suffix(".primus")))
    trainer = document["modules"]["pre_trainer"]
    told = trainer["overrides"]
    assert trainer["model"] == f"{FILES[model].removesuffix('-BF16')}.yaml"
    assert {key: told[key] for key in TRAPS[model]} == TRAPS[model]
    assert told["save_interval"] > 30 and isinstance(told["adam_eps"], float)

    found = check(primus, f"MODEL={model}", *SHORT, *where, *settings, "GPUS_PER_NODE=2")
    assert found.code == 0 and SHIPPED.format(FILES[model]) in found.title
    assert found.rows["seq_length"][:2] == ["8192", "2048"], "the value of a variable is its default"
    assert ("Primus" in found.rows) == (model == "mistral"), "Primus ships nothing for this model"
    shipped = yaml.safe_load((primus / SHIPPED.format(FILES[model])).read_text())["modules"]["pre_trainer"]["overrides"]
    ours = {key: row[1] for key, row in found.rows.items() if key in told and key != "data_cache_path"}
    assert ours == {key: told[key] if isinstance(told[key], str) else json.dumps(told[key]) for key in ours}
    different = {key for key, value in shipped.items() if "$" not in str(value) and value != told[key]}
    assert different <= found.rows.keys() and not {"ckpt_format", "swiglu"} & found.rows.keys()


def edited(old: str, new: str, path: str = MODULE) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        (root / path).write_text(text.replace(old, new) if old else new)

    return change


def test_a_renamed_key_is_said_by_the_name_that_the_version_has(primus: Path) -> None:
    edited("use_turbo_grouped_mlp: false", "use_turbo_grouped_gemm: true")(primus)
    found = check(primus, "MODEL=llama", "GPUS_PER_NODE=8")
    assert found.code == 0 and found.rows["use_turbo_grouped_gemm"][:2] == ["true", "false"]


def test_a_key_that_changes_nothing_is_left_out_and_said(run_job, primus: Path, tmp_path: Path) -> None:
    edited("disable_mlflow: true\n", "")(primus)
    code, result = run_job()
    assert code == 0, result["reason"]
    (warning,) = (text for text in result["warnings"] if "disable_mlflow" in text)
    assert warning.startswith("not said to Primus: disable_mlflow=True") and "no such logger" in warning


REFUSED: dict[str, tuple[Callable[[Path], Any], tuple[str, ...], str]] = {
    "a key that changes the work": (edited("eod_mask_loss: false\n", ""), (), "has no key eod_mask_loss, wanted False"),
    "a routing that this version has not": (
        *(lambda root: None, ("MODEL=qwen3moe", "ROUTING=balanced")),
        "has no key moe_router_force_load_balancing_type, wanted 'uniform'",
    ),
    "a window": (lambda root: None, ("MODEL=mistral", "SL=8192"), "MODEL=mistral SL=8192: Primus has no key for the w"),
    "a list": (edited("", "[]"), (), "got list"),
    "damaged": (edited("", "a: ["), (), "cannot be read"),
    "old": (edited("", "bases: [x.yaml]"), (), "before v25.10"),
    "no Primus": (lambda root: root.rename(root.with_name("other")), (), "set PRIMUS_PATH"),
    "no launcher": (lambda root: (root / "examples/run_pretrain.sh").unlink(), (), "no Primus there (examples/run_pre"),
    "no presets": (lambda root: (root / "primus/configs").rename(root / "x"), (), "no Primus there"),
    "a bad setting": (lambda root: None, ("MODEL=gpt",), "MODEL=gpt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_is_one_clear_error(primus: Path, name: str) -> None:
    assert check(primus, "MODEL=mistral", "SL=4096", "GPUS_PER_NODE=8").code == 0
    change, settings, said = REFUSED[name]
    change(primus)
    found = check(primus, "MODEL=llama", "GPUS_PER_NODE=8", *settings)
    assert (found.code, found.title) == (2, "")
    (line,) = found.err.splitlines()
    assert line.startswith("error: ") and said in line
