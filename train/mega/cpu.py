"""megatron-core on a machine without a GPU: its hard-coded CUDA calls are redirected to the CPU, in this module only.

megatron-core calls `torch.cuda` for the current device, its random state and synchronisation, passes
`device="cuda"` for its buffers, and compares the tensor type strings of CUDA. Each of these has one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")
_CUDA_ON_CPU: dict[str, Callable[..., Any]] = {
    "current_device": lambda: _CPU,
    "synchronize": lambda device=None: None,
    # from 0.19 on asked for before each reduction of gradients, and used only where a CUDA graph was replayed
    "current_stream": lambda device=None: None,
    "get_rng_state": lambda device="cuda": torch.get_rng_state(),
    "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
    "manual_seed": lambda seed: torch.manual_seed(seed),
    # work that waits until CUDA starts: only the random state, which full recomputation also sets on the CPU
    "_lazy_call": lambda callable, **_: None,
}
_active: list[TorchFunctionMode] = []


class _CudaMeansCpu(TorchFunctionMode):
    """Replaces a CUDA device in the arguments of any torch function by the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if _is_cuda(keywords.get("device")):
            keywords = {**keywords, "device": _CPU}
        if any(_is_cuda(argument) for argument in args):
            args = tuple(_CPU if _is_cuda(argument) else argument for argument in args)
        return func(*args, **keywords)


def redirect() -> None:
    """Send megatron-core's CUDA calls to the CPU for the rest of this process; once, and only without a GPU."""
    if torch.cuda.is_available():
        raise RuntimeError("a GPU is visible: the CPU redirection would hide it")
    if _active:
        return
    for name, stand_in in _CUDA_ON_CPU.items():
        setattr(torch.cuda, name, stand_in)
    setattr(torch.cuda.random, "get_rng_state", _CUDA_ON_CPU["get_rng_state"])  # noqa: B010 - mypy refuses the plain assignment
    setattr(torch.Tensor, "cuda", lambda self, *_, **__: self)  # noqa: B010
    setattr(torch.Tensor, "type", _type_as_on_cuda(torch.Tensor.type))  # noqa: B010
    mode = _CudaMeansCpu()
    mode.__enter__()
    _active.append(mode)


def redirect_framework() -> None:
    """Send to the CPU also the CUDA calls that NeMo and Bridge make themselves: of modules, ranges and streams."""
    redirect()
    setattr(torch.nn.Module, "cuda", lambda self, *_, **__: self)  # noqa: B010
    for name in ("range_push", "range_pop"):
        setattr(torch.cuda.nvtx, name, lambda *_, **__: None)
    for name, stand_in in (("Stream", _Stream), ("current_stream", _Stream), ("stream", nullcontext)):
        setattr(torch.cuda, name, stand_in)


class _Stream:
    """A stream of a CPU, on which nothing runs beside anything else."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, _: _Stream) -> None:
        """Do nothing: the work of the other stream is done."""


def _is_cuda(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _type_as_on_cuda(original: Any) -> Any:
    """Return a `Tensor.type` that reports `torch.cuda.FloatTensor`, which the distributed optimizer expects."""

    def tensor_type(self: torch.Tensor, *args: Any, **keywords: Any) -> Any:
        answer = original(self, *args, **keywords)
        # with the mode above torch calls this method again inside itself, so the name may be replaced already
        is_new = isinstance(answer, str) and not answer.startswith("torch.cuda.")
        return answer.replace("torch.", "torch.cuda.", 1) if is_new else answer

    return tensor_type
