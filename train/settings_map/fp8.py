"""Names and formats of FP8_RECIPE in Megatron: mega, NeMo and Primus build from the same fields."""

from __future__ import annotations

from typing import Any

from utils.settings.keys import NO_RECIPE

FP8_FORMATS = {"delayed": "hybrid", "current": "hybrid", "mxfp8": "e4m3"}
"""Format of the 8-bit numbers by recipe. With one scale for a tensor, gradients need the range of E5M2 (hybrid); with
one for 32 numbers E4M3 serves everywhere, as in AMD's own llama3.1_8B-MXFP8-pretrain.yaml (Primus fd1eeab)."""
FP4_FORMAT = "e2m1"
_SCALING = {"current": "tensorwise"}


def scaling(recipe: str) -> str:
    """Return Megatron's name of a recipe (megatron-core 0.16.1, `Fp8Recipe`)."""
    return _SCALING.get(recipe, recipe)


def recipe_of(name: object) -> str:
    """Return the suite's name of a recipe of Megatron, an enum or a text."""
    text = str(getattr(name, "value", name))
    return next((ours for ours, theirs in _SCALING.items() if theirs == text), text)


def transformer_settings(recipe: str) -> dict[str, Any]:
    """Return the fields of TransformerConfig for a recipe; `none` is a training without fp8."""
    if recipe in FP8_FORMATS:
        return {"fp8": FP8_FORMATS[recipe], "fp8_recipe": scaling(recipe)}
    return {} if recipe == NO_RECIPE else {"fp4": FP4_FORMAT, "fp4_recipe": recipe}


def resolved_recipe(settings: Any) -> str:
    """Return the recipe of a TransformerConfig by the name of the suite; `none` where neither fp8 nor fp4 is on."""
    if getattr(settings, "fp4", None):  # megatron-core 0.12 has none
        return recipe_of(settings.fp4_recipe)
    return recipe_of(settings.fp8_recipe) if settings.fp8 else NO_RECIPE
