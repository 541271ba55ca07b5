"""`resolved_config` of Megatron-core, read back from the built model, DDP, optimizer and schedule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from megatron.core import num_microbatches_calculator as calculator, parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import param_is_not_shared
from torch.utils.data import DataLoader

from train.common import kernels
from train.common.adamw import FusedAdamW
from train.common.built import head_norms, learned, one_of_all
from train.common.kernels import PRECISIONS, Facts, name_of
from train.mega.attention import SdpaCoreAttention
from train.settings_map.row import resolved_recipe
from utils.models import RopeScaling, without_absent_traits
from utils.settings.config import RunConfig
from utils.settings.keys import NO_RECIPE

FUSED_OPS = (
    "apply_rope_fusion",
    "persist_layer_norm",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "cross_entropy_loss_fusion",
    "masked_softmax_fusion",
    "gradient_accumulation_fusion",
)
HEAD_NORMS = ("q_layernorm", "k_layernorm")
RULE = {
    "moe_router_score_function": "softmax",
    "moe_router_pre_softmax": False,
    "moe_router_topk_scaling_factor": None,
    "moe_router_num_groups": None,
    "moe_router_enable_expert_bias": False,
    "moe_input_jitter_eps": None,
}
"""Settings of megatron-core that decide the experts of a token and their weights, as the models here have them."""


def read(
    config: RunConfig,
    loader: DataLoader[Any],
    model: DistributedDataParallel,
    optimizer: MegatronOptimizer,
    scheduler: OptimizerParamScheduler,
) -> Facts:
    """Return the `resolved_config` section; only values that no object holds come from `config` (batch and steps)."""
    batch = batch_facts(config.train_iterations, config.micro_batch_size, config.gradient_accumulation, loader)
    return batch | built_facts(model, optimizer, scheduler.max_lr, scheduler.min_lr, scheduler.lr_warmup_steps)


def batch_facts(steps: int, micro_batch: int, accumulation: int, loader: DataLoader[Any]) -> Facts:
    """Return the facts of batch, data and parallelism of a training by megatron-core."""
    samples: Any = loader.dataset
    return kernels.batch_facts(
        samples.config,
        steps=steps,
        micro_batch=micro_batch,
        accumulation=accumulation,
        ranks=torch.distributed.get_world_size(),
        replicas=parallel_state.get_data_parallel_world_size(),
        workers=loader.num_workers,
        tp=parallel_state.get_tensor_model_parallel_world_size(),
        pp=parallel_state.get_pipeline_model_parallel_world_size(),
        cp=parallel_state.get_context_parallel_world_size(),
        ep=parallel_state.get_expert_model_parallel_world_size(),
    )


def calculated_batch(steps: int, loader: DataLoader[Any]) -> Facts:
    """Return `batch_facts` of a framework that keeps its batch in megatron-core's calculator of micro batches."""
    return batch_facts(steps, calculator.get_micro_batch_size(), calculator.get_num_microbatches(), loader)


def built_facts(
    model: DistributedDataParallel, optimizer: MegatronOptimizer, peak: float, least: float, warmup: float
) -> Facts:
    """Return the facts of what megatron-core has built, also for NeMo and Bridge; `optimizer_facts` has the rates."""
    settings, gradients = model.ddp_config, model.buffers[0].grad_dtype
    facts = model_facts(model) | optimizer_facts(optimizer, peak, least, warmup)
    return facts | {
        "distributed_optimizer": settings.use_distributed_optimizer,
        "gradient_dtype": PRECISIONS[gradients],
        "gradient_reduce_dtype": name_of(gradients),
        "overlap_grad_reduce": settings.overlap_grad_reduce,
        "overlap_param_gather": settings.overlap_param_gather,
    }


def model_facts(model: DistributedDataParallel) -> Facts:
    """Return the facts of a built GPTModel, also of one that NeMo has built."""
    gpt = gpt_of(model)
    settings, layer = gpt.config, gpt.decoder.layers[0]
    attention, experts = layer.self_attention, getattr(layer.mlp, "experts", None)
    # TransformerEngine's linear layer has an empty tensor in the place of a missing bias
    bias = getattr(attention.linear_qkv, "bias", None)
    norms = head_norms(attention, HEAD_NORMS, attention.hidden_size_per_attention_head)
    tensor_parallel = parallel_state.get_tensor_model_parallel_world_size()
    base, scaling = _rope(gpt)
    recipe, dtype = resolved_recipe(settings), next(gpt.parameters()).dtype
    precision = "fp8"
    if recipe == NO_RECIPE:
        precision = "fp32" if dtype is torch.float32 else "bf16"
    if isinstance(attention.core_attention, SdpaCoreAttention):
        layers, backend = "megatron_core_local", _attention_backend(gpt)
        window = attention.core_attention.window_size
    else:
        layers, backend = "transformer_engine", f"transformer_engine:{settings.attention_backend.name}"
        window = settings.window_size
    fused_ops = {name: bool(getattr(settings, name)) for name in FUSED_OPS}
    fused_ops["average_in_collective"] = model.ddp_config.average_in_collective
    facts = {
        "precision": precision,
        "parameter_dtype": name_of(dtype),
        "parameter_count": _count_once(gpt.parameters()),
        "vocab_size": gpt.vocab_size,
        "num_layers": len(gpt.decoder.layers) * parallel_state.get_pipeline_model_parallel_world_size(),
        "hidden_size": settings.hidden_size,
        "ffn_hidden_size": _ffn(layer.mlp if experts is None else experts) * tensor_parallel,
        "num_attention_heads": attention.num_attention_heads_per_partition * tensor_parallel,
        "num_query_groups": attention.num_query_groups_per_partition * tensor_parallel,
        "fp8_recipe": recipe,
        "norm_eps": _norm_epsilon(layer),
        "qkv_bias": bias is not None and bias.numel() > 0,
        "rope_base": base,
        "rope_scaling": scaling,
        "sliding_window": None if window is None else window[0] + 1,
        "tie_word_embeddings": gpt.share_embeddings_and_output_weights,
        "query_key_norm": len(norms) == len(HEAD_NORMS),
        "attention_backend": backend,
        "layer_implementation": layers,
        "init_std": settings.init_method_std,
        "recompute": _recompute(gpt),
        "fused_ops": fused_ops,
    }
    if experts is not None:
        facts |= _routing(layer.mlp, dtype)
    return without_absent_traits(facts)


