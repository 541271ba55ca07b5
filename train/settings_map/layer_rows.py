"""The settings map, part 4: parallelism, precision and fused operations."""

from __future__ import annotations

from typing import Any

from train.settings_map.row import Fixed, MapRow, always, asked, override
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_DERIVED = "follows from GPUs / (TP PP CP)"
_NO_HF_PARALLELISM = "hf has data parallelism only; settings that want another are refused"
_HF_PLAIN = "transformers' modules run as PyTorch has them; nothing of this kind is fused"
_WITH_ENGINE = "megatron-core has it with TransformerEngine only; which it was stands in the result"


def on_gpu(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether the training runs on a GPU of either vendor; operations fused there are plain on a CPU."""
    return config.platform != "cpu"


def _where_engine_is(config: RunConfig, spec: ModelSpec) -> bool | str:
    return "on with TransformerEngine" if on_gpu(config, spec) else False


def is_fp8(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether matrix multiplies are in fp8."""
    return config.precision == "fp8"


def _fused(name: str, prim: Any, mega: Any = None, *, wanted: Any = on_gpu) -> MapRow:
    """Return the row of a fusion: transformers has none, elsewhere it is a field of TransformerConfig."""
    return MapRow(
        name.replace("_", " "),
        wanted,
        mega or override(f"TransformerConfig.{name}"),
        Fixed(False, _HF_PLAIN),
        override(f"model.config.{name}"),
        prim,
        f"fused_ops.{name}",
    )


_PARALLEL = (
    MapRow(
        "TP",
        asked("tensor_parallel_size"),
        override("TransformerConfig.tensor_model_parallel_size"),
        Fixed(1, _NO_HF_PARALLELISM),
        override("trainer.strategy.tensor_model_parallel_size"),
        override("tensor_model_parallel_size"),
        "tp",
    ),
    MapRow(
        "PP",
        asked("pipeline_parallel_size"),
        override("TransformerConfig.pipeline_model_parallel_size"),
        Fixed(1, _NO_HF_PARALLELISM),
        override("trainer.strategy.pipeline_model_parallel_size"),
        override("pipeline_model_parallel_size"),
        "pp",
    ),
    MapRow(
        "virtual pipeline stages",
        always(None),
        override("TransformerConfig.virtual_pipeline_model_parallel_size"),
        Fixed(None, _NO_HF_PARALLELISM),
        override("trainer.strategy.virtual_pipeline_model_parallel_size"),
        override("num_virtual_stages_per_pipeline_rank"),
    ),
    MapRow(
        "CP",
        asked("context_parallel_size"),
        override("TransformerConfig.context_parallel_size"),
        Fixed(1, _NO_HF_PARALLELISM),
        override("trainer.strategy.context_parallel_size"),
        override("context_parallel_size"),
        "cp",
    ),
    MapRow(
        "DP",
        asked("data_parallel_size"),
        Fixed(asked("data_parallel_size"), _DERIVED),
        Fixed(asked("data_parallel_size"), "all ranks"),
        Fixed(asked("data_parallel_size"), _DERIVED),
        Fixed(asked("data_parallel_size"), _DERIVED),
        "dp",
    ),
    MapRow(
        "sequence parallel",
        always(False),
        override("TransformerConfig.sequence_parallel"),
        Fixed(False, _NO_HF_PARALLELISM),
        override("trainer.strategy.sequence_parallel"),
        override("sequence_parallel"),
    ),
    MapRow(
        "precision",
        asked("precision"),
        override(("TransformerConfig.bf16", lambda name: name != "fp32")),
        override(("TrainingArguments.bf16", lambda name: name == "bf16")),
        # the name from which train_nemo makes the plugin, which sets every dtype of model, optimizer and DDP
        override("trainer.plugins"),
        override(("bf16", lambda name: name != "fp32"), ("fp16", lambda name: False)),
        "precision",
    ),
    MapRow(
        "fp8 format",
        lambda config, spec: "hybrid" if is_fp8(config, spec) else None,
        override("TransformerConfig.fp8"),
        Fixed(None, "transformers' classes have no fp8; PRECISION=fp8 is refused"),
        override("trainer.plugins.fp8"),
        override("fp8"),
    ),
    MapRow(
        "fp8 scaling",
        always("delayed"),
        override("TransformerConfig.fp8_recipe", when=is_fp8),
        Fixed("delayed", "no fp8"),
        override("trainer.plugins.fp8_recipe", when=is_fp8),
        override("fp8_recipe", when=is_fp8),
    ),
    MapRow(
        "fp8: steps of the largest value kept",
        always(1024),
        override("TransformerConfig.fp8_amax_history_len", when=is_fp8),
        Fixed(1024, "no fp8"),
        override("trainer.plugins.fp8_amax_history_len", when=is_fp8),
        override("fp8_amax_history_len", when=is_fp8),
    ),
    MapRow(
        "fp8: which of them counts",
        always("max"),
        override("TransformerConfig.fp8_amax_compute_algo", when=is_fp8),
        Fixed("max", "no fp8"),
        override("trainer.plugins.fp8_amax_compute_algo", when=is_fp8),
        override("fp8_amax_compute_algo", when=is_fp8),
    ),
    MapRow(
        "parameters gathered in fp8",
        always(False),
        override("TransformerConfig.fp8_param", "DistributedDataParallelConfig.fp8_param_gather"),
        Fixed(False, "no fp8"),
        override("trainer.plugins.fp8_param_gather"),
        override("fp8_param_gather"),
    ),
    MapRow(
        "residual stream in fp32",
        always(False),
        override("TransformerConfig.fp32_residual_connection"),
        Fixed(
            lambda config, spec: config.precision == "bf16",
            "autocast keeps weights, embedding and so the residual in fp32",
        ),
        override("model.config.fp32_residual_connection"),
        override("fp32_residual_connection"),
    ),
    MapRow(
        "attention softmax in fp32",
        always(True),
        override("TransformerConfig.attention_softmax_in_fp32"),
        Fixed(True, "torch's attention adds up in fp32"),
        override("model.config.attention_softmax_in_fp32"),
        override("attention_softmax_in_fp32"),
    ),
    MapRow(
        "recompute",
        always(None),
        override("TransformerConfig.recompute_granularity"),
        override(("TrainingArguments.gradient_checkpointing", lambda kind: kind is not None)),
        override("model.config.recompute_granularity"),
        override("recompute_granularity", ("recompute_activations", lambda kind: kind is not None)),
    ),
)

_FUSIONS = (
    _fused("bias_activation_fusion", override("bias_swiglu_fusion")),
    _fused("bias_dropout_fusion", override("bias_dropout_fusion")),
    _fused("masked_softmax_fusion", override("masked_softmax_fusion"), wanted=always(False)),
    _fused(
        "persist_layer_norm",
        override(("no_persist_layer_norm", lambda on: not on)),
        Fixed(_where_engine_is, _WITH_ENGINE),
    ),
    _fused("apply_rope_fusion", override("apply_rope_fusion"), Fixed(_where_engine_is, _WITH_ENGINE)),
    _fused(
        "cross_entropy_loss_fusion",
        override("cross_entropy_loss_fusion"),
        # its gradient is bf16 whatever the input
        wanted=lambda config, spec: config.platform != "cpu" and config.precision != "fp32",
    ),
    MapRow(
        "cross entropy fusion by",
        always("native"),
        override("TransformerConfig.cross_entropy_fusion_impl"),
        Fixed("native", "not fused"),
        override("model.config.cross_entropy_fusion_impl"),
        override("cross_entropy_fusion_impl"),
    ),
    # an extension of Apex or TransformerEngine; the configurations that AMD ships leave it off
    _fused("gradient_accumulation_fusion", override("gradient_accumulation_fusion"), wanted=always(False)),
    MapRow(
        "attention backend",
        always("auto"),
        override(("TransformerConfig.attention_backend.name", str)),
        Fixed("auto", "torch's scaled-dot-product attention chooses its own kernel"),
        override("model.config.attention_backend"),
        override("attention_backend"),
        "attention_backend",
    ),
    MapRow(
        "Primus Turbo",
        always(False),
        Fixed(False, "AMD's own kernels, in Primus only"),
        Fixed(False, "as mega"),
        Fixed(False, "as mega"),
        override("enable_primus_turbo", "use_turbo_attention", "use_turbo_rms_norm"),
    ),
    MapRow(
        "CUDA graphs",
        always(False),
        override(("TransformerConfig.cuda_graph_impl", lambda on: "none")),
        Fixed(False, "the Trainer captures none"),
        override("model.config.enable_cuda_graph"),
        Fixed(False, "default of every release; its key changed its name"),
    ),
)

ROWS: tuple[MapRow, ...] = (*_PARALLEL, *_FUSIONS)
"""In the order of the table; a key comes before the keys below it."""
