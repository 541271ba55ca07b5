"""The models: everything that the suite knows of each, declared once in `MODELS`. Standard library only.

Shape, tokenizer and its copies, transformers classes, NeMo recipe and Primus YAML are facts of one `Model` entry, from
which every other module reads. `get(name, size)` returns the shape that trainers build. Sizes: `full` is the published
model, `proxy` has the same widths and fewer layers (fits one GPU), `tiny` trains on a CPU. docs/extending.md describes
how to add a model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


class UnknownModelError(ValueError):
    """A model name or size that the suite does not know; the message lists what it knows."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's scaling of rotary frequencies (Llama 3 report, arXiv 2407.21783; values of the released config)."""

    factor: float = 8.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer with RMSNorm, SwiGLU and rotary embedding."""

    name: str
    size: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    """Key/value heads; each serves num_attention_heads / num_query_groups query heads."""
    vocab_size: int
    norm_epsilon: float
    rope_base: float
    max_position_embeddings: int
    qkv_bias: bool = False
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    """Tokens a position attends to, itself included; None = all earlier ones."""
    tie_word_embeddings: bool = False
    """The output layer multiplies by the weight of the input embedding instead of one of its own."""
    query_key_norm: bool = False
    """An RMSNorm over the channels of each head, of queries and keys, before the rotary embedding. All heads of a layer
    share one weight for queries and one for keys (Qwen3 report, arXiv 2505.09388, section 2)."""
    head_size: int = 0
    """Channels of one attention head; 0 = hidden_size / num_attention_heads."""
    num_experts: int = 0
    """MLPs of each layer, of which a router chooses some for each token (a mixture of experts); 0 = one MLP for all."""
    experts_per_token: int = 0
    """A softmax over all experts gives their weights, and those of the chosen ones are scaled to a sum of 1."""

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.head_size or self.hidden_size // self.num_attention_heads

    @property
    def query_size(self) -> int:
        """Channels of all queries of one layer."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Channels of all keys (or all values) of one layer."""
        return self.num_query_groups * self.head_dim

    @property
    def layer_matmul_parameter_count(self) -> int:
        """Linear weights of one layer that multiply every token: of a mixture of experts its router and the experts of
        one token.
        """
        attention = 2 * self.hidden_size * (self.query_size + self.key_value_size)
        router = self.hidden_size * self.num_experts
        return attention + router + 3 * self.hidden_size * self.ffn_hidden_size * (self.experts_per_token or 1)

    @property
    def matmul_parameter_count(self) -> int:
        """Parameters that multiply every token: linear weights with the output layer, without the lookup of the
        embedding. A tied output layer counts as well: its matrix multiplication is the same.
        """
        return self.num_layers * self.layer_matmul_parameter_count + self.vocab_size * self.hidden_size

    @property
    def idle_parameter_count(self) -> int:
        """Parameters of the experts that a token does not pass through; 0 without experts."""
        idle = self.num_experts - self.experts_per_token
        return self.num_layers * idle * 3 * self.hidden_size * self.ffn_hidden_size

    @property
    def active_parameter_count(self) -> int:
        """All parameters without those of the experts that a token does not pass through."""
        return self.parameter_count - self.idle_parameter_count

    @property
    def parameter_count(self) -> int:
        """All parameters, a tied weight once: linear weights of all experts, embedding, norms (two a layer, one last,
        and those of queries and keys), QKV biases.
        """
        embedding = 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size
        norms = (2 * self.num_layers + 1) * self.hidden_size
        if self.query_key_norm:
            norms += 2 * self.num_layers * self.head_dim
        biases = self.num_layers * (self.query_size + 2 * self.key_value_size) if self.qkv_bias else 0
        return self.matmul_parameter_count + self.idle_parameter_count + embedding + norms + biases

    def flops_per_token(self, sequence_length: int, causal: bool = True) -> float:
        """Return the model FLOPs of forward and backward pass for one token, recomputation not counted.

        6 per matrix-multiply parameter (2 forward, 4 backward: Kaplan et al., arXiv 2001.08361, section 2.1) plus
        12 x layers x hidden x attended tokens for the two attention products (Chowdhery et al., PaLM,
        arXiv 2204.02311, appendix B). With `causal` the attended tokens are the mean under the mask, s / 2, or
        w - w^2 / 2s inside a window of w < s tokens; without, all s tokens. Check: Llama 3.1 8B at 8192 tokens is
        51.470 GFLOP causal and 57.913 full.
        """
        attended = float(sequence_length)
        if causal:
            # a window longer than the sequence is no window
            window = min(self.sliding_window or sequence_length, sequence_length)
            attended = window - window * window / (2 * sequence_length)
        attention = 12 * self.num_layers * self.query_size * attended
        return 6 * self.matmul_parameter_count + attention

    def as_dict(self) -> dict[str, object]:
        """Return all fields as plain values, for fingerprints and results.

        A later field is left out where the model lacks its trait, so that fingerprints from before the field stay
        equal.
        """
        later = {"head_size", *(trait.key for trait in TRAITS if not trait.is_always_recorded)}
        fields = asdict(self)
        for name in later & fields.keys():
            if not fields[name]:
                del fields[name]
        return fields


