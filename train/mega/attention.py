"""Core attention of the local layers by torch's fused kernels, chosen by name on a GPU.

On a GPU only fused kernels may run, and `backend` says which one torch takes for the shapes of a training, so that a
result names it. In half precision: cuDNN's attention where torch allows it, else flash (ROCm has flash alone). torch
gets this order, because its own has flash first: on one H200 (torch 2.11, cuDNN 9.19, 8,192 tokens, 32 heads) flash
took 1.9 times as long as cuDNN, forward and backward. Both read grouped keys without repeating them. With an active
sliding window: flash attention, which skips what lies outside of the window. In float32, which neither can do, and for
a window where torch's `varlen_attn` knows none (2.10): memory-efficient attention with repeated keys and a mask. The
composed kernel ("math") never runs: a shape that no fused kernel takes is an error. On a CPU torch chooses by itself.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from utils.errors import ConfigError
from utils.readings import attempt

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

varlen_attn: Any = None
with suppress(ImportError):  # NeMo's environments have an older torch
    from torch.nn.attention.varlen import varlen_attn

NAMES = {
    SDPBackend.CUDNN_ATTENTION: "cudnn",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
}
"""Names in `resolved_config`, after `torch_sdpa:`; `torch_varlen:flash` is flash attention with a window."""


class SdpaCoreAttention(torch.nn.Module):
    """Core attention by torch's fused kernels: causal, grouped queries, sliding window.

    Inputs and output have megatron-core's layout: query [sequence, batch, heads, head_dim], key and value with the
    groups of this rank in place of heads; output [sequence, batch, heads * head_dim].
    """

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        if config.context_parallel_size != 1:
            raise ConfigError("CP: this attention sees only its own part of a sequence; context parallelism needs TE")
        self.softmax_scale = softmax_scale
        self.window_size = config.window_size

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the attended values; megatron-core's mask argument is ignored, the mask is causal by construction."""
        length, batch = query.shape[:2]
        if self._takes_flash_with_window(query):
            return windowed_flash(query, key, value, self.window_size, self.softmax_scale)
        choice: Any = nullcontext()
        if query.device.type != "cpu":
            choice = sdpa_kernel(self._allowed(query), set_priority=True)
        with choice:
            attended = F.scaled_dot_product_attention(**self._arguments(query, key, value))
        return attended.permute(2, 0, 1, 3).reshape(length, batch, -1)

    def backend(self, query: torch.Tensor, key: torch.Tensor) -> str | None:
        """Return the name of the kernel that runs for tensors like these, `torch_sdpa` alone on a CPU.

        None where torch does not tell it: the function that it is asked by is not public. Raises ConfigError where no
        fused kernel takes them.
        """
        if query.device.type == "cpu":
            return "torch_sdpa"
        if self._takes_flash_with_window(query):
            return "torch_varlen:flash"
        with sdpa_kernel(self._allowed(query), set_priority=True):
            chosen, why = attempt(lambda: SDPBackend(torch._fused_sdp_choice(**self._arguments(query, key, key))))
        if why:
            return None
        if chosen not in NAMES:
            raise ConfigError(
                f"attention: no fused kernel of this torch takes {query.dtype} of shape {tuple(query.shape)}; "
                f"tried {', '.join(NAMES[one] for one in self._allowed(query))}"
            )
        return f"torch_sdpa:{NAMES[chosen]}"

    def _takes_flash_with_window(self, query: torch.Tensor) -> bool:
        has_window = query.device.type != "cpu" and self._has_active_window(query.shape[0])
        return has_window and query.dtype is not torch.float32 and _takes(varlen_attn, "scale", "window_size")

    def _allowed(self, query: torch.Tensor) -> list[SDPBackend]:
        """Return the kernels of scaled_dot_product_attention that may run on a GPU, the preferred one first."""
        if query.dtype is torch.float32 or self._has_active_window(query.shape[0]):
            return [SDPBackend.EFFICIENT_ATTENTION]
        return [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]

    def _has_active_window(self, length: int) -> bool:
        return self.window_size is not None and self.window_size[0] + 1 < length

    def _arguments(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> dict[str, Any]:
        """Return the arguments of torch's scaled_dot_product_attention, in its layout [batch, heads, sequence, dim]."""
        repeats = query.shape[2] // key.shape[2]
        is_efficient = query.device.type != "cpu" and self._allowed(query) == [SDPBackend.EFFICIENT_ATTENTION]
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        if is_efficient:
            key, value = (tensor.repeat_interleave(repeats, dim=1) for tensor in (key, value))
            repeats = 1
        # without a window torch's own flag is faster: no mask has to be read
        mask = self._window_mask(query.shape[2], query.device)
        return {
            "query": query,
            "key": key,
            "value": value,
            "attn_mask": mask,
            "is_causal": mask is None,
            "enable_gqa": repeats > 1,
            "scale": self.softmax_scale,
        }

    def _window_mask(self, length: int, device: torch.device) -> torch.Tensor | None:
        """True where row may see column: `window_size[0]` earlier tokens and itself; None for plain causal."""
        if not self._has_active_window(length):
            return None
        row = torch.arange(length, device=device)[:, None]
        column = torch.arange(length, device=device)[None, :]
        return (column <= row) & (column >= row - self.window_size[0])


def windowed_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: tuple[int, int], scale: float | None
) -> torch.Tensor:
    """Return causal attention to the `window[0]` tokens before each token and itself, by torch's flash attention.

    The sequences of a micro batch are packed one behind the other; `varlen_attn` keeps them apart. Releases of torch
    without the argument `enable_gqa` take grouped keys without it.
    """
    length, batch = query.shape[:2]
    packed = [tensor.transpose(0, 1).reshape(batch * length, *tensor.shape[2:]) for tensor in (query, key, value)]
    bounds = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=query.device)
    options: dict[str, Any] = {"scale": scale, "window_size": tuple(window)}
    if query.shape[2] != key.shape[2] and _takes(varlen_attn, "enable_gqa"):
        options["enable_gqa"] = True
    attended = varlen_attn(*packed, bounds, bounds, length, length, **options)
    return attended.reshape(batch, length, -1).transpose(0, 1)


@functools.cache
def _takes(function: Any, *names: str) -> bool:
    return function is not None and set(names) <= inspect.signature(function).parameters.keys()


def local_layer(config: TransformerConfig) -> Any:
    """Return megatron-core's own layer of a model's configuration with this core attention, as a specification."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    layer = get_gpt_layer_local_spec(config.num_moe_experts, normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    layer.submodules.self_attention.submodules.core_attention = SdpaCoreAttention
    return layer
