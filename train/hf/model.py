"""The transformers model of a spec: the library's own classes, from configuration, never from a checkpoint.

RECOMPUTE is the activation checkpointing of transformers. `none` keeps everything that autograd asks for. `full` keeps
the input of a layer and computes the layer again. `selective` keeps the results of matrix products and of attention,
and computes again what is cheap: norms, rotary embedding, the MLP's activation, residual sums.

On several ranks the Trainer's FSDP2 shards weights, gradients and optimizer states (ZeRO stage 3). A rank keeps its
part of the float32 master weights. Layers compute in bf16 with PRECISION=bf16: a gathered weight is the master,
rounded. The gradients of each micro batch are reduced in GRADIENT_DTYPE and added, in float32, to a rank's part of the
sum (`sync_each_batch`). The Trainer's default, to reduce once a step, would keep whole float32 gradients on every rank.
Gathered weights stay from the forward to the backward pass of a micro batch (`reshard_after_forward`), as
megatron-core's distributed optimizer keeps them. Two things have no argument: the dtypes (`set_policy`) and gloo ranks
(`place_cpu_ranks`).
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, TrainingArguments
from transformers.initialization import no_init_weights

from train.common.built import one_recompute
from train.common.kernels import DTYPES
from utils.models import MODELS, ModelSpec
from utils.settings.config import RunConfig

_ATEN = torch.ops.aten
KEPT = [
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN.bmm.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
]
"""Operators whose results `selective` keeps: products of matrices, and attention in each of torch's kernels."""


def build_model(
    spec: ModelSpec,
    init_std: float = 0.02,
    dtype: torch.dtype = torch.float32,
    *,
    draw_weights: bool = True,
) -> PreTrainedModel:
    """Return the untrained model as transformers builds it, with torch's scaled-dot-product attention.

    Rotary frequencies stay float32 in every `dtype`. Without `draw_weights` no random number is drawn and the memory of
    the weights is reserved and not touched: the caller writes every weight.
    """
    config = build_config(spec, init_std)
    with nullcontext() if draw_weights else no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()  # transformers does it in the function that `no_init_weights` empties
    return model


def build_config(spec: ModelSpec, init_std: float = 0.02) -> PretrainedConfig:
    """Return transformers' configuration of the spec.

    transformers 5 wants rope's base inside `rope_parameters`. A `sliding_window` of W lets a token see W tokens with
    itself, as in `ModelSpec.sliding_window`; a class that has this field uses a window unless it is set to None.
    """
    config_class = getattr(transformers, MODELS[spec.name].transformers + "Config")
    settings = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_query_groups,
        "head_dim": spec.head_dim,
        "rms_norm_eps": spec.norm_epsilon,
        "max_position_embeddings": spec.max_position_embeddings,
        "initializer_range": init_std,
        "rope_parameters": _rope_parameters(spec),
        "tie_word_embeddings": spec.tie_word_embeddings,
        "attention_dropout": 0.0,
        "attn_implementation": "sdpa",
        "use_cache": False,
    }
    if hasattr(config_class, "sliding_window"):
        settings["sliding_window"] = spec.sliding_window
    if spec.num_experts:
        settings |= {
            "moe_intermediate_size": spec.ffn_hidden_size,
            "num_experts": spec.num_experts,
            "num_experts_per_tok": spec.experts_per_token,
            "norm_topk_prob": True,
        }
    config: PretrainedConfig = config_class(**settings)
    return config


def _rope_parameters(spec: ModelSpec) -> dict[str, object]:
    if spec.rope_scaling is None:
        return {"rope_type": "default", "rope_theta": spec.rope_base}
    return {
        "rope_type": "llama3",
        "rope_theta": spec.rope_base,
        "factor": spec.rope_scaling.factor,
        "low_freq_factor": spec.rope_scaling.low_frequency_factor,
        "high_freq_factor": spec.rope_scaling.high_frequency_factor,
        "original_max_position_embeddings": spec.rope_scaling.original_max_position_embeddings,
    }


def set_recompute(model: PreTrainedModel, recompute: str) -> None:
    """Turn on what RECOMPUTE asks for. A pass has no random numbers, so their state is not kept."""
    if recompute == "none":
        return
    keywords: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if recompute == "selective":
        keywords["context_fn"] = functools.partial(create_selective_checkpoint_contexts, KEPT)
    # transformers has renamed it
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(keywords)


def read_recompute(model: PreTrainedModel) -> str:
    """Return `none`, `selective` or `full`, from the layers; raise MismatchError where they differ."""
    layers: Any = model.model.layers
    return one_recompute(one._gradient_checkpointing_func if one.gradient_checkpointing else None for one in layers)


# Several ranks


def fsdp_settings(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of TrainingArguments that shard, for a training on several ranks; none on one."""
    if config.num_gpus == 1:
        return {}
    # one rank of all holds the whole model in host memory, not each
    settings = {"version": 2, "reshard_after_forward": False, "cpu_ram_efficient_loading": True}
    return {"fsdp": True, "fsdp_config": settings}


def set_policy(arguments: TrainingArguments, config: RunConfig) -> None:
    """Set the dtypes of computing and of reduction, for which TrainingArguments has no field.

    accelerate's own policy would reduce in bf16 and also round the loss to bf16.
    """
    if arguments.fsdp_plugin_args is not None:
        arguments.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy(
            param_dtype=DTYPES[config.precision],
            reduce_dtype=DTYPES[config.gradient_dtype],
            cast_forward_inputs=False,  # they follow the weights already, and the count of tokens must stay exact
        )


def place_cpu_ranks(accelerator: Accelerator, arguments: TrainingArguments) -> None:
    """Treat gloo ranks as accelerate treats GPUs: several shard, one is not wrapped.

    accelerate knows FSDP on accelerators only and sets there what is set here; one CPU rank it would wrap in DDP.
    """
    state = accelerator.state
    if state.distributed_type != DistributedType.MULTI_CPU:
        return
    kind = DistributedType.NO if arguments.fsdp_plugin_args is None else DistributedType.FSDP
    state.distributed_type = PartialState._shared_state["distributed_type"] = kind
    if arguments.fsdp_plugin_args is not None:
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)
