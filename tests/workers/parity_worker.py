"""Trains the named cases in one process through the trainers' own functions and prints their curves as JSON.

Run by test_parity.py: `python -m tests.workers.parity_worker FRAMEWORK PREFIX SCRATCH CASE [CASE ...]`; a case is
`model`, `model:fault`, `model:precision` or, of hf, `model:as_on_gpu`, with what is fused there. Faults are planted on
this side only, so that the pair must differ. RANK and WORLD_SIZE make it one rank of several; PARALLEL (`TP=2`) holds
more settings.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from train.common import adamw
from train.common.weights import EqualWeights
from train.job.recorder import Samples, StepRecorder
from utils import models
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.models import ModelSpec
from utils.settings.config import RunConfig, load

SETTINGS = (
    *("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=20", "LR=1e-3", "WARMUP_ITERS=2", "CPU_RANKS=1"),
    *("PRECISION=fp32", "MODEL_SIZE=tiny", "MODEL=all"),
)


class RandomWeights(EqualWeights):
    """Biases that are not 0 and norms that are not 1, so that a wrong layout or a missing term shows."""

    def __call__(self, name: str) -> torch.Tensor:
        """Give an output layer that should have been tied the embedding's weight: both sides start equal."""
        return super().__call__(name if name in self._shapes else "model.embed_tokens.weight")

    def _draw(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = super()._draw(name, shape)
        if len(shape) > 1:
            return tensor
        generator = torch.Generator().manual_seed(len(name) + sum(name.encode()))
        noise = torch.empty(shape).normal_(0.0, 1.0, generator=generator)
        return 0.02 * noise if name.endswith(".bias") else tensor + 0.1 * noise


SPEC_FAULTS = {
    "rope_base": lambda spec: replace(spec, rope_base=10000.0),
    "no_rope_scaling": lambda spec: replace(spec, rope_scaling=None),
    "norm_epsilon": lambda spec: replace(spec, norm_epsilon=1e-6 if spec.norm_epsilon == 1e-5 else 1e-5),
    "no_qkv_bias": lambda spec: replace(spec, qkv_bias=False),
    "no_query_key_norm": lambda spec: replace(spec, query_key_norm=False),
    "window_one_more": lambda spec: replace(spec, sliding_window=spec.sliding_window + 1),
    "window_one_less": lambda spec: replace(spec, sliding_window=spec.sliding_window - 1),
    "untied": lambda spec: replace(spec, tie_word_embeddings=False),
}


_BF16 = {"precision": "bf16", "train_iterations": 10}  # a CPU is slow in bf16
PRECISIONS = {"bf16": _BF16, "bf16_no_master": _BF16, "bf16_as_on_gpu": _BF16}
"""Fields of RunConfig by the name of a case; `bf16_no_master` is a fault of the optimizer too."""


def norm_after_rope(attention: Any) -> None:
    """Normalise queries and keys behind their rotation: the weight of a channel then meets a rotated number."""
    norms = attention.q_layernorm, attention.k_layernorm
    originals = [norm.forward for norm in norms]
    for norm in norms:
        norm.forward = lambda same: same
    attention.core_attention.register_forward_pre_hook(
        lambda _, rotated: (*(normed(one) for normed, one in zip(originals, rotated, strict=False)), *rotated[2:])
    )


def query_key_epsilon(attention: Any) -> None:
    """Give the norms of queries and keys an epsilon that is not that of the other norms."""
    attention.q_layernorm.eps = attention.k_layernorm.eps = 1e-5


ATTENTION_FAULTS = {function.__name__: function for function in (norm_after_rope, query_key_epsilon)}
"""Faults of a built attention of megatron-core, by the name of a case."""


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """Plant a fault of the training loop in train_mega."""
    from train import train_mega
    from train.mega import optimizer

    original_optimizer, original_loss = optimizer.get_megatron_optimizer, train_mega.loss_of
    original_split = adamw.split_master
    if fault == "bf16_no_master":
        adamw.split_master = lambda master: (master.bfloat16(), torch.zeros_like(master, dtype=torch.int16))
    if fault == "weight_decay_on_norms":
        optimizer.get_megatron_optimizer = functools.partial(original_optimizer, config_overrides={})
    if fault == "loss_divided_by_micro_batches":
        # without a copy of its own the reported loss is what megatron-core divides in place
        train_mega.loss_of = lambda losses, mask: (mean := losses.float().mean(), {"lm_loss": mean.detach()})
    try:
        yield
    finally:
        optimizer.get_megatron_optimizer, train_mega.loss_of = original_optimizer, original_loss
        adamw.split_master = original_split


def train_mega(config: RunConfig, spec: ModelSpec, source: EqualWeights, dataset: object, fault: str) -> Samples:
    """Train one case with megatron-core."""
    from train import train_mega
    from train.mega.model import initialize_parallel
    from train.mega.resolved import gpt_of

    initialize_parallel(config)
    recorder = StepRecorder(config.train_iterations, stream=io.StringIO())
    with planted(fault):
        training = train_mega.build(config, spec, source, dataset)
        if fault in ATTENTION_FAULTS:
            for layer in gpt_of(training.model).decoder.layers:
                ATTENTION_FAULTS[fault](layer.self_attention)
        train_mega.run(config, training, recorder)
    return recorder.samples


def train_hf(config: RunConfig, spec: ModelSpec, source: EqualWeights, dataset: object, fault: str) -> Samples:
    """Train one case with the transformers Trainer."""
    from train import train_hf

    if not torch.distributed.is_initialized():
        train_hf.initialize(config)
    recorder = StepRecorder(config.train_iterations, stream=io.StringIO())
    training = train_hf.build(config, spec, source, dataset)
    if fault.endswith("as_on_gpu"):
        fuse_hf(training, config)
    train_hf.run(training, recorder)
    return recorder.samples


def fuse_hf(training: Any, config: RunConfig) -> None:
    """Turn on what train_hf turns on where there is one GPU; nothing is compiled."""
    from train.common import cross_entropy
    from train.hf import fused, linear
    from train.hf.gradients import GradientSums

    fused.compiled = cross_entropy.compiled = lambda function: function
    fused.fuse(training.model, with_loss=config.precision != "fp32")
    training.gradient_sums = training.gradient_sums or GradientSums(training.model.parameters())
    linear.add_in_products(training.model, training.gradient_sums)


def main() -> None:
    """Train the cases of the command line."""
    framework, prefix, scratch, *cases = sys.argv[1:]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"} | os.environ
    settings = [*SETTINGS, f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}"]
    settings += [f"FRAMEWORK={framework}", f"CPU_RANKS={os.environ['WORLD_SIZE']}"]
    settings += os.environ.get("PARALLEL", "").split()
    config = load("cpu", arguments=settings, environ={})
    from tests.support import tied_model  # here, because NeMo's environment may hold another package `tests`

    tied_model.register()
    train_case = {"mega": train_mega, "hf": train_hf}[framework]
    importlib.import_module(f"train.train_{framework}")  # first: train_mega sends megatron-core to the CPU
    dataset = build_train_dataset(config, Path(prefix), describe(Path(prefix)))
    curves = {}
    for case in cases:
        model, _, fault = case.partition(":")
        spec = models.get(model, "tiny")
        source = RandomWeights(spec, config.seed, config.init_std)
        built = SPEC_FAULTS[fault](spec) if fault in SPEC_FAULTS else spec
        settings = replace(config, **PRECISIONS.get(fault, {}))
        samples = train_case(settings, built, source, dataset, fault)
        curves[case] = {
            "loss": samples.loss_values,
            "grad_norm": samples.grad_norms,
            "learning_rate": samples.learning_rates,
        }
    print(json.dumps(curves))


if __name__ == "__main__":
    main()
