"""NeMo on a machine without a GPU: its CUDA calls are redirected to the CPU, in this module only.

Only the device is replaced: recipe, Lightning loop, Megatron strategy, optimizer and schedule are NeMo's own. Beside
the calls that train/mega/cpu.py redirects, nemo_toolkit 2.3 with megatron-core 0.12 marks ranges for a profiler, moves
modules to the device, and takes its layers from TransformerEngine, which needs CUDA. The layers here are those of
megatron-core with the core attention of train/mega/attention.py, the same as those of `mega` on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from train.mega import cpu as mega_cpu


def redirect() -> None:
    """Send NeMo's CUDA calls to the CPU for the rest of this process; before NeMo is imported, and without a GPU."""
    mega_cpu.redirect()
    setattr(torch.nn.Module, "cuda", lambda self, *_, **__: self)  # noqa: B010 - mypy refuses the plain assignment
    for name in ("range_push", "range_pop"):
        setattr(torch.cuda.nvtx, name, lambda *_, **__: None)
    # NeMo 2.7 builds the model on a stream of its own and pins a number
    setattr(torch.cuda, "Stream", _Stream)  # noqa: B010
    setattr(torch.cuda, "stream", lambda *_, **__: nullcontext())  # noqa: B010
    setattr(torch, "tensor", _without_pinning(torch.tensor))  # noqa: B010
    from megatron.core.optimizer import distrib_optimizer

    distrib_optimizer.quantize_param_shard = _no_fp8_parameters


class _Stream:
    """A queue without work of its own."""

    def wait_stream(self, *_: Any) -> None:
        pass


def _without_pinning(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `torch.tensor` that leaves out `pin_memory`, which needs a device."""
    return lambda *args, pin_memory=False, **keywords: original(*args, **keywords)


def _no_fp8_parameters(model_params: list[Any], *_: Any) -> None:
    """Replace a call of TransformerEngine that megatron-core 0.12 makes even where no parameter is fp8."""
    if model_params:
        raise RuntimeError(f"fp8: got {len(model_params)} parameters, wanted none without TransformerEngine")


def layer_spec(config: Any) -> Any:
    """Return megatron-core's own layer with our core attention, as `transformer_layer_spec` of a model's `config`."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    from train.mega.attention import SdpaCoreAttention

    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    layer.submodules.self_attention.submodules.core_attention = SdpaCoreAttention
    return layer


def adapt(recipe: Any) -> None:
    """Replace in a recipe what a CPU lacks: the accelerator, the device of the initial weights, and the layers."""
    recipe.trainer.accelerator = "cpu"
    recipe.model.config.use_cpu_initialization = True
    recipe.model.config.transformer_layer_spec = layer_spec
