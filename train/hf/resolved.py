"""`resolved_config` of the transformers Trainer, read back from its model, optimizer and arguments."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, Trainer

from train.common import trainer
from utils.models import RopeScaling


def read(training: Trainer) -> dict[str, Any]:
    """Return the `resolved_config` section of a built Trainer; the caller adds `init`."""
    resolved = _batch(training) | _model(training) | _optimizer(training)
    return resolved | {"reasons": trainer.absent(resolved)}


def _batch(training: Trainer) -> dict[str, Any]:
    arguments = training.args
    ranks = arguments.world_size
    micro, accumulation = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    return {
        "max_steps": arguments.max_steps,
        "micro_batch_size": micro,
        "gradient_accumulation": accumulation,
        "global_batch_size": micro * accumulation * ranks,
        "sequence_length": training.train_dataset.settings.sequence_length,
        "num_gpus": ranks,
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "dp": ranks,
        "seed": training.train_dataset.settings.random_seed,
        "dataloader_workers": arguments.dataloader_num_workers,
    }


def _model(training: Trainer) -> dict[str, Any]:
    model: PreTrainedModel = training.model
    settings, layer = model.config, model.model.layers[0]
    attention = layer.self_attn
    head_dim = attention.head_dim
    rope = settings.rope_parameters
    return {
        "precision": "bf16" if training.args.bf16 else "fp32",
        "parameter_dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "parameter_count": sum(parameter.numel() for parameter in model.parameters()),
        "vocab_size": model.lm_head.weight.shape[0],
        "num_layers": len(model.model.layers),
        "hidden_size": model.lm_head.weight.shape[1],
        "ffn_hidden_size": layer.mlp.down_proj.weight.shape[1],
        "num_attention_heads": attention.q_proj.weight.shape[0] // head_dim,
        "num_query_groups": attention.k_proj.weight.shape[0] // head_dim,
        "norm_eps": layer.input_layernorm.variance_epsilon,
        "qkv_bias": attention.q_proj.bias is not None,
        "rope_base": float(rope["rope_theta"]),
        "rope_scaling": _rope_scaling(model, rope),
        # the model's forward builds the mask from its configuration, not from the attention layer
        "sliding_window": getattr(model.model.config, "sliding_window", None),
        **({"tie_word_embeddings": True} if model.lm_head.weight is model.model.embed_tokens.weight else {}),
        "attention_backend": f"torch_{settings._attn_implementation}",
        "layer_implementation": type(model).__name__,
        "init_std": settings.initializer_range,
        "recompute": "none",
        "fused_ops": {},
    }


def _rope_scaling(model: PreTrainedModel, rope: dict[str, Any]) -> dict[str, float] | None:
    if model.model.rotary_emb.rope_type == "default":
        return None
    return RopeScaling(
        factor=rope["factor"],
        low_frequency_factor=rope["low_freq_factor"],
        high_frequency_factor=rope["high_freq_factor"],
        original_max_position_embeddings=rope["original_max_position_embeddings"],
    ).__dict__


def _optimizer(training: Trainer) -> dict[str, Any]:
    optimizer = training.optimizer
    decayed, not_decayed = optimizer.param_groups
    rule = training.lr_scheduler.lr_lambdas[0]
    peak = training.lr_scheduler.base_lrs[0]
    fused = "(fused)" if decayed.get("fused") else ""
    return {
        "optimizer": f"{type(optimizer).__module__}.{type(optimizer).__name__}{fused}",
        "distributed_optimizer": False,
        "lr": peak,
        "min_lr": peak * rule.floor,
        "warmup_iters": rule.warmup_iterations,
        "weight_decay": decayed["weight_decay"],
        "beta1": decayed["betas"][0],
        "beta2": decayed["betas"][1],
        "adam_eps": decayed["eps"],
        "clip_grad": training.args.max_grad_norm,
        "parameters_without_weight_decay": sum(p.numel() for p in not_decayed["params"])
        if not_decayed["weight_decay"] == 0
        else 0,
        "optimizer_state": "fp32",
        "gradient_dtype": "fp32",
        "gradient_reduce_dtype": str(torch.float32).removeprefix("torch."),
        "overlap_grad_reduce": training.args.world_size > 1,
        "overlap_param_gather": False,
    }
