"""The settings map, part 2: the model, its shape and initial weights; parallelism, precision and fused operations."""

from __future__ import annotations

from typing import Any

from train.settings_map.row import (
    FP4_FORMAT,
    FP8,
    FP8_FORMATS,
    MODEL,
    STRATEGY,
    Fixed,
    MapRow,
    Wanted,
    always,
    asked,
    field,
    has_4_bits,
    has_8_bits,
    has_rope_scaling,
    is_delayed,
    is_native,
    left,
    on_gpu,
    override,
    recomputation,
    rope_scaling,
    scaling,
    shape,
)
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_DERIVED = "follows from GPUs / (TP PP CP)"


def _window(config: RunConfig, spec: ModelSpec) -> int | None:
    """Return the tokens that a position attends to where they are fewer than the sequence has, else None."""
    return spec.sliding_window if (spec.sliding_window or config.sequence_length) < config.sequence_length else None


def _rope_constant(name: str, key: str, constant: int, nemo: str) -> MapRow:
    """Return the row of a number of the rope scaling that megatron-core has as a constant."""
    return MapRow(
        f"rope scaling: {name}",
        rope_scaling(key),
        override(f"model.config.{nemo}", when=has_rope_scaling),
        Fixed(rope_scaling(key), f"a constant of its megatron-core: {constant}"),
        f"rope_scaling.{key}",
    )


def _in_bf16_on_gpu(config: RunConfig, spec: ModelSpec) -> bool:
    return on_gpu(config, spec) and config.precision != "fp32"


def _split(name: str, wanted: Wanted, key: str, resolved: str | None = None, **others: Any) -> MapRow:
    """Return the row of a kind of parallelism: a field of the strategy."""
    return field(name, wanted, STRATEGY, key, resolved, **others)


def _fused(name: str, wanted: Wanted = on_gpu, **others: Any) -> MapRow:
    """Return the row of a fusion: a field of TransformerConfig."""
    return field(name.replace("_", " "), wanted, MODEL, name, f"fused_ops.{name}", **others)


_MODEL = (
    field("layers", shape("num_layers"), MODEL, "num_layers", "num_layers"),
    field("hidden size", shape("hidden_size"), MODEL, "hidden_size", "hidden_size"),
    field(
        "feed-forward size",
        shape("ffn_hidden_size"),
        MODEL,
        "ffn_hidden_size",
        "ffn_hidden_size",
    ),
    field("attention heads", shape("num_attention_heads"), MODEL, "num_attention_heads", "num_attention_heads"),
    MapRow(
        "key/value groups",
        shape("num_query_groups"),
        override("model.config.num_query_groups"),
        override(("group_query_attention", lambda groups: True), "num_query_groups"),
        "num_query_groups",
    ),
    field(
        "channels of a head",
        shape("head_dim"),
        MODEL,
        "kv_channels",
    ),
    # the null tokenizer adds its end-of-document token to this number
    field(
        "vocabulary",
        shape("vocab_size"),
        MODEL,
        "vocab_size",
        "vocab_size",
        prim=override(("tokenizer_type", lambda size: "NullTokenizer"), ("vocab_size", lambda size: size - 1)),
    ),
    MapRow(
        "vocabulary padded to a multiple of",
        always(1),
        override("model.config.make_vocab_size_divisible_by"),
        override("make_vocab_size_divisible_by"),
    ),
    field("norm", always("RMSNorm"), MODEL, "normalization"),
    MapRow(
        "norm epsilon",
        shape("norm_epsilon"),
        override("model.config.layernorm_epsilon"),
        override("norm_epsilon"),
        "norm_eps",
    ),
    field("SwiGLU", always(True), MODEL, "gated_linear_unit", prim="swiglu"),
    field("bias of linear layers", always(False), MODEL, "add_bias_linear"),
    field(
        "QKV bias",
        shape("qkv_bias"),
        MODEL,
        "add_qkv_bias",
        "qkv_bias",
    ),
    field(
        "norm of queries and keys",
        shape("query_key_norm"),
        MODEL,
        "qk_layernorm",
        "query_key_norm",
    ),
    MapRow(
        "embedding shared with output",
        shape("tie_word_embeddings"),
        override("model.config.share_embeddings_and_output_weights"),
        override(("untie_embeddings_and_output_weights", lambda shared: not shared)),
        "tie_word_embeddings",
    ),
    field("attention dropout", always(0.0), MODEL, "attention_dropout"),
    field("hidden dropout", always(0.0), MODEL, "hidden_dropout"),
    field("position embedding", always("rope"), MODEL, "position_embedding_type"),
    MapRow(
        "rope base",
        shape("rope_base"),
        override("model.config.rotary_base"),
        override(("rotary_base", int)),
        "rope_base",
    ),
    MapRow(
        "rope over a part of a head's channels",
        always(1.0),
        override("model.config.rotary_percent"),
        override("rotary_percent"),
    ),
    MapRow(
        "rope scaling of Llama 3.1",
        has_rope_scaling,
        Fixed(has_rope_scaling, "Llama31Config applies it always, the other models' classes never"),
        override("use_rope_scaling"),
    ),
    MapRow(
        "rope scaling: factor",
        rope_scaling("factor"),
        override("model.config.scale_factor", when=has_rope_scaling),
        override("rope_scaling_factor", when=has_rope_scaling),
        "rope_scaling.factor",
    ),
    _rope_constant("low frequency factor", "low_frequency_factor", 1, "low_freq_factor"),
    _rope_constant("high frequency factor", "high_frequency_factor", 4, "high_freq_factor"),
    _rope_constant("original length", "original_max_position_embeddings", 8192, "old_context_len"),
    MapRow(
        "sliding window",
        shape("sliding_window"),
        override(("model.config.window_size", left)),
        Fixed(
            lambda config, spec: None if _window(config, spec) else spec.sliding_window,
            "no key in any release: the same work only where the sequence is no longer than the window",
        ),
        "sliding_window",
    ),
    field("std of initial weights", asked("init_std"), MODEL, "init_method_std", "init_std"),
    MapRow(
        "initial weights",
        asked("init"),
        Fixed(asked("init"), "equal: copied into the built model, which is megatron-core's; native: NeMo's own"),
        Fixed(
            lambda config, spec: config.init if config.platform == "cpu" else "native",
            "on a GPU Primus draws its own; on a CPU it loads ours as a checkpoint (train/prim/checkpoint.py)",
        ),
        "init",
    ),
    MapRow(
        "output projections drawn smaller, by 1/sqrt(2 layers)",
        is_native,
        Fixed(is_native, "as mega"),
        Fixed(True, "megatron-core's own rule, and no key that turns it off"),
    ),
)

