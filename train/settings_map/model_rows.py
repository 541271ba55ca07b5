"""The settings map, part 3: the model, its shape and its initial weights."""

from __future__ import annotations

from typing import Any

from train.settings_map.row import Fixed, MapRow, always, asked, override, shape
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_READ_BACK = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size")
"""Dimensions whose field of ModelSpec is a key of `resolved_config` too."""


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


def _scaling(field: str) -> Any:
    return lambda config, spec: getattr(spec.rope_scaling, field, None)


def _dimension(name: str, field: str, mega: str, hf: str, nemo: str, prim: str) -> MapRow:
    return MapRow(
        name,
        shape(field),
        override(mega),
        override(hf),
        override(nemo),
        override(prim),
        field if field in _READ_BACK else None,
    )


ROWS: tuple[MapRow, ...] = (
    _dimension(
        "layers",
        "num_layers",
        "TransformerConfig.num_layers",
        "PretrainedConfig.num_hidden_layers",
        "model.config.num_layers",
        "num_layers",
    ),
    _dimension(
        "hidden size",
        "hidden_size",
        "TransformerConfig.hidden_size",
        "PretrainedConfig.hidden_size",
        "model.config.hidden_size",
        "hidden_size",
    ),
    _dimension(
        "feed-forward size",
        "ffn_hidden_size",
        "TransformerConfig.ffn_hidden_size",
        "PretrainedConfig.intermediate_size",
        "model.config.ffn_hidden_size",
        "ffn_hidden_size",
    ),
    _dimension(
        "attention heads",
        "num_attention_heads",
        "TransformerConfig.num_attention_heads",
        "PretrainedConfig.num_attention_heads",
        "model.config.num_attention_heads",
        "num_attention_heads",
    ),
    MapRow(
        "key/value groups",
        shape("num_query_groups"),
        override("TransformerConfig.num_query_groups"),
        override("PretrainedConfig.num_key_value_heads"),
        override("model.config.num_query_groups"),
        override(("group_query_attention", lambda groups: True), "num_query_groups"),
        "num_query_groups",
    ),
    MapRow(
        "channels of a head",
        shape("head_dim"),
        override("TransformerConfig.kv_channels"),
        Fixed(shape("head_dim"), "hidden size / heads, worked out by transformers"),
        override("model.config.kv_channels"),
        override("kv_channels"),
    ),
    MapRow(
        "vocabulary",
        shape("vocab_size"),
        override("GPTModel.vocab_size"),
        override("PretrainedConfig.vocab_size"),
        override("model.config.vocab_size"),
        # the null tokenizer adds its end-of-document token to this number
        override(("tokenizer_type", lambda size: "NullTokenizer"), ("vocab_size", lambda size: size - 1)),
        "vocab_size",
    ),
    MapRow(
        "vocabulary padded to a multiple of",
        always(1),
        Fixed(1, "the model is built with the vocabulary of the spec; nothing pads it"),
        Fixed(1, "as mega"),
        override("model.config.make_vocab_size_divisible_by"),
        override("make_vocab_size_divisible_by"),
    ),
    MapRow(
        "norm",
        always("RMSNorm"),
        override("TransformerConfig.normalization"),
        Fixed("RMSNorm", "all three model classes have it"),
        override("model.config.normalization"),
        override("normalization"),
    ),
    MapRow(
        "norm epsilon",
        shape("norm_epsilon"),
        override("TransformerConfig.layernorm_epsilon"),
        override("PretrainedConfig.rms_norm_eps"),
        override("model.config.layernorm_epsilon"),
        override("norm_epsilon"),
        "norm_eps",
    ),
    MapRow(
        "SwiGLU",
        always(True),
        override("TransformerConfig.gated_linear_unit"),
        Fixed(True, "all three model classes have it"),
        override("model.config.gated_linear_unit"),
        override("swiglu"),
    ),
    MapRow(
        "bias of linear layers",
        always(False),
        override("TransformerConfig.add_bias_linear"),
        Fixed(False, "all three model classes have none"),
        override("model.config.add_bias_linear"),
        override("add_bias_linear"),
    ),
    MapRow(
        "QKV bias",
        shape("qkv_bias"),
        override("TransformerConfig.add_qkv_bias"),
        Fixed(shape("qkv_bias"), "Qwen2's class has it, Llama's and Mistral's are left at none"),
        override("model.config.add_qkv_bias"),
        override("add_qkv_bias"),
        "qkv_bias",
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
    MapRow(
        "attention dropout",
        always(0.0),
        override("TransformerConfig.attention_dropout"),
        override("PretrainedConfig.attention_dropout"),
        override("model.config.attention_dropout"),
        override("attention_dropout"),
    ),
    MapRow(
        "hidden dropout",
        always(0.0),
        override("TransformerConfig.hidden_dropout"),
        Fixed(0.0, "all three model classes have none"),
        override("model.config.hidden_dropout"),
        override("hidden_dropout"),
    ),
    MapRow(
        "position embedding",
        always("rope"),
        override("GPTModel.position_embedding_type"),
        Fixed("rope", "all three model classes have it"),
        override("model.config.position_embedding_type"),
        override("position_embedding_type"),
    ),
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
        Fixed(1.0, "default of all three model classes"),
        override("model.config.rotary_percent"),
        override("rotary_percent"),
    ),
    MapRow(
        "rope scaling of Llama 3.1",
        _has_rope_scaling,
        override("GPTModel.rotary_scaling"),
        override(("PretrainedConfig.rope_parameters.rope_type", lambda on: "llama3" if on else "default")),
        Fixed(_has_rope_scaling, "Llama31Config applies it always, Qwen2Config and MistralConfig7B never"),
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
    MapRow(
        "rope scaling: low frequency factor",
        _scaling("low_frequency_factor"),
        Fixed(_scaling("low_frequency_factor"), "a constant of megatron-core: 1; another is refused"),
        override("PretrainedConfig.rope_parameters.low_freq_factor", when=_has_rope_scaling),
        override("model.config.low_freq_factor", when=_has_rope_scaling),
        Fixed(_scaling("low_frequency_factor"), "a constant of its megatron-core: 1"),
        "rope_scaling.low_frequency_factor",
    ),
    MapRow(
        "rope scaling: high frequency factor",
        _scaling("high_frequency_factor"),
        Fixed(_scaling("high_frequency_factor"), "a constant of megatron-core: 4; another is refused"),
        override("PretrainedConfig.rope_parameters.high_freq_factor", when=_has_rope_scaling),
        override("model.config.high_freq_factor", when=_has_rope_scaling),
        Fixed(_scaling("high_frequency_factor"), "a constant of its megatron-core: 4"),
        "rope_scaling.high_frequency_factor",
    ),
    MapRow(
        "rope scaling: original length",
        _scaling("original_max_position_embeddings"),
        Fixed(_scaling("original_max_position_embeddings"), "a constant of megatron-core: 8192; another is refused"),
        override("PretrainedConfig.rope_parameters.original_max_position_embeddings", when=_has_rope_scaling),
        override("model.config.old_context_len", when=_has_rope_scaling),
        Fixed(_scaling("original_max_position_embeddings"), "a constant of its megatron-core: 8192"),
        "rope_scaling.original_max_position_embeddings",
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
    MapRow(
        "std of initial weights",
        asked("init_std"),
        override("TransformerConfig.init_method_std"),
        override("PretrainedConfig.initializer_range"),
        override("model.config.init_method_std"),
        override("init_method_std"),
        "init_std",
    ),
    MapRow(
        "initial weights",
        asked("init"),
        Fixed(
            asked("init"), "equal: train/common/weights.py draws them by name on the CPU; native: megatron-core's own"
        ),
        Fixed(asked("init"), "equal: as mega; native: transformers' own"),
        Fixed(asked("init"), "equal: copied into the built model, which is megatron-core's; native: NeMo's own"),
        Fixed("native", "nothing of ours runs inside Primus: it draws its own on the GPU"),
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
