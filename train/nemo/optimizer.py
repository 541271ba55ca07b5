"""NeMo's call of megatron-core that builds the optimizer, for every megatron-core that an image of NeMo 2 may have.

NeMo 2.3 to 2.7 pass three arguments, which megatron-core no longer has from 0.16.0 on (nemo/lightning/_strategy_lib.py,
`setup_megatron_optimizer`; megatron/core/optimizer/__init__.py, `get_megatron_optimizer`).
"""

from __future__ import annotations

import inspect
from typing import Any

from utils.errors import ConfigError


def accept_conditions(core: Any) -> None:
    """Let `core.get_megatron_optimizer` (`core` is megatron.core.optimizer) be called with NeMo's three conditions.

    Where none of them is set, megatron-core before and after means the same: no weight decay for biases and norms.
    The call raises ConfigError where one is set.
    """
    original = core.get_megatron_optimizer
    if "no_weight_decay_cond" in inspect.signature(original).parameters:
        return

    def build(
        config: Any,
        chunks: Any,
        no_weight_decay_cond: Any = None,
        scale_lr_cond: Any = None,
        lr_mult: float = 1.0,
        **named: Any,
    ) -> Any:
        if (no_weight_decay_cond, scale_lr_cond, lr_mult) != (None, None, 1.0):
            raise ConfigError("nemo: NeMo's optimizer has a condition set that this megatron-core cannot take")
        return original(config, chunks, **named)

    core.get_megatron_optimizer = build
