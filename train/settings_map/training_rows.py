"""The settings map, part 1: batch, optimizer, schedule, communication; data and their order; what is switched off."""

from __future__ import annotations

from typing import Any

from train.settings_map.row import (
    DATA,
    DDP,
    OPTIMIZER,
    RECORDER_PROFILES,
    Fixed,
    MapRow,
    always,
    asked,
    field,
    first_rate,
    is_profiled,
    negated,
    overlaps,
    override,
    profiled,
)
from utils.dataset.place import data_prefix
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_OFF_THE_END = 1_000_000_000
"""A step that no training reaches, for features that can only be postponed."""


def _prefix(config: RunConfig, spec: ModelSpec) -> str:
    return str(data_prefix(config, spec.name))


def _samples(config: RunConfig, spec: ModelSpec) -> int:
    return config.training_samples


def _off(name: str, nemo: Any, prim: Any) -> MapRow:
    return MapRow(name, always(False), nemo, prim)


_BATCH = (
    MapRow(
        "micro batch",
        asked("micro_batch_size"),
        override("data.micro_batch_size"),
        override("micro_batch_size"),
        "micro_batch_size",
    ),
    MapRow(
        "gradient accumulation",
        asked("gradient_accumulation"),
        Fixed(asked("gradient_accumulation"), "global batch / (micro batch x DP)"),
        Fixed(asked("gradient_accumulation"), "global batch / (micro batch x DP)"),
        "gradient_accumulation",
    ),
    MapRow(
        "global batch",
        asked("global_batch_size"),
        override("data.global_batch_size"),
        override("global_batch_size"),
        "global_batch_size",
    ),
    MapRow(
        "sequence length (data)",
        asked("sequence_length"),
        override("data.seq_length"),
        override("seq_length"),
        "sequence_length",
    ),
    MapRow(
        "sequence length (model)",
        asked("sequence_length"),
        override("model.config.seq_length"),
        override("max_position_embeddings"),
    ),
    MapRow(
        "steps",
        asked("train_iterations"),
        override("trainer.max_steps"),
        override("train_iters"),
        "max_steps",
    ),
)

_OPTIMIZER = (
    field(
        "optimizer",
        always("adam"),
        OPTIMIZER,
        "optimizer",
        "optimizer",
    ),
    MapRow(
        "precision of optimizer states",
        asked("optimizer_state"),
        Fixed("fp32", "its recipes have no precision-aware optimizer; another value is refused"),
        Fixed("fp32", "this version does not set its precision-aware optimizer; another value is refused"),
        "optimizer_state",
    ),
    MapRow(
        "learning rate",
        asked("learning_rate"),
        override("optim.config.lr"),
        override("lr"),
        "lr",
    ),
    MapRow(
        "schedule",
        always("cosine"),
        Fixed("cosine", "CosineAnnealingScheduler of each recipe"),
        override("lr_decay_style"),
    ),
    MapRow(
        "steps of the schedule",
        asked("train_iterations"),
        Fixed(asked("train_iterations"), "its scheduler takes trainer.max_steps, whatever it is told"),
        override("lr_decay_iters"),
    ),
    MapRow(
        "least learning rate",
        asked("min_learning_rate"),
        override("optim.lr_scheduler.min_lr"),
        override("min_lr"),
        "min_lr",
    ),
    MapRow(
        "warm-up steps",
        asked("warmup_iterations"),
        # with constant_steps NeMo uses another rule of warm-up
        override("optim.lr_scheduler.warmup_steps", ("optim.lr_scheduler.constant_steps", lambda steps: 0)),
        override("lr_warmup_iters"),
        "warmup_iters",
    ),
    MapRow(
        "learning rate of step 1",
        first_rate,
        Fixed(first_rate, "NeMo's own rule: LR n / (W + 1) at step n"),
        override("lr_warmup_init"),
    ),
    MapRow(
        "weight decay, start to end",
        asked("weight_decay"),
        override("optim.config.weight_decay"),
        # with a constant style Megatron refuses a start and an end of its own
        override(
            "weight_decay",
            ("weight_decay_incr_style", lambda decay: "constant"),
            ("start_weight_decay", lambda decay: None),
            ("end_weight_decay", lambda decay: None),
        ),
        "weight_decay",
    ),
    field("Adam beta 1", asked("beta1"), OPTIMIZER, "adam_beta1", "beta1"),
    field("Adam beta 2", asked("beta2"), OPTIMIZER, "adam_beta2", "beta2"),
    field("Adam epsilon", asked("adam_epsilon"), OPTIMIZER, "adam_eps", "adam_eps"),
    # trainer.gradient_clip_val has to stay unset: NeMo's precision plugin refuses it
    field("gradient clipping", asked("clip_grad"), OPTIMIZER, "clip_grad", "clip_grad"),
    MapRow(
        "loss reduction",
        always("mean of a micro batch, then of micro batches"),
        override(("model.config.calculate_per_token_loss", lambda rule: False)),
        override(("calculate_per_token_loss", lambda rule: False)),
    ),
)

