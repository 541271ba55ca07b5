"""Origin of an exception in a rehearsal: the settings, the stand-ins, or the job's code."""

from __future__ import annotations

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    MetadataMismatchError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from train.rehearsal.device import StandInError
from utils.errors import ConfigError

OF_FAKE_TENSORS = (
    *(DataDependentOutputException, DynamicOutputShapeException, MetadataMismatchError),
    *(UnsupportedFakeTensorException, UnsupportedOperatorException),
)
SIGNS = (
    "data is not allocated yet",  # C++ reads a tensor without data
    "Cannot access data pointer",
    "Cannot access accelerator device",
    "Torch not compiled with CUDA",
    "not compiled with CUDA",
    "FakeTensor",
    "fake_tensor",
    "Couldn't swap",
    "has no attribute '_cuda",
    "'SimpleNamespace' object has no attribute",  # a property of the device
    "'Stream' object has no attribute",
    "'Event' object has no attribute",
)
"""Parts of messages that only a tensor without data or a lent device can cause."""


def whose(error: BaseException) -> str:
    """Return `settings`, `stand_in` or `job`."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    if any(isinstance(one, ConfigError) for one in chain):
        return "settings"
    is_stand_in = any(isinstance(one, (StandInError, *OF_FAKE_TENSORS)) for one in chain)
    return "stand_in" if is_stand_in or any(sign in str(one) for one in chain for sign in SIGNS) else "job"
