"""The items of a certificate that are read from a result, by key, each with what it is called."""

from __future__ import annotations

MODEL = {
    "parameter_count": "number of parameters",
    "vocab_size": "vocabulary",
    "num_layers": "layers",
    "hidden_size": "hidden size",
    "ffn_hidden_size": "feed-forward size",
    "num_attention_heads": "attention heads",
    "num_query_groups": "query groups",
    "norm_eps": "norm epsilon",
    "qkv_bias": "QKV bias",
    "rope_base": "rotary base",
    "rope_scaling": "rotary scaling",
    "sliding_window": "attention window",
    "init_std": "standard deviation of initial weights",
}
WORK = {
    "precision": "precision",
    "sequence_length": "sequence length",
    "global_batch_size": "global batch",
    "max_steps": "number of steps",
    "lr": "learning rate",
    "min_lr": "last learning rate",
    "warmup_iters": "warm-up steps",
    "weight_decay": "weight decay",
    "beta1": "Adam beta 1",
    "beta2": "Adam beta 2",
    "adam_eps": "Adam epsilon",
    "clip_grad": "gradient clipping",
    "parameters_without_weight_decay": "parameters without weight decay",
    "seed": "seed",
}
LAYOUT = {
    "num_gpus": "number of GPUs",
    "tp": "tensor parallel size",
    "pp": "pipeline parallel size",
    "cp": "context parallel size",
    "dp": "data parallel size",
    "micro_batch_size": "micro batch",
    "gradient_accumulation": "gradient accumulation",
}
"""Part of the work in the track `equal`; in `best` each side has its own."""
MEANS = {
    "init": "source of initial weights",
    "optimizer": "optimizer class",
    "distributed_optimizer": "distributed optimizer",
    "parameter_dtype": "parameter type",
    "gradient_reduce_dtype": "type of reduced gradients",
    "overlap_grad_reduce": "overlap of gradient reduction",
    "overlap_param_gather": "overlap of parameter gather",
    "attention_backend": "attention",
    "layer_implementation": "layers by",
    "fused_ops": "fused operations",
    "dataloader_workers": "loader workers",
}
"""How a framework does the work: may differ between frameworks; inside one, `equal` wants it the same."""
DATA = {
    "dataset_bin_sha256": "data",
    "dataset_idx_sha256": "index of the data",
    "token_stream_sha256": "tokens of the first batches in order",
    "tokenizer_sha256": "tokenizer",
    "initial_weights_sha256": "initial weights",
}