_COMMUNICATION = (
    MapRow(
        "distributed optimizer",
        always(True),
        override("trainer.strategy.ddp.use_distributed_optimizer", "optim.config.use_distributed_optimizer"),
        override("use_distributed_optimizer"),
        "distributed_optimizer",
    ),
    MapRow(
        "gradients reduced in fp32",
        lambda config, spec: config.gradient_dtype == "fp32",
        # the plugin's value is copied over the one of DDP
        override("trainer.plugins.grad_reduce_in_fp32", "trainer.strategy.ddp.grad_reduce_in_fp32"),
        override("accumulate_allreduce_grads_in_fp32", ("grad_reduce_in_bf16", lambda on: not on)),
        "gradient_reduce_dtype",
    ),
    field(
        "overlap of gradient reduction",
        overlaps,
        DDP,
        "overlap_grad_reduce",
        "overlap_grad_reduce",
    ),
    MapRow(
        "overlap of parameter gathering",
        overlaps,
        override("trainer.strategy.ddp.overlap_param_gather"),
        override("overlap_param_gather"),
        "overlap_param_gather",
    ),
    MapRow(
        "average in the collective",
        overlaps,
        override("trainer.strategy.ddp.average_in_collective"),
        override("ddp_average_in_collective"),
        "fused_ops.average_in_collective",
    ),
    MapRow(
        "search for NaN in gradients",
        always(False),
        override("trainer.strategy.ddp.check_for_nan_in_grad"),
        override("check_for_nan_in_loss_and_grad"),
    ),
)

_DATA = (
    MapRow(
        "seed of weights",
        asked("seed"),
        Fixed(asked("seed"), "NeMo 2.3 has 1234 in its code; train_nemo puts SEED in its place"),
        override("seed"),
        "seed",
    ),
    field("seed of the order of samples", asked("seed"), DATA, "random_seed", "seed", nemo="seed", prim="seed"),
    MapRow(
        "data set",
        _prefix,
        override(("data.paths", lambda prefix: [prefix])),
        override(
            "train_data_path",
            ("data_path", lambda prefix: None),
            ("valid_data_path", lambda prefix: None),
            ("test_data_path", lambda prefix: None),
            ("mock_data", lambda prefix: False),
        ),
    ),
    # no split applies where each part has a path of its own; all of train_data_path is for training
    field("split", always("100,0,0"), DATA, "split", prim=override(("split", lambda split: None))),
    MapRow(
        "samples",
        _samples,
        override("data.num_train_samples"),
        Fixed(_samples, "steps x global batch"),
    ),
    MapRow(
        "order of samples",
        always("as GPTDataset has them"),
        Fixed("as GPTDataset has them", "its sampler of type single"),
        # the preset has cyclic, which shuffles them once more
        override(("dataloader_type", lambda order: "single")),
    ),
    MapRow(
        "tokenizer",
        always("the data's own ids"),
        Fixed("the data's own ids", "train_nemo gives it a null tokenizer of the model's vocabulary"),
        override(("tokenizer_model", lambda ids: None)),
    ),
    field("end of document masked in the loss", always(False), DATA, "eod_mask_loss"),
    field("positions start again at a document", always(False), DATA, "reset_position_ids"),
    field("attention ends at a document", always(False), DATA, "reset_attention_mask"),
    # where TransformerEngine is missing NeMo makes one all the same
    field(
        "mask made with the data",
        always(False),
        DATA,
        "create_attention_mask",
        prim="create_attention_mask_in_dataloader",
    ),
    MapRow(
        "loader workers of a rank",
        lambda config, spec: 0 if config.platform == "cpu" else 2,
        override("data.num_workers", ("data.persistent_workers", lambda workers: workers > 0)),
        override("num_workers"),
        "dataloader_workers",
    ),
)

_OFF = (
    _off(
        "checkpoints",
        override("trainer.enable_checkpointing", "trainer.strategy.ckpt_async_save", ("log.ckpt", lambda on: None)),
        override(
            ("save", lambda on: None),
            # `save: null` does not turn it off: Primus substitutes a folder of its own
            ("disable_last_saving", negated),
            ("save_interval", lambda on: _OFF_THE_END),
        ),
    ),
    _off(
        "going on from a checkpoint",
        override(("resume", lambda on: None)),
        override(("load", lambda on: None), "finetune", "auto_continue_train"),
    ),
    _off(
        "validation",
        override(
            ("trainer.limit_val_batches", int),
            ("trainer.limit_test_batches", int),
            ("trainer.num_sanity_val_steps", int),
        ),
        override(("eval_iters", int), ("eval_interval", lambda on: _OFF_THE_END)),
    ),
    _off(
        "loggers beside the log",
        override("trainer.logger", ("log.tensorboard", lambda on: None), ("log.wandb", lambda on: None)),
        override(("disable_tensorboard", negated), ("disable_wandb", negated), ("disable_mlflow", negated)),
    ),
    MapRow(
        "steps between lines of the log",
        always(1),
        override("trainer.log_every_n_steps"),
        # at INFO newer releases do not print the iteration line
        override("log_interval", ("log_throughput", bool), ("stderr_sink_level", lambda steps: "DEBUG")),
    ),
    MapRow(
        "profile",
        is_profiled,
        Fixed(is_profiled, RECORDER_PROFILES),
        override("profile"),
    ),
    MapRow(
        "profiled steps",
        profiled,
        Fixed(profiled, "as above"),
        override(
            ("use_pytorch_profiler", lambda profile: True),
            ("profile_step_start", lambda profile: profile.first),
            ("profile_step_end", lambda profile: profile.last + 1),  # the first that is not profiled
            ("profile_ranks", lambda profile: list(profile.ranks)),
            ("torch_profiler_record_shapes", lambda profile: True),
            ("torch_profiler_with_stack", lambda profile: False),  # as the recorder; stacks slow a step down
            ("torch_profiler_use_gzip", lambda profile: True),
            when=is_profiled,
        ),
    ),
)

ROWS: tuple[MapRow, ...] = (*_BATCH, *_OPTIMIZER, *_COMMUNICATION, *_DATA, *_OFF)
"""In the order of the table; a key comes before the keys below it."""
