"""The column of torchtitan in the settings map: keys of its Trainer.Config (0.3.0), and others.

train/titan/recipe.py names the others and sets all; train/titan/resolved.py compares what was built with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from train.settings_map.row import (
    OFF_THE_END,
    RECORDER_PROFILES,
    Fixed,
    Override,
    asked,
    first_rate,
    has_rope_scaling,
    is_native,
    of_experts,
    on_gpu,
    overlaps,
    override,
    profiled,
    unexceeded_window,
)
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_AS_MEGA = "utils.dataset.gpt_dataset builds the data set of mega"
_LOADER = "the loader of mega, as dataloader"
_RULE = "WarmupCosine of train/common/adamw.py, as lr_scheduler"
_DERIVED = "global batch / (micro batch x DP)"
_ONE_WAY = "this version runs torchtitan's FSDP2 only; settings that want another are refused"
_NO_FP8 = "this version asks for none of its converters; PRECISION=fp8 is refused"
_BOTH_HAVE, _NEITHER_HAS = "both model classes have it", "neither model class has it"
_COMPILED = "torch.compile of the layers, on a GPU"
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def _is_plain_rope(config: RunConfig, spec: ModelSpec) -> bool:
    return spec.rope_scaling is None


def _is_dense(config: RunConfig, spec: ModelSpec) -> bool:
    return not spec.num_experts


def _has_plain_heads(config: RunConfig, spec: ModelSpec) -> bool:
    return not spec.query_key_norm


def _rope_scaling(name: str) -> Override:
    return override(f"RoPE.{name}", when=has_rope_scaling)


_MODEL = "model_spec.model."


COLUMN: Mapping[str, Override | Fixed] = {
    # batch, optimizer, communication
    "micro batch": override("training.local_batch_size"),
    "gradient accumulation": Fixed(asked("gradient_accumulation"), _DERIVED),
    "global batch": override("training.global_batch_size"),
    "sequence length (data)": override("training.seq_len"),
    "sequence length (model)": Fixed(asked("sequence_length"), "training.seq_len sets it"),
    "steps": override("training.steps"),
    "optimizer": override(to={"optimizer.implementation": "fused"}),
    "precision of optimizer states": Fixed("fp32", "those of training.dtype; another value is refused"),
    "learning rate": override("adamw.lr"),
    "schedule": Fixed("cosine", _RULE),
    "steps of the schedule": override("lr_scheduler.total_steps"),
    "least learning rate": Fixed(asked("min_learning_rate"), "lr_scheduler.min_lr_factor x learning rate"),
    "warm-up steps": override("lr_scheduler.warmup_steps"),
    "learning rate of step 1": Fixed(first_rate, f"{_RULE}: LR n / (W + 1) at step n"),
    "weight decay, start to end": override("adamw.weight_decay"),
    "Adam beta 1": override("adamw.beta1"),
    "Adam beta 2": override("adamw.beta2"),
    "Adam epsilon": override("adamw.eps"),
    "gradient clipping": override("training.max_norm"),
    "loss reduction": Fixed("mean over the step's tokens", "torchtitan divides by their number over all ranks"),
    "distributed optimizer": Fixed(
        True,
        "its FSDP2 shards weights, gradients and states, on one rank as well",
    ),
    "gradients reduced in fp32": override(to={"training.mixed_precision_reduce": "float32"}),
    "overlap of gradient reduction": Fixed(overlaps, "FSDP2 reduces a layer while the layer before it computes"),
    "overlap of parameter gathering": Fixed(overlaps, "FSDP2 gathers the next layer's weights ahead of its use"),
    "average in the collective": Fixed(False, "it adds up: the loss is divided by the tokens of all ranks before"),
    "search for NaN in gradients": Fixed(False, "the recorder sees a loss or norm that is not finite"),
    # data and what is switched off
    "seed of weights": override("debug.seed"),
    "seed of the order of samples": Fixed(asked("seed"), _AS_MEGA),
    "data set": Fixed(lambda config, spec: f"DATASET={config.dataset}", _AS_MEGA),
    "split": Fixed("100,0,0", _AS_MEGA),
    "samples": Fixed(asked("training_samples"), _AS_MEGA),
    "order of samples": Fixed("as GPTDataset has them", _LOADER),
    "tokenizer": Fixed("the data's own ids", "tokenizer builds none"),
    "end of document masked in the loss": Fixed(False, _AS_MEGA),
    "positions start again at a document": Fixed(False, _AS_MEGA),
    "attention ends at a document": Fixed(False, "torch's causal attention takes the place of torchtitan's"),
    "mask made with the data": Fixed(False, _AS_MEGA),
    "loader workers of a rank": Fixed(lambda config, spec: 0 if config.platform == "cpu" else 2, _LOADER),
    "checkpoints": override("checkpoint.enable"),
    "going on from a checkpoint": Fixed(False, "checkpoint.enable is off"),
    "validation": override("validator.enable"),
    "loggers beside the log": override("metrics.enable_tensorboard", "metrics.enable_wandb"),
    # its line of the log gathers the loss over ranks; it prints that of step 1 always
    "steps between lines of the log": override(to={"metrics.log_freq": OFF_THE_END}),
    # its own profiler stays off: the recorder profiles, as in every framework here
    "profile": override(to={"profiler.enable_profiling": False, "profiler.enable_memory_snapshot": False}),
    "profiled steps": Fixed(profiled, RECORDER_PROFILES),
    # shape and initial weights
    "layers": override("layers.n_layers"),
    "hidden size": override(
        "layers.dim",
        *(f"{_MODEL}{name}" for name in ("dim", "tok_embeddings.embedding_dim", "lm_head.in_features")),
        f"{_MODEL}norm.normalized_shape",
    ),
    "feed-forward size": override("layers.hidden_dim", when=_is_dense),
    "attention heads": override("layers.n_heads"),
    "key/value groups": override("layers.n_kv_heads"),
    "channels of a head": override("layers.head_dim", when=_is_plain_rope),
    "vocabulary": override(
        *(f"{_MODEL}{name}" for name in ("vocab_size", "tok_embeddings.num_embeddings", "lm_head.out_features"))
    ),
    "vocabulary padded to a multiple of": Fixed(1, "nothing pads it"),
    "norm": Fixed("RMSNorm", _BOTH_HAVE),
    "norm epsilon": override("RMSNorm.eps"),
    "SwiGLU": Fixed(True, _BOTH_HAVE),
    "experts of a layer": of_experts("layers.", "num_experts"),
    "experts of a token": of_experts("layers.", "top_k"),
    "weights of a token's experts": of_experts(
        "TokenChoiceTopKRouter.", to={"score_func": "softmax", "route_norm": True, "route_scale": 1.0}
    ),
    "feed-forward size of an expert": of_experts("layers.", "moe_hidden_dim"),
    "shared expert": of_experts("MoE.", to={"shared_experts": None}),
    "auxiliary loss of the router": Fixed(0.0, "torchtitan has none"),
    "bias that balances the experts": of_experts("MoE.", to={"load_balance_coeff": None}),
    "tokens dropped": Fixed(False, "torchtitan drops none"),
    "forced balancing": of_experts("debug.", "moe_force_load_balance"),
    "precision of the router": Fixed(None, "that of the weights, its scores in fp32"),
    "EP": of_experts("parallelism.", "expert_parallel_degree"),
    "exchange of tokens": of_experts("layers.", to={"moe_comm_backend": "standard"}),
    "products of experts grouped": Fixed(
        lambda config, spec: config.precision != "fp32",
        "its own experts, which multiply in bf16; in fp32 one after the other",
    ),
    "permutation fused": Fixed(False, "torch's operations"),
    "bias of linear layers": Fixed(False, _NEITHER_HAS),
    "QKV bias": override("QKVLinear.wq.bias", "QKVLinear.wkv.bias"),
    "norm of queries and keys": override(to={"GQAttention.qk_norm": None}, when=_has_plain_heads),
    "embedding shared with the output layer": Fixed(False, "a model that shares them is refused"),
    "attention dropout": Fixed(0.0, _NEITHER_HAS),
    "hidden dropout": Fixed(0.0, _NEITHER_HAS),
    "position embedding": Fixed("rope", _BOTH_HAVE),
    "rope base": override("RoPE.theta"),
    "rope over a part of a head's channels": Fixed(1.0, _BOTH_HAVE),
    "rope scaling of Llama 3.1": override(("RoPE.scaling", lambda scales: "llama" if scales else "none")),
    "rope scaling: factor": _rope_scaling("scaling_factor"),
    "rope scaling: low frequency factor": _rope_scaling("low_freq_factor"),
    "rope scaling: high frequency factor": _rope_scaling("high_freq_factor"),
    "rope scaling: original length": _rope_scaling("original_max_position_embeddings"),
    "sliding window": Fixed(unexceeded_window, "no key: a sequence that is longer than the window is refused"),
    "std of initial weights": Fixed(asked("init_std"), "equal: that of mega; native: each kind of weight has its own"),
    "initial weights": Fixed(asked("init"), "equal: copied into torchtitan's model; native: torchtitan's own"),
    "output projections drawn smaller, by 1/sqrt(2 layers)": Fixed(
        is_native, "its own rule, by the number of the layer; INIT=equal replaces its weights"
    ),
    # parallelism, precision and fused operations
    "TP": override("parallelism.tensor_parallel_degree"),
    "PP": override("parallelism.pipeline_parallel_degree"),
    "virtual pipeline stages": Fixed(None, _ONE_WAY),
    "CP": override("parallelism.context_parallel_degree"),
    "DP": override("parallelism.data_parallel_shard_degree", to={"parallelism.data_parallel_replicate_degree": 1}),
    "sequence parallel": Fixed(False, _ONE_WAY),
    "precision": override(
        ("training.mixed_precision_param", lambda name: _DTYPES.get(name, name)), to={"training.dtype": "float32"}
    ),
    "fp8 format": Fixed(None, _NO_FP8),
    "fp8 recipe": Fixed(asked("fp8_recipe"), _NO_FP8),
    "fp8: steps of the largest value kept": Fixed(1024, _NO_FP8),
    "fp8: which of them counts": Fixed("max", _NO_FP8),
    "fp4 format": Fixed(None, _NO_FP8),
    "fp4 recipe": Fixed(asked("fp8_recipe"), _NO_FP8),
    "parameters gathered in fp8": Fixed(False, _NO_FP8),
    "residual stream in fp32": Fixed(False, "FSDP2 casts all weights, also on one rank"),
    "attention softmax in fp32": Fixed(True, "torch's attention adds up in fp32"),
    "recompute": override("activation_checkpoint"),  # of products it keeps every second result, mega and hf keep each
    "bias activation fusion": override("compile.enable", to={"compile.components": ["model", "loss"]}),
    "bias dropout fusion": Fixed(False, "it has no dropout"),
    "masked softmax fusion": Fixed(False, "torch's attention"),
    "persist layer norm": Fixed(False, _COMPILED),
    "apply rope fusion": Fixed(
        lambda config, spec: on_gpu(config, spec) and spec.rope_scaling is None,
        f"{_COMPILED}; llama3's class turns complex numbers, which are not fused",
    ),
    "cross entropy loss fusion": Fixed(on_gpu, "torch.compile of the loss, on a GPU, in every precision"),
    "cross entropy fusion by": Fixed("torch.compile", "as above"),
    "gradient accumulation fusion": Fixed(False, "autograd's gradients"),
    "attention backend": Fixed("auto", "torch's scaled-dot-product attention: cuDNN's kernel, then flash, then math"),
    "float32 products": Fixed("highest", "as mega"),
    "Primus Turbo": Fixed(False, "as mega"),
    "CUDA graphs": override(("training.disable_cuda_graphs", lambda on: not on)),
}
"""Entries by the name of the row."""
