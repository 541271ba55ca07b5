"""The stand-in of a CUDA or ROCm device in this process: torch answers as if it had one. It changes torch for good.

Call `lend` once, in a process of its own, before megatron-core or transformers is imported. Nothing is emulated but
answers: whatever is not lent here raises `StandInError`, which says nothing about the job.

Autograd in C++ needs streams of a CUDA device, which a CPU build of torch lacks. Therefore C++ gets `meta` as the
device of a tensor (Ledger), and in the table of device guards the guard of `meta`, which does nothing, takes the place
of CUDA's. Python sees `cuda:0`. What C++ decides by the device of a tensor is decided here instead. So are the kernels
that it chooses by device: attention, RMSNorm, regions of torch.compile. Each stand-in does what torch does on a GPU in
memory and work; only a GPU shows whether it does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from train.rehearsal.ledger import Ledger, replace

CUDA = torch.device("cuda", 0)
CUDA_SLOT, META_SLOT, SLOTS = 1, 14, 21
"""Numbers of the device types in torch/headeronly/core/DeviceType.h; torch 2.13."""
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
TRAITS = {"nvd": ((9, 0), 132, ""), "amd": ((9, 4), 304, "gfx942")}
"""Compute capability, multiprocessors and architecture of an H100 and an MI300X, by platform."""
aten = torch.ops.aten
_ATEN = torch.library.Library("aten", "IMPL")
COMPOSED = ("silu_backward", "mish_backward")
"""Operators with a kernel on every device, for which a build without it would take one composed of others. These are
all operators of torch 2.13 that are registered so."""
HALF = (torch.bfloat16, torch.float16)
DATA: Any = vars(torch._C.TensorBase)["data"]
"""torch's own property."""


class StandInError(RuntimeError):
    """The stand-in of a device lacks something that was used. The job itself has not failed."""


def lend(platform: str, ranks: int, memory_gb: float) -> None:
    """Make torch answer as on a machine with `ranks` devices of `platform` (`nvd` or `amd`), for this process.

    Raises StandInError if this torch has another table of device guards.
    """
    _lend_guard()
    for name, answer in _answers(platform, ranks, memory_gb).items():
        replace(torch.cuda, **{name: answer})
        # they keep functions of torch.cuda under the same names
        for module in (torch.cuda.random, torch.cuda.memory):
            if hasattr(module, name):
                replace(module, **{name: answer})
    _lend_accelerator()
    _lend_tensor_methods()
    if platform == "amd":
        replace(torch.version, hip="7.0.0")


