"""The settings map: values it sets in each framework, those it cannot set, keys, what is read back, and its tables."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from evaluate.fairness.certificate import LAYOUT, MEANS, MODEL, ONLY_IF_TRUE, WORK
from tests.support import documents
from tests.support.example import example_result
from tests.support.sides import failed_early, run
from tests.support.tied_model import LLAMA_1B
from train.settings_map import map as settings_map, row as map_row
from utils.provenance.origin import KNOWN
from utils.results.schema import SECTIONS
from utils.settings.config import load

KEYS_OF_PRIMUS = Path(__file__).with_name("primus_keys.txt")
DDP = {
    "nemo": "trainer.strategy.ddp.average_in_collective",
    "prim": "ddp_average_in_collective",
}
PLACES = {"nemo": "model.config.", "prim": ""}


def made(platform="nvd", *arguments, model="llama"):
    settings = ["FRAMEWORK=mega", "DATASET=synth", *arguments]
    config = load(platform, 8, arguments=settings, environ={})
    return config, LLAMA_1B.spec if model == "llama1b" else config.spec(model)


def recomputation(kind, *values):
    names = ("recompute_granularity", "recompute_method", "recompute_num_layers")
    return [
        (framework, "nvd", kind, "llama", {place + name: value for name, value in zip(names, values, strict=True)})
        for framework, place in PLACES.items()
    ]


SET = [
    # LR n / (W + 1) at step n: Megatron starts at its init rate and adds (LR - init) / W a step; 3e-4 / 51 = 5.88235e-6
    ("prim", "amd", "", "llama", {"lr_warmup_init": 5.8823529e-6, "lr_warmup_iters": 50, "lr": 3e-4}),
    *(
        ("bridge", "nvd", "LR=3e-4 WARMUP_ITERS=2", model, {"scheduler.lr_warmup_init": 1e-4})
        for model in ("llama", "qwen", "mistral")
    ),
    # the QKV bias of Qwen 2.5, which Primus's preset leaves out; its preset's end-of-document mask, init and sampler
    ("prim", "amd", "", "qwen", {"add_qkv_bias": True, "eod_mask_loss": False, "init_method_std": 0.02}),
    ("prim", "amd", "", "qwen", {"dataloader_type": "single", "disable_last_saving": True, "finetune": False}),
    # a null tokenizer adds one token to what it is given, and nothing may be padded: 128256 + 0
    ("prim", "amd", "", "llama", {"tokenizer_type": "NullTokenizer", "vocab_size": 128255}),
    ("prim", "amd", "", "llama", {"make_vocab_size_divisible_by": 1}),
    # the recipe's Adam epsilon is 1e-5, its sequence length in the model 131072, its TP 2
    ("nemo", "nvd", "", "qwen", {"optim.config.adam_eps": 1e-8, "model.config.seq_length": 2048}),
    ("nemo", "nvd", "", "qwen", {"trainer.strategy.tensor_model_parallel_size": 1}),
    ("nemo", "nvd", "", "qwen", {"trainer.plugins.grad_reduce_in_fp32": True}),
    ("nemo", "nvd", "", "qwen", {"trainer.strategy.ddp.grad_reduce_in_fp32": True}),
    # megatron-bridge 0.6.2: _pretrain_common and llama31_8b_pretrain_2gpu_h100_bf16_config have other values of these
    ("bridge", "nvd", "", "llama", {"rng.seed": 42, "optimizer.min_lr": 0.0, "scheduler.start_weight_decay": 0.1}),
    ("bridge", "nvd", "", "qwen", {"model.cross_entropy_fusion_impl": "native", "model.context_parallel_size": 1}),
    # gloo cannot average in the collective, and one rank has nothing to reduce
    *((framework, platform, "", "llama", {key: True}) for framework, key in DDP.items() for platform in ("nvd", "amd")),
    *((framework, "cpu", "CPU_RANKS=2", "llama", {key: False}) for framework, key in DDP.items()),
    *((framework, "nvd", "TP=4 PP=2", "llama", {key: False}) for framework, key in DDP.items()),
    # a window of W tokens is W - 1 to the left
    ("nemo", "nvd", "", "mistral", {"model.config.window_size": [4095, 0]}),
    ("bridge", "nvd", "", "mistral", {"model.window_size": [4095, 0]}),
    ("bridge", "nvd", "", "llama", {"model.window_size": None}),
    ("nemo", "nvd", "", "llama", {"model.config.old_context_len": 8192}),
    *recomputation("RECOMPUTE=full", "full", "uniform", 1),
    *recomputation("RECOMPUTE=selective", "selective", None, None),
    *recomputation("", None, None, None),
    # Megatron's switch for selective recomputation would replace `full`
    ("prim", "amd", "RECOMPUTE=full", "llama", {"recompute_activations": False}),
    ("prim", "amd", "RECOMPUTE=selective", "llama", {"recompute_activations": True}),
    ("nemo", "nvd", "", "llama1b", {"model.config.share_embeddings_and_output_weights": True}),
    ("prim", "nvd", "", "llama1b", {"untie_embeddings_and_output_weights": False}),
]


@pytest.mark.parametrize(("framework", "platform", "settings", "model", "wanted"), SET)
def test_what_a_framework_would_do_otherwise_is_set(framework, platform, settings, model, wanted):
    said = settings_map.overrides(framework, *made(platform, *settings.split(), model=model))
    for key, value in wanted.items():
        assert said[key] == (pytest.approx(value) if isinstance(value, float) else value), key


@pytest.mark.parametrize("recipe", ["delayed", "mxfp8"])
@pytest.mark.parametrize(
    ("framework", "place"), [("nemo", "trainer.plugins."), ("bridge", "mixed_precision."), ("prim", "")]
)
def test_fp8_goes_into_the_precision_that_a_framework_copies_over_the_model(framework, place, recipe):
    config, spec = made("amd" if framework == "prim" else "nvd")
    said = settings_map.overrides(framework, replace(config, precision="fp8", fp8_recipe=recipe), spec)
    assert said[f"{place}fp8_recipe"] == recipe
    assert said[f"{place}fp8"] == {"delayed": "hybrid", "mxfp8": "e4m3"}[recipe]


@pytest.mark.parametrize(
    ("framework", "platform", "settings", "model", "wanted"),
    [
        ("nemo", "nvd", [], "llama", set()),
        ("bridge", "nvd", [], "llama", set()),
        ("prim", "amd", [], "llama", set()),
        ("prim", "amd", [], "mistral", set()),  # no sequence is longer than the window
        ("prim", "amd", ["SL=8192"], "mistral", {"sliding window"}),
    ],
)
def test_what_a_framework_does_of_its_own_is_named_with_its_reason(framework, platform, settings, model, wanted):
    if framework == "prim":
        wanted = wanted | {"initial weights", "gradient accumulation fusion"}
        wanted |= {"output projections drawn smaller, by 1/sqrt(2 layers)"}
    training = made(platform, *settings, model=model)
    entries = {row: settings_map.entry_of(row, framework) for row in settings_map.ROWS}
    fixed = {row: entry for row, entry in entries.items() if isinstance(entry, settings_map.Fixed)}
    found = {row.name: entry for row, entry in fixed.items() if entry.of(*training) != row.wanted(*training)}
    assert set(found) == wanted and all(entry.reason for entry in found.values())
    assert "sliding window" not in found or found["sliding window"].of(*training) is None


@pytest.mark.parametrize(
    ("framework", "above", "below"),
    [
        ("nemo", "trainer.plugins", "trainer.plugins.grad_reduce_in_fp32"),
        ("bridge", "mixed_precision", "mixed_precision.grad_reduce_in_fp32"),
    ],
)
def test_a_key_is_set_before_the_keys_below_it(framework, above, below):
    said = list(settings_map.overrides(framework, *made()))
    assert said.index(above) < said.index(below)


def test_both_vendors_get_the_same_variables_in_every_framework_of_theirs():
    def of(framework, *settings):
        return settings_map.environment(framework, *made(*settings))

    # AMD's own benchmark exports the first two; Primus's launcher would leave both at 0
    amd = of("prim", "amd")
    assert (amd["HSA_NO_SCRATCH_RECLAIM"], amd["NVTE_CK_USES_BWD_V3"]) == ("1", "1")
    assert of("mega", "amd").items() >= amd.items()
    for settings in (["nvd"], ["nvd", "TP=2"]):
        assert of("mega", *settings) == of("nemo", *settings) == of("bridge", *settings)
        assert of("mega", *settings).get("CUDA_DEVICE_MAX_CONNECTIONS") == ("1" if "TP=2" in settings else None)
    assert all(of(name, "cpu") == {} for name in documents.COLUMNS)
    # the allocator's segments grow on NVIDIA
    assert of("mega", "nvd")["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert not [name for name in of("mega", "amd") if name.endswith("ALLOC_CONF")]


def test_every_row_has_a_name_of_its_own_and_every_framework_keys_or_a_reason():
    rows = (*settings_map.ROWS, *settings_map.ENVIRONMENT)
    assert len({row.name for row in rows}) == len(rows)
    entries = [settings_map.entry_of(row, name) for row in settings_map.ROWS for name in settings_map.COLUMNS]
    entries += [variable.of(name) for variable in settings_map.ENVIRONMENT for name in documents.COLUMNS]
    assert all(entry.reason if isinstance(entry, settings_map.Fixed) else entry.keys for entry in entries)


def test_every_key_of_primus_is_one_that_was_looked_up_in_its_release():
    lines = [line for line in KEYS_OF_PRIMUS.read_text().splitlines() if not line.startswith("#")]
    known = {word for line in lines for word in line.split() if not word.endswith(":")}
    named = {key for row in settings_map.ROWS for key in getattr(settings_map.entry_of(row, "prim"), "keys", ())}
    assert named == known, "look a new key up, and take one that left the map out of the list"


# Values read back


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [
        ({}, "none"),
        ({"fp8": "hybrid", "fp8_recipe": "delayed"}, "delayed"),
        ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, "current"),
        ({"fp8": "e4m3", "fp8_recipe": "mxfp8"}, "mxfp8"),
        ({"fp4": "e2m1", "fp4_recipe": "nvfp4"}, "nvfp4"),
    ],
)
def test_the_recipe_is_that_of_megatrons_configuration_and_is_read_back_from_it(settings, recipe):
    """Names of megatron-core's own enums; formats as NVIDIA's and AMD's published recipes have them."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    assert map_row.transformer_settings(recipe) == settings
    built = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, **settings)
    assert map_row.resolved_recipe(built) == recipe
    without_fp4 = SimpleNamespace(**{"fp8": None, "fp8_recipe": "delayed"} | settings)
    assert map_row.resolved_recipe(without_fp4) == recipe