def _ffn(mlp: Any) -> int:
    """Return the width of an MLP or of one expert on this rank: `weight`, or in grouped products `weight0`."""
    experts = getattr(mlp, "local_experts", None)
    linear = experts[0].linear_fc2 if experts else mlp.linear_fc2
    # TransformerEngine's grouped products number the weights of a rank's experts
    weight = linear.weight0 if hasattr(linear, "weight0") else linear.weight
    return int(weight.shape[1])


def _routing(mlp: Any, dtype: torch.dtype) -> Facts:
    """Return what decides the experts of a token, from the router of a layer whose other weights have a dtype.

    An auxiliary loss is the sum of its coefficients, that of the z-loss included. A rule other than `learned` has the
    values of megatron-core that differ.
    """
    router = mlp.router
    settings = router.config
    others = {}
    for name, usual in RULE.items():
        value = getattr(settings, name)
        if value != usual:
            others[name] = value
    if router.routing_type == "sinkhorn":
        others["routing"] = router.routing_type
    # megatron-core has three kinds, of which each may be on
    losses = [router.get_aux_loss_coeff(kind) for kind in ("aux_loss", "seq_aux_loss", "global_aux_loss")]
    return {
        "num_experts": router.weight.shape[0],
        "experts_per_token": router.topk,
        "routing": "balanced" if settings.moe_router_force_load_balancing else learned(others),
        "router_dtype": {"fp32": "float32", "fp64": "float64"}.get(settings.moe_router_dtype, name_of(dtype)),
        "router_auxiliary_loss": math.fsum([*losses, settings.moe_z_loss_coeff or 0]),
        "shared_expert_size": settings.moe_shared_expert_intermediate_size or 0,
        "token_dropping": settings.moe_expert_capacity_factor is not None,
    }


def routers(model: Any) -> Iterable[tuple[Any, Callable[[Any], torch.Tensor]]]:
    """Return the router of each layer, with the count of its tokens by expert: its map has a column for each."""
    return [(layer.mlp.router, lambda output: output[1].sum(0)) for layer in gpt_of(model).decoder.layers]


def optimizer_facts(optimizer: MegatronOptimizer, peak: float, least: float, warmup: float) -> Facts:
    """Return the facts of an optimizer of megatron-core, with the rates and warm-up steps of its schedule."""
    inner = inner_optimizer(optimizer)
    group = decayed_group(optimizer)
    undecayed = [other for other in inner.param_groups if _decay_multiple(other) == 0.0]
    return {
        "optimizer": f"{type(inner).__module__}.{type(inner).__name__}",
        "optimizer_state": _state_precision(optimizer),
        "lr": peak,
        "min_lr": least,
        "warmup_iters": warmup,
        "weight_decay": group["weight_decay"],
        "beta1": group["betas"][0],
        "beta2": group["betas"][1],
        "adam_eps": group["eps"],
        "clip_grad": optimizer.config.clip_grad,
        "parameters_without_weight_decay": _parameters_in(undecayed),
    }


def decayed_group(optimizer: MegatronOptimizer) -> dict[str, Any]:
    """Return the first group of parameters with weight decay, which a scheduler may have multiplied into it."""
    groups = inner_optimizer(optimizer).param_groups
    return next(group for group in groups if group["weight_decay"] != 0 or _decay_multiple(group) == 1.0)


def _decay_multiple(group: Mapping[str, Any]) -> float | None:
    """Return the factor of weight decay; NeMo keeps it under another name once it has multiplied."""
    return group.get("pre_wd_mult", group.get("wd_mult"))


