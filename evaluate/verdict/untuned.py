"""The sides that nobody would run for speed: megatron-core on its own layers, without those of TransformerEngine.

One public measurement had 17,217 tokens/s on local layers, 21,795 with TransformerEngine and 23,622 with Apex too (one
GH200, github.com/marin-community/marin, issue 4311, 2026-05-10): such a baseline makes the other side look good.
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
