"""CUDA calls of Primus and its Megatron-LM that train/mega/cpu.py does not redirect, because megatron-core has none.

Primus asks for the properties of its GPU, makes streams and events, marks ranges for a profiler, queries memory and
starts NCCL. A device of the architecture of MI300X (gfx942) is reported, so that the same branches run as there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

GIB = 2**30
MEMORY_BYTES = 8 * GIB
"""Reported as the memory of the device, of which half is free. Nothing of the training depends on it."""


class _Event:
    """A point in time on the host: everything before it has ended, because a CPU computes in order."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._seconds = 0.0

    def record(self, *_: Any, **__: Any) -> None:
        self._seconds = time.perf_counter()

    def elapsed_time(self, end: _Event) -> float:
        return 1e3 * (end._seconds - self._seconds)

    def synchronize(self) -> None:
        pass

    def wait(self, *_: Any) -> None:
        pass

    def query(self) -> bool:
        return True


class _Stream:
    """A queue without work of its own."""

    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, *_: Any) -> None:
        pass

    def wait_event(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self, *_: Any) -> _Event:
        return _Event()


class _Properties:
    """Properties of the device that is reported."""

    name = "cpu"
    gcnArchName = "gfx942"  # noqa: N815 - the name that torch has
    major, minor = 9, 4
    total_memory = MEMORY_BYTES
    multi_processor_count = 1
    warp_size = 64


def redirect() -> None:
    """Send the remaining CUDA calls to the CPU for the rest of this process."""
    cuda: Any = torch.cuda
    _answer(cuda, lambda: None, "set_device", "reset_peak_memory_stats", "empty_cache", "_lazy_init", "init")
    _answer(cuda.nvtx, lambda: None, "range_push", "range_pop")
    _answer(cuda, lambda: 0, "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    _answer(cuda, _Stream, "current_stream", "default_stream")
    cuda.is_available = lambda: True
    # torch itself goes on without a device; its build for CUDA would ask the driver when it pins memory and in AdamW
    setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)  # noqa: B010
    cuda.device_count = lambda: int(os.environ["LOCAL_WORLD_SIZE"])
    cuda.get_device_properties = lambda *_, **__: _Properties
    cuda.get_device_capability = lambda *_, **__: (_Properties.major, _Properties.minor)
    cuda.get_device_name = lambda *_, **__: _Properties.name
    cuda.mem_get_info = lambda *_, **__: (MEMORY_BYTES // 2, MEMORY_BYTES)
    cuda.memory_stats = lambda *_, **__: defaultdict(int)
    cuda.stream = lambda *_, **__: contextlib.nullcontext()
    cuda.Event, cuda.Stream = _Event, _Stream
    cuda.random.set_rng_state = lambda state, device="cuda": torch.set_rng_state(state)
    module: Any = torch.nn.Module
    module.cuda = lambda self, *_, **__: self
    _use_gloo(torch.distributed)
    _profile_the_cpu(torch.autograd.profiler)


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


def _profile_the_cpu(profiler: Any) -> None:
    """Have torch.profiler record the CPU alone: Primus always asks for the GPU too, where torch would find none."""
    record = profiler.profile

    def profile(*args: Any, **keywords: Any) -> Any:
        return record(*args, **keywords | {"use_device": None})

    profiler.profile = profile


def _answer(owner: Any, answer: Callable[[], Any], *names: str) -> None:
    """Have each function give `answer()`, whatever its arguments. Dynamo wants a function of its own for each name."""
    for name in names:
        setattr(owner, name, lambda *_, **__: answer())
