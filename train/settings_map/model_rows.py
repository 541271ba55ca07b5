"""The settings map, part 3: the model, its shape and its initial weights."""

from __future__ import annotations

from typing import Any

from train.settings_map.row import GPT, MODEL, Fixed, MapRow, always, asked, field, override, shape
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_ALL_HAVE, _NONE_HAS = "all model classes have it", "all model classes have none"


def _window(config: RunConfig, spec: ModelSpec) -> int | None:
    """Return the tokens that a position attends to where they are fewer than the sequence has, else None."""
    return spec.sliding_window if (spec.sliding_window or config.sequence_length) < config.sequence_length else None


def _left(window: int | None) -> list[int] | None:
    """Return [W - 1, 0]: the window without the token itself, the form of megatron-core, flash attention and TE."""
    return None if window is None else [window - 1, 0]


def _scaled_output_init(config: RunConfig, spec: ModelSpec) -> bool:
    return config.init != "equal"


def _has_window(config: RunConfig, spec: ModelSpec) -> bool:
    return spec.sliding_window is not None


def _has_rope_scaling(config: RunConfig, spec: ModelSpec) -> bool:
    return spec.rope_scaling is not None


def _scaling(name: str) -> Any:
    return lambda config, spec: getattr(spec.rope_scaling, name, None)


def _rope_constant(name: str, key: str, constant: int, hf: str, nemo: str) -> MapRow:
    """Return the row of a number of the rope scaling that megatron-core has as a constant."""
    return MapRow(
        f"rope scaling: {name}",
        _scaling(key),
        Fixed(_scaling(key), f"a constant of megatron-core: {constant}; another is refused"),
        override(f"PretrainedConfig.rope_parameters.{hf}", when=_has_rope_scaling),
        override(f"model.config.{nemo}", when=_has_rope_scaling),
        Fixed(_scaling(key), f"a constant of its megatron-core: {constant}"),
        f"rope_scaling.{key}",
    )


