"""The settings map, part 2: batch, optimizer, schedule, communication, data, and what is off."""

from __future__ import annotations

from typing import Any

from utils.configure import RunConfig
from utils.framework_rows import Fixed, Row, always, asked, say
from utils.models import ModelSpec
from utils.prepared import data_prefix

_LOOP = "train_mega's own loop"
_NO_BUCKETS = "DistributedDataParallel of PyTorch has no such step"
_OURS_HAS_NONE = "train_mega's loop has none of it"
_OFF_THE_END = 1_000_000_000
"""A step that no training reaches, for what can only be put off."""


def overlaps(config: RunConfig, spec: ModelSpec) -> bool:
    """Whether communication overlaps with computation: it has a point only between GPUs."""
    return config.platform != "cpu" and config.data_parallel_size > 1


def _first_warmup_rate(config: RunConfig, spec: ModelSpec) -> float:
    """Return LR / (W + 1): where Megatron's warm-up must start to have NeMo's rate at every step."""
    return config.learning_rate / (config.warmup_iterations + 1)


def _prefix(config: RunConfig, spec: ModelSpec) -> str:
    return str(data_prefix(config, spec.name))


def _samples(config: RunConfig, spec: ModelSpec) -> int:
    return config.training_samples


def _off(name: str, nemo: Any, prim: Any, hf: Any = None) -> Row:
    return Row(name, always(False), Fixed(False, _OURS_HAS_NONE), hf or Fixed(False, "not asked for"), nemo, prim)


def _not(value: bool) -> bool:
    return not value


_BATCH = (
    Row(
        "micro batch",
        asked("micro_batch_size"),
        Fixed(asked("micro_batch_size"), "utils.dataset.micro_batches gives the loader its samples by number"),
        say("TrainingArguments.per_device_train_batch_size"),
        say("data.micro_batch_size"),
        say("micro_batch_size"),
        "micro_batch_size",
    ),
    Row(
        "gradient accumulation",
        asked("gradient_accumulation"),
        Fixed(asked("gradient_accumulation"), f"{_LOOP} hands it to megatron-core's schedule at each step"),
        say("TrainingArguments.gradient_accumulation_steps"),
        Fixed(asked("gradient_accumulation"), "global batch / (micro batch x DP)"),
        Fixed(asked("gradient_accumulation"), "global batch / (micro batch x DP)"),
        "gradient_accumulation",
    ),
    Row(
        "global batch",
        asked("global_batch_size"),
        Fixed(asked("global_batch_size"), "micro batch x DP x gradient accumulation"),
        Fixed(asked("global_batch_size"), "micro batch x ranks x gradient accumulation"),
        say("data.global_batch_size"),
        say("global_batch_size"),
        "global_batch_size",
    ),
    Row(
        "sequence length (data)",
        asked("sequence_length"),
        say("GPTDatasetConfig.sequence_length"),
        say("GPTDatasetConfig.sequence_length"),
        say("data.seq_length"),
        say("seq_length"),
        "sequence_length",
    ),
    Row(
        "sequence length (model)",
        asked("sequence_length"),
        say("GPTModel.max_sequence_length"),
        Fixed(asked("sequence_length"), "rotary angles are made for the positions of each batch"),
        say("model.config.seq_length"),
        say("max_position_embeddings"),
    ),
    Row(
        "steps",
        asked("train_iterations"),
        Fixed(asked("train_iterations"), _LOOP),
        say("TrainingArguments.max_steps"),
        say("trainer.max_steps"),
        say("train_iters"),
        "max_steps",
    ),
)

