"""The ledger: a dispatch mode that sees every operator below autograd, and keeps account of the step and its memory.

It stands above `FakeTensorMode`: tensors have shapes, dtypes, devices and storages with sizes, but no data.
"""

from __future__ import annotations

import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork, _resolve_process_group as resolve_group
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from train.rehearsal import events
from train.rehearsal.events import Collective, Event, HostRead, Operator

aten = torch.ops.aten
COLLECTIVES = ("c10d::", "_c10d_functional::")
NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "reduce_scatter": "reduce_scatter",
    "recv": "recv",
    "broadcast": "broadcast",
}
"""Our name of every operator that begins with torch's: versions for one tensor, for lists and for several at once."""
TORCH = Path(torch.__file__).parent
HERE = Path(__file__).parent
COPIES = ("_to_copy", "copy_", "_foreach_copy_")


def replace(holder: Any, **stand_ins: Any) -> None:
    """Put each stand-in into a module or class under its name, in this process and for good."""
    for name, stand_in in stand_ins.items():
        setattr(holder, name, stand_in)


KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "weight_copies", "workspace", "other")
"""`activations`: made by the forward pass. `weight_copies`: gathered from other ranks or cast (utils.memory counts them
as workspace). `workspace`: made by the backward pass or the optimizer's step. `other`: batches, left by building."""


@dataclass
class _Block:
    bytes: int
    kind: str


