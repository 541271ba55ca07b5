"""The memory estimate holds against numbers worked by hand, and a device keeps what its runtime needs."""

import json
from dataclasses import replace

import pytest
from checkout import ROOT, settings_of

from tests.support import tied_model
from train.job.outcome import largest_micro_batch
from utils import models
from utils.hardware import devices
from utils.memory import estimate

LLAMA_PARAMETERS = 8_030_261_248
LLAMA_NORMS = 65 * 4096
LLAMA_LAYER = 218_112_000
"""By hand: 2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 14336 linear weights, and two norms of 4096."""
LLAMA_VOCABULARY_MATRIX = 128_256 * 4096


def config_of(*settings, platform="nvd", gpus=1):
    return settings_of("DATASET=synth MODEL_SIZE=full", *settings, platform=platform, gpus=gpus)


def estimate_of(*settings, framework="mega", model="llama", gpus=1, platform="nvd"):
    config = config_of(f"FRAMEWORK={framework}", *settings, gpus=gpus, platform=platform)
    return estimate.estimate(config, framework, config.spec(model))


# Numbers worked by hand


def shares(weights, gradients, optimizer):
    """Return the bytes of terms from bytes a parameter."""
    names = ("weights", "gradients", "optimizer")
    return {name: each * LLAMA_PARAMETERS for name, each in zip(names, (weights, gradients, optimizer), strict=True)}


CUT = (LLAMA_PARAMETERS - LLAMA_NORMS) / 2 + LLAMA_NORMS  # norms are not cut
QWEN, QWEN_NORMS = models.get("qwen").parameter_count, 57 * 3584  # its biases are counted and cut
MOE, EXPERTS = 30_532_122_624, 48 * 128 * 3 * 2048 * 768
DENSE = MOE - EXPERTS
HALF_LOGITS = 2048 * 128_256
STAGE = 8 * LLAMA_LAYER + LLAMA_VOCABULARY_MATRIX
FINAL_NORM = 2048 * (2 * 2 * 4096 + 4)
# per token and layer: 2 norms (input, result), QKV, rotated query and key, attended, gate and up, their product;
# bf16; 1 / rms and log-sum-exp of 32 heads in float32; angles in float32, once
KEPT = 2 * (4 * 4096 + (4096 + 2 * 1024) + (4096 + 1024) + 4096 + 2 * 14336 + 14336) + 2 * 4 + 32 * 4
ACTIVATIONS = 32 * 2048 * KEPT + FINAL_NORM + 4 * 2048 * 128
# hf: of a norm its input in float32, what is normalised and the result; query and key are kept rotated only; the gate,
# its SiLU, up, their product; cosine and sine in bf16
KEPT_OF_HF = 2 * (4 + 2 + 2) * 4096 + 2 * ((4096 + 2 * 1024) + 4096 + 4 * 14336) + 2 * 4 + 32 * 4
ACTIVATIONS_OF_HF = 32 * 2048 * KEPT_OF_HF + 2048 * ((4 + 2 + 2) * 4096 + 4) + 4 * 2048 * 128
# FSDP gathers all weights. In the forward pass of the loss: logits in bf16 and float32, log-softmax in float32; the
# output layer's weight as it was gathered, beside the weight itself
GATHERED = 2 * LLAMA_PARAMETERS
IN_LOSS = (2 + 4 + 4) * HALF_LOGITS + 2 * LLAMA_VOCABULARY_MATRIX
BF16_STATE = "PRECISION=bf16 OPTIMIZER_STATE=bf16"
LOGITS = {  # bytes each of 2 x 2048 x 128256, on a GPU and on a CPU
    "mega bf16": (2, 6),
    "mega fp32": (4, 4),
    "hf bf16": (12, 12),
    "hf fp32": (12, 12),
}
BY_HAND = [  # framework, GPUs, settings, bytes of terms
    ("mega", 1, "PRECISION=bf16", shares(2, 4, 2 + 8)),
    ("mega", 8, "PRECISION=bf16", shares(2, 4, (2 + 8) / 8)),
    ("mega", 8, "PRECISION=fp32", shares(4, 4, 1)),
    ("mega", 1, BF16_STATE, shares(2, 4, 2 + 4)),
    ("mega", 8, f"{BF16_STATE} GRADIENT_DTYPE=bf16", shares(2, 2, (2 + 4) / 8)),
    ("hf", 1, "PRECISION=bf16", shares(2, 4, 2 + 8)),
    ("hf", 1, BF16_STATE, shares(2, 4, 2 + 4)),
    ("hf", 1, f"{BF16_STATE} GRADIENT_DTYPE=bf16", shares(2, 2, 2 + 4)),
    ("hf", 8, "PRECISION=bf16", shares(4 / 8, 4 / 8, 8 / 8)),
    ("hf", 8, "PRECISION=fp32 OPTIMIZER_STATE=bf16", shares(4 / 8, 4 / 8, 4 / 8)),
    ("mega", 1, "MODEL=qwen", {"weights": 2 * QWEN}),
    ("mega", 2, "MODEL=qwen TP=2", {"weights": QWEN - QWEN_NORMS + 2 * QWEN_NORMS}),
    ("mega", 2, "TP=2", {"weights": 2 * CUT, "optimizer": 10 * CUT, "logits": HALF_LOGITS}),
    # of 128 experts 16, with all of their states; everything else whole, with an eighth of its states
    (
        "mega",
        8,
        "MODEL=qwen3moe EP=8",
        {"weights": 2 * (DENSE + EXPERTS / 8), "gradients": 4 * (DENSE + EXPERTS / 8), "optimizer": 10 * MOE / 8},
    ),
    # a stage holds its layers and the embedding or the output layer; of one micro batch the last stage is the fullest
    ("mega", 4, "PP=4", {"weights": 2 * STAGE, "logits": 0}),
    ("mega", 4, "PP=4 GBS=1", {"weights": 2 * (STAGE + 4096), "logits": 2 * HALF_LOGITS}),
    ("mega", 1, "", {"activations": ACTIVATIONS}),
    # the gradient of the output layer's weight in bf16 and float32, and that of the hidden states
    (
        "hf",
        1,
        "",
        {
            "activations": ACTIVATIONS_OF_HF,
            "workspace": 2 * 2048 * 4096 + 6 * LLAMA_VOCABULARY_MATRIX - 12 * HALF_LOGITS,
        },
    ),
    ("hf", 2, "", {"workspace": GATHERED + IN_LOSS - 12 * HALF_LOGITS}),
    ("hf", 2, "SL=32768", {"workspace": GATHERED}),  # with more tokens, in the backward pass of the loss
]
for key, both in LOGITS.items():
    framework, precision = key.split()
    for machine, each in zip(("nvd", "cpu"), both, strict=True):
        BY_HAND.append((framework, machine, f"PRECISION={precision} SL=2048 MBS=2", {"logits": each * 2 * HALF_LOGITS}))


