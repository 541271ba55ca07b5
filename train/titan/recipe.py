"""torchtitan's settings of a job and its description of the model: every override comes from the settings map or is
named here.

torchtitan 0.3.0: `trainer.py` (Trainer.Config), `models/{llama3,qwen3}/__init__.py` (functions that build the layers of
a published model). The paths of the map are those of Trainer.Config, and three more: `layers.` leads to arguments of
the function that builds the layers, `adamw.` to those of torch's optimizer, and the name of a part of a model
(`RMSNorm.eps`) to the configurations of all such parts.

torchtitan's dense models are two: `llama3`, which scales rotary frequencies as Llama 3.1 does, and `qwen3`, which does
not and can normalize queries and keys, and which has experts. Both have RMSNorm, SwiGLU, grouped queries and causal
attention. A spec with scaled frequencies gets the first class, another the second. Neither has an attention window.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional as F
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models import llama3, qwen3
from torchtitan.models.common import attention, moe, nn_modules, rope
from torchtitan.protocols.model_spec import ModelSpec as Description
from torchtitan.trainer import Trainer

from train.common.adamw import WarmupCosine
from train.common.loading import LabelledSamples, loader_of_rank
from train.common.weights import WeightSource, announce, shapes
from train.job.report import MismatchError
from train.settings_map.map import overrides, set_field
from utils.models import ModelSpec
from utils.settings.config import RunConfig

LAYERS, ADAMW, RECOMPUTE = "layers", "adamw", "activation_checkpoint"
PARTS = {
    "GQAttention": attention.GQAttention,
    "QKVLinear": attention.QKVLinear,
    "RMSNorm": nn_modules.RMSNorm,
    "RoPE": rope.RoPE,
    "MoE": moe.MoE,
    "TokenChoiceTopKRouter": moe.TokenChoiceTopKRouter,
}
"""Parts of a model whose configurations the map changes, by name."""
POLICIES: dict[str, Any] = {"none": None, "selective": SelectiveAC.Config(), "full": FullAC.Config()}
"""torchtitan's recomputation for a value of RECOMPUTE."""
REPLACED = "varlen"
"""An attention that torchtitan offers for language models, in whose place comes torch's, which it has for images: it
needs no position of each token, because attention here does not end at a document."""
DECAYED = r"(?<!norm\.weight)(?<!\.bias)$"
"""Names of all parameters except those of one dimension (norms, biases)."""
WRAPPER = "_checkpoint_wrapped_module."
"""Part that recomputation adds to the name of a parameter."""


class Experts(moe.GroupedExperts):
    """torchtitan's experts with products in the precision of the weights, for PRECISION=fp32; its own are in bf16."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(moe.GroupedExperts.Config):
        """Those of torchtitan."""

    def forward(self, tokens: torch.Tensor, tokens_of_expert: torch.Tensor) -> torch.Tensor:
        """Return the outputs of tokens [tokens, width], which are sorted by expert."""
        weights = (self.w1_EFD, self.w2_EDF, self.w3_EFD)
        gates, downs, ups = (weight.to_local() if isinstance(weight, DTensor) else weight for weight in weights)
        outputs = []
        for part, gate, down, up in zip(tokens.split(tokens_of_expert.tolist()), gates, downs, ups, strict=True):
            outputs.append(F.linear(F.silu(F.linear(part, gate)) * F.linear(part, up), down))
        return torch.cat(outputs)


@dataclasses.dataclass(kw_only=True, slots=True)
class Loader(BaseDataLoader.Config):
    """Micro batches of a data-parallel rank in Megatron's order and torchtitan's form."""

    of_rank: Callable[[int], Any]

    def build(self, *, dp_rank: int, **others: Any) -> Any:
        """Return torch's loader of a rank."""
        return self.of_rank(dp_rank)


@dataclasses.dataclass(kw_only=True, slots=True)
class Schedulers(LRSchedulersContainer.Config):
    """torchtitan's schedulers with the suite's rule; its own warms up by n / W and holds the peak for a step."""

    def build(self, *, optimizers: OptimizersContainer, training_steps: int) -> LRSchedulersContainer:
        """Return a scheduler of each optimizer."""
        rule = WarmupCosine(self.warmup_steps, self.total_steps or training_steps, self.min_lr_factor)
        return LRSchedulersContainer(optimizers, rule)


@dataclasses.dataclass(kw_only=True, slots=True)
class NoTokenizer(BaseTokenizer.Config):
    """Nothing: the data are encoded."""

    def build(self, **others: Any) -> None:
        """Build none."""


