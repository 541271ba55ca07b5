"""Parameter counts and FLOPs against transformers' own models, published figures and a count by hand."""

import pytest

from utils import models

PUBLISHED = {"llama": 8_030_261_248, "qwen": 7_615_616_512, "mistral": 7_241_732_096}


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