@dataclass(frozen=True)
class Trait:
    """A property that only some models have; `TRAITS` declares each once."""

    key: str
    """Key of `resolved_config`, and field of ModelSpec if a model here can have the trait."""
    name: str
    """Name in certificates and in the settings map."""
    kind: type
    """Type of the value that is read back."""
    absent: object
    """Value of a model without the trait."""
    is_always_recorded: bool = False
    """False if `resolved_config` has the key only of a model with the trait, because earlier results lack it."""
    makes_another_model: bool = True
    """False if a run is still one of the named model where it has the trait and the model has not."""
    why_absent: str = ""
    """Reason beside the null of a model without the trait."""

    @property
    def is_in_spec(self) -> bool:
        """True if a model here can have the trait."""
        return self.key in ModelSpec.__dataclass_fields__

    @property
    def is_left_out(self) -> bool:
        """True for a yes-or-no trait whose key `resolved_config` has only where the answer is yes."""
        return self.kind is bool and self.is_in_spec and not self.is_always_recorded


TRAITS = (
    Trait("qkv_bias", "QKV bias", bool, False, is_always_recorded=True),
    Trait(
        "rope_scaling",
        "rotary scaling",
        dict,
        None,
        is_always_recorded=True,
        why_absent="this model has plain rotary frequencies",
    ),
    Trait(
        "sliding_window",
        "attention window",
        int,
        None,
        is_always_recorded=True,
        why_absent="this model attends to every earlier token",
    ),
    Trait("num_experts", "experts of a layer", int, 0),
    Trait("experts_per_token", "experts of a token", int, 0),
    # three properties of experts that no model here has, and that a framework could add by a default
    Trait("shared_expert_size", "size of a shared expert", int, 0),
    Trait("router_auxiliary_loss", "auxiliary loss of the router", float, 0.0),
    Trait("token_dropping", "tokens dropped", bool, False),
    Trait("tie_word_embeddings", "embedding shared with the output layer", bool, False, makes_another_model=False),
    Trait("query_key_norm", "norm of queries and keys", bool, False),
)
"""All traits: schema, read-back, checks, certificate and settings map read them from here."""