def make(config: RunConfig, spec: ModelSpec, dataset: Any) -> tuple[Trainer.Config, Any]:
    """Return torchtitan's settings of a job, and its converter of weights from transformers' names and layout.

    Raises ConfigError for a setting of the map that torchtitan does not have.
    """
    samples = LabelledSamples(dataset, config.training_samples, lambda tokens, labels: ({"input": tokens}, labels))
    described, layers, kind_of_rope = published(spec)
    settings = Trainer.Config(
        model_spec=described,
        tokenizer=NoTokenizer(),
        dataloader=Loader(of_rank=functools.partial(loader_of_rank, config, samples)),
        lr_scheduler=Schedulers(min_lr_factor=config.min_learning_rate / config.learning_rate),
        loss=CrossEntropyLoss.Config(),
    )
    # its default, of types, needs an FSDP2 later than that of torch 2.13
    settings.parallelism.spmd_backend = "partial_dtensor"
    arguments: dict[str, dict[str, Any]] = {LAYERS: {}, ADAMW: {}}
    of_parts = {}
    for path, value in overrides("titan", config, spec).items():
        place, _, rest = path.partition(".")
        if place in arguments:
            arguments[place][rest] = value
        elif place in PARTS:
            of_parts[path] = value
        else:
            set_field("titan", settings, path, POLICIES[value] if path == RECOMPUTE else value)
    settings.optimizer = decayed_adamw(settings.optimizer.implementation, **arguments[ADAMW])
    rotary = kind_of_rope.Config(dim=spec.head_dim, max_seq_len=config.sequence_length)
    # apart, as transformers has them, so that each weight has a place of its own
    described.model.layers = layers(**arguments[LAYERS], rope=rotary, attn_backend=REPLACED, fuse_qkv=False)
    for path, value in of_parts.items():
        name, _, rest = path.partition(".")
        for _, part, _, _ in described.model.traverse(PARTS[name].Config):
            set_field("titan", part, rest, value)
    for layer in described.model.layers:
        layer.attention.inner_attention = attention.ScaledDotProductAttention.Config()
        if spec.num_experts and config.precision == "fp32":
            own = layer.moe.routed_experts.inner_experts
            fields = {field.name: getattr(own, field.name) for field in dataclasses.fields(own)}
            layer.moe.routed_experts.inner_experts = Experts.Config(**fields)
    return settings, described.state_dict_adapter(described.model, None)


def published(spec: ModelSpec) -> tuple[Description, Callable[..., list[Any]], type[rope.RoPE]]:
    """Return torchtitan's description of a model of the spec's kind, the function that builds its layers, and its rope.

    Its description has published sizes, which the map replaces, and torchtitan's own initial weights.
    """
    if spec.rope_scaling is not None:
        return llama3.model_registry("8B", REPLACED), llama3._build_llama3_layers, rope.ComplexRoPE
    if spec.num_experts:
        return qwen3.model_registry("30B-A3B", REPLACED), qwen3._build_qwen3_moe_layers, rope.CosSinRoPE
    return qwen3.model_registry("8B", REPLACED), qwen3._build_qwen3_layers, rope.CosSinRoPE


def decayed_adamw(implementation: str, beta1: float, beta2: float, **arguments: Any) -> OptimizersContainer.Config:
    """Return torchtitan's AdamW; weights of one dimension (norms, biases) get no weight decay, as in Megatron."""
    built = default_adamw(betas=(beta1, beta2), **arguments)
    (group,) = built.param_groups
    flat = dataclasses.replace(group, optimizer_kwargs=group.optimizer_kwargs | {"weight_decay": 0.0})
    built.param_groups = [dataclasses.replace(group, pattern=DECAYED), flat]
    built.implementation = implementation
    return built


@torch.no_grad()
def fill(model: nn.Module, adapter: Any, spec: ModelSpec, source: WeightSource, dtype: torch.dtype) -> None:
    """Fill every parameter from `source`, rounded to numbers of `dtype`; a sharded one with this rank's part.

    `adapter` is torchtitan's converter (`from_hf`), which also puts the channels of
    queries and keys into the order of `llama3`. Raises MismatchError where model and spec have other parameters.
    """
    # so that a parameter that nothing fills is found at the end
    missing = dict(parameters(model))
    together: dict[str, list[str]] = {}  # the experts of a layer are one parameter
    for name in shapes(spec):
        together.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(name)
    announce(source, (name for names in together.values() for name in names))
    for name, names in together.items():
        # from_hf knows weights only; a class with biases keeps the order of channels, so they go where their weights do
        weights = {one.replace(".bias", ".weight"): source(one) for one in names}
        ((converted, tensor),) = adapter.from_hf(weights).items()
        if name.endswith(".bias"):
            converted = converted.replace(".weight", ".bias")
        if converted not in missing:
            raise MismatchError(f"torchtitan built a model without {converted}, which {spec.name} has")
        _copy_part(missing.pop(converted), tensor.to(dtype).float())
    if missing:
        raise MismatchError(f"torchtitan built a model with {next(iter(missing))}, which {spec.name} does not have")


def _copy_part(parameter: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy a whole tensor into a parameter, of which this rank may hold a part; no rank sends anything."""
    whole = whole.to(parameter.device)
    if isinstance(parameter, DTensor):
        whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(whole)


def parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every parameter with its name in torchtitan's model, without the part that recomputation adds."""
    for name, parameter in model.named_parameters():
        yield name.replace(WRAPPER, ""), parameter
