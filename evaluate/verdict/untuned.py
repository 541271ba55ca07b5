"""The sides that nobody would run for speed: megatron-core on its own layers, without those of TransformerEngine.

One public comparison of Llama 3 8B on H100 had 17,200 tokens/s on local layers and 21,800 with TransformerEngine
(marin-community/marin, issue 4311): such a baseline makes the other side look good.
"""

from __future__ import annotations

from evaluate.verdict.pairs import Pair

LOCAL = "megatron_core_local"
"""`layer_implementation` of `mega` with LAYERS=local (train/mega/resolved.py)."""


def local_layers_clause(pair: Pair) -> str:
    """Return the clause of a sentence that names the sides with a run of `mega` on local layers; empty without one."""
    sides = zip((pair.a_name, pair.b_name), pair.counted, strict=True)
    names = [
        name
        for name, side in sides
        if any(one["framework"] == "mega" and one["resolved_config"]["layer_implementation"] == LOCAL for one in side)
    ]
    return f"; untuned: {' and '.join(names)}, mega on megatron-core's local layers" if names else ""
