"""The Megatron-core GPTModel of a spec: process groups, layers, attention. Import it after the CPU redirection."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from packaging.requirements import Requirement

from utils.errors import ConfigError
from utils.models import ModelSpec
from utils.settings.config import RunConfig

LLAMA3_ROPE = (1.0, 4.0, 8192)
"""Constants of its `rope_scaling`: frequency factors and original length. Only the factor is an argument."""


class SdpaCoreAttention(torch.nn.Module):
    """Core attention by torch's scaled_dot_product_attention: causal, grouped queries, sliding window.

    Inputs and output have megatron-core's layout: query [sequence, batch, heads, head_dim], key and value with the
    groups of this rank in place of heads; output [sequence, batch, heads * head_dim].
    """

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        if config.context_parallel_size != 1:
            raise ConfigError("CP: this attention sees only its own part of a sequence; context parallelism needs TE")
        self.softmax_scale = softmax_scale
        self.window_size = config.window_size

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the attended values; megatron-core's mask argument is ignored, the mask is causal by construction."""
        length, batch = query.shape[:2]
        mask = self._window_mask(length, query.device)
        attended = F.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            key.permute(1, 2, 0, 3),
            value.permute(1, 2, 0, 3),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=query.shape[2] != key.shape[2],
            scale=self.softmax_scale,
        )
        return attended.permute(2, 0, 1, 3).reshape(length, batch, -1)

    def _window_mask(self, length: int, device: torch.device) -> torch.Tensor | None:
        """True where row may see column: `window_size[0]` earlier tokens and itself; None for plain causal."""
        if self.window_size is None or self.window_size[0] + 1 >= length:
            return None
        row = torch.arange(length, device=device)[:, None]
        column = torch.arange(length, device=device)[None, :]
        return (column <= row) & (column >= row - self.window_size[0])


def transformer_engine_version() -> str | None:
    """Return the version of the installed TransformerEngine if this megatron-core supports it, else None.

    The range is read from megatron-core's own package metadata (its `dev` extra).
    """
    try:
        installed = metadata.version("transformer-engine")
    except metadata.PackageNotFoundError:
        return None
    for text in metadata.requires("megatron-core") or []:
        requirement = Requirement(text)
        if requirement.name == "transformer-engine":
            return installed if requirement.specifier.contains(installed, prereleases=True) else None
    return None


def initialize_parallel(config: RunConfig) -> None:
    """Start torch.distributed (gloo or nccl), megatron-core's process groups and its random generators."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo" if config.platform == "cpu" else "nccl")
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=config.tensor_parallel_size,
            pipeline_model_parallel_size=config.pipeline_parallel_size,
            context_parallel_size=config.context_parallel_size,
        )
    torch.manual_seed(config.seed)
    model_parallel_cuda_manual_seed(config.seed)


def build_model(config: RunConfig, spec: ModelSpec) -> GPTModel:
    """Return this rank's part of the model, on its device, in the precision of the configuration.

    megatron-core draws the weights; with INIT=equal train/mega/weights.py replaces them. Raises ConfigError for
    settings that need TransformerEngine where it is missing.
    """
    has_engine = transformer_engine_version() is not None
    if config.context_parallel_size > 1 and not has_engine:
        raise ConfigError("CP: context parallelism needs a TransformerEngine that this megatron-core accepts; use CP=1")
    if config.precision == "fp8" and not has_engine:
        raise ConfigError("PRECISION=fp8: needs a TransformerEngine that this megatron-core accepts; use bf16")
    settings = transformer_config(config, spec, fused=has_engine)
    model = GPTModel(
        settings,
        _layer_spec(has_engine),
        vocab_size=spec.vocab_size,
        max_sequence_length=config.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_base=spec.rope_base,
        rope_scaling=spec.rope_scaling is not None,
        rope_scaling_factor=_rope_factor(spec),
        share_embeddings_and_output_weights=spec.tie_word_embeddings,
    )
    return model if config.platform == "cpu" else model.cuda()


def transformer_config(config: RunConfig, spec: ModelSpec, *, fused: bool) -> TransformerConfig:
    """Return megatron-core's configuration of the spec.

    `fused` switches on the operations that only TransformerEngine fuses. Those that torch.compile fuses are on with a
    GPU of either vendor and off on a CPU, where they need a C++ compiler.
    """
    has_gpu = config.platform != "cpu"
    dtype = torch.float32 if config.precision == "fp32" else torch.bfloat16
    return TransformerConfig(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        ffn_hidden_size=spec.ffn_hidden_size,
        num_attention_heads=spec.num_attention_heads,
        num_query_groups=spec.num_query_groups,
        layernorm_epsilon=spec.norm_epsilon,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=spec.qkv_bias,
        # W tokens with the token itself are W - 1 to its left
        window_size=(spec.sliding_window - 1, 0) if spec.sliding_window else None,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=config.init_std,
        # also where the weights are replaced: it marks the sharded parameters, which the gradient norm needs
        perform_initialization=True,
        use_cpu_initialization=not has_gpu,
        tensor_model_parallel_size=config.tensor_parallel_size,
        pipeline_model_parallel_size=config.pipeline_parallel_size,
        context_parallel_size=config.context_parallel_size,
        sequence_parallel=False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp8="hybrid" if config.precision == "fp8" else None,
        fp8_amax_history_len=1024,
        fp8_amax_compute_algo="max",
        apply_rope_fusion=fused,
        persist_layer_norm=fused,
        bias_activation_fusion=has_gpu,
        bias_dropout_fusion=has_gpu,
        cross_entropy_loss_fusion=has_gpu and config.precision != "fp32",  # its gradient is bf16 whatever the input
        masked_softmax_fusion=False,  # no core attention of ours has a softmax of its own
        gradient_accumulation_fusion=False,  # needs an Apex or TransformerEngine extension
        attention_softmax_in_fp32=True,
    )


def _layer_spec(has_engine: bool) -> Any:
    if has_engine:
        return get_gpt_layer_with_transformer_engine_spec()
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.self_attention.submodules.core_attention = SdpaCoreAttention
    return layer


def _rope_factor(spec: ModelSpec) -> float:
    scaling = spec.rope_scaling
    if scaling is None:
        return 8.0
    fixed = (scaling.low_frequency_factor, scaling.high_frequency_factor, scaling.original_max_position_embeddings)
    if fixed != LLAMA3_ROPE:
        raise ConfigError(f"rope scaling of {spec.name}: got {fixed}, megatron-core can only do {LLAMA3_ROPE}")
    return scaling.factor
