"""Llama 3.2 1B, whose output layer shares the weight of the embedding: a model that only tests know."""

from __future__ import annotations

from dataclasses import replace

from utils import models

NAME = "llama1b"
_LLAMA = models.MODELS["llama"]
LLAMA_1B = replace(
    _LLAMA,
    spec=replace(  # config.json of meta-llama/Llama-3.2-1B
        _LLAMA.spec,
        name=NAME,
        num_layers=16,
        hidden_size=2048,
        ffn_hidden_size=8192,
        num_attention_heads=32,
        num_query_groups=8,
        rope_scaling=models.RopeScaling(factor=32.0),
        tie_word_embeddings=True,
    ),
    tiny=_LLAMA.tiny | {"ffn_hidden_size": 512},
    release="meta-llama/Llama-3.2-1B",
    nemo_recipe="llama32_1b",
    primus_preset="llama3.2_1B",
)


def register() -> None:
    """Make the model known to this process; a test undoes it with `monkeypatch.setitem(models.MODELS, ...)`."""
    models.MODELS[NAME] = LLAMA_1B