def _state_precision(optimizer: MegatronOptimizer) -> str:
    """Return the precision of Adam's two moments.

    torch's Adam keeps them like the float32 weights that it updates: without the precision-aware optimizer a
    configuration of megatron-core has no other dtypes of the moments (OptimizerConfig.__post_init__, 0.12 to 0.19).
    """
    inner, settings = inner_optimizer(optimizer), optimizer.config
    if isinstance(inner, FusedAdamW):
        return PRECISIONS[inner.state_dtype]
    return PRECISIONS[max(settings.exp_avg_dtype, settings.exp_avg_sq_dtype, key=lambda dtype: dtype.itemsize)]


def gpt_of(model: Any) -> GPTModel:
    """Return the GPTModel inside its wrappers, found by class: NeMo's DDP forwards attributes of its content."""
    while not isinstance(model, GPTModel):
        model = model.module
    return model


def _count_once(parameters: Iterable[torch.Tensor]) -> int:
    """Count elements over tensor-, pipeline- and expert-parallel ranks; a weight that several ranks hold counts once.

    Each tensor rank holds a copy of the norms; of a tied embedding the last pipeline stage holds a copy (`shared`).
    Experts of a rank (`allreduce` is False) stand for those of all.
    """
    is_first = parallel_state.get_tensor_model_parallel_rank() == 0
    count = 0
    for parameter in parameters:
        is_split = getattr(parameter, "tensor_model_parallel", False)
        if not (is_first or is_split) or not param_is_not_shared(parameter):
            continue  # a copy of a weight that another rank counts
        is_expert = not getattr(parameter, "allreduce", True)
        shares = parallel_state.get_expert_model_parallel_world_size() if is_expert else 1
        count += parameter.numel() * shares
    total = torch.tensor(count, dtype=torch.int64, device="cuda")
    torch.distributed.all_reduce(total, group=parallel_state.get_model_parallel_group())
    return int(total)


def _attention_backend(gpt: GPTModel) -> str | None:
    """Return the kernel of the local attention for one sequence of the training, asked of torch with such tensors."""
    attention, weight = gpt.decoder.layers[0].self_attention, next(gpt.parameters())
    head_dim = attention.hidden_size_per_attention_head

    def like(heads: int) -> torch.Tensor:
        shape = (gpt.max_sequence_length, 1, heads, head_dim)
        return torch.empty(shape, dtype=weight.dtype, device=weight.device, requires_grad=True)

    query = like(attention.num_attention_heads_per_partition)
    key = like(attention.num_query_groups_per_partition)
    kernel: str | None = attention.core_attention.backend(query, key)
    return kernel


def _recompute(gpt: GPTModel) -> str:
    """Return `none`, `selective` or `full`; where megatron-core itself is to recompute no part, as the layers do it."""
    kind = gpt.config.recompute_granularity or "none"
    if kind != "selective" or getattr(gpt.config, "recompute_modules", None) != []:
        return kind
    # train/mega/recompute.py gives each layer recipes, and megatron-core an empty list of modules
    has_recipes = hasattr(gpt.decoder.layers[0].self_attention.linear_qkv, "recipe")
    return kind if has_recipes else "none"


def _norm_epsilon(layer: Any) -> float:
    """Read from the norm before attention: a module of its own, or fused into the linear layer that follows it."""
    norm, attention = layer.input_layernorm, layer.self_attention
    holder = norm if hasattr(norm, "eps") else attention.linear_qkv
    norms = head_norms(attention, HEAD_NORMS, attention.hidden_size_per_attention_head)
    return float(one_of_all((one.eps for one in (holder, *norms)), "norms of one layer", "epsilons"))


def _rope(gpt: GPTModel) -> tuple[float, dict[str, float] | None]:
    """Return base and scaling, computed from the frequencies; no scaling where its factor is 1.

    The first two frequencies are never scaled, so their ratio gives the unscaled geometric progression, and the factor
    is that of the slowest one. 1 / inv_freq[i] = base ** (2 i / dim), unscaled.
    """
    inverse = gpt.rotary_pos_emb.inv_freq.double().cpu()
    dim, ratio = 2 * inverse.numel(), inverse[1] / inverse[0]
    factor = round(float(inverse[0] * ratio ** (inverse.numel() - 1) / inverse[-1]), 3)
    slowest, scaling = inverse[-1], None
    if abs(factor - 1) >= 1e-2:
        slowest = slowest * factor
        # the other numbers of a scaling are constants of megatron-core, those of Llama 3.1
        scaling = dataclasses.asdict(RopeScaling(factor=factor))
    base = round(float((1 / slowest) ** (dim / (dim - 2))), 0)
    return base, scaling


def inner_optimizer(optimizer: MegatronOptimizer) -> torch.optim.Optimizer:
    """Return the torch optimizer that does the arithmetic."""
    chained = getattr(optimizer, "chained_optimizers", None)
    return (chained[0] if chained else optimizer).optimizer


def _parameters_in(groups: Iterable[dict[str, Any]]) -> int:
    """Return the number of parameters in an optimizer's groups; of a distributed optimizer each rank has a share."""
    count = _count_once(parameter for group in groups for parameter in group["params"])
    share = torch.tensor(count, dtype=torch.int64, device="cuda")
    torch.distributed.all_reduce(share, group=parallel_state.get_data_parallel_group())
    return int(share)
