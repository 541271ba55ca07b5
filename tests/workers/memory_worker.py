"""Counts the memory of tiny jobs without any device: what is kept for the backward pass, and the peak of live tensors.

Run by test_real_models.py and test_rehearse.py, alone or under torchrun: `python -m tests.workers.memory_worker
FRAMEWORK PREFIX SCRATCH CASE ...`. A case is `kept model KEY=VALUE ...`, `kept_as_on_gpu ...` (with what is fused
there; the norm's kernel has a stand-in), `peak ...` (a whole training) or `least_peak ...` (the least peak of several).
Prints bytes by case as JSON, of a peak those of every rank.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests.support import tied_model
from tests.workers import plants
from train.common.weights import EqualWeights
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.models import ModelSpec
from utils.settings.config import RunConfig, load

SETTINGS = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=2", "WARMUP_ITERS=1", "MODEL_SIZE=tiny", "PRECISION=fp32")
TRAININGS_OF_LEAST_PEAK = 4


class FusedNorm(torch.autograd.Function):
    """Keeps what torch's fused RMSNorm of CUDA and ROCm keeps (FusedRmsNormBackward0: input, weight, 1 / rms)."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        inverse = torch.rsqrt(hidden.float().pow(2).mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(hidden, weight, inverse)
        return (hidden.float() * inverse * weight.float()).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return gradient, gradient.sum((0, 1)), None


class WindowedFlash(torch.autograd.Function):
    """Keeps what torch's flash attention keeps: query, key, value, result, and a number for each head and token."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
        result = torch.zeros_like(query.flatten(2))
        ctx.save_for_backward(query, key, value, result, torch.zeros(query.shape[:3]))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *(torch.zeros_like(tensor) for tensor in ctx.saved_tensors[:3]), None, None


def model_and_loss(trainer: Any, config: RunConfig, spec: ModelSpec) -> tuple[torch.nn.Module, Callable[..., Any]]:
    """Return the module that training wraps, and its loss of a batch of tokens."""
    if trainer.__name__ == "train.train_hf":
        model = trainer.initial_model(config, spec, None).train()

        def loss_of_hf(tokens: torch.Tensor) -> Any:
            count = torch.tensor(tokens.numel())
            return model(input_ids=tokens, labels=tokens, shift_labels=tokens, num_items_in_batch=count).loss

        return model, loss_of_hf
    start(trainer, config)
    built = trainer.build_model(config, spec)
    module = built if config.precision == "fp32" else trainer.Float16Module(trainer.get_model_config(built), built)

    def loss_of_mega(tokens: torch.Tensor) -> Any:
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        return trainer.loss_of(module(tokens, positions, None, labels=tokens), torch.ones(tokens.shape))[0]

    return module, loss_of_mega


def kept_bytes(trainer: Any, config: RunConfig, spec: ModelSpec) -> int:
    """Storages that one forward pass keeps for its backward pass, parameters and buffers left out."""
    model, loss = model_and_loss(trainer, config, spec)
    tokens = torch.randint(0, spec.vocab_size, (config.micro_batch_size, config.sequence_length))
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss(tokens)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    # only now: RECOMPUTE=selective of mega empties some of them
    total = sum(storage.nbytes() for storage in kept.values() if storage.data_ptr() not in own)
    result.backward()  # until here the graph holds what was counted
    return total


def peak_bytes(trainer: Any, config: RunConfig, spec: ModelSpec, prefix: Path) -> int:
    """Largest amount of live tensors of building and training, as torch's allocator of the CPU reports them.

    Sometimes too high: the profiler does not see what another thread frees, and now and then gloo's thread drops the
    last reference to the buffer of a collective.
    """
    start(trainer, config)
    dataset = build_train_dataset(config, prefix, describe(prefix))
    recorder = trainer.StepRecorder(config.train_iterations, stream=io.StringIO())
    gc.collect()  # what an earlier case has left must not be freed inside this one
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        training = trainer.build(config, spec, EqualWeights(spec, config.seed, config.init_std), dataset)
        trainer.run(*([config] if trainer.__name__ == "train.train_mega" else []), training, recorder)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def start(trainer: Any, config: RunConfig) -> None:
    """Start torch.distributed, and megatron-core's groups of these settings."""
    if trainer.__name__ == "train.train_mega":
        if trainer.parallel_state.model_parallel_is_initialized():
            trainer.parallel_state.destroy_model_parallel()
        trainer.initialize_parallel(config)
    elif not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")


def main() -> None:
    """Count the cases of the command line; those as on a GPU come last, they change the process for good."""
    framework, prefix, scratch, *cases = sys.argv[1:]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {key: value for key, value in alone.items() if key not in os.environ}
    trainer = importlib.import_module(f"train.train_{framework}")
    tied_model.register()
    counted = {}
    for case in cases:
        kind, model, *settings = case.split()
        fixed = (f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}", f"FRAMEWORK={framework}")
        ranks = f"CPU_RANKS={os.environ['WORLD_SIZE']}"
        config = load("cpu", arguments=[*SETTINGS, *fixed, ranks, "MODEL=llama", *settings], environ={})
        if kind in ("peak", "least_peak"):
            trainings = 1 if kind == "peak" else TRAININGS_OF_LEAST_PEAK
            what = (trainer, config, config.spec(model), Path(prefix))
            peak = min(peak_bytes(*what) for _ in range(trainings))
            counted[case] = [0] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(counted[case], peak)
            continue
        if kind == "kept_as_on_gpu":
            # what mega fuses where there is a GPU; torch.compile itself is off in this process
            torch.nn.functional.rms_norm = lambda hidden, _, weight, epsilon: FusedNorm.apply(hidden, weight, epsilon)
            torch.nn.RMSNorm.forward = lambda self, hidden: FusedNorm.apply(hidden, self.weight, self.eps)
            plants.fuse_mega(plants.FUSIONS_WITHOUT_PRODUCTS, WindowedFlash.apply)
        counted[case] = kept_bytes(trainer, config, config.spec(model))
    if os.environ["RANK"] == "0":
        print(json.dumps(counted))


if __name__ == "__main__":
    main()
