"""The settings map: each thing that must be equal, with its key in each framework or the reason why none sets it.

A row names the thing, the value that is asked for and the key of `resolved_config` that holds the value read back. Each
framework that is set up by keys of its own has a column (`COLUMNS`) with an entry for each row: an `Override` (its
keys, and our value in the form that each takes) or a `Fixed` (the value there, and why we cannot set it). mega and hf
are built by code of ours, and what they were built with is read back. Enums and classes are given by name; the trainer
that imports the library converts them.

`ENVIRONMENT` has the environment variables that change speed, and how each framework's launcher treats them. One that
the user or the image has set takes precedence, except those of `decided`; the provenance of the result records both.
Sources: Primus v25.10 `examples/run_pretrain.sh`; ROCm/MAD `primus_megatron-lm_benchmark_report.sh`, AMD's own
benchmark; NeMo 2.3 `scripts/performance` and its PerfEnvPlugin, NVIDIA's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from train.settings_map import bridge_column, nemo_column, prim_column, titan_column
from train.settings_map.row import (
    FP4_FORMAT,
    FP8_FORMATS,
    Fixed,
    MapRow,
    Override,
    Wanted,
    always,
    asked,
    constant,
    dimension,
    first_rate,
    has_4_bits,
    has_rope_scaling,
    is_balanced,
    is_native,
    is_profiled,
    of_mixture,
    on_gpu,
    overlaps,
    override,
    profiled,
    rope_number,
    setting,
    shape,
)
from utils.dataset.place import data_prefix
from utils.errors import ConfigError
from utils.frameworks import FRAMEWORKS
from utils.models import TRAITS, ModelSpec
from utils.settings.config import RunConfig

ROWS = (
    # batch
    setting("micro batch", "micro_batch_size"),
    setting("gradient accumulation", "gradient_accumulation"),
    setting("global batch", "global_batch_size"),
    setting("sequence length (data)", "sequence_length"),
    MapRow("sequence length (model)", asked("sequence_length")),
    setting("steps", "train_iterations"),
    # optimizer and schedule
    constant("optimizer", "adam", "optimizer"),
    setting("precision of optimizer states", "optimizer_state"),
    setting("learning rate", "learning_rate"),
    constant("schedule", "cosine"),
    MapRow("steps of the schedule", asked("train_iterations")),
    setting("least learning rate", "min_learning_rate"),
    setting("warm-up steps", "warmup_iterations"),
    MapRow("learning rate of step 1", first_rate),
    setting("weight decay, start to end", "weight_decay"),
    setting("Adam beta 1", "beta1"),
    setting("Adam beta 2", "beta2"),
    setting("Adam epsilon", "adam_epsilon"),
    setting("gradient clipping", "clip_grad"),
    constant("loss reduction", "mean of a micro batch, then of micro batches"),
    # communication
    constant("distributed optimizer", True, "distributed_optimizer"),
    MapRow("gradients reduced in fp32", lambda config, spec: config.gradient_dtype == "fp32", "gradient_reduce_dtype"),
    MapRow("overlap of gradient reduction", overlaps, "overlap_grad_reduce"),
    MapRow("overlap of parameter gathering", overlaps, "overlap_param_gather"),
    MapRow("average in the collective", overlaps, "fused_ops.average_in_collective"),
    constant("search for NaN in gradients", False),
    # data and their order
    setting("seed of weights", "seed"),
    setting("seed of the order of samples", "seed"),
    MapRow("data set", lambda config, spec: str(data_prefix(config, spec.name))),
    constant("split", "100,0,0"),
    MapRow("samples", asked("training_samples")),
    constant("order of samples", "as GPTDataset has them"),
    constant("tokenizer", "the data's own ids"),
    constant("end of document masked in the loss", False),
    constant("positions start again at a document", False),
    constant("attention ends at a document", False),
    constant("mask made with the data", False),
    MapRow("loader workers of a rank", lambda config, spec: 0 if config.platform == "cpu" else 2, "dataloader_workers"),
    # what is switched off, logs, profile
    constant("checkpoints", False),
    constant("going on from a checkpoint", False),
    constant("validation", False),
    constant("loggers beside the log", False),
    constant("steps between lines of the log", 1),
    MapRow("profile", is_profiled),
    MapRow("profiled steps", profiled),
    # shape and initial weights
    dimension("layers", "num_layers"),
    dimension("hidden size", "hidden_size"),
    dimension("feed-forward size", "ffn_hidden_size"),
    dimension("attention heads", "num_attention_heads"),
    dimension("key/value groups", "num_query_groups"),
    MapRow("channels of a head", shape("head_dim")),
    dimension("vocabulary", "vocab_size"),
    constant("vocabulary padded to a multiple of", 1),
    constant("norm", "RMSNorm"),
    dimension("norm epsilon", "norm_epsilon", "norm_eps"),
    constant("SwiGLU", True),
    MapRow("experts of a layer", of_mixture(shape("num_experts")), "num_experts"),
    MapRow("experts of a token", of_mixture(shape("experts_per_token")), "experts_per_token"),
    MapRow("weights of a token's experts", of_mixture(always("softmax over all, then scaled to a sum of 1"))),
    MapRow("feed-forward size of an expert", of_mixture(shape("ffn_hidden_size"))),
    MapRow("shared expert", of_mixture(always(0)), "shared_expert_size"),
    MapRow("auxiliary loss of the router", of_mixture(always(0.0)), "router_auxiliary_loss"),
    MapRow("bias that balances the experts", of_mixture(always(False))),
    MapRow("tokens dropped", of_mixture(always(False)), "token_dropping"),
    MapRow("forced balancing", of_mixture(is_balanced)),
    MapRow("precision of the router", of_mixture(always(None))),
    MapRow("exchange of tokens", of_mixture(always("alltoall"))),
    MapRow("products of experts grouped", of_mixture(on_gpu)),
    MapRow("permutation fused", of_mixture(always(False))),
    constant("bias of linear layers", False),
    *(dimension(trait.name, trait.key) for trait in TRAITS if trait.is_in_spec and trait.kind is bool),
    constant("attention dropout", 0.0),
    constant("hidden dropout", 0.0),
    constant("position embedding", "rope"),
    dimension("rope base", "rope_base"),
    constant("rope over a part of a head's channels", 1.0),
    MapRow("rope scaling of Llama 3.1", has_rope_scaling),
    rope_number("rope scaling: factor", "factor"),
    rope_number("rope scaling: low frequency factor", "low_frequency_factor"),
    rope_number("rope scaling: high frequency factor", "high_frequency_factor"),
    rope_number("rope scaling: original length", "original_max_position_embeddings"),
    dimension("sliding window", "sliding_window"),
    setting("std of initial weights", "init_std"),
    setting("initial weights", "init"),
    MapRow("output projections drawn smaller, by 1/sqrt(2 layers)", is_native),
    # parallelism and precision
    setting("TP", "tensor_parallel_size"),
    setting("PP", "pipeline_parallel_size"),
    constant("virtual pipeline stages", None),
    setting("CP", "context_parallel_size"),
    MapRow("EP", of_mixture(asked("expert_parallel_size")), "ep"),
    setting("DP", "data_parallel_size"),
    constant("sequence parallel", False),
    setting("precision", "precision"),
    MapRow("fp8 format", lambda config, spec: FP8_FORMATS.get(config.fp8_recipe)),
    setting("fp8 recipe", "fp8_recipe"),
    constant("fp8: steps of the largest value kept", 1024),
    constant("fp8: which of them counts", "max"),
    MapRow("fp4 format", lambda config, spec: FP4_FORMAT if has_4_bits(config, spec) else None),
    MapRow("fp4 recipe", asked("fp8_recipe")),
    constant("parameters gathered in fp8", False),
    constant("residual stream in fp32", False),
    constant("attention softmax in fp32", True),
    setting("recompute", "recompute"),
    # fused operations
    MapRow("bias activation fusion", on_gpu, "fused_ops.bias_activation_fusion"),
    MapRow("bias dropout fusion", on_gpu, "fused_ops.bias_dropout_fusion"),
    constant("masked softmax fusion", False, "fused_ops.masked_softmax_fusion"),
    MapRow("persist layer norm", on_gpu, "fused_ops.persist_layer_norm"),
    # of local layers the kernels of train/mega/attention.py
    MapRow("apply rope fusion", on_gpu, "fused_ops.apply_rope_fusion"),
    # megatron-core's own gives a bf16 gradient whatever the input; of mega it is train/mega/kernels.py
    MapRow(
        "cross entropy loss fusion",
        lambda config, spec: on_gpu(config, spec) and config.precision != "fp32",
        "fused_ops.cross_entropy_loss_fusion",
    ),
    constant("cross entropy fusion by", "native"),
    # Apex's extension, of mega train/mega/kernels.py where it is missing
    MapRow("gradient accumulation fusion", on_gpu, "fused_ops.gradient_accumulation_fusion"),
    constant("attention backend", "auto", "attention_backend"),
    constant("float32 products", "highest"),
    constant("Primus Turbo", False),
    constant("CUDA graphs", False),
)
"""In the order of the table of docs/generated."""
COLUMNS: Mapping[str, Mapping[str, Override | Fixed]] = {
    "nemo": nemo_column.COLUMN,
    "prim": prim_column.COLUMN,
    "bridge": bridge_column.COLUMN,
    "titan": titan_column.COLUMN,
}
"""Entries of each framework that has keys (`<framework>_column.py`), by the name of the row."""


def entry_of(row: MapRow, framework: str) -> Override | Fixed:
    """Return the entry of a framework for a row."""
    return COLUMNS[framework][row.name]


def applied(framework: str, config: RunConfig, spec: ModelSpec) -> Iterator[tuple[MapRow, Override, Any]]:
    """Yield each row that keys of a framework set for a training, with the keys and the value."""
    for row in ROWS:
        entry = entry_of(row, framework)
        if isinstance(entry, Override) and (entry.when is None or entry.when(config, spec)):
            yield row, entry, row.wanted(config, spec)


def overrides(framework: str, config: RunConfig, spec: ModelSpec) -> dict[str, Any]:
    """Return the values to set in a framework for a training, by its own keys; a key comes before those below it."""
    values: dict[str, Any] = {}
    for _, entry, value in applied(framework, config, spec):
        for key, form in entry.forms:
            new = form(value)
            # two rows may share a key (`seed`), but must agree on its value
            if key in values and values[key] != new:
                raise ValueError(f"settings map, {framework}: {key} is set twice, to {values[key]!r} and {new!r}")
            values[key] = new
    return {key: values[key] for key in sorted(values, key=lambda key: key.count("."))}


def set_field(framework: str, settings: Any, path: str, value: Any) -> None:
    """Set the dotted `path` in a framework's dataclasses; raise ConfigError where there is no such field.

    The fields decide, because these classes take any attribute and ignore those that they do not know.
    """
    *parents, name = path.split(".")
    for parent in parents:
        settings = getattr(settings, parent, None)
    if not dataclasses.is_dataclass(settings) or name not in {field.name for field in dataclasses.fields(settings)}:
        raise ConfigError(f"settings map, {framework}: {path}: {type(settings).__name__} has no {name}")
    setattr(settings, name, value)


# Environment variables

_UNSET = "left unset: the library's own default"
_PRIMUS = "examples/run_pretrain.sh of Primus sets it"


def _on(platform: str, value: str) -> Wanted:
    return lambda config, spec: value if config.platform == platform else None


@dataclass(frozen=True)
class Variable:
    """An environment variable that changes speed."""

    name: str
    wanted: Wanted
    """The value that a framework gets, None to leave the variable unset."""
    everywhere: Fixed | None = None
    """Entry of the frameworks that get no value of ours, unless one of the next two applies."""
    without_megatron: Fixed | None = None
    """Entry of a framework of torch's own layers."""
    of_primus: Fixed | None = None
    """Entry of Primus, whose own script sets variables before it starts the ranks."""

    def of(self, framework: str) -> Override | Fixed:
        """Return the entry of a framework."""
        record = FRAMEWORKS[framework]
        if record.starts_its_ranks and self.of_primus is not None:
            return self.of_primus
        if not record.has_megatron_layers and self.without_megatron is not None:
            return self.without_megatron
        return self.everywhere or override(self.name)


