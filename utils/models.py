"""What the models are: shapes, parameter counts and floating-point operations per token. Standard library only.

`get(name, size)` is the one place that knows a model; every trainer builds from its `ModelSpec`. Sizes:
`full` is the published model, `proxy` has the same widths and fewer layers (fits one GPU), `tiny` trains on a CPU.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

FORMULA_CAUSAL = "6N+causal_attention/v1"
"""6 x matrix-multiply parameters + attention over the tokens that a causal (and windowed) mask lets through."""
FORMULA_FULL = "6N+full_attention/v1"
"""6 x matrix-multiply parameters + attention as if every token saw the whole sequence."""


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
    """A decoder-only transformer with RMSNorm, SwiGLU, rotary embedding and untied output layer."""

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

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def matmul_parameter_count(self) -> int:
        """Parameters that multiply every token: all linear weights with the output layer, without the embedding."""
        key_value_size = self.num_query_groups * self.head_dim
        attention = 2 * self.hidden_size * self.hidden_size + 2 * self.hidden_size * key_value_size
        mlp = 3 * self.hidden_size * self.ffn_hidden_size
        return self.num_layers * (attention + mlp) + self.vocab_size * self.hidden_size

    @property
    def parameter_count(self) -> int:
        """All parameters: linear weights, embedding, norms (two a layer and the last) and QKV biases."""
        embedding = self.vocab_size * self.hidden_size
        norms = (2 * self.num_layers + 1) * self.hidden_size
        biases = self.num_layers * (self.hidden_size + 2 * self.num_query_groups * self.head_dim)
        return self.matmul_parameter_count + embedding + norms + (biases if self.qkv_bias else 0)

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
            window = min(self.sliding_window or sequence_length, sequence_length)
            attended = window - window * window / (2 * sequence_length)
        attention = 12 * self.num_layers * self.num_attention_heads * self.head_dim * attended
        return 6 * self.matmul_parameter_count + attention

    def as_dict(self) -> dict[str, object]:
        """Return all fields as plain values, for fingerprints and results."""
        return asdict(self)


# Published configurations: the config.json of each model's own release on the Hugging Face Hub.
_FULL = {
    "llama": ModelSpec(  # meta-llama/Llama-3.1-8B
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
    "qwen": ModelSpec(  # Qwen/Qwen2.5-7B
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
    "mistral": ModelSpec(  # mistralai/Mistral-7B-v0.1
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
}

# Tiny shapes keep what distinguishes each model (query heads per group, bias, rope, a window shorter than the
# sequence) and divide by a tensor-parallel size of 2.
_TINY_LLAMA = {"num_layers": 4, "hidden_size": 128, "ffn_hidden_size": 448, "num_attention_heads": 8}
_TINY: dict[str, dict[str, int]] = {
    "llama": _TINY_LLAMA | {"num_query_groups": 2},
    "qwen": {
        "num_layers": 4,
        "hidden_size": 112,
        "ffn_hidden_size": 592,
        "num_attention_heads": 14,
        "num_query_groups": 2,
    },
    "mistral": _TINY_LLAMA | {"num_query_groups": 2, "sliding_window": 64},
}
TINY_VOCAB_SIZE = 4096

NAMES = tuple(_FULL)
SIZES = ("full", "proxy", "tiny")


def get(name: str, size: str = "full", *, proxy_layers: int = 4) -> ModelSpec:
    """Return the spec of model `name` in `size`; `proxy_layers` is the number of layers of a proxy.

    Raises UnknownModelError for an unknown name or size, and for a proxy that is not smaller than the model.
    """
    if name not in _FULL:
        raise UnknownModelError(f"model: got {name!r}, allowed: {', '.join(NAMES)}")
    if size not in SIZES:
        raise UnknownModelError(f"model size: got {size!r}, allowed: {', '.join(SIZES)}")
    full = _FULL[name]
    if size == "full":
        return full
    if size == "tiny":
        return replace(full, size="tiny", vocab_size=TINY_VOCAB_SIZE, **_TINY[name])  # type: ignore[arg-type]
    if not 1 <= proxy_layers < full.num_layers:
        raise UnknownModelError(f"PROXY_LAYERS: got {proxy_layers}, allowed: 1 to {full.num_layers - 1} for {name}")
    return replace(full, size="proxy", num_layers=proxy_layers)
