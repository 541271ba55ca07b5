"""`resolved_config` of torchtitan, read back from its trainer, model, optimizer, schedule and loader.

Read it when the trainer is built and before its first step, on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.nn import attention as torch_attention
from torchtitan.models.common.attention import ScaledDotProductAttention

from train.common.built import map_differences, model_differences, one_of_all, one_recompute
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
from train.common.weights import flat_parameters
from train.job.job import Job
from train.titan.recipe import parameters
from utils.models import without_absent_traits
from utils.settings.keys import NO_RECIPE

_FREQUENCY_TOLERANCE = 1e-4
"""Relative error of rope's base worked out from one float32 angle."""


def read(training: Any, job: Job) -> Facts:
    """Return the `resolved_config` section of a built trainer, whose weights INIT=equal replaces afterwards."""
    std: float | None = job.config.init_std
    reasons = {}
    if job.config.init != "equal":
        std = None
        reasons["init_std"] = "torchtitan draws each kind of weight with a std of its own"
    if job.spec.sliding_window is not None:
        reasons["sliding_window"] = "torchtitan's models have no window; no sequence here is longer than the model's"
    (model,), (optimizer,) = training.model_parts, training.optimizers.optimizers
    (schedule,) = training.lr_schedulers.schedulers
    state = optimizer.param_groups[0]["params"][0].dtype  # torch keeps the states in the dtype of the weights
    policy: Any = policy_of(next(iter(model.layers.values())))  # torchtitan shards on one rank too
    facts = _batch(training) | _model(training, policy.param_dtype)
    facts |= optimizer_facts(optimizer, state, schedule, training.config.training.max_norm)
    facts |= communication_facts(policy, policy.reduce_dtype, training.device)
    return facts | {"init_std": std, "reasons": reasons}


def differences(job: Job, resolved: Mapping[str, Any]) -> list[str]:
    """Return each built object that differs from the spec or from the value that the settings map set.

    This finds a setting that did not arrive, where a default of torchtitan applies instead.
    """
    wrong = model_differences(job.spec, resolved)
    of_the_model = [difference.partition(":")[0] for difference in wrong]
    wrong += [text for key, text in map_differences("titan", job, resolved) if key not in of_the_model]
    wanted = sum(flat_parameters(job.spec).values())
    built = resolved["parameters_without_weight_decay"]
    if built != wanted:
        wrong.append(f"parameters without weight decay: asked {wanted:,} (norms, biases), built {built:,}")
    return wrong


def _batch(training: Any) -> Facts:
    loader, dims = training.dataloader, training.parallel_dims
    return batch_facts(
        loader.dataset.settings,
        steps=training.config.training.steps,
        micro_batch=len(next(iter(loader.batch_sampler))),
        accumulation=training.gradient_accumulation_steps,
        ranks=dims.world_size,
        replicas=dims.dp_replicate * dims.dp_shard,
        workers=loader.num_workers,
        tp=dims.tp,
        pp=dims.pp,
        cp=dims.cp,
        ep=dims.ep,
    )