OF_ATTENTION = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
OF_PRODUCTS = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
_DECIDED = "removed, whoever set it: megatron-core sets it by its `attention_backend`"


def decided(framework: str) -> tuple[str, ...]:
    """Return the variables that the ranks of a framework never get from outside, because its settings decide them.

    megatron-core refuses values of the first three that disagree with its `attention_backend` (0.16.1 and 0.19.0,
    language_module.py), and AMD's image sets NVTE_FLASH_ATTN=0; Primus has a patch of its own for that. The last, which
    NVIDIA's images set, would round the operands of float32 products.
    """
    record = FRAMEWORKS[framework]
    if record.has_megatron_layers and not record.starts_its_ranks:
        return (*OF_ATTENTION, OF_PRODUCTS)
    return (OF_PRODUCTS,)


ENVIRONMENT: tuple[Variable, ...] = (
    Variable(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        # one hardware queue where Megatron needs its communication queued before its computation: with TP or CP
        lambda config, spec: (
            "1"
            if config.platform != "cpu" and (config.tensor_parallel_size > 1 or config.context_parallel_size > 1)
            else None
        ),
        without_megatron=Fixed(None, "data parallel only"),
        of_primus=Fixed("1", f"{_PRIMUS} where it is unset"),
    ),
    Variable("GPU_MAX_HW_QUEUES", _on("amd", "2")),
    Variable("HSA_ENABLE_SDMA", _on("amd", "1"), of_primus=Fixed(_on("amd", "1"), _PRIMUS)),
    Variable("HSA_NO_SCRATCH_RECLAIM", _on("amd", "1")),
    Variable(
        "NVTE_CK_USES_BWD_V3",
        _on("amd", "1"),
        without_megatron=Fixed(_on("amd", "1"), "no TransformerEngine that reads it"),
    ),
    Variable("TORCH_NCCL_HIGH_PRIORITY", _on("amd", "1")),
    # Megatron's recipe; torch's FSDP2 moves weights by NCCL in every layer, which the switch may speed up
    Variable("NCCL_NVLS_ENABLE", _on("nvd", "0"), without_megatron=Fixed(None, _UNSET)),
    *(
        Variable(
            name,
            always(None),
            Fixed(None, _DECIDED),
            without_megatron=Fixed(None, _UNSET),
            of_primus=Fixed(None, "as AMD's image sets it"),
        )
        for name in OF_ATTENTION
    ),
    # TransformerEngine for CUDA multiplies float32 as TF32 whatever torch is set to, and the one for ROCm does not
    # (2.20.2, common/gemm/cublaslt_gemm.cu, CUBLAS_COMPUTE_32F_FAST_TF32)
    Variable(
        "NVIDIA_TF32_OVERRIDE",
        lambda config, spec: "0" if config.platform == "nvd" and config.precision == "fp32" else None,
    ),
    Variable(
        OF_PRODUCTS,
        always(None),
        Fixed(None, "removed, whoever set it: the trainers set the precision of float32 products"),
    ),
    # Segments that grow do not fragment. Every release of torch reads this name; PYTORCH_ALLOC_CONF, which a user may
    # have set, takes precedence in torch itself. Not on AMD: before ROCm 10 such segments leak file descriptors until
    # allocation fails (pytorch/pytorch#192814), and can hang (#192259); torch 2.10 and older ignore the setting there.
    Variable("PYTORCH_CUDA_ALLOC_CONF", _on("nvd", "expandable_segments:True")),
    Variable("PYTORCH_HIP_ALLOC_CONF", always(None), Fixed(None, _UNSET)),
)


def environment(framework: str, config: RunConfig, spec: ModelSpec) -> dict[str, str]:
    """Return the environment variables to start a framework with; a value that the user has set takes precedence."""
    variables = {}
    for variable in ENVIRONMENT:
        value = variable.wanted(config, spec)
        if value is not None and isinstance(variable.of(framework), Override):
            variables[variable.name] = value
    return variables
