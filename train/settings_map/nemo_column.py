"""The column of NeMo in the settings map: dotted paths in a recipe of nemo_toolkit 2.3 (train/nemo/recipe.py)."""

from __future__ import annotations

from collections.abc import Mapping

from train.settings_map.row import (
    RECORDER_PROFILES,
    Fixed,
    Override,
    asked,
    first_rate,
    has_8_bits,
    has_rope_scaling,
    is_delayed,
    is_native,
    is_profiled,
    left,
    megatron_experts,
    megatron_provider,
    override,
    profiled,
    recomputation,
    scaling,
)

COLUMN: Mapping[str, Override | Fixed] = {
    # batch
    "micro batch": override("data.micro_batch_size"),
    "gradient accumulation": Fixed(asked("gradient_accumulation"), "global batch / (micro batch x DP)"),
    "global batch": override("data.global_batch_size"),
    "sequence length (data)": override("data.seq_length"),
    "sequence length (model)": override("model.config.seq_length"),
    "steps": override("trainer.max_steps"),
    # optimizer and schedule
    "optimizer": override("optim.config.optimizer"),
    "precision of optimizer states": Fixed(
        "fp32", "its recipes have no precision-aware optimizer; another value is refused"
    ),
    "learning rate": override("optim.config.lr"),
    "schedule": Fixed("cosine", "CosineAnnealingScheduler of each recipe"),
    "steps of the schedule": Fixed(
        asked("train_iterations"), "its scheduler takes trainer.max_steps, whatever it is told"
    ),
    "least learning rate": override("optim.lr_scheduler.min_lr"),
    # with constant_steps NeMo uses another rule of warm-up
    "warm-up steps": override("optim.lr_scheduler.warmup_steps", to={"optim.lr_scheduler.constant_steps": 0}),
    "learning rate of step 1": Fixed(first_rate, "NeMo's own rule: LR n / (W + 1) at step n"),
    "weight decay, start to end": override("optim.config.weight_decay"),
    "Adam beta 1": override("optim.config.adam_beta1"),
    "Adam beta 2": override("optim.config.adam_beta2"),
    "Adam epsilon": override("optim.config.adam_eps"),
    # trainer.gradient_clip_val has to stay unset: NeMo's precision plugin refuses it
    "gradient clipping": override("optim.config.clip_grad"),
    "loss reduction": override(to={"model.config.calculate_per_token_loss": False}),
    # communication
    "distributed optimizer": override(
        "trainer.strategy.ddp.use_distributed_optimizer", "optim.config.use_distributed_optimizer"
    ),
    # the plugin's value is copied over the one of DDP
    "gradients reduced in fp32": override(
        "trainer.plugins.grad_reduce_in_fp32", "trainer.strategy.ddp.grad_reduce_in_fp32"
    ),
    "overlap of gradient reduction": override("trainer.strategy.ddp.overlap_grad_reduce"),
    "overlap of parameter gathering": override("trainer.strategy.ddp.overlap_param_gather"),
    "average in the collective": override("trainer.strategy.ddp.average_in_collective"),
    "search for NaN in gradients": override("trainer.strategy.ddp.check_for_nan_in_grad"),
    # data and their order
    "seed of weights": Fixed(asked("seed"), "NeMo 2.3 has 1234 in its code; train_nemo puts SEED in its place"),
    "seed of the order of samples": override("data.seed"),
    "data set": override(("data.paths", lambda prefix: [prefix])),
    "split": override("data.split"),
    "samples": override("data.num_train_samples"),
    "order of samples": Fixed("as GPTDataset has them", "its sampler of type single"),
    "tokenizer": Fixed("the data's own ids", "train_nemo gives it a null tokenizer of the model's vocabulary"),
    "end of document masked in the loss": override("data.eod_mask_loss"),
    "positions start again at a document": override("data.reset_position_ids"),
    "attention ends at a document": override("data.reset_attention_mask"),
    # where TransformerEngine is missing NeMo makes one all the same
    "mask made with the data": override("data.create_attention_mask"),
    "loader workers of a rank": override("data.num_workers", ("data.persistent_workers", lambda workers: workers > 0)),
    # what is switched off, logs, profile
    "checkpoints": override("trainer.enable_checkpointing", "trainer.strategy.ckpt_async_save", to={"log.ckpt": None}),
    "going on from a checkpoint": override(to={"resume": None}),
    "validation": override(
        ("trainer.limit_val_batches", int),
        ("trainer.limit_test_batches", int),
        ("trainer.num_sanity_val_steps", int),
    ),
    "loggers beside the log": override("trainer.logger", to={"log.tensorboard": None, "log.wandb": None}),
    "steps between lines of the log": override("trainer.log_every_n_steps"),
    "profile": Fixed(is_profiled, RECORDER_PROFILES),
    "profiled steps": Fixed(profiled, "as above"),
    # shape and initial weights
    **megatron_provider("model.config."),
    "vocabulary": override("model.config.vocab_size"),
    **dict.fromkeys(
        ("experts of a layer", *megatron_experts("")), Fixed(None, "this version has no recipe of a mixture of experts")
    ),
    "rope scaling of Llama 3.1": Fixed(
        has_rope_scaling, "Llama31Config applies it always, the other models' classes never"
    ),
    "rope scaling: factor": override("model.config.scale_factor", when=has_rope_scaling),
    "rope scaling: low frequency factor": override("model.config.low_freq_factor", when=has_rope_scaling),
    "rope scaling: high frequency factor": override("model.config.high_freq_factor", when=has_rope_scaling),
    "rope scaling: original length": override("model.config.old_context_len", when=has_rope_scaling),
    "sliding window": override(("model.config.window_size", left)),
    "initial weights": Fixed(
        asked("init"), "equal: copied into the built model, which is megatron-core's; native: NeMo's own"
    ),
    "output projections drawn smaller, by 1/sqrt(2 layers)": Fixed(is_native, "as mega"),
    # parallelism and precision
    "TP": override("trainer.strategy.tensor_model_parallel_size"),
    "PP": override("trainer.strategy.pipeline_model_parallel_size"),
    "virtual pipeline stages": override("trainer.strategy.virtual_pipeline_model_parallel_size"),
    "CP": override("trainer.strategy.context_parallel_size"),
    "DP": Fixed(asked("data_parallel_size"), "follows from GPUs / (TP PP CP)"),
    "sequence parallel": override("trainer.strategy.sequence_parallel"),
    # the name from which train_nemo makes the plugin, which sets every dtype of model, optimizer and DDP
    "precision": override("trainer.plugins"),
    "fp8 format": override("trainer.plugins.fp8"),
    "fp8 recipe": override(("trainer.plugins.fp8_recipe", scaling), when=has_8_bits),
    "fp8: steps of the largest value kept": override("trainer.plugins.fp8_amax_history_len", when=is_delayed),
    "fp8: which of them counts": override("trainer.plugins.fp8_amax_compute_algo", when=is_delayed),
    "fp4 format": Fixed(None, "NeMo 2.3 has no fp4; FP8_RECIPE=nvfp4 is refused"),
    "fp4 recipe": Fixed(asked("fp8_recipe"), "as above"),
    "parameters gathered in fp8": override("trainer.plugins.fp8_param_gather"),
    "recompute": override(*recomputation("model.config.")),
    # fused operations
    "float32 products": Fixed("highest", "as mega"),
    "Primus Turbo": Fixed(False, "as mega"),
    "CUDA graphs": override("model.config.enable_cuda_graph"),
}
"""Entries by the name of the row."""