def _lend_guard() -> None:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        guards = (ctypes.c_void_p * SLOTS).in_dll(library, GUARDS)
    except ValueError as error:
        raise StandInError(f"torch {torch.__version__} has no table of device guards under its known name") from error
    if not guards[META_SLOT]:
        raise StandInError(f"torch {torch.__version__} has no device guard of `meta` in slot {META_SLOT}")
    # This overwrites an entry of a table in the memory of libc10, because Python cannot register a guard. torch asks
    # the guard of a tensor's device around an operator, and a build for the CPU has none for CUDA. That of `meta` does
    # nothing. The process ends with its rehearsal, so that nothing else meets the changed table.
    guards[CUDA_SLOT] = guards[META_SLOT]


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, as the device has no queue."""


class Queue(contextlib.nullcontext[None]):
    """A stream of a device or an event in it; all work is done when its call returns."""

    cuda_stream = stream_id = device_index = 0
    device = CUDA

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def record_event(self, event: Any = None) -> Any:
        """Return the event, which has happened."""
        return event or Queue()

    record = wait = wait_stream = wait_event = synchronize = _nothing


def _answers(platform: str, ranks: int, memory_gb: float) -> dict[str, Any]:
    capability, processors, architecture = TRAITS[platform]
    memory = int(memory_gb * 10**9)
    properties = SimpleNamespace(
        name="stand-in", major=capability[0], minor=capability[1], multi_processor_count=processors,
        total_memory=memory, gcnArchName=architecture, warp_size=32 if platform == "nvd" else 64,
    )  # fmt: skip
    state, stream = torch.zeros(16, dtype=torch.uint8), Queue()
    always: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": ranks, "is_bf16_supported": True,
        # megatron-core passes it on as a device, torch takes it as an index
        "current_device": CUDA, "get_device_capability": capability, "get_device_properties": properties,
        "get_device_name": properties.name, "get_rng_state": state, "get_rng_state_all": [state],
        "current_stream": stream, "default_stream": stream, "memory_allocated": 0, "max_memory_allocated": 0,
        "memory_reserved": 0, "max_memory_reserved": 0, "mem_get_info": (memory, memory), "initial_seed": 0,
        "is_current_stream_capturing": False,
    }  # fmt: skip
    silent = (
        "set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "seed", "seed_all", "init",
        "set_rng_state", "set_rng_state_all", "reset_peak_memory_stats", "set_stream", "_lazy_call",
    )  # fmt: skip
    answers: dict[str, Any] = {name: functools.partial(_answer, value) for name, value in always.items()}
    for name in silent:
        answers[name] = _nothing
    # there is one device with one queue, so that choosing another changes nothing
    for name in ("stream", "device", "device_of"):
        answers[name] = lambda *_: contextlib.nullcontext()
    return answers | {"Stream": Queue, "Event": Queue, "default_generators": (), "_lazy_init": _refuse}


def _answer(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _refuse() -> None:
    caller = sys._getframe(1).f_code
    raise StandInError(f"{Path(caller.co_filename).name}: `{caller.co_name}` of torch.cuda is not lent")


def _lend_accelerator() -> None:
    answers = {
        "is_available": True, "device_count": 1, "current_device_index": 0, "current_accelerator": CUDA,
        "current_stream": Queue(), "set_device_index": None, "synchronize": None, "set_stream": None,
    }  # fmt: skip
    replace(torch.accelerator, **{name: functools.partial(_answer, value) for name, value in answers.items()})
    replace(torch._C, _get_accelerator=functools.partial(_answer, torch.device("cuda")))


def _lend_tensor_methods() -> None:
    replace(
        FakeTensor,
        is_cuda=property(lambda self: self.fake_device.type == "cuda"),
        is_meta=property(lambda self: self.fake_device.type == "meta"),
        get_device=lambda self: -1 if self.fake_device.type == "cpu" else 0,
    )
    replace(
        DTensor,
        device=property(lambda self: self._local_tensor.device),
        is_cuda=property(lambda self: self._local_tensor.is_cuda),
        is_meta=property(lambda self: self._local_tensor.is_meta),
    )
    replace(
        torch.Tensor,
        type=_type_with_device(torch.Tensor.type),
        to=_to_without_copy(torch.Tensor.to),
        cuda=lambda self, *_, **__: self.to(CUDA),
        pin_memory=lambda self, *_: self,
        record_stream=_nothing,
    )


def _type_with_device(original: Any) -> Any:
    """Return a `Tensor.type` that names the tensor types of CUDA."""

    def tensor_type(self: torch.Tensor, dtype: Any = None, **keywords: Any) -> Any:
        if dtype is not None:
            return original(self, dtype, **keywords)
        name = original(self).rpartition(".")[2]
        return f"torch.cuda.{name}" if self.device.type == "cuda" else f"torch.{name}"

    return tensor_type


def _to_without_copy(original: Any) -> Any:
    """Return a `Tensor.to` that returns the tensor itself if it is there; C++ would compare with `meta` and copy."""

    def to(self: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        if not isinstance(self, FakeTensor) or keywords.get("copy"):
            return original(self, *args, **keywords)
        # to(other), to(device, dtype) and to(dtype) are told apart by the type of the first argument
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        place = keywords.pop("device", None)
        is_place = args and isinstance(args[0], str | torch.device | int) and not isinstance(args[0], bool)
        if place is None and is_place:
            place, args = args[0], args[1:]
        if place is None:
            return original(self, *args, **keywords)
        place = torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
        if place.type != self.fake_device.type:
            return original(self, CUDA if place.type == "cuda" else place, *args, **keywords)
        dtype = keywords.get("dtype")
        for value in args:
            if isinstance(value, torch.dtype):
                dtype = value
        return self if dtype is None else original(self, dtype)

    return to


def lend_data(ledger: Ledger) -> None:
    """Let torch do without the data of tensors, with a device or on the CPU, for this process.

    `torch.tensor` takes them among its numbers, and makes a number on the device without a copy. The ledger notes the
    new size of a storage that is resized, which is no operator.
    """
    torch.autograd.set_multithreading_enabled(False)  # dispatch modes belong to a thread
    replace(torch.nn.Module, _apply=_apply)
    replace(FakeTensor, data=property(DATA.__get__, _set_data), data_ptr=_address)
    resize = torch.UntypedStorage.resize_

    def resize_and_note(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        changed = resize(storage, size)
        ledger.memory.resized(storage)
        return changed

    replace(torch.UntypedStorage, resize_=resize_and_note)
    # by this list torch decides whether an optimizer may update all its tensors with one call
    sys.modules["torch.optim.optimizer"]._foreach_supported_types.append(FakeTensor)
    has_device, original = ledger.device.type != "cpu", torch.tensor

    def tensor(data: Any, *, device: Any = None, **keywords: Any) -> torch.Tensor:
        if not has_device or device is None or torch.device(device).type == "cpu":
            return original(_numbers(data), device=device, **keywords)
        made = original(_numbers(data), **keywords)
        return torch.zeros(tuple(made.shape), dtype=made.dtype, device=CUDA)

    replace(torch, tensor=tensor)


def _address(self: torch.Tensor) -> int:
    """Return a number that differs between tensors as an address does: accelerate finds parameters by theirs."""
    return int(self.untyped_storage()._cdata + self.storage_offset() * self.element_size())


def _set_data(self: FakeTensor, data: torch.Tensor) -> None:
    """Set `.data` and the device, which torch's own setter leaves."""
    DATA.__set__(self, data)
    self.fake_device = data.device


