"""Trains the named cases with train_hf's own functions and prints facts of each as JSON.

Run by tests/train/hf/test_training.py: `python -m tests.workers.hf_worker PREFIX SCRATCH CASE [CASE ...]`; a case is
`model KEY=VALUE ...`. RANK and WORLD_SIZE make it one rank of several; the last rank's facts count.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from tests.support import tied_model
from tests.support.host_reads import CountHostReads
from tests.workers.parity_worker import SETTINGS, RandomWeights
from train import train_hf
from train.hf import resolved
from train.job.recorder import StepRecorder
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.settings.config import RunConfig, load


class ReadsOfSteps(TrainerCallback):
    """Host reads of each step, from its begin to its end; what follows is the recorder's own."""

    def __init__(self, counter: CountHostReads) -> None:
        self.reads: list[int] = []
        self._counter = counter

    def on_step_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Remember the count at the begin of a step."""
        self._at_begin = self._counter.count

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Note the reads of the step."""
        self.reads.append(self._counter.count - self._at_begin)


def facts(config: RunConfig, model: str, prefix: Path) -> dict[str, Any]:
    """Train one case and return what was measured, read back and seen of its tensors."""
    spec = config.spec(model)
    source = RandomWeights(spec, config.seed, config.init_std)
    dataset = build_train_dataset(config, prefix, describe(prefix))
    training = train_hf.build(config, spec, source, dataset)
    recorder = StepRecorder(config.train_iterations, stream=io.StringIO())
    found: dict[str, Any] = {}

    def built() -> None:
        found["resolved"] = resolved.read(training)
        rows = training.model.model.embed_tokens.weight
        found["held_here"] = sum(_local(parameter).numel() for parameter in training.model.parameters())
        found["first_weights"] = _local(rows).flatten()[:5].float().tolist()

    training.when_built = built
    counter = CountHostReads()
    reads = ReadsOfSteps(counter)
    training.add_callback(reads)
    with counter:
        train_hf.run(training, recorder)
    states = next(iter(train_hf.inner_optimizer(training).state.values()))
    return found | {
        "loss": recorder.samples.loss_values,
        "grad_norm": recorder.samples.grad_norms,
        "reads": reads.reads,
        "drawn_here": len(source.digests),
        "states": {name: str(state.dtype) for name, state in states.items()},
        "held_dtype": str(next(training.model.parameters()).dtype),
    }


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def main() -> None:
    """Train the cases of the command line."""
    prefix, scratch, *cases = sys.argv[1:]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"} | os.environ
    tied_model.register()
    said = {}
    for case in cases:
        model, *settings = case.split()
        fixed = (f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}", "FRAMEWORK=hf")
        ranks = f"CPU_RANKS={os.environ['WORLD_SIZE']}"
        config = load("cpu", arguments=[*SETTINGS, *fixed, ranks, "TRAIN_ITERS=3", *settings], environ={})
        if not torch.distributed.is_initialized():
            train_hf.initialize(config)
        said[case] = facts(config, model, Path(prefix))
    print(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo may still run


if __name__ == "__main__":
    main()
