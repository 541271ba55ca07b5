"""The Megatron-core GPTModel of a spec: process groups, layers, attention. Import it after the CPU redirection."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

from train.common.trainer import init_process_group, silence
from train.mega import engine, kernels, recompute
from train.mega.attention import local_layer
from train.settings_map.row import transformer_settings
from utils.errors import ConfigError
from utils.models import ModelSpec, RopeScaling
from utils.settings.config import RunConfig

KNOWN_MESSAGES = {
    # the model that all releases here and NVIDIA's own recipes have; its successor, HybridModel, is in 0.19 only
    "megatron.core.models.gpt.gpt_model": ("GPTModel IS DEPRECATED",),
    # the layout is computed by DDP, as 0.16 does it
    "megatron.core.distributed.distributed_data_parallel": ("DistributedDataParallel: full_param_layout not provided",),
}
"""Messages of 0.19 that mean nothing for a run, as `silence` takes them."""


class OneCopyOfLogits(GPTModel):
    """megatron-core's model whose fused loss is that of train/mega/kernels.py."""

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the loss of each token [batch, sequence] from labels of that shape; logits have the sequence first."""
        if not self.config.cross_entropy_loss_fusion:
            return super().compute_language_model_loss(labels, logits)
        losses = kernels.in_place_cross_entropy(logits, labels.transpose(0, 1).contiguous(), self.pg_collection.tp)
        return losses.transpose(0, 1).contiguous()


class RowEmbedding(tensor_parallel.VocabParallelEmbedding):
    """megatron-core's embedding whose gradient is that of the batch's tokens alone; without tensor parallelism.

    Only for a weight of its own: where the output layer shares it, autograd adds the gradients of both.
    """

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        """Return the embedded tokens [batch, sequence, hidden]."""
        has_buffer = hasattr(self.weight, "main_grad")  # DDP makes it
        if not has_buffer or self.tp_group.size() > 1:
            return super().forward(input_)
        return kernels.rows(self.weight, input_)


def initialize_parallel(config: RunConfig) -> None:
    """Start torch.distributed (gloo or nccl), megatron-core's process groups and its random generators."""
    if not torch.distributed.is_initialized():
        init_process_group(config)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=config.tensor_parallel_size,
            pipeline_model_parallel_size=config.pipeline_parallel_size,
            context_parallel_size=config.context_parallel_size,
            expert_model_parallel_size=config.expert_parallel_size,
        )
    torch.manual_seed(config.seed)
    model_parallel_cuda_manual_seed(config.seed)