def _numbers(data: Any) -> Any:
    """Return numbers in the place of tensors, each read by the host."""
    if isinstance(data, (list, tuple)):
        return [_numbers(value) for value in data]
    return data.item() if isinstance(data, torch.Tensor) else data


def _apply(self: torch.nn.Module, function: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
    """Convert all parameters and buffers in place; torch's own would exchange tensors, which fake ones do not allow."""
    if recurse:
        for child in self.children():
            child._apply(function)
    for parameter in self._parameters.values():
        if parameter is None:
            continue
        with torch.no_grad():
            moved = function(parameter)
        if moved is not parameter:
            parameter.data = moved
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = function(buffer)
    return self


def lend_regions(ledger: Ledger) -> None:
    """Replace torch.compile: the ledger counts a compiled function as one operator."""

    def compiled(function: Callable[..., Any], **_: Any) -> Any:
        @functools.wraps(function)
        def region(*args: Any, **keywords: Any) -> Any:
            name = getattr(function, "__name__", type(function).__name__)
            return ledger.as_one_operator(f"compiled::{name}", function, args, keywords)

        return region

    replace(torch, compile=compiled)


def lend_kernels(ledger: Ledger) -> None:
    """Replace the functions whose kernel on a GPU is not what C++ composes for another device."""
    for name in COMPOSED:
        _ATEN.impl(name, _without_data, "CUDA")
    rms_norm = _rms_norm(F.rms_norm, ledger)
    replace(F, scaled_dot_product_attention=_attention(F.scaled_dot_product_attention), rms_norm=rms_norm)
    replace(torch, rms_norm=rms_norm)


def _without_data(*_: Any, **__: Any) -> Any:
    raise StandInError("an operator ran on data, which a rehearsal does not have")


def _attention(composed: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention that takes the backend torch takes on a GPU, in torch's order of preference.

    The conditions are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp that depend on arguments. torch
    prefers cuDNN to flash on some GPUs, which reads and writes the same.
    """

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        is_half, is_grouped = query.dtype in HALF, query.shape[1] != key.shape[1]
        if not isinstance(query, FakeTensor) or query.fake_device.type != "cuda":
            return composed(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        allowed = torch.backends.cuda
        if allowed.flash_sdp_enabled() and is_half and attn_mask is None:
            flash = aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if allowed.mem_efficient_sdp_enabled() and not is_grouped:
            mask = _as_numbers(attn_mask, query, key)
            efficient = aten._scaled_dot_product_efficient_attention
            return efficient(query, key, value, mask, True, dropout_p, is_causal, scale=scale)[0]
        return composed(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return attention


def _as_numbers(mask: Any, query: Any, key: Any) -> Any:
    if mask is None:
        return None
    numbers = torch.where(mask, 0.0, float("-inf")).to(query.dtype) if mask.dtype is torch.bool else mask
    return numbers.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _rms_norm(composed: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    """Return an RMSNorm that is one kernel each way on the device and keeps its input and 1 / rms, as torch's is."""

    def forward(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(x), torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)

    def backward(gradient: torch.Tensor, x: torch.Tensor, inverse: torch.Tensor, weight: torch.Tensor) -> Any:
        return torch.empty_like(x), torch.empty_like(weight)

    class FusedRmsNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            normalised, inverse = ledger.as_one_operator("aten::_fused_rms_norm", forward, (x, weight), {})
            ctx.save_for_backward(x, inverse, weight)
            return normalised

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            x, inverse, weight = ctx.saved_tensors
            inputs, name = (gradient, x, inverse, weight), "aten::_fused_rms_norm_backward"
            return ledger.as_one_operator(name, backward, inputs, {})

    def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> torch.Tensor:
        if weight is None or not isinstance(input, FakeTensor) or input.fake_device.type != "cuda":
            return composed(input, normalized_shape, weight, eps)
        return FusedRmsNorm.apply(input, weight)

    return rms_norm
