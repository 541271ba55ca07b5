"""megatron-core on a machine without a GPU: its hard-coded CUDA calls are redirected to the CPU, in this module only.

megatron-core calls `torch.cuda` for the current device, its random state and synchronisation, passes
`device="cuda"` for its buffers, and compares the tensor type strings of CUDA. Each of these has one line here.
`redirect_framework`, `redirect_nemo` and `redirect_primus` have those that NeMo, Bridge and Primus make themselves.
Imports torch only: the ranks of Primus load it by its path (train/prim/on_cpu).
"""

from __future__ import annotations

import builtins
import functools
import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")
_CUDA_ON_CPU: dict[str, Callable[..., Any]] = {
    "current_device": lambda: _CPU,
    "synchronize": lambda device=None: None,
    "get_rng_state": lambda device="cuda": torch.get_rng_state(),
    "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
    "manual_seed": lambda seed: torch.manual_seed(seed),
    # work that waits until CUDA starts: only the random state, which full recomputation also sets on the CPU
    "_lazy_call": lambda callable, **_: None,
}


class _CudaMeansCpu(TorchFunctionMode):
    """Replaces a CUDA device in the arguments of any torch function by the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if _is_cuda(keywords.get("device")):
            keywords = {**keywords, "device": _CPU}
        if any(_is_cuda(argument) for argument in args):
            args = tuple(_CPU if _is_cuda(argument) else argument for argument in args)
        return func(*args, **keywords)


@functools.cache
def redirect() -> None:
    """Send megatron-core's CUDA calls to the CPU for the rest of this process; once, and only without a GPU."""
    if torch.cuda.is_available():
        raise RuntimeError("a GPU is visible: the CPU redirection would hide it")
    for name, stand_in in _CUDA_ON_CPU.items():
        setattr(torch.cuda, name, stand_in)
    setattr(torch.cuda.random, "get_rng_state", _CUDA_ON_CPU["get_rng_state"])  # noqa: B010 - mypy refuses the plain assignment
    setattr(torch.Tensor, "cuda", lambda self, *_, **__: self)  # noqa: B010
    setattr(torch.Tensor, "type", _type_as_on_cuda(torch.Tensor.type))  # noqa: B010
    # of the dispatcher of tokens to experts, and of NeMo and Bridge
    for name, queue in (("Stream", _Queue), ("current_stream", _Queue), ("stream", nullcontext)):
        setattr(torch.cuda, name, queue)
    setattr(torch.distributed, "all_to_all_single", _with_numbers(torch.distributed.all_to_all_single))  # noqa: B010
    _CudaMeansCpu().__enter__()


def redirect_framework() -> None:
    """Send to the CPU also the CUDA calls that NeMo and Bridge make themselves: of modules and ranges."""
    redirect()
    setattr(torch.nn.Module, "cuda", lambda self, *_, **__: self)  # noqa: B010
    _answer(torch.cuda.nvtx, lambda: None, "range_push", "range_pop")


def redirect_nemo() -> None:
    """Send NeMo's CUDA calls to the CPU for the rest of this process; before NeMo is imported, and without a GPU.

    Only the device is replaced: recipe, Lightning loop, Megatron strategy, optimizer and schedule are NeMo's own.
    """
    redirect_framework()
    original = torch.tensor  # NeMo 2.7 pins a number, which needs a device
    setattr(torch, "tensor", lambda *args, pin_memory=False, **keywords: original(*args, **keywords))  # noqa: B010
    from megatron.core.optimizer import distrib_optimizer

    distrib_optimizer.quantize_param_shard = _no_fp8_parameters


def _no_fp8_parameters(model_params: list[Any], *_: Any) -> None:
    """Replace a call of TransformerEngine that megatron-core 0.12 makes even where no parameter is fp8."""
    if model_params:
        raise RuntimeError(f"fp8: got {len(model_params)} parameters, wanted none without TransformerEngine")