@pytest.mark.parametrize(("framework", "machine", "settings", "terms"), BY_HAND)
def test_terms_of_llama_8b_and_qwen_are_those_worked_by_hand(framework, machine, settings, terms):
    platform, gpus = (machine, 1) if isinstance(machine, str) else ("nvd", machine)
    model = next((name for name in ("qwen3moe", "qwen") if name in settings), "llama")
    found = estimate_of(*settings.split(), framework=framework, model=model, gpus=gpus, platform=platform)
    assert {name: getattr(found, f"{name}_gb") for name in terms} == pytest.approx(
        {name: size / 1e9 for name, size in terms.items()}, rel=1e-6
    )


def test_a_tied_weight_is_held_once_on_one_stage_and_twice_on_two():
    spec = tied_model.LLAMA_1B.spec
    one = estimate.Stage(config_of("FRAMEWORK=mega"), "mega", spec, 0)
    assert one.parameters == 1_235_814_400
    first, last = (estimate.Stage(config_of("FRAMEWORK=mega", "PP=2", gpus=2), "mega", spec, stage) for stage in (0, 1))
    assert first.parameters + last.parameters == 1_235_814_400 + 128_256 * 2048


def test_optimizer_states_are_cut_over_data_and_context_parallel_ranks():
    config = replace(config_of(gpus=4), data_parallel_size=2, context_parallel_size=2)
    found = estimate.estimate(config, "mega", models.get("llama"))
    assert found.optimizer_gb == pytest.approx(10 / 4 * LLAMA_PARAMETERS / 1e9)
    assert found.logits_gb == pytest.approx(estimate_of().logits_gb / 2)