def _model(training: Any, computes_in: torch.dtype) -> Facts:
    (model,) = training.model_parts
    layer = next(iter(model.layers.values()))
    attention, moe = layer.attention, getattr(layer, "moe", None)
    products = attention.qkv_linear
    down = moe.routed_experts.inner_experts.w2_EDF if moe else layer.feed_forward.w2.weight
    norms = [module for module in layer.modules() if isinstance(module, torch.nn.RMSNorm)]
    checkpoints = []
    for block in model.layers.values():
        checkpoints.append(block.checkpoint_fn if isinstance(block, CheckpointWrapper) else None)
    facts = {
        "precision": PRECISIONS[computes_in],
        "fp8_recipe": NO_RECIPE,  # none of its converters for fp8 is asked for
        "parameter_dtype": name_of(computes_in),
        "parameter_count": sum(parameter.numel() for _, parameter in parameters(model)),
        "vocab_size": model.lm_head.weight.shape[0],
        "num_layers": len(model.layers),
        "hidden_size": model.lm_head.weight.shape[1],
        "ffn_hidden_size": down.shape[-1],
        "num_attention_heads": products.wq.weight.shape[0] // attention.head_dim,
        "num_query_groups": products.wk.weight.shape[0] // attention.head_dim,
        # 0, which no model has, for a norm that takes torch's default
        "norm_eps": one_of_all((norm.eps or 0.0 for norm in norms), "norms of one layer", "epsilons"),
        "qkv_bias": products.wq.bias is not None,
        "rope_base": _rope_base(attention.rope, attention.head_dim),
        "rope_scaling": _rope_scaling(attention.rope.config),
        "sliding_window": None,
        "query_key_norm": attention.q_norm is not None,
        "attention_backend": _attention_backend(training, attention, computes_in),
        "layer_implementation": f"{class_of(model).__module__}.{class_of(model).__name__}",
        "recompute": one_recompute(checkpoints),
        "fused_ops": _fused_ops(training, model),
    }
    if moe:
        facts |= _routing(moe, computes_in)
    return without_absent_traits(facts)


def _routing(moe: Any, computes_in: torch.dtype) -> Facts:
    """Return what decides the experts of a token, from the router of a layer."""
    return {
        "num_experts": moe.router.num_experts,
        "experts_per_token": moe.router.top_k,
        "routing": "balanced" if moe.router._debug_force_load_balance else "learned",
        "router_dtype": name_of(computes_in),
        "router_auxiliary_loss": 0.0,
        "shared_expert_size": 0 if moe.shared_experts is None else moe.shared_experts.w2.weight.shape[1],
        "token_dropping": False,
    }


def _rope_base(rope: Any, head_dim: int) -> float:
    """Return rope's base: that of its configuration, if the angles that it has at position 1 are of this base.

    The first angle below 1 is base ^ (-2 / head_dim), which scaling leaves as it is.
    """
    angles = rope.cache[1]
    # either complex numbers, or cosines and then sines
    angle = angles[1].angle() if angles.is_complex() else torch.atan2(angles[head_dim + 1], angles[1])
    base, configured = float(angle) ** (-head_dim / 2), float(rope.config.theta)
    return configured if math.isclose(base, configured, rel_tol=_FREQUENCY_TOLERANCE) else base


def _rope_scaling(rope: Any) -> dict[str, float] | None:
    if rope.scaling == "none":
        return None
    return {
        "factor": rope.scaling_factor,
        "low_frequency_factor": rope.low_freq_factor,
        "high_frequency_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position_embeddings,
    }


def _attention_backend(training: Any, attention: Any, dtype: torch.dtype) -> str | None:
    """Return the attention; on a GPU with the kernel that torch takes for one sequence of this training."""
    inner = attention.inner_attention
    if not isinstance(inner, ScaledDotProductAttention):
        return class_of(inner).__name__
    if training.device.type == "cpu":
        return "torch_sdpa"
    length = training.dataloader.dataset.settings.sequence_length
    heads = attention.n_heads, attention.n_kv_heads
    with torch_attention.sdpa_kernel(inner.sdpa_backends, set_priority=True):
        kernel = sdpa_kernel(*heads, length, attention.head_dim, dtype, training.device)
    return None if kernel is None else f"torch_sdpa:{kernel}"


def _fused_ops(training: Any, model: Any) -> dict[str, bool]:
    """Return the fusions under the names of megatron-core; torch.compile makes them, except of complex numbers."""
    is_compiled = all(layer._compiled_call_impl is not None for layer in model.layers.values())
    return {
        "persist_layer_norm": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "average_in_collective": False,
        "rms_norm_fusion": is_compiled,
        "bias_activation_fusion": is_compiled,
        "apply_rope_fusion": is_compiled and not any(buffer.is_complex() for buffer in model.buffers()),
        "cross_entropy_loss_fusion": hasattr(training.loss_fn.fn, "_torchdynamo_orig_callable"),
    }
