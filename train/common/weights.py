"""INIT=equal: initial weights that are the same in every framework and on every vendor.

Each parameter is drawn on torch's CPU generator with a seed made from its transformers name. So the order in which a
framework builds its layers, its sharding and the vendor's random generator do not change any weight.
"""

from __future__ import annotations

import functools
import hashlib
from collections import ChainMap
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from utils.models import ModelSpec
from utils.provenance.digests import sha256_json

WeightSource = Callable[[str], torch.Tensor]
"""Returns the whole float32 tensor of a parameter by its transformers name."""
EMBEDDING = "model.embed_tokens.weight"


def shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of the spec by transformers name, [output, input] for linear weights.

    Experts have the names of a release, each weight its own (`mlp.experts.0.gate_proj.weight`), and the router has that
    of transformers' `mlp.gate`. A tied output layer has no parameter of its own.
    """
    hidden, ffn, query = spec.hidden_size, spec.ffn_hidden_size, spec.query_size
    experts = [f"mlp.experts.{number}." for number in range(spec.num_experts)] or ["mlp."]
    named: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", query), ("k", spec.key_value_size), ("v", spec.key_value_size)):
            named[f"{prefix}self_attn.{name}_proj.weight"] = (rows, hidden)
            if spec.qkv_bias:
                named[f"{prefix}self_attn.{name}_proj.bias"] = (rows,)
        if spec.query_key_norm:
            named |= {f"{prefix}self_attn.{name}_norm.weight": (spec.head_dim,) for name in "qk"}
        named[f"{prefix}self_attn.o_proj.weight"] = (hidden, query)
        if spec.num_experts:
            named[f"{prefix}mlp.gate.weight"] = (spec.num_experts, hidden)
        for mlp in experts:
            named |= {f"{prefix}{mlp}{name}_proj.weight": (ffn, hidden) for name in ("gate", "up")}
            named[f"{prefix}{mlp}down_proj.weight"] = (hidden, ffn)
        named |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
        }
    named["model.norm.weight"] = (hidden,)
    named[output_weight(spec)] = (spec.vocab_size, hidden)
    return named


def output_weight(spec: ModelSpec) -> str:
    """Return the name of the parameter of the output layer: of a tied model that of the embedding."""
    return EMBEDDING if spec.tie_word_embeddings else "lm_head.weight"


def flat_parameters(spec: ModelSpec) -> dict[str, int]:
    """Return the size of each parameter of one dimension, norms and biases, by name; they get no weight decay."""
    return {name: shape[0] for name, shape in shapes(spec).items() if len(shape) == 1}


class EqualWeights:
    """A WeightSource: matrices from a normal distribution of mean 0 and `std`, norms 1, biases 0.

    `digests` holds the sha256 of every tensor returned so far, for the fingerprint. torch draws a tensor with one
    thread, so the next parameters that were announced are drawn and hashed ahead, one for each thread that torch may
    use; they take the memory of as many parameters.
    """

    def __init__(self, spec: ModelSpec, seed: int, std: float) -> None:
        self._shapes = shapes(spec)
        self._seed = seed
        self.std = std
        self._announced: list[str] = []
        """Names that will be requested and are not drawn yet, the last one first."""
        self._ahead: dict[str, Future[tuple[torch.Tensor, str]]] = {}
        self.digests: dict[str, str] = {}

    def announce(self, names: Iterable[str]) -> None:
        """Take the names that will be requested, each once and in this order. Without them nothing is drawn ahead."""
        # reversed, because the next one is taken from the end
        self._announced = list(names)[::-1]

    def __call__(self, name: str) -> torch.Tensor:
        """Return the named parameter, float32 on the CPU; raise KeyError for a name the spec does not have."""
        if name not in self._ahead:
            if name in self._announced:  # requested out of turn
                self._announced.remove(name)
            self._draw_ahead(name)
        while self._announced and len(self._ahead) <= torch.get_num_threads():
            self._draw_ahead(self._announced.pop())
        # raises here what drawing raised in its thread
        tensor, self.digests[name] = self._ahead.pop(name).result()
        return tensor

    def _draw_ahead(self, name: str) -> None:
        self._ahead[name] = _threads().submit(self._draw_and_hash, name)

    def _draw_and_hash(self, name: str) -> tuple[torch.Tensor, str]:
        tensor = self._draw(name, self._shapes[name])
        return tensor, hashlib.sha256(tensor.numpy().data).hexdigest()

    def _draw(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name.endswith(".bias"):
            return torch.zeros(shape)
        if len(shape) == 1:
            return torch.ones(shape)
        seed = int.from_bytes(hashlib.sha256(f"{self._seed}:{name}".encode()).digest()[:8], "little") >> 1
        generator = torch.Generator(device="cpu").manual_seed(seed)
        return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(0.0, self.std, generator=generator)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads of this process; not a source's own, because NeMo copies its callbacks with their sources."""
    return ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="weights")


def announce(source: WeightSource, names: Iterable[str]) -> None:
    """Tell a source that draws ahead which parameters will be requested, in order; other sources need not know."""
    if isinstance(source, EqualWeights):
        source.announce(names)


def combined_digest(digests: dict[str, str]) -> str:
    """Return one sha256 over the digests of all parameters, gathered from the ranks, each of which may hold a part."""
    parts = [digests]
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        parts = [{}] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(parts, digests)
    return sha256_json(ChainMap(*parts))
