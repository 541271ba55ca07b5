"""dtypes of torch by the names of the suite: the values of PRECISION, OPTIMIZER_STATE and GRADIENT_DTYPE."""

from __future__ import annotations

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRECISIONS = {dtype: name for name, dtype in DTYPES.items()}
"""Names of the suite by dtype."""


def name_of(dtype: torch.dtype) -> str:
    """Return torch's own name of a dtype, `float32`."""
    return str(dtype).removeprefix("torch.")
