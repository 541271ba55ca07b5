"""A call of an operator as JSON, exact enough to repeat it: the name of the operator with its overload, all arguments.

A tensor is `{"shape", "stride", "dtype"}`, with `"host": true` if it is on the host while the job has a device. The
second place of one tensor in a call is `{"same": N}`, the N-th tensor of the call, from 0. Other values that JSON lacks
are `{"dtype": "bfloat16"}`, `{"device": "job"}` or `{"device": "host"}`, `{"layout": "strided"}`,
`{"memory_format": "preserve_format"}` and `{"float": "-inf"}`. train/probing repeats such a call on a real device.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


def call_of(func: Any, args: Sequence[Any], keywords: Mapping[str, Any], here: torch.device) -> str:
    """Return the call as JSON text, `{"operator", "args", "kwargs"}`; empty if an argument has no form in it.

    `here` is the device of the job.
    """
    arguments = _Arguments(here)
    try:
        content = {
            "operator": f"{func._schema.name}.{func._overloadname}",
            "args": [arguments.value(one) for one in args],
            "kwargs": {name: arguments.value(one) for name, one in keywords.items()},
        }
    except TypeError:
        return ""
    return json.dumps(content, separators=(",", ":"))


class _Arguments:
    def __init__(self, here: torch.device) -> None:
        self._here = here
        self._numbers: dict[int, int] = {}

    def value(self, found: Any) -> Any:
        """Return one argument for JSON; raise TypeError for a kind of value that has no form."""
        if isinstance(found, torch.Tensor):
            return self._tensor(found)
        if found is None or isinstance(found, bool | str):
            return found
        if isinstance(found, int | torch.SymInt):
            return int(found)
        if isinstance(found, float):
            return found if math.isfinite(found) else {"float": repr(found)}
        if isinstance(found, list | tuple):
            return [self.value(one) for one in found]
        for kind in (torch.dtype, torch.layout, torch.memory_format):
            if isinstance(found, kind):
                return {kind.__name__: str(found).removeprefix("torch.")}
        if isinstance(found, torch.device):
            return {"device": self._place(found)}
        raise TypeError(f"no form for {type(found).__name__}")

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        if id(tensor) in self._numbers:
            return {"same": self._numbers[id(tensor)]}
        self._numbers[id(tensor)] = len(self._numbers)
        place = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
        described = {
            "shape": [int(length) for length in tensor.shape],
            "stride": [int(step) for step in tensor.stride()],
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        return described | ({"host": True} if self._place(place) == "host" else {})

    def _place(self, device: torch.device) -> str:
        return "job" if device.type == self._here.type else "host"
