"""The settings map, column of Megatron-Bridge: dotted paths in its `ConfigContainer` (megatron-bridge 0.6.2).

Model fields are those of its model provider, which extends megatron-core's TransformerConfig. `mixed_precision` is
copied over model, optimizer and DDP when a training starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from train.settings_map.row import (
    RECORDER_PROFILES,
    Fixed,
    Override,
    asked,
    has_4_bits,
    has_8_bits,
    has_rope_scaling,
    is_delayed,
    is_native,
    left,
    megatron_experts,
    megatron_provider,
    of_experts,
    override,
    profiled,
    recomputation,
    rope_scaling,
    scaling,
)
from utils.dataset.place import data_prefix

_OURS = "our data set in Bridge's place for one (SuiteData, train/bridge/recipe.py), made as mega's"
_DERIVED = "follows from the batch, GPUs and TP PP CP"


def _off(*keys: str, value: object = None) -> Override:
    return override(to=dict.fromkeys(keys, value))


COLUMN: Mapping[str, Override | Fixed] = {
    # batch, optimizer, communication
    "micro batch": override("train.micro_batch_size"),
    "gradient accumulation": Fixed(asked("gradient_accumulation"), _DERIVED),
    "global batch": override("train.global_batch_size"),
    "sequence length (data)": Fixed(asked("sequence_length"), _OURS),
    "sequence length (model)": override("model.seq_length"),
    "steps": override("train.train_iters"),
    "optimizer": override("optimizer.optimizer"),
    "precision of optimizer states": override(
        ("optimizer.use_precision_aware_optimizer", lambda state: False)  # fp32 then; another value is refused
    ),
    "learning rate": override("optimizer.lr"),
    "schedule": override("scheduler.lr_decay_style"),
    "steps of the schedule": override("scheduler.lr_decay_iters"),
    "least learning rate": override("optimizer.min_lr"),
    "warm-up steps": override("scheduler.lr_warmup_iters"),
    "learning rate of step 1": override("scheduler.lr_warmup_init"),
    "weight decay, start to end": override(
        "optimizer.weight_decay", "scheduler.start_weight_decay", "scheduler.end_weight_decay"
    ),
    "Adam beta 1": override("optimizer.adam_beta1"),
    "Adam beta 2": override("optimizer.adam_beta2"),
    "Adam epsilon": override("optimizer.adam_eps"),
    "gradient clipping": override("optimizer.clip_grad"),
    "loss reduction": _off("model.calculate_per_token_loss", value=False),
    "distributed optimizer": override("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    # the value of mixed_precision is copied over the one of DDP
    "gradients reduced in fp32": override("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32"),
    "overlap of gradient reduction": override("ddp.overlap_grad_reduce"),
    "overlap of parameter gathering": override("ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    "average in the collective": override("ddp.average_in_collective"),
    "search for NaN in gradients": override("ddp.check_for_nan_in_grad", "rerun_state_machine.check_for_nan_in_loss"),
    # data and what is switched off
    "seed of weights": override("rng.seed"),
    "seed of the order of samples": Fixed(asked("seed"), _OURS),
    "data set": Fixed(lambda config, spec: str(data_prefix(config, spec.name)), _OURS),
    "split": Fixed("100,0,0", _OURS),
    "samples": Fixed(lambda config, spec: config.training_samples, "steps x global batch"),
    "order of samples": override(to={"dataset.dataloader_type": "single"}),
    # the null tokenizer adds its end-of-document token to this number
    "tokenizer": _off("tokenizer.tokenizer_model"),
    "end of document masked in the loss": Fixed(False, _OURS),
    "positions start again at a document": Fixed(False, _OURS),
    "attention ends at a document": Fixed(False, _OURS),
    "mask made with the data": Fixed(False, _OURS),
    "loader workers of a rank": override(
        "dataset.num_workers",
        ("dataset.persistent_workers", lambda workers: workers > 0),
        ("dataset.pin_memory", lambda workers: workers > 0),
    ),
    "checkpoints": _off("checkpoint.save", "checkpoint.save_interval"),
    "going on from a checkpoint": _off("checkpoint.load", "checkpoint.pretrained_checkpoint"),
    "validation": override(("validation.eval_iters", int), to={"validation.eval_interval": None}),
    "loggers beside the log": _off("logger.tensorboard_dir", "logger.wandb_project"),
    "steps between lines of the log": override(
        ("logger.skip_train_metrics_log", lambda steps: True)  # our recorder prints a line for each step
    ),
    "profile": _off("profiling"),  # its own profiler: the recorder profiles
    "profiled steps": Fixed(profiled, RECORDER_PROFILES),
    # shape and initial weights
    **megatron_provider("model."),
    "vocabulary": override(
        "model.vocab_size",
        ("tokenizer.vocab_size", lambda size: size - 1),
        to={"tokenizer.tokenizer_type": "NullTokenizer", "tokenizer.use_tokenizer_vocab_size": False},
    ),
    "vocabulary padded to a multiple of": override(
        "model.make_vocab_size_divisible_by", to={"model.should_pad_vocab": False}
    ),
    "experts of a layer": of_experts("model.", "num_moe_experts"),
    **megatron_experts("model."),
    "permutation fused": of_experts("model.", "moe_permute_fusion", "moe_router_fusion"),
    "rope scaling of Llama 3.1": override("model.rope_scaling"),
    "rope scaling: factor": override("model.rope_scaling_factor", when=has_rope_scaling),
    "rope scaling: low frequency factor": Fixed(rope_scaling("low_frequency_factor"), "a constant of megatron-core: 1"),
    "rope scaling: high frequency factor": Fixed(
        rope_scaling("high_frequency_factor"), "a constant of megatron-core: 4"
    ),
    "rope scaling: original length": Fixed(
        rope_scaling("original_max_position_embeddings"), "a constant of megatron-core: 8192"
    ),
    "sliding window": override(("model.window_size", left)),
    "initial weights": Fixed(
        asked("init"), "equal: copied into the built model before DDP; native: megatron-core's own"
    ),
    "output projections drawn smaller, by 1/sqrt(2 layers)": Fixed(is_native, "as mega"),
    # parallelism, precision and fused operations
    "TP": override("model.tensor_model_parallel_size"),
    "PP": override("model.pipeline_model_parallel_size"),
    "virtual pipeline stages": override("model.virtual_pipeline_model_parallel_size"),
    "CP": override("model.context_parallel_size"),
    "DP": Fixed(asked("data_parallel_size"), _DERIVED),
    "sequence parallel": override("model.sequence_parallel"),
    # the name from which train/bridge/recipe.py makes the settings of every dtype
    "precision": override("mixed_precision"),
    "fp8 format": override("mixed_precision.fp8"),
    "fp8 recipe": override(("mixed_precision.fp8_recipe", scaling), when=has_8_bits),
    "fp8: steps of the largest value kept": override("mixed_precision.fp8_amax_history_len", when=is_delayed),
    "fp8: which of them counts": override("mixed_precision.fp8_amax_compute_algo", when=is_delayed),
    "fp4 format": override("mixed_precision.fp4"),
    "fp4 recipe": override("mixed_precision.fp4_recipe", when=has_4_bits),
    "parameters gathered in fp8": override("mixed_precision.fp8_param_gather"),
    "recompute": override(*recomputation("model.")),
    "float32 products": Fixed("highest", "as mega"),
    "Primus Turbo": Fixed(False, "AMD's own kernels, in Primus only"),
    "CUDA graphs": _off("model.cuda_graph_impl", value="none"),
}
"""Entries by the name of the row."""