_OPTIMIZER = (
    Row(
        "optimizer",
        always("adam"),
        say("OptimizerConfig.optimizer"),
        say(("TrainingArguments.optim", lambda name: "adamw_torch_fused")),
        say("optim.config.optimizer"),
        say("optimizer"),
        "optimizer",
    ),
    Row(
        "learning rate",
        asked("learning_rate"),
        say("OptimizerParamScheduler.max_lr", "OptimizerConfig.lr"),
        say("TrainingArguments.learning_rate"),
        say("optim.config.lr"),
        say("lr"),
        "lr",
    ),
    Row(
        "schedule",
        always("cosine"),
        say("OptimizerParamScheduler.lr_decay_style"),
        Fixed("cosine", "WarmupCosine of train_hf in the Trainer's place"),
        Fixed("cosine", "CosineAnnealingScheduler of each recipe"),
        say("lr_decay_style"),
    ),
    Row(
        "steps of the schedule",
        asked("train_iterations"),
        say("OptimizerParamScheduler.lr_decay_steps"),
        say("WarmupCosine.train_iterations"),
        Fixed(asked("train_iterations"), "its scheduler takes trainer.max_steps, whatever it is told"),
        say("lr_decay_iters"),
    ),
    Row(
        "least learning rate",
        asked("min_learning_rate"),
        say("OptimizerParamScheduler.min_lr", "OptimizerConfig.min_lr"),
        Fixed(asked("min_learning_rate"), "WarmupCosine.floor x learning rate"),
        say("optim.lr_scheduler.min_lr"),
        say("min_lr"),
        "min_lr",
    ),
    Row(
        "warm-up steps",
        asked("warmup_iterations"),
        say("OptimizerParamScheduler.lr_warmup_steps"),
        say("WarmupCosine.warmup_iterations"),
        # with constant_steps NeMo changes to another rule of warm-up
        say("optim.lr_scheduler.warmup_steps", ("optim.lr_scheduler.constant_steps", lambda steps: 0)),
        say("lr_warmup_iters"),
        "warmup_iters",
    ),
    Row(
        "learning rate of step 1",
        _first_warmup_rate,
        say("OptimizerParamScheduler.init_lr"),
        Fixed(_first_warmup_rate, "WarmupCosine: LR n / (W + 1) at step n"),
        Fixed(_first_warmup_rate, "NeMo's own rule: LR n / (W + 1) at step n"),
        say("lr_warmup_init"),
    ),
    Row(
        "weight decay, start to end",
        asked("weight_decay"),
        say("OptimizerParamScheduler.start_wd", "OptimizerParamScheduler.end_wd", "OptimizerConfig.weight_decay"),
        say("TrainingArguments.weight_decay"),
        say("optim.config.weight_decay"),
        # with a constant style Megatron refuses a start and an end of its own
        say(
            "weight_decay",
            ("weight_decay_incr_style", lambda decay: "constant"),
            ("start_weight_decay", lambda decay: None),
            ("end_weight_decay", lambda decay: None),
        ),
        "weight_decay",
    ),
    Row(
        "Adam beta 1",
        asked("beta1"),
        say("OptimizerConfig.adam_beta1"),
        say("TrainingArguments.adam_beta1"),
        say("optim.config.adam_beta1"),
        say("adam_beta1"),
        "beta1",
    ),
    Row(
        "Adam beta 2",
        asked("beta2"),
        say("OptimizerConfig.adam_beta2"),
        say("TrainingArguments.adam_beta2"),
        say("optim.config.adam_beta2"),
        say("adam_beta2"),
        "beta2",
    ),
    Row(
        "Adam epsilon",
        asked("adam_epsilon"),
        say("OptimizerConfig.adam_eps"),
        say("TrainingArguments.adam_epsilon"),
        say("optim.config.adam_eps"),
        say("adam_eps"),
        "adam_eps",
    ),
    Row(
        "gradient clipping",
        asked("clip_grad"),
        say("OptimizerConfig.clip_grad"),
        say("TrainingArguments.max_grad_norm"),
        # trainer.gradient_clip_val has to stay unset: NeMo's precision plugin refuses it
        say("optim.config.clip_grad"),
        say("clip_grad"),
        "clip_grad",
    ),
    Row(
        "loss reduction",
        always("mean of a micro batch, then of micro batches"),
        Fixed("mean of a micro batch, then of micro batches", "loss_of in train_mega"),
        Fixed("mean over the step's tokens", "the Trainer divides by their number; the same while no token is masked"),
        say(("model.config.calculate_per_token_loss", lambda rule: False)),
        say(("calculate_per_token_loss", lambda rule: False)),
    ),
)