def test_first_stage_keeps_as_many_micro_batches_as_there_are_stages_or_as_there_are():
    one, three, four, eight, many = (estimate_of("PP=4", f"GBS={gbs}", "MBS=1", gpus=4) for gbs in (1, 3, 4, 8, 64))
    assert eight.stage == 0
    assert four.activations_gb == eight.activations_gb == many.activations_gb
    assert three.activations_gb == pytest.approx(eight.activations_gb * 3 / 4)
    # the last stage has a final norm (result and 1 / rms) where others keep what they send on
    extra = 2048 * (2 * 4096 + 4) / 1e9
    assert eight.activations_gb == pytest.approx(4 * (one.activations_gb - extra))


def test_gradients_of_hf_that_come_while_activations_go_are_not_counted_twice():
    whole = 4 * LLAMA_PARAMETERS / 1e9
    for length, gradients_stand in ((512, True), (8192, False)):
        one, two = (estimate_of(f"SL={length}", "MBS=1", f"GBS={gbs}", framework="hf") for gbs in (1, 2))
        gone = one.activations_gb + one.logits_gb
        assert (gone < whole) == gradients_stand
        assert two.gradients_gb == pytest.approx(whole)
        assert one.gradients_gb == pytest.approx(max(0, whole - gone))
    assert estimate_of("GBS=1").gradients_gb == estimate_of("GBS=2").gradients_gb  # mega's buffer stands all the time


@pytest.mark.parametrize(
    ("settings", "rehearsed_gb"),
    [
        (("mega", 8), 69.654),
        (("mega", 8, "SL=8192"), 100.804),
        (("mega", 8, "TP=2"), 40.947),
        (("mega", 1), 139.918),
        (("hf", 8), 49.029),
        (("hf", 8, "SL=8192"), 97.651),
        (("hf", 1), 144.867),
        (("hf", 1, "SL=8192", "OPTIMIZER_STATE=bf16"), 161.893),
        (("hf", 8, "MODEL=qwen3moe"), 145.031),
        (("hf", 8, "MODEL=qwen3moe", "SL=4096"), 167.933),
        (("mega", 8, "MODEL=qwen3moe", "EP=8"), 82.525),
    ],
    ids=str,
)
def test_estimate_is_the_rehearsed_peak(settings, rehearsed_gb):
    """The tables of docs/memory.md; tests/train/rehearsal runs one of them."""
    framework, gpus, *others = settings
    model = "qwen3moe" if "MODEL=qwen3moe" in others else "llama"
    found = estimate_of(*others, framework=framework, model=model, gpus=gpus)
    assert found.total_gb == pytest.approx(rehearsed_gb, rel=2e-3)


def test_full_recomputation_keeps_the_input_of_each_layer_and_one_layer_at_a_time():
    for framework in estimate.FRAMEWORKS:
        kept, again = (estimate_of(f"RECOMPUTE={how}", framework=framework) for how in ("none", "full"))
        inputs = 32 * 2048 * 4096 * 2
        assert inputs / 1e9 < again.activations_gb < 1.15 * inputs / 1e9
        assert kept.total_gb - again.total_gb == pytest.approx(kept.activations_gb - again.activations_gb, rel=0.1)


@pytest.mark.parametrize(
    ("framework", "vocabulary", "settings", "terms", "wanted"),
    [
        # short sequences of mega: in the backward pass of the output layer
        ("mega", None, ["SL=64"], "logits workspace", 2 * 64 * (128_256 + 4096) + 2 * LLAMA_VOCABULARY_MATRIX),
        # of hf too, when the gradient of the weight is there in bf16 and float32
        ("hf", None, ["SL=64"], "logits workspace", 2 * 64 * 4096 + 6 * LLAMA_VOCABULARY_MATRIX),
        # small vocabularies: in the backward pass of a layer
        ("mega", 128, [], "logits workspace", 2 * 2048 * 14336 + 2 * 2 * 14336 * 4096),
        ("hf", 128, [], "logits workspace", 2 * 2048 * 14336 + 6 * 14336 * 4096),
        # of experts: copies of each token for its 8, or with few tokens the gradients of one expert or of all
        ("mega", 128, ["MODEL=qwen3moe"], "logits workspace", 3 * 2 * 2048 * 8 * 2048),
        ("hf", 128, ["MODEL=qwen3moe", "SL=64"], "logits workspace", 2 * 64 * 8 * 768 + 6 * 128 * 2 * 768 * 2048),
    ],
)
def test_the_fullest_moment_of_short_sequences_and_small_vocabularies(framework, vocabulary, settings, terms, wanted):
    config = config_of(f"FRAMEWORK={framework}", *settings)
    spec = config.spec("qwen3moe" if "MODEL=qwen3moe" in settings else "llama")
    found = estimate.estimate(config, framework, replace(spec, vocab_size=vocabulary or spec.vocab_size))
    assert sum(getattr(found, f"{term}_gb") for term in terms.split()) == pytest.approx(wanted / 1e9)