def redirect_primus() -> None:
    """Send to the CPU also the CUDA calls of Primus and its Megatron-LM.

    Primus asks for the properties of its GPU, makes events, queries memory and starts NCCL. A device of the
    architecture of MI300X (gfx942) is reported, so that the same branches run as there.
    """
    redirect_framework()
    cuda: Any = torch.cuda
    for names, answer in _PRIMUS_ON_CPU.items():
        _answer(cuda, answer, *names)
    # torch itself goes on without a device; its build for CUDA would ask the driver when it pins memory and in AdamW
    _answer(torch.accelerator, lambda: None, "current_accelerator")
    cuda.Event = cuda.default_stream = _Queue
    cuda.random.set_rng_state = _CUDA_ON_CPU["set_rng_state"]
    _use_gloo(torch.distributed)
    # its router uses the name without defining it where TransformerEngine is missing, and megatron is not imported yet
    builtins.te_general_gemm = None  # type: ignore[attr-defined]
    # Primus always has torch.profiler record the GPU too, where torch would find none
    profiler: Any = torch.autograd.profiler
    profile = profiler.profile
    profiler.profile = lambda *args, **keywords: profile(*args, **keywords | {"use_device": None})


_PROPERTIES = SimpleNamespace(
    name="cpu",
    gcnArchName="gfx942",
    major=9,
    minor=4,
    total_memory=8 * 2**30,
    multi_processor_count=1,
    warp_size=64,
)
"""Properties of the device that is reported. Nothing of the training depends on its memory, of which half is free."""
_PRIMUS_ON_CPU: dict[tuple[str, ...], Callable[[], Any]] = {
    ("set_device", "reset_peak_memory_stats", "empty_cache", "_lazy_init", "init"): lambda: None,
    ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"): lambda: 0,
    ("is_available",): lambda: True,
    ("device_count",): lambda: int(os.environ["LOCAL_WORLD_SIZE"]),
    ("get_device_properties",): lambda: _PROPERTIES,
    ("get_device_capability",): lambda: (_PROPERTIES.major, _PROPERTIES.minor),
    ("get_device_name",): lambda: _PROPERTIES.name,
    ("mem_get_info",): lambda: (_PROPERTIES.total_memory // 2, _PROPERTIES.total_memory),
    ("memory_stats",): lambda: defaultdict(int),
}
"""Answers of torch.cuda to Primus, by the functions that give them."""


class _Queue:
    """A stream of a CPU or an event in it: a CPU computes in order, so everything before it has ended."""

    device = _CPU

    def __init__(self, *_: Any, **__: Any) -> None:
        self._seconds = 0.0

    def record(self, *_: Any, **__: Any) -> None:
        self._seconds = time.perf_counter()

    def elapsed_time(self, end: _Queue) -> float:
        return 1e3 * (end._seconds - self._seconds)

    def query(self) -> bool:
        return True

    def record_event(self, *_: Any) -> _Queue:
        return _Queue()

    def wait(self, *_: Any) -> None:
        pass

    synchronize = wait_stream = wait_event = wait


def _use_gloo(distributed: Any) -> None:
    """Have process groups use gloo, whatever backend is asked for, and no device of a GPU."""
    start, group = distributed.init_process_group, distributed.new_group

    def init_process_group(backend: str | None = None, *args: Any, **keywords: Any) -> Any:
        keywords.pop("device_id", None)
        return start("gloo", *args, **keywords)

    def new_group(*args: Any, **keywords: Any) -> Any:
        keywords.pop("pg_options", None)
        if keywords.get("backend") == "nccl":
            keywords["backend"] = "gloo"
        return group(*args, **keywords)

    distributed.init_process_group, distributed.new_group = init_process_group, new_group


def _answer(owner: Any, answer: Callable[[], Any], *names: str) -> None:
    """Have each function give `answer()`, whatever its arguments. Dynamo wants a function of its own for each name."""
    for name in names:
        setattr(owner, name, lambda *_, **__: answer())


def _with_numbers(exchange: Callable[..., Any]) -> Callable[..., Any]:
    """Return `all_to_all_single` that takes its sizes as a tensor too, which megatron-core copies on GPUs alone."""

    def all_to_all_single(output: torch.Tensor, input: torch.Tensor, **keywords: Any) -> Any:
        numbers = {name: value.tolist() if torch.is_tensor(value) else value for name, value in keywords.items()}
        return exchange(output, input, **numbers)

    return all_to_all_single


def _is_cuda(value: object) -> bool:
    return isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"


def _type_as_on_cuda(original: Any) -> Any:
    """Return a `Tensor.type` that reports `torch.cuda.FloatTensor`, which the distributed optimizer expects."""

    def tensor_type(self: torch.Tensor, *args: Any, **keywords: Any) -> Any:
        answer = original(self, *args, **keywords)
        # with the mode above torch calls this method again inside itself, so the name may be replaced already
        is_new = isinstance(answer, str) and not answer.startswith("torch.cuda.")
        return answer.replace("torch.", "torch.cuda.", 1) if is_new else answer

    return tensor_type
