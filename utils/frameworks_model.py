"""The settings map, part 1: the model, its parallelism and precision, and what is fused in it."""

from __future__ import annotations

from typing import Any

from utils.configure import RunConfig
from utils.framework_rows import Fixed, Row, always, asked, say, shape
from utils.models import ModelSpec

_DERIVED = "follows from GPUs / (TP PP CP)"
_NO_HF_PARALLELISM = "hf has data parallelism only; settings that want another are refused"
_HF_PLAIN = "transformers' modules run as PyTorch has them; nothing of this kind is fused"
_WITH_ENGINE = "megatron-core has it with TransformerEngine only; which it was stands in the result"


def on_gpu(config: RunConfig, spec: ModelSpec) -> bool:
    """Whether the training runs on a GPU of either vendor; what is fused there is plain on a CPU."""
    return config.platform != "cpu"


def _where_engine_is(config: RunConfig, spec: ModelSpec) -> bool | str:
    return "on with TransformerEngine" if on_gpu(config, spec) else False


def is_fp8(config: RunConfig, spec: ModelSpec) -> bool:
    """Whether matrix multiplies are in fp8."""
    return config.precision == "fp8"


def _window(config: RunConfig, spec: ModelSpec) -> int | None:
    """Tokens that a position attends to where that is fewer than the sequence has."""
    return spec.sliding_window if (spec.sliding_window or config.sequence_length) < config.sequence_length else None


def _left(window: int | None) -> list[int] | None:
    """W tokens with the token itself are W - 1 to its left: the form of megatron-core, flash attention and TE."""
    return None if window is None else [window - 1, 0]


def _scaled_output_init(config: RunConfig, spec: ModelSpec) -> bool:
    return config.init != "equal"


def _is_mistral(config: RunConfig, spec: ModelSpec) -> bool:
    return spec.name == "mistral"


def _has_rope_scaling(config: RunConfig, spec: ModelSpec) -> bool:
    return spec.rope_scaling is not None


def _scaling(field: str) -> Any:
    return lambda config, spec: getattr(spec.rope_scaling, field, None)


def _fused(name: str, prim: Any, mega: Any = None, *, wanted: Any = on_gpu) -> Row:
    """Return the row of a fusion: in transformers there is none, in the others it is a field of TransformerConfig."""
    return Row(
        name.replace("_", " "),
        wanted,
        mega or say(f"TransformerConfig.{name}"),
        Fixed(False, _HF_PLAIN),
        say(f"model.config.{name}"),
        prim,
        f"fused_ops.{name}",
    )


def _dimension(name: str, field: str, mega: str, hf: str, nemo: str, prim: str) -> Row:
    return Row(name, shape(field), say(mega), say(hf), say(nemo), say(prim), field if field in _READ_BACK else None)


_READ_BACK = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size")

