"""Parameter counts and FLOPs against transformers' own models, published figures and a count by hand."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from checkout import ROOT, settings_of
from toydata import write_toy_data

from tests.support import tied_model
from tests.support.launching import free_port
from tests.workers.memory_worker import SETTINGS
from utils import models
from utils.memory import estimate as memory

PUBLISHED = {
    "llama": 8_030_261_248,
    "qwen": 7_615_616_512,
    "mistral": 7_241_732_096,
    "qwen3": 8_190_735_360,
    "qwen3moe": 30_532_122_624,
}


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
    assert (name, size) != ("qwen3moe", "full") or spec.active_parameter_count == 3_353_032_704


def test_a_tied_embedding_counts_once_in_parameters_and_fully_in_flops():
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


@pytest.mark.parametrize(
    ("name", "sequence_length", "causal", "gflops"),
    [
        *(("llama", 8192, True, 51.470), ("llama", 8192, False, 57.913), ("llama", 2048, True, 46.639)),
        *(("llama", 2048, False, 48.249), ("llama", 4096, True, 48.249)),
        # by hand: 6 x 48 x (2 x 2048 x (4096 + 512) + 2048 x 128 + 8 x 3 x 2048 x 768) + 6 x 2048 x 151936, attention
        # 6 x 48 x 4096 x 4096: 32 heads of 128 are twice as wide as the model
        ("qwen3moe", 4096, True, 23.081779200),
        # a window longer than the sequence; by hand: 6 x 7,110,393,856 weights and 6 x 32 x 4096 x 2048
        ("mistral", 2048, True, 44.272975872),
    ],
)
def test_flops_per_token_are_the_published_figures(name, sequence_length, causal, gflops):
    assert models.get(name).flops_per_token(sequence_length, causal=causal) / 1e9 == pytest.approx(gflops, abs=6e-4)


def test_flops_of_experts_are_those_that_torch_counts_in_transformers_own_loop_over_experts():
    """torch counts no grouped products, and no attention of a CPU: the model runs one expert after the other."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from train.hf.model import build_model

    spec, length = models.get("qwen3moe", "tiny"), 64
    model = build_model(spec)
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    tokens = torch.arange(length)[None]
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens).loss.backward()
    wanted = length * spec.flops_per_token(length, causal=False)
    assert counter.get_total_flops() == pytest.approx(wanted, rel=1e-3)  # rope has a product


def test_windowed_attention_counts_only_the_tokens_inside_the_window():
    spec, length = models.get("mistral", "tiny"), 4096
    assert spec.sliding_window == 64, "it is used at the 128 tokens of a test"
    by_hand = sum(min(position + 1, spec.sliding_window) for position in range(length)) / length
    counted = spec.flops_per_token(length) - 6 * spec.matmul_parameter_count
    # the published causal formula takes a token to see half of itself: s / 2, not (s + 1) / 2
    seen = by_hand - spec.sliding_window / (2 * length)
    assert counted == pytest.approx(12 * spec.num_layers * spec.hidden_size * seen, rel=1e-12)


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


# The memory estimate holds against what the real models keep while they train.

full = pytest.mark.full("memory that real tiny models keep while they train, about 75 s in all")
AS_ON_GPU = [f"{model} PRECISION={precision}" for model in models.NAMES for precision in ("fp32", "bf16")]
KEPT = [f"kept {case}" for case in (*AS_ON_GPU, *(f"{tied_model.NAME} PRECISION={each}" for each in ("fp32", "bf16")))]
RECIPE = "kept_as_on_gpu llama PRECISION=bf16 RECOMPUTE=selective"
OTHER_SHAPE = ["kept mistral MBS=1 SL=256 PRECISION=bf16", "kept llama MBS=4 SL=64 PRECISION=fp32"]
PEAKS = [
    "peak llama PRECISION=fp32",
    "peak mistral PRECISION=bf16 MBS=4 SL=256",
    "peak qwen MBS=8 SL=512",
    "peak qwen3moe MBS=8 SL=256 PRECISION=bf16",
    "peak qwen3moe PRECISION=fp32 MBS=1 SL=16",  # few tokens: the gradients of the experts are the most
    "peak llama MBS=8 SL=256 PRECISION=bf16 RECOMPUTE=full OPTIMIZER_STATE=bf16",
    "peak llama MBS=8 SL=256 PRECISION=bf16 RECOMPUTE=selective GRADIENT_DTYPE=bf16",
    f"peak {tied_model.NAME} PRECISION=fp32 MBS=1 SL=16",  # few tokens: the embedding's gradients are the most
]
ONE_RANK = {
    "mega": [*KEPT, *OTHER_SHAPE, *PEAKS, *(f"kept_as_on_gpu {case}" for case in AS_ON_GPU), RECIPE],
    "hf": [*KEPT, *OTHER_SHAPE, *PEAKS],
}
TWO_RANKS = [
    *("kept qwen TP=2 PRECISION=fp32", "kept qwen3 TP=2 PRECISION=bf16"),
    *("peak llama PP=2 PRECISION=fp32", "peak llama PP=2 MBS=8 SL=256"),
]


