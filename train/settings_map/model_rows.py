"""The settings map, part 3: the model itself, its shape and its first weights."""

from __future__ import annotations

from typing import Any

from train.settings_map.row import Fixed, Row, always, asked, say, shape
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_READ_BACK = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size")
"""Dimensions whose field of ModelSpec is a key of `resolved_config` too."""


def _window(config: RunConfig, spec: ModelSpec) -> int | None:
    """Tokens that a position attends to where that is fewer than the sequence has."""
    return spec.sliding_window if (spec.sliding_window or config.sequence_length) < config.sequence_length else None


def _left(window: int | None) -> list[int] | None:
    """W tokens with the token itself are W - 1 to its left: the form of megatron-core, flash attention and TE."""
    return None if window is None else [window - 1, 0]


def _scaled_output_init(config: RunConfig, spec: ModelSpec) -> bool:
    return config.init != "equal"


def _has_window(config: RunConfig, spec: ModelSpec) -> bool:
    return spec.sliding_window is not None


def _has_rope_scaling(config: RunConfig, spec: ModelSpec) -> bool:
    return spec.rope_scaling is not None


def _scaling(field: str) -> Any:
    return lambda config, spec: getattr(spec.rope_scaling, field, None)


def _dimension(name: str, field: str, mega: str, hf: str, nemo: str, prim: str) -> Row:
    return Row(name, shape(field), say(mega), say(hf), say(nemo), say(prim), field if field in _READ_BACK else None)


