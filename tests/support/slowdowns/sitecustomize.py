"""Slow one part of a real trainer's ranks; Python imports this by itself from a folder on PYTHONPATH.

TPRIMAT_TEST_SLOWDOWN names the part: `operator` runs each matrix product several times, `launch` waits before each
module's forward pass, `collective` sends the data of each collective several times. The numbers of the training stay
as they are.
"""

import os
import sys
import time
from importlib.abc import MetaPathFinder

TIMES = 4
WAIT_SECONDS = 0.5e-3
COLLECTIVES = ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor")


def slow_operator(torch):
    """Replace the CPU's aten::mm by one that computes its result TIMES times."""
    library = torch.library.Library("aten", "IMPL")

    def mm(left, right):
        result = left.new_empty(left.shape[0], right.shape[1])
        for _ in range(TIMES):
            torch.ops.aten.mm.out(left, right, out=result)
        return result

    library.impl("mm", mm, "CPU")
    torch.slowed = library  # the implementation lives as long as this object


def slow_launch(torch):
    """Wait on the host before each module is called."""
    original = torch.nn.Module.__call__

    def call(self, *arguments, **keywords):
        time.sleep(WAIT_SECONDS)
        return original(self, *arguments, **keywords)

    torch.nn.Module.__call__ = call


def slow_collective(torch):
    """Send the data of each collective of torch.distributed TIMES times; only the last result is kept."""

    spare = {}

    def like(tensor, place):
        """Return a tensor of this size and type, made once, so that only the sending takes more time."""
        key = tensor.shape, tensor.dtype, tensor.device, place
        if key not in spare:
            spare[key] = torch.ones_like(tensor)
        return spare[key]

    def slowed(original):
        def send(*tensors, **keywords):
            waiting = {**keywords, "async_op": False}
            for place in range(TIMES - 1):
                original(*(like(one, place) if torch.is_tensor(one) else one for one in tensors), **waiting)
            return original(*tensors, **keywords)

        return send

    for name in COLLECTIVES:
        send = slowed(getattr(torch.distributed, name))
        setattr(torch.distributed, name, send)
        setattr(torch.distributed.distributed_c10d, name, send)


class BeforeTheFramework(MetaPathFinder):
    """Slows the part before megatron is imported, which keeps the functions of torch that it finds then."""

    def find_spec(self, name, path=None, target=None):
        """Find nothing."""
        if name in ("train.job", "megatron"):
            sys.meta_path.remove(self)
            import torch
            import torch.distributed

            globals()[f"slow_{os.environ['TPRIMAT_TEST_SLOWDOWN']}"](torch)


if "RANK" in os.environ and os.environ.get("TPRIMAT_TEST_SLOWDOWN"):
    sys.meta_path.insert(0, BeforeTheFramework())