# The tables of docs/generated


def test_the_documents_hold_the_tables_as_they_are_made_and_all_of_them():
    made, pages = documents.tables(), [page.read_text(encoding="utf8") for page in documents.PAGES]
    assert all(documents.renewed(page, made) == page for page in pages), "run python -m tests.support.documents"
    assert all(any(table in page for page in pages) for table in made.values())
    assert documents.result_schema() == documents.SCHEMA.read_text(encoding="utf8")


def test_the_published_schema_accepts_valid_results_and_finds_a_wrong_type_or_a_lost_section():
    validator = jsonschema.Draft202012Validator(json.loads(documents.SCHEMA.read_text(encoding="utf8")))
    result = example_result()
    for good in (result, failed_early(), run("amd", 2, source="log")):
        assert [str(error) for error in validator.iter_errors(json.loads(json.dumps(good)))] == []
    assert not validator.is_valid({key: value for key, value in result.items() if key != "gpu_info"})
    assert not validator.is_valid(result | {"step_times": ["1.0"]})
    assert not validator.is_valid(result | {"gpu_info": result["gpu_info"] | {"device_count": "8"}})


def test_every_row_read_back_from_a_framework_is_a_key_of_the_result_and_an_item_of_the_certificate():
    keys = {row.resolved.partition(".")[0] for row in settings_map.ROWS if row.resolved}
    assert keys - SECTIONS["resolved_config"].keys() - ONLY_IF_TRUE.keys() == set()
    items = {*MODEL, *WORK, *LAYOUT, *MEANS, *ONLY_IF_TRUE}
    assert keys - items - {"seed"} == set()


def test_every_variable_that_the_suite_sets_is_published():
    assert {variable.name for variable in settings_map.ENVIRONMENT} <= KNOWN