ROWS: tuple[MapRow, ...] = (
    field("layers", shape("num_layers"), MODEL, "num_layers", "num_layers", hf="num_hidden_layers"),
    field("hidden size", shape("hidden_size"), MODEL, "hidden_size", "hidden_size"),
    field(
        "feed-forward size",
        shape("ffn_hidden_size"),
        MODEL,
        "ffn_hidden_size",
        "ffn_hidden_size",
        hf="intermediate_size",
    ),
    field("attention heads", shape("num_attention_heads"), MODEL, "num_attention_heads", "num_attention_heads"),
    MapRow(
        "key/value groups",
        shape("num_query_groups"),
        override("TransformerConfig.num_query_groups"),
        override("PretrainedConfig.num_key_value_heads"),
        override("model.config.num_query_groups"),
        override(("group_query_attention", lambda groups: True), "num_query_groups"),
        "num_query_groups",
    ),
    field(
        "channels of a head",
        shape("head_dim"),
        MODEL,
        "kv_channels",
        hf="head_dim",
    ),
    # the null tokenizer adds its end-of-document token to this number
    field(
        "vocabulary",
        shape("vocab_size"),
        GPT,
        "vocab_size",
        "vocab_size",
        prim=override(("tokenizer_type", lambda size: "NullTokenizer"), ("vocab_size", lambda size: size - 1)),
    ),
    MapRow(
        "vocabulary padded to a multiple of",
        always(1),
        Fixed(1, "the model is built with the vocabulary of the spec; nothing pads it"),
        Fixed(1, "as mega"),
        override("model.config.make_vocab_size_divisible_by"),
        override("make_vocab_size_divisible_by"),
    ),
    field("norm", always("RMSNorm"), MODEL, "normalization", hf=Fixed("RMSNorm", _ALL_HAVE)),
    MapRow(
        "norm epsilon",
        shape("norm_epsilon"),
        override("TransformerConfig.layernorm_epsilon"),
        override("PretrainedConfig.rms_norm_eps"),
        override("model.config.layernorm_epsilon"),
        override("norm_epsilon"),
        "norm_eps",
    ),
    field("SwiGLU", always(True), MODEL, "gated_linear_unit", hf=Fixed(True, _ALL_HAVE), prim="swiglu"),
    field("bias of linear layers", always(False), MODEL, "add_bias_linear", hf=Fixed(False, _NONE_HAS)),
    field(
        "QKV bias",
        shape("qkv_bias"),
        MODEL,
        "add_qkv_bias",
        "qkv_bias",
        hf=Fixed(shape("qkv_bias"), "Qwen2's class has it, those of the other models are left at none"),
    ),
    field(
        "norm of queries and keys",
        shape("query_key_norm"),
        MODEL,
        "qk_layernorm",
        "query_key_norm",
        hf=Fixed(shape("query_key_norm"), "Qwen3's class has it, those of the other models have none"),
    ),
    MapRow(
        "embedding shared with output",
        shape("tie_word_embeddings"),
        override("GPTModel.share_embeddings_and_output_weights"),
        override("PretrainedConfig.tie_word_embeddings"),
        override("model.config.share_embeddings_and_output_weights"),
        override(("untie_embeddings_and_output_weights", lambda shared: not shared)),
        "tie_word_embeddings",
    ),
    field("attention dropout", always(0.0), MODEL, "attention_dropout"),
    field("hidden dropout", always(0.0), MODEL, "hidden_dropout", hf=Fixed(0.0, _NONE_HAS)),
    field("position embedding", always("rope"), GPT, "position_embedding_type", hf=Fixed("rope", _ALL_HAVE)),
    MapRow(
        "rope base",
        shape("rope_base"),
        override("GPTModel.rotary_base"),
        override("PretrainedConfig.rope_parameters.rope_theta"),
        override("model.config.rotary_base"),
        override(("rotary_base", int)),
        "rope_base",
    ),
    MapRow(
        "rope over a part of a head's channels",
        always(1.0),
        Fixed(1.0, "default of GPTModel"),
        Fixed(1.0, "default of all model classes"),
        override("model.config.rotary_percent"),
        override("rotary_percent"),
    ),
    MapRow(
        "rope scaling of Llama 3.1",
        _has_rope_scaling,
        override("GPTModel.rotary_scaling"),
        override(("PretrainedConfig.rope_parameters.rope_type", lambda on: "llama3" if on else "default")),
        Fixed(_has_rope_scaling, "Llama31Config applies it always, the other models' classes never"),
        override("use_rope_scaling"),
    ),
    MapRow(
        "rope scaling: factor",
        _scaling("factor"),
        Fixed(_scaling("factor"), "argument of GPTModel, which keeps the frequencies only"),
        override("PretrainedConfig.rope_parameters.factor", when=_has_rope_scaling),
        override("model.config.scale_factor", when=_has_rope_scaling),
        override("rope_scaling_factor", when=_has_rope_scaling),
        "rope_scaling.factor",
    ),
    _rope_constant("low frequency factor", "low_frequency_factor", 1, "low_freq_factor", "low_freq_factor"),
    _rope_constant("high frequency factor", "high_frequency_factor", 4, "high_freq_factor", "high_freq_factor"),
    _rope_constant(
        "original length",
        "original_max_position_embeddings",
        8192,
        "original_max_position_embeddings",
        "old_context_len",
    ),
    MapRow(
        "sliding window",
        shape("sliding_window"),
        override(("TransformerConfig.window_size", lambda window: (window - 1, 0) if window else None)),
        override("PretrainedConfig.sliding_window", when=_has_window),
        override(("model.config.window_size", _left)),
        Fixed(
            lambda config, spec: None if _window(config, spec) else spec.sliding_window,
            "no key in any release: the same work only where the sequence is no longer than the window",
        ),
        "sliding_window",
    ),
    field("std of initial weights", asked("init_std"), MODEL, "init_method_std", "init_std", hf="initializer_range"),
    MapRow(
        "initial weights",
        asked("init"),
        Fixed(
            asked("init"), "equal: train/common/weights.py draws them by name on the CPU; native: megatron-core's own"
        ),
        Fixed(asked("init"), "equal: as mega; native: transformers' own"),
        Fixed(asked("init"), "equal: copied into the built model, which is megatron-core's; native: NeMo's own"),
        Fixed(
            lambda config, spec: config.init if config.platform == "cpu" else "native",
            "on a GPU Primus draws its own; on a CPU it loads ours as a checkpoint (train/prim/checkpoint.py)",
        ),
        "init",
    ),
    MapRow(
        "output projections drawn smaller, by 1/sqrt(2 layers)",
        _scaled_output_init,
        Fixed(_scaled_output_init, "megatron-core's own rule; INIT=equal replaces its weights"),
        Fixed(False, "transformers draws all matrices alike"),
        Fixed(_scaled_output_init, "as mega"),
        Fixed(True, "megatron-core's own rule, and no key that turns it off"),
    ),
)
"""In the order of the table; a key comes before the keys below it."""