_PARALLEL = (
    _split("TP", asked("tensor_parallel_size"), "tensor_model_parallel_size", "tp"),
    _split("PP", asked("pipeline_parallel_size"), "pipeline_model_parallel_size", "pp"),
    _split(
        "virtual pipeline stages",
        always(None),
        "virtual_pipeline_model_parallel_size",
        prim="num_virtual_stages_per_pipeline_rank",
    ),
    _split("CP", asked("context_parallel_size"), "context_parallel_size", "cp"),
    MapRow(
        "DP",
        asked("data_parallel_size"),
        Fixed(asked("data_parallel_size"), _DERIVED),
        Fixed(asked("data_parallel_size"), _DERIVED),
        "dp",
    ),
    _split("sequence parallel", always(False), "sequence_parallel"),
    MapRow(
        "precision",
        asked("precision"),
        # the name from which train_nemo makes the plugin, which sets every dtype of model, optimizer and DDP
        override("trainer.plugins"),
        override(("bf16", lambda name: name != "fp32"), ("fp16", lambda name: False)),
        "precision",
    ),
    field(
        "fp8 format",
        lambda config, spec: FP8_FORMATS.get(config.fp8_recipe),
        FP8,
        "fp8",
    ),
    MapRow(
        "fp8 recipe",
        asked("fp8_recipe"),
        override(("trainer.plugins.fp8_recipe", scaling), when=has_8_bits),
        override(("fp8_recipe", scaling), when=has_8_bits),
        "fp8_recipe",
    ),
    field(
        "fp8: steps of the largest value kept",
        always(1024),
        FP8,
        "fp8_amax_history_len",
        when=is_delayed,
    ),
    field(
        "fp8: which of them counts",
        always("max"),
        FP8,
        "fp8_amax_compute_algo",
        when=is_delayed,
    ),
    MapRow(
        "fp4 format",
        lambda config, spec: FP4_FORMAT if has_4_bits(config, spec) else None,
        Fixed(None, "NeMo 2.3 has no fp4; FP8_RECIPE=nvfp4 is refused"),
        override("fp4", when=has_4_bits),
    ),
    MapRow(
        "fp4 recipe",
        asked("fp8_recipe"),
        Fixed(asked("fp8_recipe"), "as above"),
        override("fp4_recipe", when=has_4_bits),
    ),
    MapRow(
        "parameters gathered in fp8",
        always(False),
        override("trainer.plugins.fp8_param_gather"),
        override("fp8_param_gather"),
    ),
    field(
        "residual stream in fp32",
        always(False),
        MODEL,
        "fp32_residual_connection",
    ),
    field(
        "attention softmax in fp32",
        always(True),
        MODEL,
        "attention_softmax_in_fp32",
    ),
    MapRow(
        "recompute",
        asked("recompute"),
        override(*recomputation("model.config.")),
        override(
            *recomputation(""),
            ("recompute_activations", lambda kind: kind == "selective"),
        ),
        "recompute",
    ),
)

_FUSIONS = (
    _fused("bias_activation_fusion", prim="bias_swiglu_fusion"),
    _fused("bias_dropout_fusion"),
    _fused("masked_softmax_fusion", always(False)),
    _fused("persist_layer_norm", prim=override(("no_persist_layer_norm", lambda on: not on))),
    # of local layers the kernels of train/mega/attention.py
    _fused("apply_rope_fusion"),
    # megatron-core's own gives a bf16 gradient whatever the input; of mega it is train/mega/kernels.py
    _fused("cross_entropy_loss_fusion", _in_bf16_on_gpu),
    field(
        "cross entropy fusion by",
        always("native"),
        MODEL,
        "cross_entropy_fusion_impl",
    ),
    # Apex's extension, of mega train/mega/kernels.py where it is missing
    _fused(
        "gradient_accumulation_fusion",
        prim=Fixed(False, "off in AMD's configurations: it needs Apex's extension"),
    ),
    MapRow(
        "attention backend",
        always("auto"),
        override("model.config.attention_backend"),
        override("attention_backend"),
        "attention_backend",
    ),
    MapRow(
        "float32 products",
        always("highest"),
        Fixed("highest", "as mega"),
        Fixed("highest", "nothing in Primus turns TF32 on, nor does AMD's image"),
    ),
    MapRow(
        "Primus Turbo",
        always(False),
        Fixed(False, "as mega"),
        override("enable_primus_turbo", "use_turbo_attention", "use_turbo_rms_norm"),
    ),
    MapRow(
        "CUDA graphs",
        always(False),
        override("model.config.enable_cuda_graph"),
        Fixed(False, "default of every release; its key changed its name"),
    ),
)

ROWS: tuple[MapRow, ...] = (*_MODEL, *_PARALLEL, *_FUSIONS)
"""In the order of the table; a key comes before the keys below it."""
