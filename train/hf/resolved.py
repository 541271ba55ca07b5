"""`resolved_config` of the transformers Trainer, read back from its model, optimizer and arguments.

On several ranks read it when the Trainer has sharded the model, on all of them: parameters are counted over ranks.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import PreTrainedModel, Trainer

from train.common.built import head_norms, learned, one_of_all
from train.common.kernels import (
    PRECISIONS,
    Facts,
    batch_facts,
    class_of,
    communication_facts,
    name_of,
    optimizer_facts,
    policy_of,
    sdpa_kernel,
)
from train.hf.model import read_recompute
from train.job.report import MismatchError
from utils.models import without_absent_traits
from utils.settings.keys import NO_RECIPE

LIGER = "liger_kernel"
"""Package of the functions that `use_liger_kernel` puts into a model."""
ROTARY = "apply_rotary_pos_emb"
HEAD_NORMS = ("q_norm", "k_norm")


def read(training: Any) -> Facts:
    """Return the `resolved_config` section of a built Trainer."""
    optimizer = getattr(training.optimizer, "optimizer", training.optimizer)  # accelerate wraps it
    _, reduces_in = _dtypes(training)
    facts = _batch(training) | _model(training)
    facts |= optimizer_facts(optimizer, optimizer.state_dtype, training.lr_scheduler, training.args.max_grad_norm)
    return facts | communication_facts(_policy(training.model), reduces_in, training.model.device)


def _policy(model: PreTrainedModel) -> MixedPrecisionPolicy | None:
    return policy_of(model.model.layers[0])


def _batch(training: Trainer) -> Facts:
    arguments = training.args
    return batch_facts(
        training.train_dataset.settings,
        steps=arguments.max_steps,
        micro_batch=arguments.per_device_train_batch_size,
        accumulation=arguments.gradient_accumulation_steps,
        ranks=arguments.world_size,
        replicas=arguments.world_size,
        workers=arguments.dataloader_num_workers,
    )


def _model(training: Trainer) -> Facts:
    model: PreTrainedModel = training.model
    # all layers are built alike; what a layer could have for itself is compared over all (`read_recompute`)
    settings, layer = model.config, model.model.layers[0]
    attention = layer.self_attn
    head_dim = attention.head_dim
    rope = settings.rope_parameters
    computes_in, _ = _dtypes(training)
    norms = head_norms(attention, HEAD_NORMS, head_dim)
    router = getattr(layer.mlp, "gate", None)
    down = getattr(layer.mlp, "experts", layer.mlp).down_proj  # of experts one tensor, otherwise a module
    facts = {
        "precision": PRECISIONS[computes_in],
        "fp8_recipe": NO_RECIPE,  # transformers' classes have no fp8
        "parameter_dtype": name_of(computes_in),
        "parameter_count": sum(parameter.numel() for parameter in model.parameters()),
        "vocab_size": model.lm_head.weight.shape[0],
        "num_layers": len(model.model.layers),
        "hidden_size": model.lm_head.weight.shape[1],
        "ffn_hidden_size": getattr(down, "weight", down).shape[-1],
        "num_attention_heads": attention.q_proj.weight.shape[0] // head_dim,
        "num_query_groups": attention.k_proj.weight.shape[0] // head_dim,
        "norm_eps": _norm_epsilon(layer),
        "qkv_bias": attention.q_proj.bias is not None,
        "rope_base": float(rope["rope_theta"]),
        "rope_scaling": _rope_scaling(model, rope),
        # the model's forward builds the mask from its configuration, not from the attention layer
        "sliding_window": getattr(model.model.config, "sliding_window", None),
        "tie_word_embeddings": model.lm_head.weight is model.model.embed_tokens.weight,
        "query_key_norm": len(norms) == len(HEAD_NORMS),
        "attention_backend": _attention_backend(training),
        "layer_implementation": class_of(model).__name__,
        "init_std": settings.initializer_range,
        "recompute": read_recompute(model),
        "hf_kernels": _kernels(model),
        "fused_ops": _fused_ops(model),
    }
    if router is not None:
        facts |= _routing(settings, router, computes_in)
    return without_absent_traits(facts)


def _routing(settings: Any, router: Any, computes_in: torch.dtype) -> Facts:
    """Return what decides the experts of a token; the router's auxiliary loss counts only if its logits are kept."""
    return {
        "num_experts": router.weight.shape[0],
        "experts_per_token": router.top_k,
        "routing": learned({} if router.norm_topk_prob else {"norm_topk_prob": False}),
        "router_dtype": name_of(computes_in),
        "router_auxiliary_loss": settings.router_aux_loss_coef if settings.output_router_logits else 0.0,
        "shared_expert_size": 0,
        "token_dropping": False,
    }