_SHAPE = (
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
        always(False),
        say("GPTModel.share_embeddings_and_output_weights"),
        say("PretrainedConfig.tie_word_embeddings"),
        say("model.config.share_embeddings_and_output_weights"),
        say(("untie_embeddings_and_output_weights", lambda shared: not shared)),
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
        say("PretrainedConfig.sliding_window", when=_is_mistral),
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
        Fixed(asked("init"), "equal: train/weights.py draws them by name on the CPU; native: megatron-core's own"),
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

_PARALLEL = (
    Row(
        "TP",
        asked("tensor_parallel_size"),
        say("TransformerConfig.tensor_model_parallel_size"),
        Fixed(1, _NO_HF_PARALLELISM),
        say("trainer.strategy.tensor_model_parallel_size"),
        say("tensor_model_parallel_size"),
        "tp",
    ),
    Row(
        "PP",
        asked("pipeline_parallel_size"),
        say("TransformerConfig.pipeline_model_parallel_size"),
        Fixed(1, _NO_HF_PARALLELISM),
        say("trainer.strategy.pipeline_model_parallel_size"),
        say("pipeline_model_parallel_size"),
        "pp",
    ),
    Row(
        "virtual pipeline stages",
        always(None),
        say("TransformerConfig.virtual_pipeline_model_parallel_size"),
        Fixed(None, _NO_HF_PARALLELISM),
        say("trainer.strategy.virtual_pipeline_model_parallel_size"),
        say("num_virtual_stages_per_pipeline_rank"),
    ),
    Row(
        "CP",
        asked("context_parallel_size"),
        say("TransformerConfig.context_parallel_size"),
        Fixed(1, _NO_HF_PARALLELISM),
        say("trainer.strategy.context_parallel_size"),
        say("context_parallel_size"),
        "cp",
    ),
    Row(
        "DP",
        asked("data_parallel_size"),
        Fixed(asked("data_parallel_size"), _DERIVED),
        Fixed(asked("data_parallel_size"), "all ranks"),
        Fixed(asked("data_parallel_size"), _DERIVED),
        Fixed(asked("data_parallel_size"), _DERIVED),
        "dp",
    ),
    Row(
        "sequence parallel",
        always(False),
        say("TransformerConfig.sequence_parallel"),
        Fixed(False, _NO_HF_PARALLELISM),
        say("trainer.strategy.sequence_parallel"),
        say("sequence_parallel"),
    ),
    Row(
        "precision",
        asked("precision"),
        say(("TransformerConfig.bf16", lambda name: name != "fp32")),
        say(("TrainingArguments.bf16", lambda name: name == "bf16")),
        # the name of what train_nemo makes the plugin from; the plugin owns every dtype of model, optimizer and DDP
        say("trainer.plugins"),
        say(("bf16", lambda name: name != "fp32"), ("fp16", lambda name: False)),
        "precision",
    ),
    Row(
        "fp8 format",
        lambda config, spec: "hybrid" if is_fp8(config, spec) else None,
        say("TransformerConfig.fp8"),
        Fixed(None, "transformers' classes have no fp8; PRECISION=fp8 is refused"),
        say("trainer.plugins.fp8"),
        say("fp8"),
    ),
    Row(
        "fp8 scaling",
        always("delayed"),
        say("TransformerConfig.fp8_recipe", when=is_fp8),
        Fixed("delayed", "no fp8"),
        say("trainer.plugins.fp8_recipe", when=is_fp8),
        say("fp8_recipe", when=is_fp8),
    ),
    Row(
        "fp8: steps of the largest value kept",
        always(1024),
        say("TransformerConfig.fp8_amax_history_len", when=is_fp8),
        Fixed(1024, "no fp8"),
        say("trainer.plugins.fp8_amax_history_len", when=is_fp8),
        say("fp8_amax_history_len", when=is_fp8),
    ),
    Row(
        "fp8: which of them counts",
        always("max"),
        say("TransformerConfig.fp8_amax_compute_algo", when=is_fp8),
        Fixed("max", "no fp8"),
        say("trainer.plugins.fp8_amax_compute_algo", when=is_fp8),
        say("fp8_amax_compute_algo", when=is_fp8),
    ),
    Row(
        "parameters gathered in fp8",
        always(False),
        say("TransformerConfig.fp8_param", "DistributedDataParallelConfig.fp8_param_gather"),
        Fixed(False, "no fp8"),
        say("trainer.plugins.fp8_param_gather"),
        say("fp8_param_gather"),
    ),
    Row(
        "residual stream in fp32",
        always(False),
        say("TransformerConfig.fp32_residual_connection"),
        Fixed(
            lambda config, spec: config.precision == "bf16",
            "autocast keeps weights, embedding and so the residual in fp32",
        ),
        say("model.config.fp32_residual_connection"),
        say("fp32_residual_connection"),
    ),
    Row(
        "attention softmax in fp32",
        always(True),
        say("TransformerConfig.attention_softmax_in_fp32"),
        Fixed(True, "torch's attention adds up in fp32"),
        say("model.config.attention_softmax_in_fp32"),
        say("attention_softmax_in_fp32"),
    ),
    Row(
        "recompute",
        always(None),
        say("TransformerConfig.recompute_granularity"),
        say(("TrainingArguments.gradient_checkpointing", lambda kind: kind is not None)),
        say("model.config.recompute_granularity"),
        say("recompute_granularity", ("recompute_activations", lambda kind: kind is not None)),
    ),
)

_FUSIONS = (
    _fused("bias_activation_fusion", say("bias_swiglu_fusion")),
    _fused("bias_dropout_fusion", say("bias_dropout_fusion")),
    _fused("masked_softmax_fusion", say("masked_softmax_fusion"), wanted=always(False)),
    _fused(
        "persist_layer_norm",
        say(("no_persist_layer_norm", lambda on: not on)),
        Fixed(_where_engine_is, _WITH_ENGINE),
    ),
    _fused("apply_rope_fusion", say("apply_rope_fusion"), Fixed(_where_engine_is, _WITH_ENGINE)),
    _fused(
        "cross_entropy_loss_fusion",
        say("cross_entropy_loss_fusion"),
        # its gradient is bf16 whatever the input
        wanted=lambda config, spec: config.platform != "cpu" and config.precision != "fp32",
    ),
    Row(
        "cross entropy fusion by",
        always("native"),
        say("TransformerConfig.cross_entropy_fusion_impl"),
        Fixed("native", "not fused"),
        say("model.config.cross_entropy_fusion_impl"),
        say("cross_entropy_fusion_impl"),
    ),
    # an extension of Apex or TransformerEngine; the configurations that AMD ships leave it off
    _fused("gradient_accumulation_fusion", say("gradient_accumulation_fusion"), wanted=always(False)),
    Row(
        "attention backend",
        always("auto"),
        say(("TransformerConfig.attention_backend.name", str)),
        Fixed("auto", "torch's scaled-dot-product attention chooses its own kernel"),
        say("model.config.attention_backend"),
        say("attention_backend"),
        "attention_backend",
    ),
    Row(
        "Primus Turbo",
        always(False),
        Fixed(False, "AMD's own kernels, in Primus only"),
        Fixed(False, "as mega"),
        Fixed(False, "as mega"),
        say("enable_primus_turbo", "use_turbo_attention", "use_turbo_rms_norm"),
    ),
    Row(
        "CUDA graphs",
        always(False),
        say(("TransformerConfig.cuda_graph_impl", lambda on: "none")),
        Fixed(False, "the Trainer captures none"),
        say("model.config.enable_cuda_graph"),
        Fixed(False, "default of every release; its key changed its name"),
    ),
)

ROWS: tuple[Row, ...] = (*_SHAPE, *_PARALLEL, *_FUSIONS)
"""In the order of the table; a key stands before the keys below it."""