@pytest.fixture(autouse=True)
def _tied(monkeypatch):
    """The tied model is known to these tests."""
    monkeypatch.setitem(models.MODELS, tied_model.NAME, tied_model.LLAMA_1B)


@pytest.fixture(scope="module")
def live_bytes(tmp_path_factory):
    """Bytes by framework, number of ranks and case, counted in processes of their own."""
    scratch = tmp_path_factory.mktemp("memory")
    prefix = write_toy_data(scratch / "toy" / "text")
    # torch.compile would need a C++ compiler; what is kept does not depend on it; torchrun leaves a folder in TMPDIR
    settings = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "TMPDIR": str(scratch)}
    found = {}
    for framework, ranks, cases in (*((name, 1, cases) for name, cases in ONE_RANK.items()), ("mega", 2, TWO_RANKS)):
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if ranks == 2 else []
        command = [sys.executable, *start, "-m", "tests.workers.memory_worker", framework, str(prefix), str(scratch)]
        environ = {**os.environ, **settings, "MASTER_PORT": str(free_port())}
        ran = subprocess.run([*command, *cases], cwd=ROOT, env=environ, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr[-3000:]
        found[framework, ranks] = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))
    return found


def stage_of(framework, ranks, case, stage=0):
    kind, model, *settings = case.split()
    config = settings_of(*SETTINGS, f"CPU_RANKS={ranks} FRAMEWORK={framework} MODEL=llama", *settings)
    if kind == "kept_as_on_gpu":
        config = replace(config, platform="nvd")
    return memory.Stage(config, framework, config.spec(model), stage)


@full
@pytest.mark.parametrize(
    ("framework", "ranks", "case"),
    [(framework, 1, case) for framework in ONE_RANK for case in ONE_RANK[framework] if case.startswith("kept")]
    + [("mega", 2, case) for case in TWO_RANKS if case.startswith("kept")],
)
def test_activations_are_what_the_real_model_keeps(live_bytes, framework, ranks, case):
    stage = stage_of(framework, ranks, case)
    each = 2 if case.startswith("kept_as_on_gpu") and stage.config.precision == "bf16" else 4  # logits, or softmax
    logits = each * stage.tokens * stage.spec.vocab_size / stage.config.tensor_parallel_size
    real = live_bytes[framework, ranks][case]
    assert stage.activations + stage.weight_copies + logits == pytest.approx(real, rel=2e-3)


@full
@pytest.mark.parametrize(
    ("framework", "ranks", "case"),
    [(framework, 1, case) for framework in memory.FRAMEWORKS for case in PEAKS]
    + [("mega", 2, case) for case in TWO_RANKS if case.startswith("peak")],
)
def test_total_is_the_largest_amount_of_live_tensors_of_a_training(live_bytes, framework, ranks, case):
    stage = stage_of(framework, ranks, case)
    found = memory.estimate(stage.config, framework, stage.spec)
    tensors_gb, real_gb = found.total_gb - found.process_gb, max(live_bytes[framework, ranks][case]) / 1e9
    # a thread of gloo may still hold a copy of the weights that it has gathered, or of the gradients it has reduced
    held_by_gloo_gb = 4 * stage.spec.parameter_count / 1e9
    assert 0.97 * real_gb - held_by_gloo_gb <= tensors_gb <= 1.03 * real_gb
