"""The settings map, part 4: parallelism, precision, and what is fused."""

from __future__ import annotations

from typing import Any

from train.settings_map.row import Fixed, Row, always, asked, say
from utils.models import ModelSpec
from utils.settings.config import RunConfig

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

ROWS: tuple[Row, ...] = (*_PARALLEL, *_FUSIONS)
"""In the order of the table; a key stands before the keys below it."""
