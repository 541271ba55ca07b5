"""torchtitan on a machine without a GPU: what it asks of a device is answered for the CPU, in this module only.

Trainer, model, FSDP2, optimizer and clipping are torchtitan's own. torchtitan 0.3.0 finds its device through torch and
reads figures of it that torch.cpu does not have. Two more differences: gloo's barrier takes no device, and its
reductions have no factor (`sum_only`). Triton, which torch brings on a GPU only, is imported by torchtitan's exchange
of tokens through shared memory, which no job here uses.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.distributed.fsdp import FSDPModule

_PROPERTIES = types.SimpleNamespace(name="cpu", total_memory=2**30)
"""Properties of the device that is reported; torchtitan divides its memory figures by the total."""
_OF_DEVICE: dict[str, Callable[..., Any]] = {
    "set_device": lambda *_: None,
    "current_device": lambda: 0,
    "get_device_name": lambda *_: "cpu",
    "get_device_properties": lambda *_: _PROPERTIES,
    "reset_peak_memory_stats": lambda *_: None,
    "empty_cache": lambda: None,
    "memory_stats": lambda *_: collections.defaultdict(int),
}


def redirect() -> None:
    """Import torchtitan for the CPU; once, before anything else of torchtitan is imported, and without a GPU."""
    setattr(torch._utils, "_get_available_device_type", lambda: "cpu")  # noqa: B010 - mypy refuses the plain assignment
    for name, answer in _OF_DEVICE.items():
        setattr(torch.cpu, name, answer)
    barrier = torch.distributed.barrier
    setattr(torch.distributed, "barrier", lambda group=None, async_op=False, device_ids=None: barrier(group, async_op))  # noqa: B010
    from torch._inductor import compile_fx  # noqa: F401 - first: it must find that there is no Triton

    # gone after the import: nothing later may take them for the real ones
    triton = mock.MagicMock()
    stand_ins = {} if "triton" in sys.modules else {"triton": triton, "triton.language": triton.language}
    sys.modules.update(stand_ins)
    import torchtitan.models.llama3
    import torchtitan.models.qwen3  # noqa: F401

    for name in stand_ins:
        del sys.modules[name]


def sum_only(model: torch.nn.Module) -> None:
    """Let every sharded part of the model reduce by plain sums, which is all that gloo has."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
