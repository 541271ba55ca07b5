"""The transformers model of a spec: the library's own classes, from configuration, never from a checkpoint.

On a GPU train/hf/fused.py and train/hf/linear.py replace some of its functions.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import transformers
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from utils.models import MODELS, ModelSpec

CAUSAL_SDPA = "sdpa_causal"
"""transformers' own call of torch's attention, under a name for which transformers makes no mask.

For `sdpa` transformers looks for packed documents in each micro batch, which reads a number of the device on the host,
to find that no mask is needed. Samples here are never packed that way, and the call is causal without a mask.
"""
AttentionInterface.register(CAUSAL_SDPA, sdpa_attention_forward)


def build_model(
    spec: ModelSpec,
    init_std: float = 0.02,
    dtype: torch.dtype = torch.float32,
    sequence_length: int | None = None,
    *,
    draw_weights: bool = True,
) -> PreTrainedModel:
    """Return the untrained model with torch's scaled-dot-product attention.

    A model with a sliding window gets a mask unless no sequence is longer than its window (`sequence_length`; None
    means any length). Rotary frequencies stay float32 in every `dtype`. Without `draw_weights` no random number is
    drawn and the memory of the weights is reserved and not touched: the caller writes every weight.
    """
    config = build_config(spec, init_std)
    if spec.sliding_window is None or (sequence_length is not None and sequence_length <= spec.sliding_window):
        config._attn_implementation = CAUSAL_SDPA
    with nullcontext() if draw_weights else no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()  # transformers does it in the function that `no_init_weights` empties
    return model


def build_config(spec: ModelSpec, init_std: float = 0.02) -> PretrainedConfig:
    """Return transformers' configuration of the spec.

    transformers 5 wants rope's base inside `rope_parameters`. A `sliding_window` of W lets a token see W tokens with
    itself, as in `ModelSpec.sliding_window`; a class that has this field uses a window unless it is set to None.
    """
    config_class = getattr(transformers, MODELS[spec.name].transformers + "Config")
    settings = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_query_groups,
        "head_dim": spec.head_dim,
        "rms_norm_eps": spec.norm_epsilon,
        "max_position_embeddings": spec.max_position_embeddings,
        "initializer_range": init_std,
        "rope_parameters": _rope_parameters(spec),
        "tie_word_embeddings": spec.tie_word_embeddings,
        "attention_dropout": 0.0,
        "attn_implementation": "sdpa",
        "use_cache": False,
    }
    if hasattr(config_class, "sliding_window"):
        settings["sliding_window"] = spec.sliding_window
    config: PretrainedConfig = config_class(**settings)
    return config


def _rope_parameters(spec: ModelSpec) -> dict[str, object]:
    if spec.rope_scaling is None:
        return {"rope_type": "default", "rope_theta": spec.rope_base}
    return {
        "rope_type": "llama3",
        "rope_theta": spec.rope_base,
        "factor": spec.rope_scaling.factor,
        "low_freq_factor": spec.rope_scaling.low_frequency_factor,
        "high_freq_factor": spec.rope_scaling.high_frequency_factor,
        "original_max_position_embeddings": spec.rope_scaling.original_max_position_embeddings,
    }