def without_absent_traits(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what was read back from a model without the traits that it lacks and that no earlier result has."""
    kept = dict(facts)
    for trait in TRAITS:
        if trait.is_left_out and not kept.get(trait.key):
            kept.pop(trait.key, None)
    return kept


@dataclass(frozen=True)
class ModelTokenizer:
    """Identity of a model's tokenizer: a copy that differs in one of the three numbers is another tokenizer."""

    size: int
    """Entries with added tokens, `len(tokenizer)`."""
    eos_token_id: int
    bos_token_id: int | None
    """The token that begins every document; None where none does."""
    copies: tuple[str, ...] = ()
    """Repositories on the hub that hold the same tokenizer, in the order in which they are tried."""
    is_gated: bool = False
    """Whether the model's own release needs an access request; then the first copy must not need one."""


@dataclass(frozen=True)
class Model:
    """All facts of one model."""

    spec: ModelSpec
    """The published shape, from the config.json of the release."""
    tiny: dict[str, int]
    """Fields of the spec that the size `tiny` replaces, beside the vocabulary."""
    release: str
    """Repository of the model's own release on the Hugging Face Hub."""
    tokenizer: ModelTokenizer
    transformers: str
    """Family of classes in transformers: `Llama` stands for LlamaConfig and LlamaForCausalLM."""
    nemo_recipe: str | None = None
    """Module in nemo.collections.llm that holds the recipe (nemo_toolkit 2.3); None where NeMo has none."""
    bridge_recipe: str | None = None
    """Module and function in megatron.bridge.recipes (0.6.2); None where Megatron-Bridge has none to start from."""
    primus_preset: str | None = None
    """Name of Primus's model preset and shipped YAMLs (v25.10); None where Primus has none to start from."""
    is_own_primus_preset: bool = True
    """False where the preset is of another model, whose shape the settings map replaces."""

    @property
    def repositories(self) -> tuple[str, ...]:
        """Repositories that hold the tokenizer: the release first, then its copies."""
        return (self.release, *self.tokenizer.copies)


# Tiny shapes keep what distinguishes each model (query heads per group, bias, rope, a window shorter than the
# sequence) and divide by a tensor-parallel size of 2.
_TINY_LLAMA = {
    "num_layers": 4,
    "hidden_size": 128,
    "ffn_hidden_size": 448,
    "num_attention_heads": 8,
    "num_query_groups": 2,
}

_LLAMA = Model(
    spec=ModelSpec(
        name="llama",
        size="full",
        num_layers=32,
        hidden_size=4096,
        ffn_hidden_size=14336,
        num_attention_heads=32,
        num_query_groups=8,
        vocab_size=128256,
        norm_epsilon=1e-5,
        rope_base=500000.0,
        max_position_embeddings=131072,
        rope_scaling=RopeScaling(),
    ),
    tiny=_TINY_LLAMA,
    release="meta-llama/Llama-3.1-8B",
    tokenizer=ModelTokenizer(
        size=128_256,
        eos_token_id=128_001,
        bos_token_id=128_000,
        copies=("unsloth/Meta-Llama-3.1-8B", "NousResearch/Meta-Llama-3.1-8B"),
        is_gated=True,
    ),
    transformers="Llama",
    nemo_recipe="llama31_8b",
    bridge_recipe="llama.llama31_8b_pretrain_config",
    primus_preset="llama3.1_8B",
)
_QWEN = Model(
    spec=ModelSpec(
        name="qwen",
        size="full",
        num_layers=28,
        hidden_size=3584,
        ffn_hidden_size=18944,
        num_attention_heads=28,
        num_query_groups=4,
        vocab_size=152064,
        norm_epsilon=1e-6,
        rope_base=1000000.0,
        max_position_embeddings=131072,
        qkv_bias=True,
    ),
    tiny={
        "num_layers": 4,
        "hidden_size": 112,
        "ffn_hidden_size": 592,
        "num_attention_heads": 14,
        "num_query_groups": 2,
    },
    release="Qwen/Qwen2.5-7B",
    tokenizer=ModelTokenizer(size=151_665, eos_token_id=151_643, bos_token_id=None),
    transformers="Qwen2",
    nemo_recipe="qwen25_7b",
    bridge_recipe="qwen.qwen25_7b_pretrain_config",
    primus_preset="qwen2.5_7B",
)
_MISTRAL = Model(
    spec=ModelSpec(
        name="mistral",
        size="full",
        num_layers=32,
        hidden_size=4096,
        ffn_hidden_size=14336,
        num_attention_heads=32,
        num_query_groups=8,
        vocab_size=32000,
        norm_epsilon=1e-5,
        rope_base=10000.0,
        max_position_embeddings=32768,
        sliding_window=4096,
    ),
    tiny=_TINY_LLAMA | {"sliding_window": 64},
    release="mistralai/Mistral-7B-v0.1",
    tokenizer=ModelTokenizer(
        size=32_000, eos_token_id=2, bos_token_id=1, copies=("unsloth/mistral-7b",), is_gated=True
    ),
    transformers="Mistral",
    nemo_recipe="mistral_7b",
    # Bridge 0.6.2 can build Mistral 7B and has no recipe of it; the layers and widths are those of Llama
    bridge_recipe="llama.llama31_8b_pretrain_config",
    primus_preset="llama3.1_8B",  # no release has Mistral 7B, whose layers and widths are those of Llama
    is_own_primus_preset=False,
)
_QWEN3 = Model(
    spec=ModelSpec(
        name="qwen3",
        size="full",
        num_layers=36,
        hidden_size=4096,
        ffn_hidden_size=12288,
        num_attention_heads=32,
        num_query_groups=8,
        vocab_size=151936,
        norm_epsilon=1e-6,
        rope_base=1000000.0,
        max_position_embeddings=32768,
        query_key_norm=True,
    ),
    tiny=_TINY_LLAMA | {"ffn_hidden_size": 384},
    release="Qwen/Qwen3-8B-Base",
    tokenizer=ModelTokenizer(size=151_669, eos_token_id=151_643, bos_token_id=None),
    transformers="Qwen3",
    nemo_recipe="qwen25_7b",  # 2.3 has none of Qwen3; the settings map sets every dimension and trait that differs
    bridge_recipe="qwen.qwen3_8b_pretrain_config",
    primus_preset="qwen3_8B",  # from v26.2 on; v26.1 has it for MI355X only
)
_QWEN3_MOE = Model(
    spec=ModelSpec(
        name="qwen3moe",
        size="full",
        num_layers=48,
        hidden_size=2048,
        ffn_hidden_size=768,
        num_attention_heads=32,
        num_query_groups=4,
        vocab_size=151936,
        norm_epsilon=1e-6,
        rope_base=1000000.0,
        max_position_embeddings=32768,
        query_key_norm=True,
        head_size=128,
        num_experts=128,
        experts_per_token=8,
    ),
    tiny=_TINY_LLAMA | {"ffn_hidden_size": 96, "head_size": 32, "num_experts": 8, "experts_per_token": 2},
    release="Qwen/Qwen3-30B-A3B-Base",
    tokenizer=_QWEN3.tokenizer,
    transformers="Qwen3Moe",
    bridge_recipe="qwen.qwen3_30b_a3b_pretrain_config",
    primus_preset="qwen3_30B_A3B",
)
MODELS = {model.spec.name: model for model in (_LLAMA, _QWEN, _MISTRAL, _QWEN3, _QWEN3_MOE)}
"""All models by name, in the order of MODEL=all."""
TINY_VOCAB_SIZE = 4096

NAMES = tuple(MODELS)
SIZES = ("full", "proxy", "tiny")


def get(name: str, size: str = "full", *, proxy_layers: int = 4) -> ModelSpec:
    """Return the spec of model `name` in `size`; `proxy_layers` is the number of layers of a proxy.

    Raises UnknownModelError for an unknown name or size, and for a proxy that is not smaller than the model.
    """
    if name not in MODELS:
        raise UnknownModelError(f"model: got {name!r}, allowed: {', '.join(NAMES)}")
    if size not in SIZES:
        raise UnknownModelError(f"model size: got {size!r}, allowed: {', '.join(SIZES)}")
    full = MODELS[name].spec
    if size == "full":
        return full
    if size == "tiny":
        return replace(full, size="tiny", vocab_size=TINY_VOCAB_SIZE, **MODELS[name].tiny)  # type: ignore[arg-type]
    if not 1 <= proxy_layers < full.num_layers:
        raise UnknownModelError(f"PROXY_LAYERS: got {proxy_layers}, allowed: 1 to {full.num_layers - 1} for {name}")
    return replace(full, size="proxy", num_layers=proxy_layers)
