"""Functions of torch.compile in tests: plain as on a machine without a compiler, or really compiled."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

COMPILED = (
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"),
    pytest.mark.full("torch.compile with the C++ compiler, about 10 s each"),
)
KINDS = [
    ("plain", torch.float32, 1e-6),
    ("plain", torch.bfloat16, 4e-3),
    pytest.param("compiled", torch.bfloat16, 4e-3, marks=COMPILED),
]
"""Kind, dtype, and bound of a relative error: some roundings of float32, one of bf16."""


def leave_plain(request: Any, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    """Let these modules compile nothing, unless the test's parameter `kind` is `compiled`."""
    if getattr(getattr(request.node, "callspec", None), "params", {}).get("kind") == "compiled":
        return
    for module in modules:
        monkeypatch.setattr(module, "compiled", lambda function: function)