class Memory:
    """Storages that are alive, each counted once however many tensors view it; bytes as torch's allocator is asked."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.bytes_by_kind: Counter[str] = Counter()
        self.peak_bytes = 0
        self.peak_by_kind: dict[str, int] = {}
        self._blocks: dict[int, _Block] = {}

    def hold(self, storage: Any, kind: str) -> None:
        """Count a storage until it is freed; a known one keeps its kind, and its new size is noted."""
        key = storage._cdata
        if key not in self._blocks:
            self._blocks[key] = _Block(0, kind)
            weakref.finalize(storage, self._free, key).atexit = False
        self._set_size(self._blocks[key], storage.nbytes())

    def resized(self, storage: Any) -> None:
        """Note the new size of a storage, if it is one of this device."""
        block = self._blocks.get(storage._cdata)
        if block is not None:
            self._set_size(block, storage.nbytes())

    def file(self, storage: Any, kind: str, of: tuple[str, ...] = KINDS) -> None:
        """Change the kind of a storage, if it is one of this device and its kind is one of `of`."""
        block = self._blocks.get(storage._cdata)
        if block is not None and block.kind != kind and block.kind in of:
            self.bytes_by_kind[block.kind] -= block.bytes
            self.bytes_by_kind[kind] += block.bytes
            block.kind = kind

    def refile(self, before: str, kind: str) -> None:
        """Change the kind of all live storages of one kind."""
        for block in self._blocks.values():
            block.kind = kind if block.kind == before else block.kind
        self.bytes_by_kind[kind] += self.bytes_by_kind.pop(before, 0)

    def forget_peak(self) -> None:
        """Search for the fullest moment from now on."""
        self.peak_bytes = 0
        self._note_peak()

    def _set_size(self, block: _Block, size: int) -> None:
        self.total_bytes += size - block.bytes
        self.bytes_by_kind[block.kind] += size - block.bytes
        block.bytes = size
        self._note_peak()

    def _note_peak(self) -> None:
        if self.total_bytes > self.peak_bytes:
            self.peak_bytes = self.total_bytes
            self.peak_by_kind = {kind: self.bytes_by_kind[kind] for kind in KINDS}

    def _free(self, key: int) -> None:
        self._set_size(self._blocks.pop(key), 0)


class Ledger(TorchDispatchMode):
    """Account of the operators, collectives, host reads and live bytes of one rank.

    `device` is that of the job's tensors, `cuda:0` or `cpu`. A tensor of `logits` elements whose last dimension is the
    last of `logits` counts as logits. A mask that chooses experts has `chosen` true elements, one for each token and
    each of its experts. Events are counted in `segment` if there is one.
    """

    def __init__(self, device: torch.device, logits: tuple[int, int] = (0, 0), chosen: int = 0) -> None:
        super().__init__()
        self.device = device
        self.memory = Memory()
        self.is_building = True
        self.is_in_optimizer = False
        self.segment: Counter[Event] | None = None
        self._logits, self._chosen = logits, chosen
        self._region: _Region | None = None

    @property
    def phase(self) -> str:
        """The part of the step that runs now: `build`, `forward`, `backward` or `optimizer`."""
        if self.is_building:
            return "build"
        if self.is_in_optimizer:
            return "optimizer"
        return "backward" if torch._C._current_graph_task_id() != -1 else "forward"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls operators on its local tensors, which are seen then
        if func is torch.ops.prim.device.default:
            # C++ only (Python's `.device` is FakeTensor's own): autograd of a CPU build has no streams of CUDA
            return torch.device("meta") if args[0].fake_device.type == "cuda" else args[0].fake_device
        if func is aten._local_scalar_dense.default:
            return self._number(func, args[0])
        if func is aten.equal.default:
            self._note_read(args[0])
            return True
        keywords = self._with_device(keywords)
        if func._schema.name.startswith(COLLECTIVES):
            return self._communicate(func, args, keywords)
        if self._chosen and func is aten.masked_select.default:  # its size is in the data
            result = args[0].new_empty(self._chosen)
        elif func is aten._grouped_mm.default:  # without data torch knows shapes of bf16 alone, with data also of fp32
            halves = (tensor.to(torch.bfloat16) for tensor in args[:2])
            result = func(*halves, *args[2:], **keywords).to(args[0].dtype)
        else:
            result = func(*args, **keywords)
        self._account(func, args, keywords, result)
        return result

    def is_here(self, tensor: Any) -> bool:
        """Return whether a value is a tensor of the job's device."""
        return isinstance(tensor, FakeTensor) and tensor.fake_device.type == self.device.type

    def file(self, kind: str, tensors: Iterable[Any], of: tuple[str, ...] = KINDS) -> None:
        """Count the storages of these tensors as `kind`, if they are of a kind in `of`; None among them is skipped."""
        for tensor in tensors:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if self.is_here(local):
                self.memory.file(local.untyped_storage(), kind, of)

    def as_one_operator(self, name: str, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
        """Call a function and count it as one operator, which reads its arguments and writes its results once.

        Products inside are counted by themselves, as a compiler calls a library for them. Tensors made inside count as
        memory only if they live on.
        """
        if self._region is not None:
            return function(*args, **keywords)
        # regions do not nest: the outer one is the kernel that runs
        self._region = region = _Region()
        try:
            result = function(*args, **keywords)
        finally:
            self._region = None
        inputs, outputs = events.tensors_in((args, keywords)), events.tensors_in(result)
        for tensor in outputs:
            self._hold(tensor)
        for storage in region.survivors():
            self.memory.hold(storage, self._kind())
        if self.segment is not None:
            # of inputs that were written in place; a whole storage counts as written
            changed = [tensor for tensor in inputs if tensor.untyped_storage()._cdata in region.changed]
            moved = events.sizes(inputs) + events.sizes([*changed, *outputs])
            self._count_operator(name, inputs, flops=0, moved=moved)
        return result

    def _with_device(self, keywords: dict[str, Any]) -> dict[str, Any]:
        if keywords.get("device") is None:
            return keywords
        device = torch.device(keywords["device"])
        if self.device.type == "cuda" and device.type in ("meta", "cuda"):
            return {**keywords, "device": self.device}  # C++ has copied `meta` from a tensor of the device
        # a real tensor of `cpu:0` is on `cpu`; `meta`, by which accelerate saves memory, would have another type
        return {**keywords, "device": torch.device("cpu")} if device.type in ("cpu", "meta") else keywords

    def _number(self, func: Any, tensor: Any) -> Any:
        try:
            return func(tensor)
        except DataDependentOutputException:
            self._note_read(tensor)
        # finite and not 0, for a number that has no data
        if tensor.dtype is torch.bool:
            return True
        return 1.0 if tensor.dtype.is_floating_point else 1

    def _note_read(self, tensor: Any) -> None:
        if self.segment is not None and self.device.type != "cpu" and self.is_here(tensor):
            self.segment[HostRead(_caller())] += 1

    def _communicate(self, func: Any, args: Any, keywords: Any) -> Any:
        if self.segment is not None and "wait_tensor" not in func._schema.name:
            self.segment[_collective(func, args)] += 1
        if "coalesced_" in func._schema.name:  # torch has no fake version of these
            return FakeWork().boxed()
        result = func(*args, **keywords)
        for tensor in events.tensors_in(result):
            self._hold(tensor)
        if "allgather" in func._schema.name:
            self._file_gathered(events.tensors_in(args[0]))
        return result

    def _file_gathered(self, tensors: list[torch.Tensor]) -> None:
        """Count buffers that get weights from other ranks; a rank's own weights and gradients stay what they are."""
        self.file("weight_copies", tensors, of=("activations", "workspace"))

    def _account(self, func: Any, args: Any, keywords: Any, result: Any) -> None:
        outputs = events.tensors_in(result)
        if events.base_name(func) == "split_with_sizes_copy":  # by which FSDP2 divides a gathered buffer
            self._file_gathered(events.changed_by(func, args, keywords))
        if self._region is not None:
            self._region.note([t for t in outputs if self.is_here(t)], events.changed_by(func, args, keywords))
        else:
            for tensor in outputs:
                self._hold(tensor)
        if self.segment is None or func.is_view or events.base_name(func) in events.WITHOUT_WORK:
            return
        flops = events.flops_of(func, args, keywords, result)
        inputs = events.tensors_in((args, keywords))
        if self._region is None or flops:
            places = {t.fake_device.type for t in [*inputs, *outputs] if isinstance(t, FakeTensor)}
            if self.device.type in places:
                is_copy = len(places) > 1 and events.base_name(func) in COPIES
                moved = events.traffic(func, args, keywords, result)
                self._count_operator(func._schema.name, inputs, flops, moved, is_host_copy=is_copy)
                if is_copy and not self.is_here(outputs[0]):
                    self._note_read(next(tensor for tensor in inputs if self.is_here(tensor)))

    def _count_operator(
        self, name: str, inputs: list[torch.Tensor], flops: int, moved: int, *, is_host_copy: bool = False
    ) -> None:
        assert self.segment is not None
        kind = "matmul" if flops else "memory_bound"
        if flops and ("attn" in name or "attention" in name):
            kind = "attention"
        elif is_host_copy:
            kind = "host_copy"
        elif self.phase == "optimizer" and not flops:
            kind = "optimizer"
        shapes = tuple(tuple(int(length) for length in tensor.shape) for tensor in inputs)
        dtypes = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in inputs)
        self.segment[Operator(name, shapes, dtypes, self.phase, kind, flops, moved)] += 1

    def _hold(self, tensor: torch.Tensor) -> None:
        if self.is_here(tensor):
            self.memory.hold(tensor.untyped_storage(), self._kind(tensor))

    def _kind(self, tensor: torch.Tensor | None = None) -> str:
        if self.is_building:
            return "other"
        if tensor is not None and tensor.dim() and (tensor.numel(), tensor.shape[-1]) == self._logits:
            return "logits"
        return "activations" if self.phase == "forward" else "workspace"


