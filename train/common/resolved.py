"""Facts that are read back alike from the frameworks of torch's own FSDP2 and optimizers: hf and titan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from train.common.kernels import PRECISIONS, name_of


def policy_of(layer: Any) -> MixedPrecisionPolicy | None:
    """Return the dtypes with which a layer was sharded, None where the model is not sharded."""
    return layer._get_fsdp_state()._mp_policy if isinstance(layer, FSDPModule) else None


def class_of(model: Any) -> type:
    """Return the library's class of a model; FSDP2 gives a sharded model a class of its own, derived from it."""
    return next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))


def one_recompute(kinds: Iterable[str]) -> str:
    """Return what every layer computes again, `none`, `selective` or `full`; raise ValueError where layers differ."""
    found = sorted(set(kinds))
    if len(found) != 1:
        raise ValueError(f"layers differ in what they compute again: {found}")
    return found[0]


def optimizer_facts(optimizer: Any, state: torch.dtype, schedule: Any, clip: float) -> dict[str, Any]:
    """Return the facts of an optimizer with decayed parameters in its first group, and of its LambdaLR."""
    decayed, *others = optimizer.param_groups
    (rule,) = {id(rule): rule for rule in schedule.lr_lambdas}.values()
    peak = schedule.base_lrs[0]
    return {
        "optimizer": f"{type(optimizer).__module__}.{type(optimizer).__name__}",
        "optimizer_state": PRECISIONS[state],
        "lr": peak,
        "min_lr": peak * rule.floor,
        "warmup_iters": rule.warmup_iterations,
        "weight_decay": decayed["weight_decay"],
        "beta1": decayed["betas"][0],
        "beta2": decayed["betas"][1],
        "adam_eps": decayed["eps"],
        "clip_grad": clip,
        "parameters_without_weight_decay": sum(
            parameter.numel() for group in others if group["weight_decay"] == 0 for parameter in group["params"]
        ),
    }


def communication_facts(policy: MixedPrecisionPolicy | None, reduces_in: torch.dtype, device: Any) -> dict[str, Any]:
    """Return the facts of FSDP2's communication; `device` is the one of this rank."""
    can_overlap = policy is not None and device.type == "cuda"  # gloo's collectives wait until they are done
    return {
        "distributed_optimizer": policy is not None,
        "gradient_dtype": PRECISIONS[reduces_in],
        "gradient_reduce_dtype": name_of(reduces_in),
        "overlap_grad_reduce": can_overlap,
        "overlap_param_gather": can_overlap,
    }
