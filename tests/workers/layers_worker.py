"""Trains two micro batches of a tiny real GPTModel and compares its gradients with transformers in float64.

Run by tests/train/mega/test_layers.py: `python -m tests.workers.layers_worker CASE ...`, alone or under torchrun.
A case is `model SETTING=VALUE ... flag ...`; a flag is a fusion of megatron-core's configuration, on where there is a
GPU. Prints, by case, losses, kept bytes, what resolved_config says, and the largest relative error of a gradient.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from tests.support import tied_model
from tests.workers.parity_worker import RandomWeights
from train.common import weight_gradient

weight_gradient.install()  # as train_mega has it on a GPU
from train import train_mega  # noqa: E402
from train.hf.model import build_model as hf_model  # noqa: E402
from train.mega import model as builder  # noqa: E402
from train.mega import resolved, rope  # noqa: E402
from train.mega import weights as mega_weights  # noqa: E402
from utils.models import ModelSpec  # noqa: E402
from utils.settings.config import RunConfig, load  # noqa: E402

SETTINGS = ("DATASET=synth", "GBS=4", "MBS=2", "SL=16", "MODEL_SIZE=tiny", "PRECISION=fp32", "FRAMEWORK=mega")
PRODUCTS: list[str] = []
SMALL = {"num_layers": 2, "vocab_size": 96}


def micro_batches(config: RunConfig, spec: ModelSpec) -> list[torch.Tensor]:
    """Return this rank's two micro batches of tokens; each rank has others."""
    generator = torch.Generator().manual_seed(7 + torch.distributed.get_rank())
    shape = (config.micro_batch_size, config.sequence_length + 1)
    return [torch.randint(0, spec.vocab_size, shape, generator=generator) for _ in range(2)]


def built(config: RunConfig, spec: ModelSpec, source: RandomWeights, flags: list[str]) -> Any:
    """Return megatron-core's DDP around the model, with the fusions named."""
    original = builder.transformer_config
    try:
        builder.transformer_config = lambda *a, **k: replace(original(*a, **k), **dict.fromkeys(flags, True))
        model = builder.build_model(config, spec)
    finally:
        builder.transformer_config = original
    mega_weights.fill(model, spec, source)
    settings = train_mega.get_model_config(model)
    module = model if config.precision == "fp32" else train_mega.Float16Module(settings, model)
    overlap = torch.distributed.get_world_size() > 1
    ddp = train_mega.DistributedDataParallelConfig(
        grad_reduce_in_fp32=config.gradient_dtype == "fp32", overlap_grad_reduce=overlap
    )
    return train_mega.DistributedDataParallel(settings, ddp, module)


def loss_of(ddp: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a micro batch."""
    positions = torch.arange(tokens.shape[1] - 1).expand(tokens.shape[0], -1)
    return ddp(tokens[:, :-1].contiguous(), positions, None, labels=tokens[:, 1:].contiguous()).float().mean()


def kept_bytes(ddp: Any, tokens: torch.Tensor) -> int:
    """Return the bytes of the storages, parameters left out, that one forward pass holds for its backward pass."""
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(ddp, tokens)
    own = {parameter.untyped_storage().data_ptr() for parameter in ddp.parameters()}
    total = sum(storage.nbytes() for storage in kept.values() if storage.data_ptr() not in own)
    del loss  # until here the graph holds what was counted
    return total


def train(ddp: Any, batches: list[torch.Tensor]) -> list[float]:
    """Run both micro batches, the gradients reduced with the last; return the losses."""
    ddp.zero_grad_buffer()
    losses = []
    for number, tokens in enumerate(batches):
        with ddp.no_sync() if number == 0 else nullcontext():
            loss = loss_of(ddp, tokens)
            loss.backward()
        losses.append(loss.item())
    ddp.finish_grad_sync()
    return losses


def count_products() -> None:
    """Put into PRODUCTS the type of the buffer at each product that adds to one."""

    def counting(function: Any) -> Any:
        def called(total_input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor) -> None:
            PRODUCTS.append(str(main_grad.dtype))
            function(total_input, grad_output, main_grad)

        return called

    for name in ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"):
        setattr(weight_gradient, name, counting(getattr(weight_gradient, name)))


def reference(spec: ModelSpec, source: RandomWeights, config: RunConfig, batches: list[torch.Tensor]) -> dict[str, Any]:
    """Return the sum of the gradients of all micro batches, by transformers' names, in float64."""
    model = hf_model(spec).double().train()
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = source(name)
            parameter.copy_(weight if config.precision == "fp32" else weight.bfloat16())
    for tokens in batches:
        logits = model(input_ids=tokens[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def relative_errors(ddp: Any, spec: ModelSpec, wanted: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return, by parameter, the distance of its gradient from the wanted one, relative to the wanted one's norm."""
    gpt = resolved.gpt_of(ddp)
    errors = {}
    for name, parameter in gpt.named_parameters():
        exact = mega_weights._whole(mega_weights._global_name(gpt, name), spec, wanted.__getitem__)
        errors[name] = float((parameter.main_grad.double() - exact).norm() / exact.norm())
    return errors


def run(case: str) -> dict[str, Any]:
    """Run one case."""
    model, *words = case.split()
    given = [word for word in words if "=" in word]
    flags = [word for word in words if "=" not in word]
    ranks = torch.distributed.get_world_size()
    config = load("cpu", arguments=[*SETTINGS, f"CPU_RANKS={ranks}", "MODEL=llama", *given], environ={})
    spec = replace(config.spec(model), **SMALL)
    source = RandomWeights(spec, config.seed, config.init_std)
    if "apply_rope_fusion" in flags:
        rope.install()
    ddp = built(config, spec, source, flags)
    batches = micro_batches(config, spec)
    kept = kept_bytes(ddp, batches[0])
    PRODUCTS.clear()
    losses = train(ddp, batches)
    everyone: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(everyone, batches)
    wanted = reference(spec, source, config, [batch for one in everyone for batch in one])
    wanted = {name: gradient / ranks for name, gradient in wanted.items()}
    gradients = b"".join(
        parameter.main_grad.float().numpy().tobytes() for parameter in resolved.gpt_of(ddp).parameters()
    )
    errors = relative_errors(ddp, spec, wanted)
    return {
        "losses": losses,
        "kept": kept,
        "products": len(PRODUCTS),
        "gradients": hashlib.sha256(gradients).hexdigest(),
        "error": max(errors.values()),
        "worst": max(errors, key=lambda name: errors[name]),
        "resolved": resolved.model_facts(ddp),
    }


def main() -> None:
    """Run the cases of the command line and print what was found, once."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {key: value for key, value in alone.items() if key not in os.environ}
    tied_model.register()
    config = load("cpu", arguments=[*SETTINGS, f"CPU_RANKS={os.environ['WORLD_SIZE']}", "MODEL=llama"], environ={})
    train_mega.initialize_parallel(config)
    count_products()
    found = {case: run(case) for case in sys.argv[1:]}
    if os.environ["RANK"] == "0":
        print(json.dumps(found))


if __name__ == "__main__":
    main()
