"""Differences between the releases of megatron-core that the suite runs with, in one place.

PyPI has 0.16.1 as the last release for Python older than 3.12, and 0.19.2 for 3.12 and later (the requirement files).
Each function here asks megatron-core for what it has, by name or by signature, so that no version number decides.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

import torch
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.tensor_parallel.layers import LinearWithGradAccumulationAndAsyncCommunication as Linear

from utils.errors import ConfigError

KNOWN_MESSAGES = {
    # the model that all releases here and NVIDIA's own recipes have; its successor, HybridModel, is in 0.19 only
    "megatron.core.models.gpt.gpt_model": "GPTModel IS DEPRECATED",
    # the layout is computed by DDP, as 0.16 does it
    "megatron.core.distributed.distributed_data_parallel": "DistributedDataParallel: full_param_layout not provided",
}
"""Beginnings of messages of 0.19 that mean nothing for a run, by the name of the logger."""


@functools.cache
def silence_known_messages() -> None:
    """Drop `KNOWN_MESSAGES` and nothing else; call it before the model is built."""
    for name, beginning in KNOWN_MESSAGES.items():
        logging.getLogger(name).addFilter(lambda record, known=beginning: not record.getMessage().startswith(known))  # type: ignore[misc]


def gradients_of_norm(optimizer: MegatronOptimizer) -> list[torch.Tensor]:
    """Return the gradients on this rank that count in the gradient norm; those that another rank counts are left out.

    0.19 renamed the method and leaves out parameters with a norm of their own (multi-token prediction, of which no
    model here has any).
    """
    by_release = getattr(optimizer, "get_grads_for_grad_norm", None) or optimizer.get_main_grads_for_grad_norm
    return by_release()


@functools.cache
def linear_settings() -> tuple[str, ...]:
    """Return the names of what megatron-core's function of a linear layer takes after input and weight, in its order.

    0.19 appended `gtp_remat_size`.
    """
    return tuple(inspect.signature(Linear.forward).parameters)[3:]


def linear_values(settings: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of `linear_settings()` from the named arguments of a linear layer; None for one not named."""
    return tuple(settings.get(name) for name in linear_settings())


def mlp_parts(layer_spec: Any) -> Any:
    """Return the parts of the MLP (`linear_fc1`, `linear_fc2`) in a layer's specification, to be replaced in place.

    Up to 0.16 a specification of its own; in 0.19 a `functools.partial` that builds the MLP.
    """
    mlp = layer_spec.submodules.mlp
    return mlp.keywords["submodules"] if isinstance(mlp, functools.partial) else mlp.submodules


def accept_conditions(core: Any) -> None:
    """Let `core.get_megatron_optimizer` (`core` is megatron.core.optimizer) be called with NeMo's three conditions.

    NeMo 2.3 to 2.7 pass these arguments, which megatron-core no longer has from 0.16.0 on
    (nemo/lightning/_strategy_lib.py, `setup_megatron_optimizer`; megatron/core/optimizer/__init__.py).
    Where none of them is set, megatron-core before and after means the same: no weight decay for biases and norms.
    The call raises ConfigError where one is set.
    """
    original = core.get_megatron_optimizer
    if "no_weight_decay_cond" in inspect.signature(original).parameters:
        return

    def build(
        config: Any,
        chunks: Any,
        no_weight_decay_cond: Any = None,
        scale_lr_cond: Any = None,
        lr_mult: float = 1.0,
        **named: Any,
    ) -> Any:
        if (no_weight_decay_cond, scale_lr_cond, lr_mult) != (None, None, 1.0):
            raise ConfigError("nemo: NeMo's optimizer has a condition set that this megatron-core cannot take")
        return original(config, chunks, **named)

    core.get_megatron_optimizer = build
