"""Builds a tiny job with the trainers' own functions and prints facts of the built objects as JSON.

Run by test_resolved.py and test_rope.py: `python -m tests.workers.built_worker FRAMEWORK PREFIX SCRATCH`. In a process
of its own, because train_mega sends all of torch's CUDA calls to the CPU.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.workers.parity_worker import SETTINGS
from train.common.weights import EqualWeights
from train.job.report import MismatchError
from utils import models
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.settings.config import load

ROPE_POSITIONS = (0, 1, 127, 4095, 8191, 8192, 8193, 20000, 65537, 131071)


QUERY_EPSILON = "epsilon of the norm of queries"
MODEL_OF = {
    "qkv_bias": "qwen",
    "sliding_window": "mistral",
    "rope_base": "mistral",
    "query_key_norm": "qwen3",
    QUERY_EPSILON: "qwen3",
}
"""Model whose built object is changed, by key; llama for the others."""


def _set(container: Any, key: Any, value: Any) -> None:
    if isinstance(container, dict):
        container[key] = value
    else:
        setattr(container, key, value)


def mega() -> tuple[Callable[[str, Any], Any], Callable[[Any, Any], Any], dict[str, Any], Callable[[Any], Any]]:
    """Return how to build, how to read, what to change where, and how to get rotary angles."""
    from train import train_mega
    from train.mega import resolved as mega_resolved

    def build(model: str, config: Any, dataset: Any) -> Any:
        train_mega.initialize_parallel(config)
        spec = models.get(model, "tiny")
        return train_mega.build(config, spec, EqualWeights(spec, config.seed, config.init_std), dataset)

    def read(config: Any, dataset: Any, built: Any) -> Any:
        return mega_resolved.read(config, built.loader, built.model, built.optimizer, built.scheduler)

    def gpt(built: Any) -> Any:
        return built.model.module

    def inner(built: Any) -> Any:
        return built.optimizer.chained_optimizers[0].optimizer

    changes = {
        "norm_eps": (lambda b: gpt(b).decoder.layers[0].input_layernorm, "eps", 3e-3),
        "qkv_bias": (lambda b: gpt(b).decoder.layers[0].self_attention.linear_qkv, "bias", None),
        "query_key_norm": (lambda b: gpt(b).decoder.layers[0].self_attention, "k_layernorm", None),
        QUERY_EPSILON: (lambda b: gpt(b).decoder.layers[0].self_attention.q_layernorm, "eps", 3e-3),
        "sliding_window": (lambda b: gpt(b).decoder.layers[0].self_attention.core_attention, "window_size", (9, 0)),
        "adam_eps": (lambda b: inner(b).param_groups[0], "eps", 1e-5),
        "beta1": (lambda b: inner(b).param_groups[0], "betas", (0.8, 0.95)),
        "weight_decay": (lambda b: inner(b).param_groups[0], "weight_decay", 0.3),
        "lr": (lambda b: b.scheduler, "max_lr", 0.5),
        "min_lr": (lambda b: b.scheduler, "min_lr", 0.25),
        "warmup_iters": (lambda b: b.scheduler, "lr_warmup_steps", 7),
        "clip_grad": (lambda b: b.optimizer.config, "clip_grad", 5.0),
        "overlap_grad_reduce": (lambda b: b.model.ddp_config, "overlap_grad_reduce", True),
        "init_std": (lambda b: gpt(b).config, "init_method_std", 0.5),
        "dataloader_workers": (lambda b: b.loader, "num_workers", 3),
        "rope_base": (lambda b: gpt(b).rotary_pos_emb, "inv_freq", 1000.0 ** (-torch.arange(0, 1, 0.125))),
    }

    def angles(spec: Any) -> Any:
        from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

        from train.mega.model import build_model

        config = load("cpu", arguments=SETTINGS, environ={})
        rotary = build_model(config, spec).rotary_pos_emb
        assert isinstance(rotary, RotaryEmbedding)
        table = rotary(max(ROPE_POSITIONS) + 1)[:, 0, 0, : spec.head_dim // 2]
        return table[list(ROPE_POSITIONS)]

    return build, read, changes, angles


def hf() -> tuple[Callable[[str, Any], Any], Callable[[Any, Any], Any], dict[str, Any], Callable[[Any], Any]]:
    """Return the same for the transformers Trainer."""
    from train import train_hf
    from train.hf import resolved as hf_resolved
    from train.hf.model import build_model

    def build(model: str, config: Any, dataset: Any) -> Any:
        if not torch.distributed.is_initialized():
            train_hf.initialize(config)
        spec = models.get(model, "tiny")
        return train_hf.build(config, spec, EqualWeights(spec, config.seed, config.init_std), dataset)

    def read(config: Any, dataset: Any, built: Any) -> Any:
        return hf_resolved.read(built)

    def layer(built: Any) -> Any:
        return built.model.model.layers[0]

    changes = {
        "norm_eps": (lambda b: layer(b).input_layernorm, "variance_epsilon", 3e-3),
        "qkv_bias": (lambda b: layer(b).self_attn.q_proj, "bias", None),
        "query_key_norm": (lambda b: layer(b).self_attn, "k_norm", None),
        QUERY_EPSILON: (lambda b: layer(b).self_attn.q_norm, "variance_epsilon", 3e-3),
        "sliding_window": (lambda b: b.model.model.config, "sliding_window", 10),
        "adam_eps": (lambda b: b.optimizer.param_groups[0], "eps", 1e-5),
        "beta1": (lambda b: b.optimizer.param_groups[0], "betas", (0.8, 0.95)),
        "weight_decay": (lambda b: b.optimizer.param_groups[0], "weight_decay", 0.3),
        "lr": (lambda b: b.lr_scheduler, "base_lrs", [0.5, 0.5]),
        "warmup_iters": (
            lambda b: b.lr_scheduler,
            "lr_lambdas",
            [train_hf.WarmupCosine(7, 20, 0.0)] * 2,
        ),
        "clip_grad": (lambda b: b.args, "max_grad_norm", 5.0),
        "init_std": (lambda b: b.model.config, "initializer_range", 0.5),
        "dataloader_workers": (lambda b: b.args, "dataloader_num_workers", 3),
    }

    def angles(spec: Any) -> Any:
        rotary = build_model(spec).model.rotary_emb
        positions = torch.tensor([ROPE_POSITIONS])
        return positions[0][:, None] * rotary.inv_freq[None, :].float()

    return build, read, changes, angles


def main() -> None:
    """Print `before`, `after` by changed key, and rotary angles of the full models."""
    framework, prefix, scratch = sys.argv[1:]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    settings = [*SETTINGS, f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}"]
    config = load("cpu", arguments=settings, environ={})
    importlib.import_module(f"train.train_{framework}")
    dataset = build_train_dataset(config, Path(prefix), describe(Path(prefix)))
    build, read, changes, angles = {"mega": mega, "hf": hf}[framework]()
    before, after = {}, {}
    for model in models.NAMES:
        before[model] = read(config, dataset, build(model, config, dataset))
    for key, (where, name, value) in changes.items():
        model = MODEL_OF.get(key, "llama")
        built = build(model, config, dataset)
        container = where(built)
        if name == "bias":
            container.register_parameter("bias", None)
        elif name == "betas":
            container["betas"] = value
        else:
            _set(container, name, value)
        try:
            after[key] = {"model": model, "resolved": read(config, dataset, built)}
        except MismatchError as error:
            after[key] = {"refused": str(error)}
    rope = {}
    for model in models.NAMES:
        full = models.get(model)
        small = replace(full, num_layers=1, hidden_size=2 * full.head_dim, num_attention_heads=2, num_query_groups=1)
        small = replace(small, ffn_hidden_size=8, vocab_size=64)
        rope[model] = angles(small).double().tolist()
    print(json.dumps({"before": before, "after": after, "rope": rope}))


if __name__ == "__main__":
    main()
