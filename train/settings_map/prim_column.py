"""The column of Primus in the settings map: trainer keys of Primus v25.10 to v26.5 (train/prim/yaml_config.py)."""

from __future__ import annotations

from collections.abc import Mapping
from operator import not_

from train.settings_map.row import (
    OFF_THE_END,
    Fixed,
    Override,
    asked,
    has_4_bits,
    has_8_bits,
    has_rope_scaling,
    is_delayed,
    is_profiled,
    megatron_experts,
    megatron_model,
    of_experts,
    override,
    recomputation,
    rope_scaling,
    scaling,
    unexceeded_window,
)

COLUMN: Mapping[str, Override | Fixed] = {
    # batch
    "micro batch": override("micro_batch_size"),
    "gradient accumulation": Fixed(asked("gradient_accumulation"), "global batch / (micro batch x DP)"),
    "global batch": override("global_batch_size"),
    "sequence length (data)": override("seq_length"),
    "sequence length (model)": override("max_position_embeddings"),
    "steps": override("train_iters"),
    # optimizer and schedule
    "optimizer": override("optimizer"),
    # AMD's files for Qwen3 30B-A3B on MI325X and MI355X have bf16 here; OPTIMIZER_STATE=bf16 is refused
    "precision of optimizer states": override(
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "main_grads_dtype",
        "main_params_dtype",
        to={"use_precision_aware_optimizer": False},
    ),
    "learning rate": override("lr"),
    "schedule": override("lr_decay_style"),
    "steps of the schedule": override("lr_decay_iters"),
    "least learning rate": override("min_lr"),
    "warm-up steps": override("lr_warmup_iters"),
    "learning rate of step 1": override("lr_warmup_init"),
    # with a constant style Megatron refuses a start and an end of its own
    "weight decay, start to end": override(
        "weight_decay", to={"weight_decay_incr_style": "constant", "start_weight_decay": None, "end_weight_decay": None}
    ),
    "Adam beta 1": override("adam_beta1"),
    "Adam beta 2": override("adam_beta2"),
    "Adam epsilon": override("adam_eps"),
    "gradient clipping": override("clip_grad"),
    "loss reduction": override(to={"calculate_per_token_loss": False}),
    # communication
    "distributed optimizer": override("use_distributed_optimizer"),
    "gradients reduced in fp32": override("accumulate_allreduce_grads_in_fp32", ("grad_reduce_in_bf16", not_)),
    "overlap of gradient reduction": override("overlap_grad_reduce"),
    "overlap of parameter gathering": override("overlap_param_gather"),
    "average in the collective": override("ddp_average_in_collective"),
    "search for NaN in gradients": override("check_for_nan_in_loss_and_grad"),
    # data and their order
    "seed of weights": override("seed"),
    "seed of the order of samples": override("seed"),
    "data set": override(
        "train_data_path", to={"data_path": None, "valid_data_path": None, "test_data_path": None, "mock_data": False}
    ),
    # no split applies where each part has a path of its own; all of train_data_path is for training
    "split": override(to={"split": None}),
    "samples": Fixed(asked("training_samples"), "steps x global batch"),
    # the preset has cyclic, which shuffles them once more
    "order of samples": override(to={"dataloader_type": "single"}),
    "tokenizer": override(to={"tokenizer_model": None}),
    "end of document masked in the loss": override("eod_mask_loss"),
    "positions start again at a document": override("reset_position_ids"),
    "attention ends at a document": override("reset_attention_mask"),
    "mask made with the data": override("create_attention_mask_in_dataloader"),
    "loader workers of a rank": override("num_workers"),
    # what is switched off, logs, profile
    "checkpoints": override(
        ("save", lambda on: None),
        # `save: null` does not turn it off: Primus substitutes a folder of its own
        ("disable_last_saving", not_),
        ("save_interval", lambda on: OFF_THE_END),
    ),
    "going on from a checkpoint": override("finetune", "auto_continue_train", to={"load": None}),
    "validation": override(("eval_iters", int), to={"eval_interval": OFF_THE_END}),
    "loggers beside the log": override(
        ("disable_tensorboard", not_), ("disable_wandb", not_), ("disable_mlflow", not_)
    ),
    # at INFO newer releases do not print the iteration line
    "steps between lines of the log": override(
        "log_interval", ("log_throughput", bool), to={"stderr_sink_level": "DEBUG"}
    ),
    "profile": override("profile"),
    "profiled steps": override(
        ("use_pytorch_profiler", lambda profile: True),
        ("profile_step_start", lambda profile: profile.first),
        ("profile_step_end", lambda profile: profile.last + 1),  # the first that is not profiled
        ("profile_ranks", lambda profile: list(profile.ranks)),
        ("torch_profiler_record_shapes", lambda profile: True),
        ("torch_profiler_with_stack", lambda profile: False),  # as the recorder; stacks slow a step down
        ("torch_profiler_use_gzip", lambda profile: True),
        when=is_profiled,
    ),
    # shape and initial weights
    **megatron_model(""),
    "key/value groups": override("num_query_groups", to={"group_query_attention": True}),
    # the null tokenizer adds its end-of-document token to this number
    "vocabulary": override(("vocab_size", lambda size: size - 1), to={"tokenizer_type": "NullTokenizer"}),
    "norm epsilon": override("norm_epsilon"),
    "SwiGLU": override("swiglu"),
    "experts of a layer": of_experts("", "num_experts"),
    **megatron_experts(""),
    # `uniform` is Megatron's own, random logits. From v26.5 on the default is `even`, tokens to the experts in turn;
    # up to v26.3 there is only this, with the weights of other experts
    "forced balancing": of_experts(
        "",
        "moe_router_force_load_balancing",
        ("moe_router_force_load_balancing_type", lambda is_forced: "uniform" if is_forced else None),
    ),
    # AMD's YAML has its own kernels for both, and on MI325X and MI355X those before TransformerEngine's
    "exchange of tokens": of_experts(
        "", "moe_token_dispatcher_type", to={"use_turbo_deepep": False, "turbo_sync_free_moe_stage": 0}
    ),
    "products of experts grouped": of_experts(
        "", "moe_grouped_gemm", to={"moe_use_legacy_grouped_gemm": False, "use_turbo_grouped_gemm": False}
    ),
    "embedding shared with the output layer": override(("untie_embeddings_and_output_weights", not_)),
    "rope base": override(("rotary_base", int)),
    "rope scaling of Llama 3.1": override("use_rope_scaling"),
    "rope scaling: factor": override("rope_scaling_factor", when=has_rope_scaling),
    "rope scaling: low frequency factor": Fixed(
        rope_scaling("low_frequency_factor"), "a constant of its megatron-core: 1"
    ),
    "rope scaling: high frequency factor": Fixed(
        rope_scaling("high_frequency_factor"), "a constant of its megatron-core: 4"
    ),
    "rope scaling: original length": Fixed(
        rope_scaling("original_max_position_embeddings"), "a constant of its megatron-core: 8192"
    ),
    "sliding window": Fixed(
        unexceeded_window,
        "no key in any release: the same work only where the sequence is no longer than the window",
    ),
    "initial weights": Fixed(
        lambda config, spec: config.init if config.platform == "cpu" else "native",
        "on a GPU Primus draws its own; on a CPU it loads ours as a checkpoint (train/prim/yaml_config.py)",
    ),
    "output projections drawn smaller, by 1/sqrt(2 layers)": Fixed(
        True, "megatron-core's own rule, and no key that turns it off"
    ),
    # parallelism and precision
    "TP": override("tensor_model_parallel_size"),
    "PP": override("pipeline_model_parallel_size"),
    "virtual pipeline stages": override("num_virtual_stages_per_pipeline_rank"),
    "CP": override("context_parallel_size"),
    "DP": Fixed(asked("data_parallel_size"), "follows from GPUs / (TP PP CP)"),
    "sequence parallel": override("sequence_parallel"),
    "precision": override(("bf16", lambda name: name != "fp32"), to={"fp16": False}),
    "fp8 format": override("fp8"),
    "fp8 recipe": override(("fp8_recipe", scaling), when=has_8_bits),
    "fp8: steps of the largest value kept": override("fp8_amax_history_len", when=is_delayed),
    "fp8: which of them counts": override("fp8_amax_compute_algo", when=is_delayed),
    "fp4 format": override("fp4", when=has_4_bits),
    "fp4 recipe": override("fp4_recipe", when=has_4_bits),
    "parameters gathered in fp8": override("fp8_param_gather"),
    "recompute": override(
        *recomputation(""),
        ("recompute_activations", lambda kind: kind == "selective"),
    ),
    # fused operations
    "bias activation fusion": override("bias_swiglu_fusion"),
    "persist layer norm": override(("no_persist_layer_norm", not_)),
    "gradient accumulation fusion": Fixed(False, "off in AMD's configurations: it needs Apex's extension"),
    "float32 products": Fixed("highest", "nothing in Primus turns TF32 on, nor does AMD's image"),
    "Primus Turbo": override("enable_primus_turbo", "use_turbo_attention", "use_turbo_rms_norm"),
    "CUDA graphs": Fixed(False, "default of every release; its key changed its name"),
}
"""Entries by the name of the row."""
