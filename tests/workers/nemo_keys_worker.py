"""Says which dotted recipe paths, JSON on stdin, NeMo's classes do not have. Runs in NeMo's own environment."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from typing import Any


def names(kind: Any) -> set[str]:
    """Return the fields of a dataclass or the arguments of a class."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    return set(inspect.signature(kind).parameters)


def main() -> None:
    """Print the unknown paths, by recipe."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from nemo import lightning
    from nemo.collections import llm
    from nemo.collections.llm.gpt.data import PreTrainingDataModule
    from nemo.lightning.pytorch.optim import CosineAnnealingScheduler

    configs = {
        "llama": llm.Llama31Config8B,
        "qwen": llm.Qwen25Config7B,
        "mistral": llm.MistralConfig7B,
        "qwen3": llm.Qwen25Config7B,  # 2.3 has no recipe of Qwen3
    }
    shared = {
        "": names(llm.pretrain),
        "data": names(PreTrainingDataModule),
        "trainer": set(inspect.signature(lightning.Trainer.__init__).parameters)
        | set(inspect.signature(lightning.Trainer.__mro__[2].__init__).parameters),
        "trainer.plugins": names(lightning.MegatronMixedPrecision),
        "trainer.strategy": names(lightning.MegatronStrategy),
        "trainer.strategy.ddp": names(DistributedDataParallelConfig),
        "optim.config": names(OptimizerConfig),
        "optim.lr_scheduler": names(CosineAnnealingScheduler),
        "log": names(lightning.NeMoLogger),
    }
    asked: dict[str, list[str]] = json.load(sys.stdin)
    unknown = {}
    for model, paths in asked.items():
        known = shared | {"model.config": names(configs[model])}
        split = [path.rpartition(".") for path in paths]
        unknown[model] = [".".join(filter(None, (at, name))) for at, _, name in split if name not in known[at]]
    print(json.dumps(unknown))


if __name__ == "__main__":
    main()