ROWS: tuple[Row, ...] = (
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
    Row(
        "key/value groups",
        shape("num_query_groups"),
        say("TransformerConfig.num_query_groups"),
        say("PretrainedConfig.num_key_value_heads"),
        say("model.config.num_query_groups"),
        say(("group_query_attention", lambda groups: True), "num_query_groups"),
        "num_query_groups",
    ),
    Row(
        "channels of a head",
        shape("head_dim"),
        say("TransformerConfig.kv_channels"),
        Fixed(shape("head_dim"), "hidden size / heads, worked out by transformers"),
        say("model.config.kv_channels"),
        say("kv_channels"),
    ),
    Row(
        "vocabulary",
        shape("vocab_size"),
        say("GPTModel.vocab_size"),
        say("PretrainedConfig.vocab_size"),
        say("model.config.vocab_size"),
        # the null tokenizer adds its end-of-document token to the number that it is given
        say(("tokenizer_type", lambda size: "NullTokenizer"), ("vocab_size", lambda size: size - 1)),
        "vocab_size",
    ),
    Row(
        "vocabulary padded to a multiple of",
        always(1),
        Fixed(1, "the model is built with the vocabulary of the spec; nothing pads it"),
        Fixed(1, "as mega"),
        say("model.config.make_vocab_size_divisible_by"),
        say("make_vocab_size_divisible_by"),
    ),
    Row(
        "norm",
        always("RMSNorm"),
        say("TransformerConfig.normalization"),
        Fixed("RMSNorm", "all three model classes have it"),
        say("model.config.normalization"),
        say("normalization"),
    ),
    Row(
        "norm epsilon",
        shape("norm_epsilon"),
        say("TransformerConfig.layernorm_epsilon"),
        say("PretrainedConfig.rms_norm_eps"),
        say("model.config.layernorm_epsilon"),
        say("norm_epsilon"),
        "norm_eps",
    ),
    Row(
        "SwiGLU",
        always(True),
        say("TransformerConfig.gated_linear_unit"),
        Fixed(True, "all three model classes have it"),
        say("model.config.gated_linear_unit"),
        say("swiglu"),
    ),
    Row(
        "bias of linear layers",
        always(False),
        say("TransformerConfig.add_bias_linear"),
        Fixed(False, "all three model classes have none"),
        say("model.config.add_bias_linear"),
        say("add_bias_linear"),
    ),
    Row(
        "QKV bias",
        shape("qkv_bias"),
        say("TransformerConfig.add_qkv_bias"),
        Fixed(shape("qkv_bias"), "Qwen2's class has it, Llama's and Mistral's are left at none"),
        say("model.config.add_qkv_bias"),
        say("add_qkv_bias"),
        "qkv_bias",
    ),
    Row(
        "embedding shared with output",
        shape("tie_word_embeddings"),
        say("GPTModel.share_embeddings_and_output_weights"),
        say("PretrainedConfig.tie_word_embeddings"),
        say("model.config.share_embeddings_and_output_weights"),
        say(("untie_embeddings_and_output_weights", lambda shared: not shared)),
        "tie_word_embeddings",
    ),
    Row(
        "attention dropout",
        always(0.0),
        say("TransformerConfig.attention_dropout"),
        say("PretrainedConfig.attention_dropout"),
        say("model.config.attention_dropout"),
        say("attention_dropout"),
    ),
    Row(
        "hidden dropout",
        always(0.0),
        say("TransformerConfig.hidden_dropout"),
        Fixed(0.0, "all three model classes have none"),
        say("model.config.hidden_dropout"),
        say("hidden_dropout"),
    ),
    Row(
        "position embedding",
        always("rope"),
        say("GPTModel.position_embedding_type"),
        Fixed("rope", "all three model classes have it"),
        say("model.config.position_embedding_type"),
        say("position_embedding_type"),
    ),
    Row(
        "rope base",
        shape("rope_base"),
        say("GPTModel.rotary_base"),
        say("PretrainedConfig.rope_parameters.rope_theta"),
        say("model.config.rotary_base"),
        say(("rotary_base", int)),
        "rope_base",
    ),
    Row(
        "rope over a part of a head's channels",
        always(1.0),
        Fixed(1.0, "default of GPTModel"),
        Fixed(1.0, "default of all three model classes"),
        say("model.config.rotary_percent"),
        say("rotary_percent"),
    ),
    Row(
        "rope scaling of Llama 3.1",
        _has_rope_scaling,
        say("GPTModel.rotary_scaling"),
        say(("PretrainedConfig.rope_parameters.rope_type", lambda on: "llama3" if on else "default")),
        Fixed(_has_rope_scaling, "Llama31Config applies it always, Qwen2Config and MistralConfig7B never"),
        say("use_rope_scaling"),
    ),
    Row(
        "rope scaling: factor",
        _scaling("factor"),
        Fixed(_scaling("factor"), "argument of GPTModel, which keeps the frequencies only"),
        say("PretrainedConfig.rope_parameters.factor", when=_has_rope_scaling),
        say("model.config.scale_factor", when=_has_rope_scaling),
        say("rope_scaling_factor", when=_has_rope_scaling),
        "rope_scaling.factor",
    ),
    Row(
        "rope scaling: low frequency factor",
        _scaling("low_frequency_factor"),
        Fixed(_scaling("low_frequency_factor"), "a constant of megatron-core: 1; another is refused"),
        say("PretrainedConfig.rope_parameters.low_freq_factor", when=_has_rope_scaling),
        say("model.config.low_freq_factor", when=_has_rope_scaling),
        Fixed(_scaling("low_frequency_factor"), "a constant of its megatron-core: 1"),
        "rope_scaling.low_frequency_factor",
    ),
    Row(
        "rope scaling: high frequency factor",
        _scaling("high_frequency_factor"),
        Fixed(_scaling("high_frequency_factor"), "a constant of megatron-core: 4; another is refused"),
        say("PretrainedConfig.rope_parameters.high_freq_factor", when=_has_rope_scaling),
        say("model.config.high_freq_factor", when=_has_rope_scaling),
        Fixed(_scaling("high_frequency_factor"), "a constant of its megatron-core: 4"),
        "rope_scaling.high_frequency_factor",
    ),
    Row(
        "rope scaling: original length",
        _scaling("original_max_position_embeddings"),
        Fixed(_scaling("original_max_position_embeddings"), "a constant of megatron-core: 8192; another is refused"),
        say("PretrainedConfig.rope_parameters.original_max_position_embeddings", when=_has_rope_scaling),
        say("model.config.old_context_len", when=_has_rope_scaling),
        Fixed(_scaling("original_max_position_embeddings"), "a constant of its megatron-core: 8192"),
        "rope_scaling.original_max_position_embeddings",
    ),
    Row(
        "sliding window",
        shape("sliding_window"),
        say(("TransformerConfig.window_size", lambda window: (window - 1, 0) if window else None)),
        say("PretrainedConfig.sliding_window", when=_has_window),
        say(("model.config.window_size", _left)),
        Fixed(
            lambda config, spec: None if _window(config, spec) else spec.sliding_window,
            "no key in any release: the same work only where the sequence is no longer than the window",
        ),
        "sliding_window",
    ),
    Row(
        "std of initial weights",
        asked("init_std"),
        say("TransformerConfig.init_method_std"),
        say("PretrainedConfig.initializer_range"),
        say("model.config.init_method_std"),
        say("init_method_std"),
        "init_std",
    ),
    Row(
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
    Row(
        "output projections drawn smaller, by 1/sqrt(2 layers)",
        _scaled_output_init,
        Fixed(_scaled_output_init, "megatron-core's own rule; INIT=equal replaces its weights"),
        Fixed(False, "transformers draws all matrices alike"),
        Fixed(_scaled_output_init, "as mega"),
        Fixed(True, "megatron-core's own rule, and no key that turns it off"),
    ),
)
"""In the order of the table; a key stands before the keys below it."""