class _Region:
    """The inside of a function that counts as one operator."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self.changed: set[int] = set()

    def note(self, outputs: list[torch.Tensor], changed: list[torch.Tensor]) -> None:
        self.changed |= {tensor.untyped_storage()._cdata for tensor in changed}
        for tensor in outputs:
            storage = tensor.untyped_storage()
            self._made.setdefault(storage._cdata, storage)

    def survivors(self) -> list[Any]:
        """Return the storages that something outside still refers to."""
        # this object's own references must not keep them alive
        kept = [weakref.ref(storage) for storage in self._made.values()]
        self._made.clear()
        return [storage for ref in kept if (storage := ref()) is not None]


def _collective(func: Any, args: Any) -> Collective:
    name = func._schema.name.partition("::")[2].strip("_")
    for ours, theirs in NAMES.items():
        name = ours if name.startswith(theirs) else name
    largest = max((sum(events.size_of(t) for t in events.tensors_in(argument)) for argument in args), default=0)
    if func._schema.name.startswith("_c10d_functional::"):  # the name of the group is the last argument
        group = resolve_group(args[-1])
        return Collective(name, largest, group.group_desc, group.size())
    for argument in args:
        with suppress(RuntimeError, TypeError):  # of what is no group
            group = dist.ProcessGroup.unbox(argument)
            return Collective(name, largest, group.group_desc, group.size())
    return Collective(name, largest, "", 0)


def _caller() -> str:
    """Return file, line and function of the innermost caller that is neither torch nor the rehearsal."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        path = Path(frame.f_code.co_filename)
        if TORCH not in path.parents and HERE not in path.parents and path.is_absolute():
            return f"{'/'.join(path.parts[-3:])}:{line} {frame.f_code.co_name}"
    return "unknown"
