"""Stand-in of the other ranks: collectives have sizes and groups, but nobody answers. They change torch for good."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fully_shard

from train.rehearsal.ledger import Ledger
from train.rehearsal.lending import replace

LOCAL = {"LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def lend(rank: int, ranks: int, ledger: Ledger) -> None:
    """Start torch.distributed with the backend `fake` as `rank` of `ranks`, and make every further group fake too."""
    from torch.distributed._tools import fake_collectives  # noqa: F401 - registers collectives of fake tensors
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ |= LOCAL | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    make = dist.new_group

    def new_group(*args: Any, **keywords: Any) -> Any:
        return make(*args, **{**keywords, "backend": "fake"})

    def all_gather_object(found: list[Any], mine: Any, group: Any = None) -> None:
        found[:] = [mine] * len(found)

    for module in (dist, dist.distributed_c10d):
        replace(module, new_group=new_group, all_gather_object=all_gather_object, barrier=lambda *_, **__: None)
    _lend_data_parallel(ledger)
    replace(DeviceMesh, __init__=_with_data(DeviceMesh.__init__))
    init_device_mesh = _with_data(device_mesh.init_device_mesh)
    for module in (dist, device_mesh, _fsdp_init):
        replace(module, init_device_mesh=init_device_mesh)
    # it makes a device of a name and the current device, which here is a device already
    replace(_fully_shard, _get_device_from_mesh=lambda mesh: ledger.device)


def _with_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose tensors have data: torch reads the ranks of a mesh from one."""

    def real(*args: Any, **keywords: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **keywords)

    return real


def _lend_data_parallel(ledger: Ledger) -> None:
    """Let DistributedDataParallel take parameters without data, and a fake collective's result."""
    from torch.nn.parallel import DistributedDataParallel, distributed

    # its C++ reads data here, to compare the parameters of all ranks
    replace(distributed, _verify_param_shape_across_processes=lambda *_, **__: True)
    make = DistributedDataParallel.__init__

    def average(_: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Do what C++ does with a bucket without a hook; there a fake collective's future has no result."""
        ledger.file("gradients", [bucket.buffer()])
        gradients = bucket.buffer().div_(dist.get_world_size())
        dist.all_reduce(gradients)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(gradients)
        return done

    def make_with_hook(self: Any, *args: Any, **keywords: Any) -> None:
        make(self, *args, **keywords)
        self.register_comm_hook(None, average)
        self.reducer = _Reducer(self.reducer)

    average.__annotations__.clear()  # torch wants the classes themselves here

    replace(DistributedDataParallel, __init__=make_with_hook)


class _Reducer:
    """The C++ reducer, whose buckets stay as they are: to build them again it reads data that ranks exchange."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False