_COMMUNICATION = (
    Row(
        "distributed optimizer",
        always(True),
        say("DistributedDataParallelConfig.use_distributed_optimizer", "OptimizerConfig.use_distributed_optimizer"),
        Fixed(False, "every rank holds all of Adam's state, as the Trainer does without an extension"),
        say("trainer.strategy.ddp.use_distributed_optimizer", "optim.config.use_distributed_optimizer"),
        say("use_distributed_optimizer"),
        "distributed_optimizer",
    ),
    Row(
        "gradients reduced in fp32",
        always(True),
        say("DistributedDataParallelConfig.grad_reduce_in_fp32"),
        Fixed(True, "its weights, and so its gradients, are fp32"),
        # the plugin's value is copied over the one of DDP
        say("trainer.plugins.grad_reduce_in_fp32", "trainer.strategy.ddp.grad_reduce_in_fp32"),
        say("accumulate_allreduce_grads_in_fp32", ("grad_reduce_in_bf16", _not)),
        "gradient_reduce_dtype",
    ),
    Row(
        "overlap of gradient reduction",
        overlaps,
        say("DistributedDataParallelConfig.overlap_grad_reduce"),
        Fixed(
            lambda config, spec: config.data_parallel_size > 1,
            "DistributedDataParallel of PyTorch always overlaps",
        ),
        say("trainer.strategy.ddp.overlap_grad_reduce"),
        say("overlap_grad_reduce"),
        "overlap_grad_reduce",
    ),
    Row(
        "overlap of parameter gathering",
        overlaps,
        say("DistributedDataParallelConfig.overlap_param_gather", "OptimizerConfig.overlap_param_gather"),
        Fixed(False, _NO_BUCKETS),
        say("trainer.strategy.ddp.overlap_param_gather"),
        say("overlap_param_gather"),
        "overlap_param_gather",
    ),
    Row(
        "average in the collective",
        always(False),
        say("DistributedDataParallelConfig.average_in_collective"),
        Fixed(True, "DistributedDataParallel of PyTorch averages"),
        say("trainer.strategy.ddp.average_in_collective"),
        say("ddp_average_in_collective"),
    ),
    Row(
        "search for NaN in gradients",
        always(False),
        say("DistributedDataParallelConfig.check_for_nan_in_grad"),
        Fixed(False, "the recorder sees a loss or norm that is not finite at the end of the step"),
        say("trainer.strategy.ddp.check_for_nan_in_grad"),
        say("check_for_nan_in_loss_and_grad"),
    ),
)

