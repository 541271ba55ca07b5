"""Parameter counts and FLOPs against transformers' own models, published figures and a count by hand."""

from dataclasses import replace

import pytest

from tests.support import tied_model
from utils import models
from utils.provenance.digests import sha256_json

PUBLISHED = {"llama": 8_030_261_248, "qwen": 7_615_616_512, "mistral": 7_241_732_096, "qwen3": 8_190_735_360}


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("size", models.SIZES)
def test_parameter_count_equals_transformers_on_the_meta_device(name, size):
    import torch

    from train.hf.model import build_model

    spec = models.get(name, size)
    with torch.device("meta"):
        model = build_model(spec)
    assert spec.parameter_count == sum(parameter.numel() for parameter in model.parameters())
    if size == "full":
        assert spec.parameter_count == PUBLISHED[name]


def test_a_tied_embedding_counts_once_in_parameters_and_fully_in_flops(monkeypatch):
    import torch

    from train.hf.model import build_model

    monkeypatch.setitem(models.MODELS, tied_model.NAME, tied_model.LLAMA_1B)
    spec = models.get(tied_model.NAME)
    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in build_model(spec).parameters())
    assert spec.parameter_count == counted == 1_235_814_400  # model card of Llama 3.2 1B: 1.23 billion
    untied = replace(spec, tie_word_embeddings=False)
    assert spec.flops_per_token(8192) == untied.flops_per_token(8192)
    # by hand: 6 x (16 layers x (2 x 2048^2 + 2 x 2048 x 512 + 3 x 2048 x 8192) + 128256 x 2048) + 6 x 16 x 2048 x 8192
    assert spec.flops_per_token(8192) == 6 * (16 * 60_817_408 + 262_668_288) + 1_610_612_736


def test_an_untied_model_has_the_fingerprint_of_results_from_before_tied_ones():
    # model_config_sha256 of a result of the tiny Llama that was written before the field existed
    wanted = "4f3ad3948a9bf5dc0c3df9870b59647d45958201f7d93a0222362a391a2ea412"
    assert sha256_json(models.get("llama", "tiny").as_dict()) == wanted


@pytest.mark.parametrize(("text", "found"), [("Llama3.1_8B", ["llama"]), ("big-llama", ["big-llama"]), ("gpt", [])])
def test_a_name_that_holds_another_name_is_found_alone(monkeypatch, text, found):
    monkeypatch.setattr(models, "NAMES", ("llama", "big-llama"))
    assert models.named_in(text) == found


@pytest.mark.parametrize(
    ("sequence_length", "causal", "gflops"),
    [(8192, True, 51.470), (8192, False, 57.913), (2048, True, 46.639), (2048, False, 48.249), (4096, True, 48.249)],
)
def test_llama_flops_per_token_are_the_published_figures(sequence_length, causal, gflops):
    assert models.get("llama").flops_per_token(sequence_length, causal=causal) / 1e9 == pytest.approx(gflops, abs=6e-4)


def test_windowed_attention_counts_only_the_tokens_inside_the_window():
    spec = models.get("mistral", "tiny")
    length, window = 4096, spec.sliding_window
    by_hand = sum(min(position + 1, window) for position in range(length)) / length
    counted = (spec.flops_per_token(length) - 6 * spec.matmul_parameter_count) / (
        12 * spec.num_layers * spec.hidden_size
    )
    # the published causal formula takes a token to see half of itself: s / 2, not (s + 1) / 2
    assert counted == pytest.approx(by_hand - window / (2 * length), rel=1e-12)


def test_window_longer_than_the_sequence_is_plain_causal_attention():
    mistral = models.get("mistral")
    assert mistral.flops_per_token(2048) == pytest.approx(
        6 * mistral.matmul_parameter_count + 6 * 32 * 4096 * 2048, rel=1e-12
    )


@pytest.mark.parametrize("name", models.NAMES)
def test_tiny_has_four_layers_and_heads_that_divide_by_tensor_parallel_two(name):
    spec = models.get(name, "tiny")
    assert spec.num_layers == 4
    assert spec.num_attention_heads % 2 == 0
    assert spec.num_query_groups % 2 == 0
    assert spec.num_attention_heads * spec.head_dim == spec.hidden_size


def test_tiny_mistral_uses_its_window_at_128_tokens():
    assert models.get("mistral", "tiny").sliding_window == 64


def test_proxy_keeps_the_widths_and_cuts_the_layers():
    full, proxy = models.get("llama"), models.get("llama", "proxy", proxy_layers=2)
    per_layer = (full.parameter_count - proxy.parameter_count) / 30
    assert proxy.num_layers == 2
    assert proxy.parameter_count == full.parameter_count - 30 * per_layer
    assert proxy.hidden_size == full.hidden_size


@pytest.mark.parametrize(
    ("arguments", "named"), [(("gpt", "full"), "llama, qwen, mistral"), (("llama", "huge"), "full, proxy, tiny")]
)
def test_unknown_model_lists_what_is_known(arguments, named):
    with pytest.raises(models.UnknownModelError, match=named):
        models.get(*arguments)


@pytest.mark.parametrize("layers", [0, 32])
def test_proxy_must_be_smaller_than_the_model(layers):
    with pytest.raises(models.UnknownModelError, match="1 to 31"):
        models.get("llama", "proxy", proxy_layers=layers)
