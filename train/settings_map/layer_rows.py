"""The settings map, part 4: parallelism, precision and fused operations."""

from __future__ import annotations

from typing import Any

from train.settings_map.fp8 import FP4_FORMAT, FP8_FORMATS, scaling
from train.settings_map.row import FP8, MODEL, STRATEGY, Fixed, MapRow, Wanted, always, asked, field, override
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_DERIVED = "follows from GPUs / (TP PP CP)"
_NO_HF_PARALLELISM = "hf has data parallelism only; settings that want another are refused"
_HF_PLAIN = "transformers' modules run as PyTorch has them; nothing of this kind is fused"
_HF_FUSED = "on a GPU takes the place of transformers' own function: train/hf/fused.py"


def on_gpu(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether the training runs on a GPU of either vendor; operations fused there are plain on a CPU."""
    return config.platform != "cpu"


def attention_backend(config: RunConfig, spec: ModelSpec) -> str:
    """Return the kind of attention that mega allows TransformerEngine, by megatron-core's name.

    AMD's images set NVTE_FLASH_ATTN=0 and NVTE_FUSED_ATTN=1 ("required since v26.2", rocm/primus, Dockerfile of v26.4),
    which is megatron-core's `fused`. It also forbids the composed kernel, so that a missing one is an error.
    """
    return "fused" if config.platform == "amd" else "auto"


def _in_bf16_on_gpu(config: RunConfig, spec: ModelSpec) -> bool:
    return on_gpu(config, spec) and config.precision != "fp32"


def _on_one_gpu(config: RunConfig, spec: ModelSpec) -> bool:
    return on_gpu(config, spec) and config.num_gpus == 1


def _where_engine_is(config: RunConfig, spec: ModelSpec) -> bool | str:
    return "on with TransformerEngine" if on_gpu(config, spec) else False


_OF_ENGINE = Fixed(
    _where_engine_is, "megatron-core has it with TransformerEngine only; the result records which layers ran"
)


def _granularity(kind: str) -> str | None:
    return None if kind == "none" else kind


def _method(kind: str) -> str | None:
    return "uniform" if kind == "full" else None


def _layers_at_once(kind: str) -> int | None:
    return 1 if kind == "full" else None


def _has_8_bits(config: RunConfig, spec: ModelSpec) -> bool:
    return config.fp8_recipe in FP8_FORMATS


def _has_4_bits(config: RunConfig, spec: ModelSpec) -> bool:
    return config.precision == "fp8" and config.fp8_recipe not in FP8_FORMATS


def _is_delayed(config: RunConfig, spec: ModelSpec) -> bool:
    return config.fp8_recipe == "delayed"


def _split(
    name: str, wanted: Wanted, key: str, resolved: str | None = None, *, without: Any = 1, **others: Any
) -> MapRow:
    """Return the row of a kind of parallelism that transformers runs `without`: a field of the strategy elsewhere."""
    return field(name, wanted, STRATEGY, key, resolved, hf=Fixed(without, _NO_HF_PARALLELISM), **others)


def _fused(name: str, wanted: Any = on_gpu, hf: Fixed | None = None, **others: Any) -> MapRow:
    """Return the row of a fusion: a field of TransformerConfig, for transformers code of ours or nothing."""
    own = hf or Fixed(False, _HF_PLAIN)
    return field(name.replace("_", " "), wanted, MODEL, name, f"fused_ops.{name}", hf=own, **others)


_PARALLEL = (
    _split("TP", asked("tensor_parallel_size"), "tensor_model_parallel_size", "tp"),
    _split("PP", asked("pipeline_parallel_size"), "pipeline_model_parallel_size", "pp"),
    _split(
        "virtual pipeline stages",
        always(None),
        "virtual_pipeline_model_parallel_size",
        without=None,
        prim="num_virtual_stages_per_pipeline_rank",
    ),
    _split("CP", asked("context_parallel_size"), "context_parallel_size", "cp"),
    MapRow(
        "DP",
        asked("data_parallel_size"),
        Fixed(asked("data_parallel_size"), _DERIVED),
        Fixed(asked("data_parallel_size"), "all ranks"),
        Fixed(asked("data_parallel_size"), _DERIVED),
        Fixed(asked("data_parallel_size"), _DERIVED),
        "dp",
    ),
    _split("sequence parallel", always(False), "sequence_parallel", without=False),
    MapRow(
        "precision",
        asked("precision"),
        override(("TransformerConfig.bf16", lambda name: name != "fp32")),
        Fixed(asked("precision"), "one rank: dtype of the model; several: fp32 masters, param_dtype of FSDP2"),
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
        hf=Fixed(None, "transformers' classes have no fp8; PRECISION=fp8 is refused"),
    ),
    MapRow(
        "fp8 recipe",
        asked("fp8_recipe"),
        override(("TransformerConfig.fp8_recipe", scaling), when=_has_8_bits),
        Fixed(asked("fp8_recipe"), "no fp8"),
        override(("trainer.plugins.fp8_recipe", scaling), when=_has_8_bits),
        override(("fp8_recipe", scaling), when=_has_8_bits),
        "fp8_recipe",
    ),
    field(
        "fp8: steps of the largest value kept",
        always(1024),
        FP8,
        "fp8_amax_history_len",
        hf=Fixed(1024, "no fp8"),
        when=_is_delayed,
    ),
    field(
        "fp8: which of them counts",
        always("max"),
        FP8,
        "fp8_amax_compute_algo",
        hf=Fixed("max", "no fp8"),
        when=_is_delayed,
    ),
    MapRow(
        "fp4 format",
        lambda config, spec: FP4_FORMAT if _has_4_bits(config, spec) else None,
        override("TransformerConfig.fp4"),
        Fixed(None, "no fp8"),
        Fixed(None, "NeMo 2.3 has no fp4; FP8_RECIPE=nvfp4 is refused"),
        override("fp4", when=_has_4_bits),
    ),
    MapRow(
        "fp4 recipe",
        asked("fp8_recipe"),
        override("TransformerConfig.fp4_recipe", when=_has_4_bits),
        Fixed(asked("fp8_recipe"), "no fp8"),
        Fixed(asked("fp8_recipe"), "as above"),
        override("fp4_recipe", when=_has_4_bits),
    ),
    MapRow(
        "parameters gathered in fp8",
        always(False),
        override("TransformerConfig.fp8_param", "DistributedDataParallelConfig.fp8_param_gather"),
        Fixed(False, "no fp8"),
        override("trainer.plugins.fp8_param_gather"),
        override("fp8_param_gather"),
    ),
    field(
        "residual stream in fp32",
        always(False),
        MODEL,
        "fp32_residual_connection",
        hf=Fixed(False, "there is no autocast: embedding, weights and residual have the precision of the products"),
    ),
    field(
        "attention softmax in fp32",
        always(True),
        MODEL,
        "attention_softmax_in_fp32",
        hf=Fixed(True, "torch's attention adds up in fp32"),
    ),
    MapRow(
        "recompute",
        asked("recompute"),
        override(
            ("TransformerConfig.recompute_granularity", _granularity),
            ("TransformerConfig.recompute_method", _method),
            ("TransformerConfig.recompute_num_layers", _layers_at_once),
        ),
        Fixed(asked("recompute"), "activation_checkpointing_enable of its models, in train/hf/recompute.py"),
        override(
            ("model.config.recompute_granularity", _granularity),
            ("model.config.recompute_method", _method),
            ("model.config.recompute_num_layers", _layers_at_once),
        ),
        override(
            ("recompute_granularity", _granularity),
            ("recompute_method", _method),
            ("recompute_num_layers", _layers_at_once),
            ("recompute_activations", lambda kind: kind == "selective"),
        ),
        "recompute",
    ),
)

_FUSIONS = (
    _fused("bias_activation_fusion", hf=Fixed(on_gpu, _HF_FUSED), prim="bias_swiglu_fusion"),
    _fused("bias_dropout_fusion"),
    _fused("masked_softmax_fusion", always(False)),
    _fused("persist_layer_norm", mega=_OF_ENGINE, prim=override(("no_persist_layer_norm", lambda on: not on))),
    # of local layers the kernels of train/mega/rope.py
    _fused("apply_rope_fusion", hf=Fixed(on_gpu, _HF_FUSED)),
    # megatron-core's own gives a bf16 gradient whatever the input; of mega it is train/common/cross_entropy.py
    _fused("cross_entropy_loss_fusion", _in_bf16_on_gpu, hf=Fixed(_in_bf16_on_gpu, _HF_FUSED)),
    field(
        "cross entropy fusion by",
        always("native"),
        MODEL,
        "cross_entropy_fusion_impl",
        hf=Fixed("native", "train/common/cross_entropy.py, as mega"),
    ),
    # Apex's extension, of mega train/common/weight_gradient.py where it is missing
    _fused(
        "gradient_accumulation_fusion",
        hf=Fixed(_on_one_gpu, "train/hf/linear.py, on one GPU; FSDP2 of several reduces autograd's gradient"),
        prim=Fixed(False, "off in AMD's configurations: it needs Apex's extension"),
    ),
    MapRow(
        "attention backend",
        always("auto"),
        Fixed(attention_backend, "AMD's images allow TransformerEngine its fused attention only; elsewhere it chooses"),
        Fixed("auto", "torch's scaled-dot-product attention chooses its own kernel"),
        override("model.config.attention_backend"),
        override("attention_backend"),
        "attention_backend",
    ),
    MapRow(
        "float32 products",
        always("highest"),
        Fixed("highest", "train/common/kernels.py turns TF32 off in torch"),
        Fixed("highest", "as mega"),
        Fixed("highest", "as mega"),
        Fixed("highest", "nothing in Primus turns TF32 on, nor does AMD's image"),
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