_DATA = (
    Row(
        "seed of weights",
        asked("seed"),
        Fixed(asked("seed"), "EqualWeights, or megatron-core's generators, get it from train_mega"),
        say("TrainingArguments.seed"),
        Fixed(asked("seed"), "NeMo 2.3 has 1234 in its code; train_nemo puts SEED in its place"),
        say("seed"),
        "seed",
    ),
    Row(
        "seed of the order of samples",
        asked("seed"),
        say("GPTDatasetConfig.random_seed"),
        say("GPTDatasetConfig.random_seed"),
        say("data.seed"),
        say("seed"),
        "seed",
    ),
    Row(
        "data set",
        _prefix,
        say(("GPTDatasetConfig.blend", lambda prefix: ([prefix], None))),
        say(("GPTDatasetConfig.blend", lambda prefix: ([prefix], None))),
        say(("data.paths", lambda prefix: [prefix])),
        say(
            "train_data_path",
            ("data_path", lambda prefix: None),
            ("valid_data_path", lambda prefix: None),
            ("test_data_path", lambda prefix: None),
            ("mock_data", lambda prefix: False),
        ),
    ),
    Row(
        "split",
        always("100,0,0"),
        say("GPTDatasetConfig.split"),
        say("GPTDatasetConfig.split"),
        say("data.split"),
        # no split is taken where each part has a path of its own, and all of train_data_path is for training
        say(("split", lambda split: None)),
    ),
    Row(
        "samples",
        _samples,
        say("GPTDataset.num_samples"),
        say("GPTDataset.num_samples"),
        say("data.num_train_samples"),
        Fixed(_samples, "steps x global batch"),
    ),
    Row(
        "order of samples",
        always("as GPTDataset has them"),
        Fixed("as GPTDataset has them", "utils.dataset.micro_batches"),
        say(("TrainingArguments.train_sampling_strategy", lambda order: "sequential")),
        Fixed("as GPTDataset has them", "its sampler of type single"),
        # the preset says cyclic, which shuffles them once more
        say(("dataloader_type", lambda order: "single")),
    ),
    Row(
        "tokenizer",
        always("the data's own ids"),
        Fixed("the data's own ids", "the data are encoded before a training starts"),
        Fixed("the data's own ids", "as mega"),
        Fixed("the data's own ids", "train_nemo gives it a null tokenizer of the model's vocabulary"),
        say(("tokenizer_model", lambda ids: None)),
    ),
    Row(
        "end of document masked in the loss",
        always(False),
        say("GPTDatasetConfig.eod_mask_loss"),
        say("GPTDatasetConfig.eod_mask_loss"),
        say("data.eod_mask_loss"),
        say("eod_mask_loss"),
    ),
    Row(
        "positions start again at a document",
        always(False),
        say("GPTDatasetConfig.reset_position_ids"),
        say("GPTDatasetConfig.reset_position_ids"),
        say("data.reset_position_ids"),
        say("reset_position_ids"),
    ),
    Row(
        "attention ends at a document",
        always(False),
        say("GPTDatasetConfig.reset_attention_mask"),
        say("GPTDatasetConfig.reset_attention_mask"),
        say("data.reset_attention_mask"),
        say("reset_attention_mask"),
    ),
    Row(
        "mask made with the data",
        always(False),
        say("GPTDatasetConfig.create_attention_mask"),
        say("GPTDatasetConfig.create_attention_mask"),
        # where TransformerEngine is missing NeMo makes one all the same
        say("data.create_attention_mask"),
        say("create_attention_mask_in_dataloader"),
    ),
    Row(
        "loader workers of a rank",
        lambda config, spec: 0 if config.platform == "cpu" else 2,
        say("DataLoader.num_workers"),
        say("TrainingArguments.dataloader_num_workers"),
        say("data.num_workers", ("data.persistent_workers", lambda workers: workers > 0)),
        say("num_workers"),
        "dataloader_workers",
    ),
)

_OFF = (
    _off(
        "checkpoints",
        say("trainer.enable_checkpointing", "trainer.strategy.ckpt_async_save", ("log.ckpt", lambda on: None)),
        say(
            ("save", lambda on: None),
            # `save: null` does not turn it off: Primus puts a folder of its own in its place
            ("disable_last_saving", _not),
            ("save_interval", lambda on: _OFF_THE_END),
        ),
        say(("TrainingArguments.save_strategy.value", lambda on: "no")),
    ),
    _off(
        "going on from a checkpoint",
        say(("resume", lambda on: None)),
        say(("load", lambda on: None), "finetune", "auto_continue_train"),
    ),
    _off(
        "validation",
        say(
            ("trainer.limit_val_batches", int),
            ("trainer.limit_test_batches", int),
            ("trainer.num_sanity_val_steps", int),
        ),
        say(("eval_iters", int), ("eval_interval", lambda on: _OFF_THE_END)),
        say(("TrainingArguments.eval_strategy.value", lambda on: "no")),
    ),
    _off(
        "loggers beside the log",
        say("trainer.logger", ("log.tensorboard", lambda on: None), ("log.wandb", lambda on: None)),
        say(("disable_tensorboard", _not), ("disable_wandb", _not), ("disable_mlflow", _not)),
        say(("TrainingArguments.report_to", lambda on: [])),
    ),
    Row(
        "steps between lines of the log",
        always(1),
        Fixed(1, "the recorder prints each step"),
        say(("TrainingArguments.logging_strategy.value", lambda steps: "no")),
        say("trainer.log_every_n_steps"),
        # at INFO the iteration line of newer releases does not come out
        say("log_interval", ("log_throughput", bool), ("stderr_sink_level", lambda steps: "DEBUG")),
    ),
    _off("profile", Fixed(False, "no callback for it is given"), say("profile")),
)

ROWS: tuple[Row, ...] = (*_BATCH, *_OPTIMIZER, *_COMMUNICATION, *_DATA, *_OFF)
"""In the order of the table; a key stands before the keys below it."""
