"""NeMo on a machine without a GPU: its CUDA calls are redirected to the CPU, in this module only.

Only the device is replaced: recipe, Lightning loop, Megatron strategy, optimizer and schedule are NeMo's own. Beside
the calls that train/mega/cpu.py redirects, nemo_toolkit 2.3 with megatron-core 0.12 marks ranges for a profiler, moves
modules to the device, and takes its layers from TransformerEngine, which needs CUDA. The layers here are those of
megatron-core with the core attention of train/mega/attention.py, the same as those of `mega` on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from train.mega import cpu as mega_cpu


def redirect() -> None:
    """Send NeMo's CUDA calls to the CPU for the rest of this process; before NeMo is imported, and without a GPU."""
    mega_cpu.redirect_framework()
    setattr(torch, "tensor", _without_pinning(torch.tensor))  # noqa: B010 - NeMo 2.7 pins a number
    from megatron.core.optimizer import distrib_optimizer

    distrib_optimizer.quantize_param_shard = _no_fp8_parameters


def _without_pinning(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `torch.tensor` that leaves out `pin_memory`, which needs a device."""
    return lambda *args, pin_memory=False, **keywords: original(*args, **keywords)


def _no_fp8_parameters(model_params: list[Any], *_: Any) -> None:
    """Replace a call of TransformerEngine that megatron-core 0.12 makes even where no parameter is fp8."""
    if model_params:
        raise RuntimeError(f"fp8: got {len(model_params)} parameters, wanted none without TransformerEngine")


def adapt(recipe: Any) -> None:
    """Replace in a recipe what a CPU lacks: the accelerator, the device of the initial weights, and the layers."""
    from train.mega.attention import local_layer

    recipe.trainer.accelerator = "cpu"
    recipe.model.config.use_cpu_initialization = True
    recipe.model.config.transformer_layer_spec = local_layer
