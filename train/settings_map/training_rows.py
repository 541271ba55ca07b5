"""The settings map, part 1: batch, optimizer, schedule, communication."""

from __future__ import annotations

from train.settings_map.row import Fixed, Row, always, asked, say
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_LOOP = "train_mega's own loop"
_NO_BUCKETS = "DistributedDataParallel of PyTorch has no such step"


def overlaps(config: RunConfig, spec: ModelSpec) -> bool:
    """Whether communication overlaps with computation: it has a point only between GPUs."""
    return config.platform != "cpu" and config.data_parallel_size > 1


def _first_warmup_rate(config: RunConfig, spec: ModelSpec) -> float:
    """Return LR / (W + 1): where Megatron's warm-up must start to have NeMo's rate at every step."""
    return config.learning_rate / (config.warmup_iterations + 1)


_BATCH = (
    Row(
        "micro batch",
        asked("micro_batch_size"),
        Fixed(
            asked("micro_batch_size"), "utils.dataset.gpt_dataset.micro_batches gives the loader its samples by number"
        ),
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
        say("accumulate_allreduce_grads_in_fp32", ("grad_reduce_in_bf16", lambda on: not on)),
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

ROWS: tuple[Row, ...] = (*_BATCH, *_OPTIMIZER, *_COMMUNICATION)
"""In the order of the table; a key stands before the keys below it."""
