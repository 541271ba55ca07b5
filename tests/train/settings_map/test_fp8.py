"""FP8_RECIPE in the fields of megatron-core, and read back from them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from megatron.core.enums import Fp4Recipe, Fp8Recipe
from megatron.core.transformer.transformer_config import TransformerConfig

from train.prim.arguments import Arguments
from train.settings_map.fp8 import resolved_recipe, transformer_settings
from utils import models

# Names of megatron-core's own enums; formats as NVIDIA's and AMD's published recipes have them
FIELDS = {
    "delayed": {"fp8": "hybrid", "fp8_recipe": Fp8Recipe.delayed},
    "current": {"fp8": "hybrid", "fp8_recipe": Fp8Recipe.tensorwise},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": Fp8Recipe.mxfp8},
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": Fp4Recipe.nvfp4},
    "none": {},
}


@pytest.mark.parametrize("recipe", FIELDS)
def test_the_recipe_is_that_of_megatrons_configuration_and_is_read_back_from_it(recipe):
    assert transformer_settings(recipe) == FIELDS[recipe]
    built = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, **transformer_settings(recipe))
    assert resolved_recipe(built) == recipe


def test_a_megatron_without_fp4_is_read_back_too():
    assert resolved_recipe(SimpleNamespace(fp8="hybrid", fp8_recipe="tensorwise")) == "current"
    assert resolved_recipe(SimpleNamespace(fp8=None, fp8_recipe="delayed")) == "none"


@pytest.mark.parametrize(
    ("said", "recipe", "precision"),
    [
        ({"fp8": None, "fp8_recipe": "delayed", "fp4": None, "fp4_recipe": "nvfp4"}, "none", "bf16"),
        ({"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp4": None}, "current", "fp8"),
        ({"fp8": "e4m3", "fp8_recipe": "mxfp8"}, "mxfp8", "fp8"),
        ({"fp8": None, "fp4": "e2m1", "fp4_recipe": "mxfp4"}, "mxfp4", "fp8"),
        ({}, None, "bf16"),
    ],
)
def test_the_recipe_of_primus_is_read_from_the_table_of_its_arguments(said, recipe, precision):
    arguments = Arguments()
    arguments.values, arguments.is_complete = {"bf16": True, **said}, True
    resolved = arguments.resolved(models.get("llama", "tiny"))
    assert (resolved["fp8_recipe"], resolved["precision"]) == (recipe, precision)