def _norm_epsilon(layer: Any) -> float:
    attention = layer.self_attn
    norms = [layer.input_layernorm, *head_norms(attention, HEAD_NORMS, attention.head_dim)]
    return float(one_of_all((norm.variance_epsilon for norm in norms), "norms of one layer", "epsilons"))


def _kernels(model: PreTrainedModel) -> str:
    """Return `stock` if each function of the model is transformers' or torch's, `liger` if some are liger's.

    Raises MismatchError for a function of anything else.
    """
    functions = [module.forward for module in model.modules()]
    functions += [_rotary(model), model.loss_function]
    packages = {_package(function) for function in functions}
    others = sorted(packages - {"torch", "transformers", LIGER})
    if others:
        raise MismatchError(f"hf: the model has functions of {', '.join(others)}, wanted those of transformers alone")
    return "liger" if LIGER in packages else "stock"


def _fused_ops(model: PreTrainedModel) -> dict[str, bool]:
    """Return the fusions under the names of megatron-core; only liger's functions are fused."""
    layer = model.model.layers[0]
    return {
        "persist_layer_norm": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "rms_norm_fusion": _package(layer.input_layernorm.forward) == LIGER,
        "bias_activation_fusion": _package(layer.mlp.forward) == LIGER,
        "apply_rope_fusion": _package(_rotary(model)) == LIGER,
        "cross_entropy_loss_fusion": _package(model.forward) == LIGER,
        "average_in_collective": _policy(model) is not None and model.device.type == "cuda",  # gloo cannot
    }


def _rotary(model: PreTrainedModel) -> Any:
    """Return the function that every attention calls, by its name in the module that defines the model."""
    return getattr(sys.modules[type(model.model.layers[0].self_attn).__module__], ROTARY)


def _package(function: Any) -> str:
    return str(function.__module__).partition(".")[0]


def _rope_scaling(model: PreTrainedModel, rope: dict[str, Any]) -> dict[str, float] | None:
    if model.model.rotary_emb.rope_type == "default":
        return None
    return {
        "factor": rope["factor"],
        "low_frequency_factor": rope["low_freq_factor"],
        "high_frequency_factor": rope["high_freq_factor"],
        "original_max_position_embeddings": rope["original_max_position_embeddings"],
    }


def _attention_backend(training: Any) -> str | None:
    """Return the attention; on a GPU with the kernel that torch takes for one sequence of this training.

    transformers makes a mask for a sequence as long as the window or longer (`_ignore_causal_mask_sdpa` of
    masking_utils.py); only without one it leaves grouped keys as they are.
    """
    model: PreTrainedModel = training.model
    implementation = f"torch_{model.config._attn_implementation}"
    if implementation != "torch_sdpa" or model.device.type == "cpu":
        return implementation
    length = training.train_dataset.settings.sequence_length
    window, attention = getattr(model.config, "sliding_window", None), model.model.layers[0].self_attn
    has_mask = window is not None and window <= length
    groups = attention.config.num_key_value_heads
    heads = groups * attention.num_key_value_groups
    if has_mask:
        groups = heads
    dtype, _ = _dtypes(training)
    kernel = sdpa_kernel(heads, groups, length, attention.head_dim, dtype, model.device, has_mask=has_mask)
    return None if kernel is None else f"{implementation}:{kernel}"


def _dtypes(training: Trainer) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype in which layers compute, and that in which gradients are accumulated and reduced."""
    policy, weight = _policy(training.model), next(training.model.parameters())
    if policy is None:
        return weight.dtype, getattr(weight, "grad_dtype", weight.dtype)
    computes_in = policy.param_dtype or weight.dtype
    return computes_in, policy.reduce_dtype or computes_in
