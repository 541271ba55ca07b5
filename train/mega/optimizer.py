"""Megatron-core's distributed optimizer around the suite's AdamW, with a gradient norm that stays on the device.

megatron-core's precision-aware optimizer leaves master weights and moments to the inner optimizer and hands it the
shards of its gradient buffer without a float32 copy (`decoupled_grad`). It expects TransformerEngine's FusedAdam;
`FusedAdamW` takes its place, so that every image of both vendors runs the same arithmetic.
"""

from __future__ import annotations

import inspect
from typing import Any
from unittest import mock

import torch
from megatron.core import optimizer as megatron_optimizer
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import (
    ChainedOptimizer,
    MegatronOptimizer,
    OptimizerConfig,
    distrib_optimizer,
    get_megatron_optimizer,
)

from train.common.adamw import FusedAdamW
from train.common.kernels import DTYPES
from utils.errors import ConfigError
from utils.settings.config import RunConfig


class DeviceNormOptimizer(ChainedOptimizer):
    """Megatron-core's chain of optimizers, of which a step reads nothing from the device.

    megatron-core reads the norm to clip by it, and without TransformerEngine or Apex the norm of every parameter.
    """

    @torch.no_grad()
    def step(self) -> tuple[bool, torch.Tensor, None]:
        """Clip, update and start the all-gather of weights; return True, the norm before clipping and None."""
        self.prepare_grads()
        norm = self.get_grad_norm()
        limit = self.config.clip_grad
        # the divisor is that of megatron/core/optimizer/clip_grads.py
        coefficient = torch.clamp(limit / (norm + 1.0e-6), max=1.0) if limit > 0 else None
        for optimizer in self.chained_optimizers:
            # a rank without parameters of a kind has a stub in their place
            if not optimizer.is_stub_optimizer:
                optimizer.optimizer.clip_coefficient = coefficient
        self.step_with_ready_grads()
        return True, norm, None

    @torch.no_grad()
    def get_grad_norm(self) -> torch.Tensor:
        """Return the L2 norm of all gradients over all ranks, a float32 number on the device.

        Weights that several ranks hold are counted once, as megatron-core selects them; squares are added in float64.
        """
        gradients: list[torch.Tensor] = []
        for optimizer in self.chained_optimizers:
            gradients += gradients_of_norm(optimizer)
        squares = torch.zeros((), dtype=torch.float64, device=torch.cuda.current_device())
        if gradients:
            norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
            squares = torch.stack(norms).double().square().sum()
        torch.distributed.all_reduce(squares, group=self.get_grad_stats_parallel_group())
        return squares.sqrt().float()


def gradients_of_norm(optimizer: MegatronOptimizer) -> list[torch.Tensor]:
    """Return the gradients on this rank that count in the gradient norm; those that another rank counts are left out.

    0.19 renamed the method and leaves out parameters with a norm of their own (multi-token prediction, of which no
    model here has any).
    """
    if hasattr(optimizer, "get_grads_for_grad_norm"):
        return optimizer.get_grads_for_grad_norm()
    return optimizer.get_main_grads_for_grad_norm()


def build_optimizer(config: RunConfig, model: DistributedDataParallel) -> DeviceNormOptimizer:
    """Return the optimizer of this rank's share of the model's weights."""
    settings = OptimizerConfig(
        optimizer="adam",
        lr=config.learning_rate,
        min_lr=config.min_learning_rate,
        weight_decay=config.weight_decay,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        adam_eps=config.adam_epsilon,
        clip_grad=config.clip_grad,
        bf16=config.precision != "fp32",
        params_dtype=torch.float32 if config.precision == "fp32" else torch.bfloat16,
        use_distributed_optimizer=True,
        overlap_param_gather=config.platform != "cpu" and config.data_parallel_size > 1,
    )
    # given to the constructor, these would need TransformerEngine's optimizer
    settings.use_precision_aware_optimizer = True
    settings.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
    settings.main_grads_dtype = DTYPES[config.gradient_dtype]
    settings.exp_avg_dtype = settings.exp_avg_sq_dtype = DTYPES[config.optimizer_state]
    # two modules of megatron-core hold the class of Adam that their import has found
    with (
        mock.patch.object(distrib_optimizer, "Adam", FusedAdamW),
        mock.patch.multiple(
            megatron_optimizer,
            Adam=_adam,
            USING_PYTORCH_OPTIMIZER=False,
            is_te_min_version=lambda version: False,  # its own needs TransformerEngine
        ),
    ):
        built = get_megatron_optimizer(settings, [model])
    return DeviceNormOptimizer(built.chained_optimizers)


def _adam(*, exp_avg_dtype: torch.dtype, params: Any, lr: float, **named: Any) -> FusedAdamW:
    """Build `FusedAdamW` from the arguments that megatron-core gives to TransformerEngine's FusedAdam."""
    used = {name: named[name] for name in ("betas", "eps", "weight_decay")}
    return FusedAdamW(params, lr, **used, state_dtype=exp_avg_dtype)


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
