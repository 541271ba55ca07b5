"""Live bytes of one device by kind, and the fullest moment."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any

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
        block = self._blocks.pop(key)
        self.total_bytes -= block.bytes
        self.bytes_by_kind[block.kind] -= block.bytes