def build_model(config: RunConfig, spec: ModelSpec) -> GPTModel:
    """Return this rank's part of the model, on its device, in the precision of the configuration.

    megatron-core draws the weights; with INIT=equal train/mega/weights.py replaces them. Raises ConfigError for
    settings that need TransformerEngine's layers where the layers are torch's.
    """
    with_engine = engine.is_chosen(config.layers, has_gpu=config.platform != "cpu")
    if not with_engine and (config.context_parallel_size > 1 or config.precision == "fp8"):
        setting = "PRECISION=fp8" if config.precision == "fp8" else "CP"
        why = engine.reason_against() or "LAYERS=local"
        raise ConfigError(f"{setting}: needs the layers of TransformerEngine; {why}")
    if config.platform != "cpu":
        kernels.install_swiglu()
        if not with_engine:
            # with TransformerEngine's layers megatron-core takes the rotary kernel of TransformerEngine
            kernels.install_rotary()
    settings = transformer_config(config, spec, with_engine=with_engine)
    has_recipes = config.recompute == "selective" and not with_engine and not spec.num_experts
    if with_engine:
        layer = get_gpt_layer_with_transformer_engine_spec(
            spec.num_experts or None, settings.moe_grouped_gemm, qk_layernorm=settings.qk_layernorm
        )
    else:
        layer = local_layer(settings)
    if has_recipes:
        recompute.use_recipes(layer)
    silence(KNOWN_MESSAGES)
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # 0.16.1 forgets it where TransformerEngine is missing
    embedding = tensor_parallel.VocabParallelEmbedding if spec.tie_word_embeddings else RowEmbedding
    with mock.patch.object(tensor_parallel, "VocabParallelEmbedding", embedding):
        model = OneCopyOfLogits(
            settings,
            layer,
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
    if has_recipes:
        recompute.connect(model)
    if with_engine and model.post_process and not kernels.is_exact("cuda"):
        model.output_layer.gradient_accumulation_fusion = False  # megatron-core's own, beside layers that need no help
    return model if config.platform == "cpu" else model.cuda()


def transformer_config(config: RunConfig, spec: ModelSpec, *, with_engine: bool) -> TransformerConfig:
    """Return megatron-core's configuration of the spec, for TransformerEngine's layers or torch's.

    What one kernel can do is on with a GPU of either vendor. On a CPU the same is composed of torch's operations.
    """
    has_gpu = config.platform != "cpu"
    dtype = torch.float32 if config.precision == "fp32" else torch.bfloat16
    return TransformerConfig(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        ffn_hidden_size=spec.ffn_hidden_size,
        num_attention_heads=spec.num_attention_heads,
        num_query_groups=spec.num_query_groups,
        kv_channels=spec.head_dim,
        **_experts(config, spec, with_engine=with_engine),
        layernorm_epsilon=spec.norm_epsilon,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=spec.qkv_bias,
        qk_layernorm=spec.query_key_norm,
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
        **transformer_settings(config.fp8_recipe),
        fp8_amax_history_len=1024,
        fp8_amax_compute_algo="max",
        apply_rope_fusion=has_gpu,
        persist_layer_norm=with_engine,  # of torch's norm there is one kernel, which has no such choice
        bias_activation_fusion=has_gpu,
        bias_dropout_fusion=has_gpu,
        cross_entropy_loss_fusion=has_gpu and config.precision != "fp32",  # megatron-core's own needs bf16
        masked_softmax_fusion=False,  # no core attention of ours has a softmax of its own
        # TransformerEngine's layers add inside their own products
        gradient_accumulation_fusion=has_gpu and (with_engine or kernels.is_exact("cuda")),
        attention_softmax_in_fp32=True,
        # AMD's images set NVTE_FLASH_ATTN=0 and NVTE_FUSED_ATTN=1 ("required since v26.2", rocm/primus, Dockerfile of
        # v26.4), which is megatron-core's `fused`. It also forbids the composed kernel: a missing one is an error
        attention_backend=AttnBackend["fused" if config.platform == "amd" else "auto"],
        **recompute.settings(config.recompute, with_engine, has_experts=bool(spec.num_experts)),
    )


def _experts(config: RunConfig, spec: ModelSpec, *, with_engine: bool) -> dict[str, Any]:
    """Return the settings of a mixture of experts: softmax over all, the chosen ones scaled to 1, no token dropped.

    ROUTING=balanced is megatron-core's own forced balancing, which draws random logits in place of the router's.
    """
    if not spec.num_experts:
        return {}
    return {
        "num_moe_experts": spec.num_experts,
        "moe_router_topk": spec.experts_per_token,
        "moe_ffn_hidden_size": spec.ffn_hidden_size,
        "moe_router_pre_softmax": False,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_router_force_load_balancing": config.routing == "balanced",
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": with_engine,
        "expert_model_parallel_size": config.expert_parallel_size,
    }


def _rope_factor(spec: ModelSpec) -> float:
    """Return the factor, which is the only argument: megatron-core has the other numbers of Llama 3.1 as constants."""
    scaling = spec.rope_scaling or RopeScaling()
    fixed, can = (dataclasses.astuple(one)[1:] for one in (scaling, RopeScaling()))
    if fixed != can:
        raise ConfigError(f"rope scaling of {spec.name}: got {fixed}, megatron-core can only do {can}")
    return scaling.factor
