"""Conversion of weights from transformers' names and layouts to megatron-core's, whole or for one tensor-parallel rank.

Layouts of megatron-core 0.16.1 and 0.19.2: `linear_qkv` holds, group by group, the group's query heads, its key and its
value (megatron/core/transformer/attention.py, SelfAttention.get_query_key_value_tensors); `linear_fc1` holds gate above
up.
"""

from __future__ import annotations

import re

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel

from train.common.weights import EMBEDDING, WeightSource, announce, output_weight
from utils.models import ModelSpec

_OUTSIDE_LAYERS = {
    "embedding.word_embeddings.weight": EMBEDDING,
    "decoder.final_layernorm.weight": "model.norm.weight",
}
_SIMPLE_IN_LAYER = {
    # in local layers the norm is a module of its own; TransformerEngine fuses it into the linear layer after it
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.router.weight": "mlp.gate.weight",
}
_EXPERT = re.compile(r"mlp\.experts\.(?:local_experts\.(\d+)\.(linear_fc[12])\.weight|(linear_fc[12])\.weight(\d+))")
"""A weight of one expert of a rank: in megatron-core's own layers, and in TransformerEngine's grouped products."""
_QKV = "self_attention.linear_qkv."
_ROW_PARALLEL = ("linear_proj.weight", "linear_fc2.weight")
_REPLICATED = ("layernorm.weight", "layer_norm_weight")


@torch.no_grad()
def fill(model: GPTModel, spec: ModelSpec, source: WeightSource) -> None:
    """Fill every parameter of this rank's part of the model from `source`.

    Raises KeyError for a parameter that the spec does not have and ValueError for one of another shape.
    """
    rank = parallel_state.get_tensor_model_parallel_rank()
    size = parallel_state.get_tensor_model_parallel_world_size()
    named = {_global_name(model, name): parameter for name, parameter in model.named_parameters()}
    announce(source, (wanted for name in named for wanted in names_of(name, spec)))
    for name, parameter in named.items():
        part = part_of(name, spec, source, rank, size)
        if part.shape != parameter.shape:
            raise ValueError(f"{name}: megatron-core has {tuple(parameter.shape)}, the spec gives {tuple(part.shape)}")
        parameter.copy_(part)


def part_of(name: str, spec: ModelSpec, source: WeightSource, rank: int, size: int) -> torch.Tensor:
    """Return the part of a parameter that tensor-parallel rank `rank` of `size` has.

    `name` is megatron-core's, with the layer numbered within the whole model. Raises KeyError for a parameter that the
    spec does not have.
    """
    whole = _whole(name, spec, source)
    # each tensor-parallel rank has the norms whole
    if size == 1 or name.endswith(_REPLICATED):
        return whole
    if name.endswith("linear_fc1.weight"):
        # each rank has its share of both, so that it can multiply one by the other
        gate, up = whole.chunk(2)
        return torch.cat([gate.chunk(size)[rank], up.chunk(size)[rank]])
    return whole.chunk(size, dim=1 if name.endswith(_ROW_PARALLEL) else 0)[rank]


def _global_name(model: GPTModel, name: str) -> str:
    """Return the name with layer and expert numbered within the whole model; a rank counts its own from 0.

    An expert has the name of its linear layer in megatron-core's own layers.
    """
    match = re.match(r"decoder\.layers\.(\d+)\.(.+)", name)
    if match is None:
        return name
    layer, inside = model.decoder.layers[int(match[1])], match[2]
    of_expert = _EXPERT.fullmatch(inside)
    if of_expert is not None:
        local, linear = of_expert[1] or of_expert[4], of_expert[2] or of_expert[3]
        inside = f"mlp.experts.local_experts.{layer.mlp.local_expert_indices[int(local)]}.{linear}.weight"
    return f"decoder.layers.{layer.layer_number - 1}.{inside}"


def names_of(name: str, spec: ModelSpec) -> list[str]:
    """Return the names, in transformers, of the parameters that a parameter of megatron-core is made of, in order.

    Raises KeyError for a parameter that the spec does not have.
    """
    if name == "output_layer.weight":  # of a tied model only a last pipeline stage of its own has it, as a copy
        return [output_weight(spec)]
    if name in _OUTSIDE_LAYERS:
        return [_OUTSIDE_LAYERS[name]]
    match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
    layer, inside = (f"model.layers.{match[1]}.", match[2]) if match else ("", name)
    if inside in _SIMPLE_IN_LAYER:
        return [layer + _SIMPLE_IN_LAYER[inside]]
    if inside.startswith(_QKV):
        kind = inside.removeprefix(_QKV)
        return [f"{layer}self_attn.{letter}_proj.{kind}" for letter in "qkv"]
    of_expert = _EXPERT.fullmatch(inside)
    if of_expert is not None:
        layer, inside = f"{layer}mlp.experts.{of_expert[1]}.", f"mlp.{of_expert[2]}.weight"
    elif inside.startswith("mlp."):
        layer += "mlp."
    if inside == "mlp.linear_fc1.weight":
        return [f"{layer}gate_proj.weight", f"{layer}up_proj.weight"]
    if inside == "mlp.linear_fc2.weight":
        return [f"{layer}down_proj.weight"]
    raise KeyError(f"{name}: no such parameter in {spec.name}")


def _whole(name: str, spec: ModelSpec, source: WeightSource) -> torch.Tensor:
    parts = [source(one) for one in names_of(name, spec)]
    if _QKV in name:
        parts = [part.reshape(spec.num_query_groups, -1, *part.shape[1:]) for part in parts]
        return torch.cat(parts, dim=1).flatten(0, 1)
    return parts[0] if len(parts) == 1 else torch.cat(parts)