def test_fp8_is_not_less_than_bf16():
    fp8 = estimate.estimate(replace(config_of(), precision="fp8"), "mega", models.get("llama"))
    copies = 2 * (32 * LLAMA_LAYER - 64 * 4096) / 1e9
    assert fp8.total_gb == pytest.approx(estimate_of().total_gb + copies)


# The micro batch that fits


@pytest.mark.parametrize("capacity_gb", [40.0, 70.0, 80.0, 100.0, 141.0, 192.0, 288.0, 1000.0])
@pytest.mark.parametrize(
    ("gbs", "mbs", "below"), [(64, 8, None), (64, 4, 4), (64, 1, 1), (96, 12, None), (96, 12, 12), (96, 12, 5)]
)
@pytest.mark.parametrize(("framework", "pp"), [("mega", 1), ("mega", 4), ("hf", 1)])
def test_largest_micro_batch_is_the_largest_that_fits_and_divides(capacity_gb, gbs, mbs, below, framework, pp):
    """None where none fits; below the one that ran out of memory, even if that one should have fitted."""

    def config_at(size):  # through load, which refuses what does not divide and works GA out
        return config_of(f"FRAMEWORK={framework}", f"PP={pp}", f"GBS={gbs}", f"MBS={size}", gpus=8 * pp)

    spec = models.get("llama")
    sizes = [size for size in range(1, min(mbs, (below or mbs + 1) - 1) + 1) if gbs // 8 % size == 0]
    fitting = [size for size in sizes if estimate.estimate(config_at(size), framework, spec).total_gb <= capacity_gb]
    found = largest_micro_batch(config_at(mbs), framework, spec, capacity_gb, below=below)
    assert found == max(fitting, default=None)


@pytest.mark.parametrize(
    ("platform", "capacity_gb", "usable"),
    [
        # 94.71 GiB in use on an MI355X less 86,588 MiB that torch reserved: 101.7 - 90.8 = 10.9 GB outside torch
        ("amd", 192.0, 192.0 - (94.71 * 2**30 - 86_588 * 2**20) / 1e9),
        ("amd", 288.0, 0.95 * 288.0),  # 14.4 GB are more than that
        ("nvd", 80.0, 76.0),  # none was seen outside torch, so the share counts
    ],
)
def test_a_device_keeps_what_its_runtime_needs_outside_torch(platform, capacity_gb, usable):
    assert estimate.usable_gb(capacity_gb, platform) == pytest.approx(usable, abs=0.01)


@pytest.mark.parametrize("job", ["full_local", "full_sl2048_hf", "full_sl2048_te_failed", "full_te8192", "full_fp8"])
def test_estimate_is_within_2_percent_of_the_measured_peak_of_the_first_gpu(job):
    """Llama 3.1 8B with all layers on one H200: 108.301, 112.813, 107.663, 136.801 and 120.419 GB of tensors."""
    (path,) = (ROOT / "tests" / "h200" / "results").glob(f"{job}__*.json")
    result = json.loads(path.read_text())
    asked, framework = result["training_config"], result["framework"]
    config = config_of(
        f"FRAMEWORK={framework}", f"SL={asked['sequence_length']} GBS={asked['global_batch_size']}", BF16_STATE
    )
    config = replace(config, precision=asked["precision"])  # fp8 is refused where no TransformerEngine is
    found = estimate.estimate(config, framework, config.spec("llama")).total_gb
    measured = result["memory_metrics"]["peak_memory_allocated_gb"]
    assert found == pytest.approx(measured, rel=0.016)
    assert measured > 0.96 * found, "the lower bound by which the fit check refuses a job"


def test_a_job_finds_on_a_device_what_its_driver_reports_less_what_that_reserves():
    # 81,559 and 143,771 MiB less 616 MiB, and 192 GiB less 16 MiB
    wanted = {"H100": (80_943 * 2**20, "nvd"), "H200": (143_155 * 2**20, "nvd"), "MI300X": (196_592 * 2**20, "amd")}
    for name, (size, platform) in wanted.items():
        assert estimate.device_capacity_gb(devices.named(name), platform) == pytest.approx(size / 1e9, rel=1e-9)
