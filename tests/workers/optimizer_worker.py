"""Trains a tiny model by megatron-core in several precisions and prints what its optimizer holds and reads, as JSON.

Run by tests/train/mega/test_optimizer.py: `python -m tests.workers.optimizer_worker PREFIX SCRATCH CASE [CASE ...]`; a
case is a list of settings. RANK and WORLD_SIZE make it one rank of several; rank 0 prints.
"""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.support.host_reads import CountHostReads
from train import train_mega  # first: it sends megatron-core to the CPU
from train.common.weights import EqualWeights
from train.job.device import CpuDevice
from train.job.recorder import StepRecorder
from train.mega import resolved as mega_resolved
from train.mega.optimizer import DeviceNormOptimizer
from utils import models
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.settings.config import load

SETTINGS = (
    *("GBS=4", "MBS=1", "SL=32", "TRAIN_ITERS=8", "LR=1e-2", "WARMUP_ITERS=1", "MODEL=llama", "MODEL_SIZE=tiny"),
    *("FRAMEWORK=mega", "PRECISION=bf16"),
)


class Watched(DeviceNormOptimizer):
    """Also computes the norm of the gradients that it is given, in float64."""

    watched: list[float]

    def step_with_ready_grads(self) -> bool:
        """Add the squares of this rank's whole gradients, which are those of the model if there is one rank."""
        gradients = [parameter.main_grad for chunk in self.model_chunks for parameter in chunk.parameters()]
        self.watched.append(sum(gradient.double().square().sum() for gradient in gradients) ** 0.5)
        return super().step_with_ready_grads()


def like_a_gpu() -> SimpleNamespace:
    """Return the CPU as a device of which the recorder reads as of a GPU."""
    device = CpuDevice()
    names = ("synchronize", "allocated_gb", "peak_allocated_gb", "peak_reserved_gb")
    return SimpleNamespace(**{name: getattr(device, name) for name in names})


class FromStart(StepRecorder):
    """Counts the host's reads from the first step on: the start of the data loader draws a seed."""

    reads: CountHostReads

    def start(self) -> None:
        """Begin to count."""
        super().start()
        self.reads.count = 0


def trained(prefix: Path, scratch: str, settings: list[str]) -> dict[str, Any]:
    """Train one case and return the facts of this rank."""
    where = [f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}"]
    ranks = [f"CPU_RANKS={os.environ['WORLD_SIZE']}"]
    config = load("cpu", arguments=[*SETTINGS, *where, *ranks, *settings], environ={})
    train_mega.initialize_parallel(config)
    spec = replace(models.get("llama", "tiny"), num_layers=1, hidden_size=64, ffn_hidden_size=128)
    dataset = build_train_dataset(config, prefix, describe(prefix))
    training = train_mega.build(config, spec, EqualWeights(spec, config.seed, config.init_std), dataset)
    training.optimizer.__class__, training.optimizer.watched = Watched, []
    reads = CountHostReads()
    recorder = FromStart(config.train_iterations, device=like_a_gpu(), stream=io.StringIO())
    recorder.reads = reads
    built = (training.loader, training.model, training.optimizer, training.scheduler)
    resolved = mega_resolved.read(config, *built)
    with reads:
        train_mega.run(config, training, recorder)
    inner = mega_resolved.inner_optimizer(training.optimizer)
    states = [tensor for state in inner.state.values() for tensor in state.values()]
    held = torch.tensor(sum(tensor.nbytes for tensor in states))
    torch.distributed.all_reduce(held)
    return {
        "resolved": resolved,
        "loss": recorder.samples.loss_values,
        "grad_norm": recorder.samples.grad_norms,
        "norm_in_float64": [float(norm) for norm in training.optimizer.watched],
        "host_reads": reads.count,
        "state_bytes": int(held),
        "state_dtypes": sorted({str(tensor.dtype) for tensor in states}),
        "clip_coefficient": float(inner.clip_coefficient),
    }


def main() -> None:
    """Train the cases of the command line."""
    prefix, scratch, *cases = sys.argv[1:]
    facts = {case: trained(Path(prefix), scratch, case.split()) for case in cases}
    if os.environ["RANK"] == "0":
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
