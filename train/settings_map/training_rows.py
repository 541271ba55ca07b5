"""The settings map, part 1: batch, optimizer, schedule, communication."""

from __future__ import annotations

from train.settings_map.row import DDP, OPTIMIZER, Fixed, MapRow, always, asked, field, override
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_LOOP = "train_mega's own loop"


def overlaps(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether communication overlaps with computation, which helps only between GPUs."""
    return config.platform != "cpu" and config.data_parallel_size > 1


def _is_sharded(config: RunConfig, spec: ModelSpec) -> bool:
    return config.data_parallel_size > 1


def _first_warmup_rate(config: RunConfig, spec: ModelSpec) -> float:
    """Return LR / (W + 1), the start of Megatron's warm-up that gives NeMo's rate at every step."""
    return config.learning_rate / (config.warmup_iterations + 1)


_BATCH = (
    MapRow(
        "micro batch",
        asked("micro_batch_size"),
        Fixed(
            asked("micro_batch_size"), "utils.dataset.gpt_dataset.micro_batches gives the loader its samples by number"
        ),
        override("TrainingArguments.per_device_train_batch_size"),
        override("data.micro_batch_size"),
        override("micro_batch_size"),
        "micro_batch_size",
    ),
    MapRow(
        "gradient accumulation",
        asked("gradient_accumulation"),
        Fixed(asked("gradient_accumulation"), f"{_LOOP} hands it to megatron-core's schedule at each step"),
        override("TrainingArguments.gradient_accumulation_steps"),
        Fixed(asked("gradient_accumulation"), "global batch / (micro batch x DP)"),
        Fixed(asked("gradient_accumulation"), "global batch / (micro batch x DP)"),
        "gradient_accumulation",
    ),
    MapRow(
        "global batch",
        asked("global_batch_size"),
        Fixed(asked("global_batch_size"), "micro batch x DP x gradient accumulation"),
        Fixed(asked("global_batch_size"), "micro batch x ranks x gradient accumulation"),
        override("data.global_batch_size"),
        override("global_batch_size"),
        "global_batch_size",
    ),
    MapRow(
        "sequence length (data)",
        asked("sequence_length"),
        override("GPTDatasetConfig.sequence_length"),
        override("GPTDatasetConfig.sequence_length"),
        override("data.seq_length"),
        override("seq_length"),
        "sequence_length",
    ),
    MapRow(
        "sequence length (model)",
        asked("sequence_length"),
        override("GPTModel.max_sequence_length"),
        Fixed(asked("sequence_length"), "rotary angles are made for the positions of each batch"),
        override("model.config.seq_length"),
        override("max_position_embeddings"),
    ),
    MapRow(
        "steps",
        asked("train_iterations"),
        Fixed(asked("train_iterations"), _LOOP),
        override("TrainingArguments.max_steps"),
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
        hf=Fixed("adam", "FusedAdamW of train/common/adamw.py, as the Trainer's optimizer_cls_and_kwargs"),
    ),
    MapRow(
        "precision of optimizer states",
        asked("optimizer_state"),
        Fixed(asked("optimizer_state"), "state_dtype of FusedAdamW, train/common/adamw.py"),
        Fixed(asked("optimizer_state"), "state_dtype of FusedAdamW, train/common/adamw.py"),
        Fixed("fp32", "its recipes have no precision-aware optimizer; another value is refused"),
        Fixed("fp32", "this version does not set its precision-aware optimizer; another value is refused"),
        "optimizer_state",
    ),
    MapRow(
        "learning rate",
        asked("learning_rate"),
        override("OptimizerParamScheduler.max_lr", "OptimizerConfig.lr"),
        override("TrainingArguments.learning_rate"),
        override("optim.config.lr"),
        override("lr"),
        "lr",
    ),
    MapRow(
        "schedule",
        always("cosine"),
        override("OptimizerParamScheduler.lr_decay_style"),
        Fixed("cosine", "WarmupCosine of train/common/schedule.py in the Trainer's place"),
        Fixed("cosine", "CosineAnnealingScheduler of each recipe"),
        override("lr_decay_style"),
    ),
    MapRow(
        "steps of the schedule",
        asked("train_iterations"),
        override("OptimizerParamScheduler.lr_decay_steps"),
        override("WarmupCosine.train_iterations"),
        Fixed(asked("train_iterations"), "its scheduler takes trainer.max_steps, whatever it is told"),
        override("lr_decay_iters"),
    ),
    MapRow(
        "least learning rate",
        asked("min_learning_rate"),
        override("OptimizerParamScheduler.min_lr", "OptimizerConfig.min_lr"),
        Fixed(asked("min_learning_rate"), "WarmupCosine.floor x learning rate"),
        override("optim.lr_scheduler.min_lr"),
        override("min_lr"),
        "min_lr",
    ),
    MapRow(
        "warm-up steps",
        asked("warmup_iterations"),
        override("OptimizerParamScheduler.lr_warmup_steps"),
        override("WarmupCosine.warmup_iterations"),
        # with constant_steps NeMo uses another rule of warm-up
        override("optim.lr_scheduler.warmup_steps", ("optim.lr_scheduler.constant_steps", lambda steps: 0)),
        override("lr_warmup_iters"),
        "warmup_iters",
    ),
    MapRow(
        "learning rate of step 1",
        _first_warmup_rate,
        override("OptimizerParamScheduler.init_lr"),
        Fixed(_first_warmup_rate, "WarmupCosine: LR n / (W + 1) at step n"),
        Fixed(_first_warmup_rate, "NeMo's own rule: LR n / (W + 1) at step n"),
        override("lr_warmup_init"),
    ),
    MapRow(
        "weight decay, start to end",
        asked("weight_decay"),
        override("OptimizerParamScheduler.start_wd", "OptimizerParamScheduler.end_wd", "OptimizerConfig.weight_decay"),
        override("TrainingArguments.weight_decay"),
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
    field("Adam epsilon", asked("adam_epsilon"), OPTIMIZER, "adam_eps", "adam_eps", hf="adam_epsilon"),
    # trainer.gradient_clip_val has to stay unset: NeMo's precision plugin refuses it
    field("gradient clipping", asked("clip_grad"), OPTIMIZER, "clip_grad", "clip_grad", hf="max_grad_norm"),
    MapRow(
        "loss reduction",
        always("mean of a micro batch, then of micro batches"),
        Fixed("mean of a micro batch, then of micro batches", "loss_of in train_mega"),
        Fixed("mean over the step's tokens", "the Trainer divides by their number; the same while no token is masked"),
        override(("model.config.calculate_per_token_loss", lambda rule: False)),
        override(("calculate_per_token_loss", lambda rule: False)),
    ),
)

_COMMUNICATION = (
    MapRow(
        "distributed optimizer",
        always(True),
        override(
            "DistributedDataParallelConfig.use_distributed_optimizer", "OptimizerConfig.use_distributed_optimizer"
        ),
        Fixed(_is_sharded, "several ranks: FSDP2, as TrainingArguments.fsdp, shards weights, gradients and states"),
        override("trainer.strategy.ddp.use_distributed_optimizer", "optim.config.use_distributed_optimizer"),
        override("use_distributed_optimizer"),
        "distributed_optimizer",
    ),
    MapRow(
        "gradients reduced in fp32",
        lambda config, spec: config.gradient_dtype == "fp32",
        override("DistributedDataParallelConfig.grad_reduce_in_fp32"),
        Fixed(
            lambda config, spec: config.gradient_dtype == "fp32",
            "one rank: fp32 sums of train/hf/gradients.py; several: reduce_dtype of FSDP2",
        ),
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
        hf=Fixed(overlaps, "FSDP2 reduces a layer's gradients while the layer before it computes"),
    ),
    MapRow(
        "overlap of parameter gathering",
        overlaps,
        override("DistributedDataParallelConfig.overlap_param_gather", "OptimizerConfig.overlap_param_gather"),
        Fixed(overlaps, "set_modules_to_forward_prefetch of FSDP2: each layer gathers the next one's, once a step"),
        override("trainer.strategy.ddp.overlap_param_gather"),
        override("overlap_param_gather"),
        "overlap_param_gather",
    ),
    MapRow(
        "average in the collective",
        overlaps,
        override("DistributedDataParallelConfig.average_in_collective"),
        Fixed(overlaps, "FSDP2 averages so, except over gloo; one rank reduces nothing"),
        override("trainer.strategy.ddp.average_in_collective"),
        override("ddp_average_in_collective"),
        "fused_ops.average_in_collective",
    ),
    MapRow(
        "search for NaN in gradients",
        always(False),
        override("DistributedDataParallelConfig.check_for_nan_in_grad"),
        Fixed(False, "the recorder sees a loss or norm that is not finite at the end of the step"),
        override("trainer.strategy.ddp.check_for_nan_in_grad"),
        override("check_for_nan_in_loss_and_grad"),
    ),
)

ROWS: tuple[MapRow, ...] = (*_BATCH, *_OPTIMIZER, *_COMMUNICATION)
"""In the order of the table; a key comes before the keys below it."""
