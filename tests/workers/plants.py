"""Changes of a job that framework_worker.py runs: planted faults, what only a GPU turns on, and notes of what happened.

Each function takes the trainer's module (`train.train_<framework>`), the notes of this rank and its own arguments.
"""

from __future__ import annotations

import hashlib
import importlib
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
from train.common import (  # noqa: E402
    adamw,
    loading,
    trainer as common,  # noqa: E402
)
from train.mega import kernels  # noqa: E402
from utils import models  # noqa: E402

SLEEP_SECONDS = 0.05
FUSIONS_WITHOUT_PRODUCTS = ("apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion")
"""Fusions of megatron-core's configuration that are on with a GPU; of bf16 also that of the loss."""
RECIPES = {"train.train_nemo": "nemo_recipe", "train.train_bridge": "bridge_recipe", "train.train_titan": "recipe"}
"""Name of the module with the framework's settings in each trainer."""


def change_model(name: str, fields: dict[str, Any]) -> None:
    """Replace fields of a tiny model for this process."""
    if fields.get("rope_scaling"):
        fields = fields | {"rope_scaling": models.RopeScaling(**fields["rope_scaling"])}
    known = models.MODELS[name]
    models.MODELS[name] = replace(known, tiny=known.tiny | fields)


def draw_odd_weights(trainer: Any, notes: dict[str, Any]) -> None:
    """Draw biases that are not 0 and norms that are not 1, so that a wrong layout or a missing term shows.

    An output layer starts with the embedding's weights where `like_tied` is planted. Notes how many were drawn.
    """
    draw = common.EqualWeights._draw
    notes["drawn"] = 0

    def odd(source: Any, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        notes["drawn"] += 1
        is_copy = "like_tied" in notes and name == "lm_head.weight"
        tensor = draw(source, "model.embed_tokens.weight" if is_copy else name, shape)
        if len(shape) > 1:
            return tensor
        generator = torch.Generator().manual_seed(len(name) + sum(name.encode()))
        noise = torch.empty(shape).normal_(0.0, 1.0, generator=generator)
        return 0.02 * noise if name.endswith(".bias") else tensor + 0.1 * noise

    common.EqualWeights._draw = odd


def like_tied(trainer: Any, notes: dict[str, Any]) -> None:
    """Start an output layer of its own with the embedding's weights."""
    notes["like_tied"] = True


# Faults of mega


def weight_decay_on_norms(trainer: Any, notes: dict[str, Any]) -> None:
    """Decay every weight."""

    def broken(optimizer: Any) -> Any:
        for group in optimizer.param_groups:
            group["wd_mult"] = 1.0
        return optimizer

    _then(trainer, "build_optimizer", broken)


def loss_divided_by_micro_batches(trainer: Any, notes: dict[str, Any]) -> None:
    """Report the tensor that megatron-core divides in place, not a copy."""
    trainer.loss_of = lambda losses, mask: (mean := losses.float().mean(), {"lm_loss": mean.detach()})


def no_master(trainer: Any, notes: dict[str, Any]) -> None:
    """Lose the 16 bits that make a bf16 weight a float32 master."""
    adamw.split_master = lambda master: (master.bfloat16(), torch.zeros_like(master, dtype=torch.int16))


def norm_after_rope(trainer: Any, notes: dict[str, Any]) -> None:
    """Normalise queries and keys after their rotation: the weight of a channel then meets a rotated number."""

    def move(attention: Any) -> None:
        norms = attention.q_layernorm, attention.k_layernorm
        originals = [norm.forward for norm in norms]
        for norm in norms:
            norm.forward = lambda same: same
        attention.core_attention.register_forward_pre_hook(
            lambda _, rotated: (*(normed(one) for normed, one in zip(originals, rotated, strict=False)), *rotated[2:])
        )

    def moved(model: Any) -> Any:
        for layer in model.decoder.layers:
            move(layer.self_attention)
        return model

    _then(trainer, "build_model", moved)


def _then(module: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Let a function of a module return what `change` makes of its result."""
    original = getattr(module, name)
    setattr(module, name, lambda *arguments, **named: change(original(*arguments, **named)))


# What was built is another than what was asked


def change(trainer: Any, notes: dict[str, Any], *keys: str) -> None:
    """Change what mega or hf has built: each key of CHANGES, before anything is read back."""
    changes = CHANGES[trainer.__name__]

    def changed(built: Any) -> Any:
        for key in keys:
            holder_of, name, value = changes[key]
            holder = holder_of(built)
            if isinstance(holder, dict):
                holder[name] = value
            else:
                setattr(holder, name, value)
        return built

    _then(trainer, "build", changed)


def _group(built: Any) -> Any:
    of_mega = getattr(built.optimizer, "chained_optimizers", None)
    return (of_mega[0].optimizer if of_mega else built.optimizer).param_groups[0]


def _mega_layer(built: Any) -> Any:
    return built.model.module.decoder.layers[0]


def _mega_rule(built: Any) -> Any:
    """Return the settings that the routers of mega read, with an auxiliary loss of the first one that is not 0."""
    router = _mega_layer(built).mlp.router
    router.routing_type = "aux_loss"
    return router.config


def _hf_layer(built: Any) -> Any:
    return built.model.model.layers[0]


def _hf_rule(built: Any) -> Any:
    """Return the settings of hf's model, which then adds the auxiliary loss of its routers."""
    built.model.config.output_router_logits = True
    return built.model.config


OF_BASE_1000 = 1000.0 ** (-torch.arange(0, 1, 0.125))
Change = tuple[Callable[[Any], Any], str, Any]
OF_GROUP = {
    "adam_eps": (_group, "eps", 1e-5),
    "beta1": (_group, "betas", (0.8, 0.95)),
    "weight_decay": (_group, "weight_decay", 0.3),
}
CHANGES: dict[str, dict[str, Change]] = {
    "train.train_mega": OF_GROUP
    | {
        "norm_eps": (lambda built: _mega_layer(built).input_layernorm, "eps", 3e-3),
        "qkv_bias": (lambda built: _mega_layer(built).self_attention.linear_qkv, "bias", None),
        "query_key_norm": (lambda built: _mega_layer(built).self_attention, "k_layernorm", None),
        "query_epsilon": (lambda built: _mega_layer(built).self_attention.q_layernorm, "eps", 3e-3),
        "sliding_window": (lambda built: _mega_layer(built).self_attention.core_attention, "window_size", (9, 0)),
        "lr": (lambda built: built.scheduler, "max_lr", 0.5),
        "min_lr": (lambda built: built.scheduler, "min_lr", 0.25),
        "warmup_iters": (lambda built: built.scheduler, "lr_warmup_steps", 7),
        "clip_grad": (lambda built: built.optimizer.config, "clip_grad", 5.0),
        "overlap_grad_reduce": (lambda built: built.model.ddp_config, "overlap_grad_reduce", True),
        "init_std": (lambda built: built.model.module.config, "init_method_std", 0.5),
        "dataloader_workers": (lambda built: built.loader, "num_workers", 3),
        "rope_base": (lambda built: built.model.module.rotary_pos_emb, "inv_freq", OF_BASE_1000),
        "experts_per_token": (lambda built: _mega_layer(built).mlp.router, "topk", 3),
        "router_auxiliary_loss": (_mega_rule, "moe_aux_loss_coeff", 0.25),
        "router_dtype": (_mega_rule, "moe_router_dtype", "fp64"),
        "token_dropping": (_mega_rule, "moe_expert_capacity_factor", 1.0),
        "shared_expert_size": (_mega_rule, "moe_shared_expert_intermediate_size", 32),
        "routing": (_mega_rule, "moe_router_force_load_balancing", True),
    },
    "train.train_hf": OF_GROUP
    | {
        "norm_eps": (lambda built: _hf_layer(built).input_layernorm, "variance_epsilon", 3e-3),
        "qkv_bias": (lambda built: _hf_layer(built).self_attn.q_proj, "bias", None),
        "query_key_norm": (lambda built: _hf_layer(built).self_attn, "k_norm", None),
        "query_epsilon": (lambda built: _hf_layer(built).self_attn.q_norm, "variance_epsilon", 3e-3),
        "sliding_window": (lambda built: built.model.model.config, "sliding_window", 10),
        "lr": (lambda built: built.lr_scheduler, "base_lrs", [0.5, 0.5]),
        "warmup_iters": (lambda built: built.lr_scheduler, "lr_lambdas", [adamw.WarmupCosine(7, 20, 0.0)] * 2),
        "clip_grad": (lambda built: built.args, "max_grad_norm", 5.0),
        "init_std": (lambda built: built.model.config, "initializer_range", 0.5),
        "dataloader_workers": (lambda built: built.args, "dataloader_num_workers", 3),
        "experts_per_token": (lambda built: _hf_layer(built).mlp.gate, "top_k", 3),
        "router_auxiliary_loss": (_hf_rule, "router_aux_loss_coef", 0.25),
        "routing": (lambda built: _hf_layer(built).mlp.gate, "norm_topk_prob", False),
    },
}
"""Holder in the built training, name there and another value, by key of `resolved_config` and trainer."""


# Faults of the frameworks that have a recipe


def without(trainer: Any, notes: dict[str, Any], *keys: str) -> None:
    """Leave keys of the settings map out, so that the framework's own default applies."""
    _then(_recipe(trainer), "overrides", lambda said: {key: value for key, value in said.items() if key not in keys})


def also(trainer: Any, notes: dict[str, Any], key: str, value: Any) -> None:
    """Set one key more."""
    _then(_recipe(trainer), "overrides", lambda said: said | {key: value})


def decay_on_norms(trainer: Any, notes: dict[str, Any]) -> None:
    """Give all parameters to torchtitan's optimizer in one group, as its own recipes have it."""
    _then(
        trainer.recipe,
        "decayed_adamw",
        lambda said: replace(said, param_groups=[replace(said.param_groups[0], pattern="")]),
    )


def order_of_channels(trainer: Any, notes: dict[str, Any]) -> None:
    """Leave the channels of queries and keys in the order of transformers."""
    from torchtitan.models.llama3 import Llama3StateDictAdapter

    Llama3StateDictAdapter._reverse_permute = lambda self, weight, *shape: weight


def _recipe(trainer: Any) -> Any:
    return getattr(trainer, RECIPES[trainer.__name__])


# What only a GPU turns on


def as_on_gpu(trainer: Any, notes: dict[str, Any]) -> None:
    """Turn on what takes the place of the functions of mega on a GPU."""
    fuse_mega((*FUSIONS_WITHOUT_PRODUCTS, "gradient_accumulation_fusion"))
    notes["products"] = 0

    def counted(product: Any) -> Any:
        def called(*tensors: torch.Tensor) -> None:
            notes["products"] += 1
            product(*tensors)

        return called

    for name in ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"):
        setattr(kernels, name, counted(getattr(kernels, name)))


def fuse_mega(fusions: tuple[str, ...], windowed_flash: Any = None) -> None:
    """Turn on the rotary embedding of a GPU and these fusions; in bf16 also the loss and a stand-in for windows."""
    from train.mega import attention, model

    def fused(settings: Any) -> Any:
        of_half = ("cross_entropy_loss_fusion",) if settings.bf16 else ()
        return replace(settings, **dict.fromkeys((*fusions, *of_half), True))

    kernels.install_rotary()
    _then(model, "transformer_config", fused)
    if windowed_flash is not None:
        attention.windowed_flash = windowed_flash
        attention.SdpaCoreAttention._takes_flash_with_window = lambda self, query: (
            query.dtype is torch.bfloat16 and self._has_active_window(query.shape[0])
        )


def overlap(trainer: Any, notes: dict[str, Any]) -> None:
    """Reduce gradients while the backward pass of mega runs."""
    settings = trainer.DistributedDataParallelConfig
    trainer.DistributedDataParallelConfig = lambda **named: settings(**named | {"overlap_grad_reduce": True})


# Loading


def workers(trainer: Any, notes: dict[str, Any], count: int) -> None:
    """Fetch samples by other processes."""
    loading.CPU_WORKERS = count


def slow_samples(trainer: Any, notes: dict[str, Any], every: int) -> None:
    """Let each sample of every second, third ... micro batch of two take longer; from 1 on."""
    _then(common, "build_train_dataset", lambda dataset: Slow(dataset, every))


class Slow:
    """A data set on a slow disk."""

    def __init__(self, dataset: Any, every: int) -> None:
        self.config = dataset.config
        self._dataset = dataset
        self._every = every

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if index // 2 % self._every == 0:
            time.sleep(SLEEP_SECONDS)
        return self._dataset[index]


# Notes


def note_samples(trainer: Any, notes: dict[str, Any], rows: int) -> None:
    """Note the digest of the first rows of tokens that the model gets, and the loader workers at each micro batch.

    Also the sum of the squared weights of the embedding at the first.
    """
    digest, left = hashlib.sha256(), [rows]
    notes["workers"] = []

    def see(module: torch.nn.Module, inputs: Any) -> None:
        if type(module).__name__.removeprefix("FSDP") not in ("Embedding", "VocabParallelEmbedding", "RowEmbedding"):
            return
        if not notes["workers"]:
            notes["embedding"] = float(module.weight.detach().double().square().sum())
        notes["workers"].append(len(multiprocessing.active_children()))
        for row in inputs[0][: left[0]]:
            digest.update(row.numpy().astype("<i8").tobytes())
            left[0] -= 1
        notes["tokens"] = digest.hexdigest()

    torch.nn.modules.module.register_module_forward_pre_hook(see)


def note_optimizer(trainer: Any, notes: dict[str, Any]) -> None:
    """Note what the suite's AdamW gets and holds: norms of its gradients in float64, clip coefficients, states."""
    step = adamw.FusedAdamW.step
    notes["norms"], notes["clips"] = [], []

    def watched(optimizer: Any, closure: Any = None) -> Any:
        gradients = [adamw.gradient_of(one) for group in optimizer.param_groups for one in group["params"]]
        squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
        notes["norms"].append(float(sum(squares) ** 0.5))
        notes["clips"].append(1.0 if optimizer.clip_coefficient is None else float(optimizer.clip_coefficient))
        result = step(optimizer, closure)
        states = [tensor for state in optimizer.state.values() for tensor in state.values()]
        notes["state_dtypes"] = sorted({str(tensor.dtype) for tensor in states})
        notes["state_bytes"] = sum(tensor.nbytes for tensor in states)
        return result

    adamw.FusedAdamW.step = watched


def note_frequencies(trainer: Any, notes: dict[str, Any]) -> None:
    """Note the rotary frequencies of what mega or hf has built."""

    def noted(built: Any) -> Any:
        is_mega = trainer.__name__ == "train.train_mega"
        rotary = built.model.module.rotary_pos_emb if is_mega else built.model.model.rotary_emb
        notes["frequencies"] = rotary.inv_freq.tolist()
        return built

    _then(trainer, "build", noted)


# Readers of what decides nothing about the work


class BrokenReaderError(Exception):
    """What a planted reader raises; nothing of the suite knows it."""


def reader_fails(trainer: Any, notes: dict[str, Any], place: str) -> None:
    """Have the function at a place, `module:name.name`, raise."""
    module, names = place.split(":")
    *owners, name = names.split(".")
    owner: Any = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise BrokenReaderError(f"planted in {name}\nand a second line")

    setattr(owner, name, fail)
