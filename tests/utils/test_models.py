"""Parameter counts and FLOPs against transformers' own models, published figures and a count by hand."""

import hashlib
import json
from dataclasses import replace

import pytest

from tests.support import tied_model
from utils import models

PUBLISHED = {"llama": 8_030_261_248, "qwen": 7_615_616_512, "mistral": 7_241_732_096, "qwen3": 8_190_735_360}


def counted(spec):
    """Return the parameters of transformers' own model, which is not built: on the meta device."""
    import torch

    from train.hf.model import build_model

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(spec).parameters())


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("size", models.SIZES)
def test_parameter_count_equals_transformers_on_the_meta_device(name, size):
    spec = models.get(name, size)
    assert spec.parameter_count == counted(spec)
    assert size != "full" or spec.parameter_count == PUBLISHED[name]


def test_a_tied_embedding_counts_once_in_parameters_and_fully_in_flops(monkeypatch):
    monkeypatch.setitem(models.MODELS, tied_model.NAME, tied_model.LLAMA_1B)
    spec = models.get(tied_model.NAME)
    assert spec.parameter_count == counted(spec) == 1_235_814_400  # model card of Llama 3.2 1B: 1.23 billion
    assert spec.flops_per_token(8192) == replace(spec, tie_word_embeddings=False).flops_per_token(8192)
    # by hand: 6 x (16 layers x (2 x 2048^2 + 2 x 2048 x 512 + 3 x 2048 x 8192) + 128256 x 2048) + 6 x 16 x 2048 x 8192
    assert spec.flops_per_token(8192) == 6 * (16 * 60_817_408 + 262_668_288) + 1_610_612_736


def test_an_untied_model_has_the_fingerprint_of_results_from_before_tied_ones():
    # model_config_sha256 of a result of the tiny Llama that was written before the field existed
    wanted = "4f3ad3948a9bf5dc0c3df9870b59647d45958201f7d93a0222362a391a2ea412"
    text = json.dumps(models.get("llama", "tiny").as_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == wanted


@pytest.mark.parametrize(("text", "found"), [("Llama3.1_8B", ["llama"]), ("big-llama", ["big-llama"]), ("gpt", [])])
def test_a_name_that_holds_another_name_is_found_alone(monkeypatch, text, found):
    monkeypatch.setattr(models, "NAMES", ("llama", "big-llama"))
    assert models.named_in(text) == found


@pytest.mark.parametrize(
    ("name", "sequence_length", "causal", "gflops"),
    [
        *(("llama", 8192, True, 51.470), ("llama", 8192, False, 57.913), ("llama", 2048, True, 46.639)),
        *(("llama", 2048, False, 48.249), ("llama", 4096, True, 48.249)),
        # a window longer than the sequence; by hand: 6 x 7,110,393,856 weights and 6 x 32 x 4096 x 2048
        ("mistral", 2048, True, 44.272975872),
    ],
)
def test_flops_per_token_are_the_published_figures(name, sequence_length, causal, gflops):
    assert models.get(name).flops_per_token(sequence_length, causal=causal) / 1e9 == pytest.approx(gflops, abs=6e-4)


def test_windowed_attention_counts_only_the_tokens_inside_the_window():
    spec = models.get("mistral", "tiny")
    length, window = 4096, spec.sliding_window
    by_hand = sum(min(position + 1, window) for position in range(length)) / length
    counted = (spec.flops_per_token(length) - 6 * spec.matmul_parameter_count) / (
        12 * spec.num_layers * spec.hidden_size
    )
    # the published causal formula takes a token to see half of itself: s / 2, not (s + 1) / 2
    assert counted == pytest.approx(by_hand - window / (2 * length), rel=1e-12)


@pytest.mark.parametrize("name", models.NAMES)
def test_tiny_has_four_layers_and_heads_that_divide_by_tensor_parallel_two(name):
    spec = models.get(name, "tiny")
    assert (spec.num_layers, spec.num_attention_heads % 2, spec.num_query_groups % 2) == (4, 0, 0)
    assert spec.num_attention_heads * spec.head_dim == spec.hidden_size
    assert name != "mistral" or spec.sliding_window == 64, "it uses its window at 128 tokens"


def test_proxy_keeps_the_widths_and_cuts_the_layers():
    full, proxy = models.get("llama"), models.get("llama", "proxy", proxy_layers=2)
    assert (proxy.num_layers, proxy.hidden_size) == (2, full.hidden_size)
    # by hand: 2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 14336, and two norms of 4096
    assert proxy.parameter_count == full.parameter_count - 30 * 218_112_000


@pytest.mark.parametrize(
    ("name", "size", "layers", "named"),
    [
        ("gpt", "full", 2, "llama, qwen, mistral"),
        ("llama", "huge", 2, "full, proxy, tiny"),
        ("llama", "proxy", 0, "1 to 31"),  # a proxy must be smaller than the model
        ("llama", "proxy", 32, "1 to 31"),
    ],
)
def test_unknown_model_lists_what_is_known(name, size, layers, named):
    with pytest.raises(models.UnknownModelError, match=named):
        models.get(name, size, proxy_layers=layers)
