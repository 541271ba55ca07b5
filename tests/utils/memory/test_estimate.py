"""The memory estimate holds against numbers worked by hand and against what the real models keep while they train."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from toydata import write_toy_data

from tests.support import tied_model
from tests.train.test_parity import free_port
from tests.workers.memory_worker import SETTINGS
from utils import models
from utils.memory import estimate as memory
from utils.memory.estimate import cpu_capacity_gb, estimate, largest_micro_batch
from utils.settings.config import ROOT, load

LLAMA_PARAMETERS = 8_030_261_248
LLAMA_NORMS = 65 * 4096
LLAMA_LAYER = 218_112_000
"""By hand: 2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 14336 linear weights, and two norms of 4096."""
LLAMA_VOCABULARY_MATRIX = 128_256 * 4096


def config_of(*settings, platform="nvd", gpus=1):
    return load(platform, gpus, arguments=["DATASET=synth", "MODEL_SIZE=full", *settings], environ={})


def estimate_of(*settings, framework="mega", model="llama", gpus=1, platform="nvd"):
    config = config_of(f"FRAMEWORK={framework}", *settings, gpus=gpus, platform=platform)
    return estimate(config, framework, config.spec(model))


# Numbers worked by hand


@pytest.mark.parametrize(
    ("framework", "precision", "gpus", "bytes_per_parameter"),
    [
        ("mega", "bf16", 1, (2, 4, 2 + 8)),
        ("mega", "bf16", 8, (2, 4, (2 + 8) / 8)),
        ("mega", "fp32", 8, (4, 4, 1)),
        ("mega", "bf16 OPTIMIZER_STATE=bf16", 1, (2, 4, 2 + 4)),
        ("mega", "bf16 OPTIMIZER_STATE=bf16 GRADIENT_DTYPE=bf16", 8, (2, 2, (2 + 4) / 8)),
        ("hf", "bf16", 1, (2, 4, 2 + 8)),
        ("hf", "bf16 OPTIMIZER_STATE=bf16", 1, (2, 4, 2 + 4)),
        ("hf", "bf16 OPTIMIZER_STATE=bf16 GRADIENT_DTYPE=bf16", 1, (2, 2, 2 + 4)),
        ("hf", "bf16", 8, (4 / 8, 4 / 8, 8 / 8)),
        ("hf", "fp32 OPTIMIZER_STATE=bf16", 8, (4 / 8, 4 / 8, 4 / 8)),
    ],
)
def test_llama_8b_has_these_bytes_a_parameter(framework, precision, gpus, bytes_per_parameter):
    found = estimate_of(*f"PRECISION={precision}".split(), framework=framework, gpus=gpus)
    wanted = [count * LLAMA_PARAMETERS / 1e9 for count in bytes_per_parameter]
    assert [found.weights_gb, found.gradients_gb, found.optimizer_gb] == pytest.approx(wanted, rel=1e-9)


def test_llama_8b_weights_in_bf16_are_16_gb():
    assert estimate_of().weights_gb == pytest.approx(16.06, abs=0.005)


def test_tensor_parallelism_halves_everything_but_the_norms():
    found = estimate_of("TP=2", gpus=2)
    parameters = (LLAMA_PARAMETERS - LLAMA_NORMS) / 2 + LLAMA_NORMS
    assert found.weights_gb == pytest.approx(2 * parameters / 1e9, rel=1e-9)
    assert found.optimizer_gb == pytest.approx(10 * parameters / 1e9, rel=1e-9)
    assert found.logits_gb == pytest.approx(estimate_of().logits_gb / 2)


def test_biases_of_qwen_are_counted_and_cut():
    whole, cut = estimate_of(model="qwen"), estimate_of("TP=2", gpus=2, model="qwen")
    assert whole.weights_gb == pytest.approx(2 * models.get("qwen").parameter_count / 1e9, rel=1e-9)
    norms = 57 * 3584
    assert cut.weights_gb == pytest.approx((models.get("qwen").parameter_count - norms + 2 * norms) / 1e9, rel=1e-9)


def test_a_tied_weight_is_held_once_on_one_stage_and_twice_on_two():
    spec = tied_model.LLAMA_1B.spec
    one = memory.Stage(config_of("FRAMEWORK=mega"), "mega", spec, 0)
    assert one.parameters == 1_235_814_400
    first, last = (memory.Stage(config_of("FRAMEWORK=mega", "PP=2", gpus=2), "mega", spec, stage) for stage in (0, 1))
    assert first.parameters + last.parameters == 1_235_814_400 + 128_256 * 2048


def test_pipeline_stage_holds_its_layers_and_embedding_or_output_layer():
    first = estimate_of("PP=4", gpus=4)
    assert first.stage == 0
    assert first.weights_gb == pytest.approx(2 * (8 * LLAMA_LAYER + LLAMA_VOCABULARY_MATRIX) / 1e9, rel=1e-9)
    assert first.logits_gb == 0
    last = estimate_of(
        "PP=4", "GBS=1", gpus=4
    )  # one micro batch: no stage keeps more than another, the last has logits
    assert last.stage == 3
    whole = 8 * LLAMA_LAYER + LLAMA_VOCABULARY_MATRIX + 4096
    assert last.weights_gb == pytest.approx(2 * whole / 1e9, rel=1e-9)
    assert last.logits_gb > 0


def test_optimizer_states_are_cut_over_data_and_context_parallel_ranks():
    config = replace(config_of(gpus=4), data_parallel_size=2, context_parallel_size=2)
    found = estimate(config, "mega", models.get("llama"))
    assert found.optimizer_gb == pytest.approx(10 / 4 * LLAMA_PARAMETERS / 1e9)
    assert found.logits_gb == pytest.approx(estimate_of().logits_gb / 2)


def test_activations_of_llama_8b_on_a_gpu_by_hand():
    # per token and layer: 2 norms (input, result), QKV, rotated query and key, attended, gate and up, their product
    numbers = 4 * 4096 + (4096 + 2 * 1024) + (4096 + 1024) + 4096 + 2 * 14336 + 14336
    per_token = 2 * numbers + 2 * 4 + 32 * 4  # bf16; 1 / rms and log-sum-exp of 32 heads in float32
    angles = 4 * 2048 * 128  # float32, once
    final_norm = 2048 * (2 * 2 * 4096 + 4)
    by_hand = 32 * 2048 * per_token + final_norm + angles
    assert by_hand == 9_841_418_240
    assert estimate_of().activations_gb == pytest.approx(by_hand / 1e9, rel=1e-9)
    # hf: query and key are kept rotated only; cosine and sine in bf16
    numbers = 4 * 4096 + (4096 + 2 * 1024) + 4096 + 3 * 14336
    by_hand = 32 * 2048 * (2 * numbers + 2 * 4 + 32 * 4) + final_norm + angles
    assert estimate_of(framework="hf").activations_gb == pytest.approx(by_hand / 1e9, rel=1e-9)


@pytest.mark.parametrize(
    ("framework", "precision", "platform", "bytes_per_logit"),
    [
        ("mega", "bf16", "nvd", 2),
        ("mega", "bf16", "cpu", 6),
        ("mega", "fp32", "nvd", 4),
        ("mega", "fp32", "cpu", 4),
        ("hf", "bf16", "nvd", 2),
        ("hf", "bf16", "cpu", 12),
        ("hf", "fp32", "nvd", 12),
        ("hf", "fp32", "cpu", 12),
    ],
)
def test_logits_have_these_bytes_each(framework, precision, platform, bytes_per_logit):
    found = estimate_of(f"PRECISION={precision}", "SL=2048", "MBS=2", framework=framework, platform=platform)
    assert found.logits_gb == pytest.approx(bytes_per_logit * 4096 * 128_256 / 1e9)


def test_first_stage_keeps_as_many_micro_batches_as_there_are_stages_or_as_there_are():
    def first(gbs):
        return estimate_of("PP=4", f"GBS={gbs}", "MBS=1", gpus=4)

    one_each, four_each = estimate_of("PP=4", "GBS=1", gpus=4), first(8)
    assert four_each.stage == 0
    assert first(4).activations_gb == four_each.activations_gb == first(64).activations_gb
    assert first(3).activations_gb == pytest.approx(four_each.activations_gb * 3 / 4)
    # the last stage has a final norm (result and 1 / rms) where others keep what they send on
    extra = 2048 * (2 * 4096 + 4) / 1e9
    assert four_each.activations_gb == pytest.approx(4 * (one_each.activations_gb - extra))


def test_gradients_of_hf_that_come_while_activations_go_are_not_counted_twice():
    whole = 4 * LLAMA_PARAMETERS / 1e9
    for length, gradients_stand in ((512, True), (8192, False)):
        one, two = (estimate_of(f"SL={length}", "MBS=1", f"GBS={gbs}", framework="hf") for gbs in (1, 2))
        gone = one.activations_gb + one.logits_gb
        assert (gone < whole) == gradients_stand
        assert two.gradients_gb == pytest.approx(whole)
        assert one.gradients_gb == pytest.approx(max(0, whole - gone))
    assert estimate_of("GBS=1").gradients_gb == estimate_of("GBS=2").gradients_gb  # mega's buffer stands all the time


def test_fsdp_gathers_all_weights_and_reduces_the_gradient_of_the_output_layer_in_float32():
    sharded, whole = estimate_of(framework="hf", gpus=2), estimate_of(framework="hf")
    logits = 2 * 2048 * 128_256
    gathered = 2 * LLAMA_PARAMETERS
    # gradients of hidden states; of the weight in bf16, in float32, half of it reduced
    output_layer = 2 * 2048 * 4096 + (2 + 4 + 4 / 2) * LLAMA_VOCABULARY_MATRIX
    assert sharded.workspace_gb == pytest.approx((gathered + output_layer - logits) / 1e9, rel=1e-6)
    # with more tokens, when the gradient of the weight is made: those of the logits are there
    longer = estimate_of("SL=32768", framework="hf", gpus=2)
    output_layer = 2 * 32768 * 4096 + 2 * LLAMA_VOCABULARY_MATRIX
    assert longer.workspace_gb == pytest.approx((gathered + output_layer) / 1e9, rel=1e-6)
    assert whole.workspace_gb == pytest.approx(2 * 2048 * 4096 / 1e9)  # of one rank: that of the hidden states only


@pytest.mark.parametrize(
    ("settings", "rehearsed_gb"),
    [
        (("mega", 8), 69.654),
        (("mega", 8, "SL=8192"), 100.804),
        (("mega", 8, "TP=2"), 40.947),
        (("mega", 1), 139.918),
        (("hf", 8), 44.689),
        (("hf", 8, "SL=8192"), 72.150),
        (("hf", 1), 138.197),
        (("hf", 1, "SL=8192", "OPTIMIZER_STATE=bf16"), 135.213),
    ],
    ids=str,
)
def test_estimate_is_the_rehearsed_peak_of_llama_8b(settings, rehearsed_gb):
    """The table of docs/rehearsal.md; tests/train/rehearsal runs one of them."""
    framework, gpus, *others = settings
    assert estimate_of(*others, framework=framework, gpus=gpus).total_gb == pytest.approx(rehearsed_gb, rel=2e-3)


def test_full_recomputation_keeps_the_input_of_each_layer_and_one_layer_at_a_time():
    for framework in memory.FRAMEWORKS:
        kept, again = (estimate_of(f"RECOMPUTE={how}", framework=framework) for how in ("none", "full"))
        inputs = 32 * 2048 * 4096 * 2
        assert inputs / 1e9 < again.activations_gb < 1.15 * inputs / 1e9
        assert kept.total_gb - again.total_gb == pytest.approx(kept.activations_gb - again.activations_gb, rel=0.1)


def test_short_sequences_of_mega_are_fullest_in_the_backward_pass_of_the_output_layer():
    found = estimate_of("SL=64")
    gradients = 2 * 64 * (128_256 + 4096) + 2 * LLAMA_VOCABULARY_MATRIX
    assert found.logits_gb + found.workspace_gb == pytest.approx(gradients / 1e9)


def test_short_sequences_of_hf_are_fullest_in_that_of_the_embedding_when_the_activations_are_gone():
    # the gradient of the output layer is added in its product
    found = estimate_of("SL=64", framework="hf")
    fullest = found.activations_gb + found.logits_gb + found.workspace_gb
    assert fullest == pytest.approx(2 * LLAMA_VOCABULARY_MATRIX / 1e9)


@pytest.mark.parametrize(
    ("framework", "ffn_gradients", "weight_gradient"), [("mega", 1, 2 * 2 * 14336 * 4096), ("hf", 2, 0)]
)
def test_small_vocabularies_are_fullest_in_the_backward_pass_of_a_layer(framework, ffn_gradients, weight_gradient):
    config, spec = config_of(f"FRAMEWORK={framework}"), replace(models.get("llama"), vocab_size=128)
    found = estimate(config, framework, spec)
    gradients = ffn_gradients * 2 * 2048 * 14336 + weight_gradient
    assert found.logits_gb + found.workspace_gb == pytest.approx(gradients / 1e9)


def test_fp8_is_not_less_than_bf16():
    config = config_of()
    bf16, fp8 = (
        estimate(replace(config, precision=precision), "mega", models.get("llama")) for precision in ("bf16", "fp8")
    )
    copies = 2 * (32 * LLAMA_LAYER - 64 * 4096) / 1e9
    assert fp8.total_gb == pytest.approx(bf16.total_gb + copies)


# Rules of the estimate


@pytest.mark.parametrize("framework", memory.FRAMEWORKS)
@pytest.mark.parametrize("key", ["MBS", "SL"])
def test_more_tokens_never_need_less(framework, key):
    sizes = (1, 2, 4, 8) if key == "MBS" else (512, 1024, 2048, 4096, 8192)
    totals = [estimate_of(f"{key}={size}", framework=framework, model="mistral").total_gb for size in sizes]
    assert totals == sorted(totals) and len(set(totals)) == len(totals)


def test_total_is_the_sum_of_the_known_terms_and_the_process_of_a_gpu_is_unknown():
    found = estimate_of()
    assert found.process_gb is None
    known = (found.weights_gb, found.gradients_gb, found.optimizer_gb, found.activations_gb, found.logits_gb)
    assert found.total_gb == pytest.approx(sum(known) + found.workspace_gb)
    on_cpu = estimate_of(platform="cpu")
    assert on_cpu.process_gb == memory.PROCESS_GB["mega"]
    assert on_cpu.total_gb > on_cpu.weights_gb + on_cpu.gradients_gb + on_cpu.optimizer_gb + on_cpu.process_gb


def test_estimate_says_what_it_took_for_granted():
    said = estimate_of(gpus=8).formula
    assert said.startswith("live_tensors/v4: mega bf16")
    assert "weights 2, gradients 4, optimizer 1.25; micro batches in flight: 1" in said


def test_framework_without_a_formula_is_an_error():
    with pytest.raises(ValueError, match="got framework 'nemo', wanted mega or hf"):
        estimate(config_of(), "nemo", models.get("llama"))


# The micro batch that fits


@pytest.mark.parametrize("capacity_gb", [40.0, 70.0, 80.0, 100.0, 141.0, 192.0, 288.0])
@pytest.mark.parametrize(("gbs", "mbs", "below"), [(64, 8, None), (96, 12, None), (96, 12, 12), (96, 12, 5)])
@pytest.mark.parametrize(("framework", "pp"), [("mega", 1), ("mega", 4), ("hf", 1)])
def test_largest_micro_batch_is_the_largest_that_fits_and_divides(capacity_gb, gbs, mbs, below, framework, pp):
    def config_at(size):  # through load, which refuses what does not divide and works GA out
        return config_of(f"FRAMEWORK={framework}", f"PP={pp}", f"GBS={gbs}", f"MBS={size}", gpus=8 * pp)

    spec, fitting = models.get("llama"), []
    for size in range(1, min(mbs, (below or mbs + 1) - 1) + 1):
        if gbs // 8 % size:
            continue
        if estimate(config_at(size), framework, spec).total_gb <= capacity_gb:
            fitting.append(size)
    found = largest_micro_batch(config_at(mbs), framework, spec, capacity_gb, below=below)
    assert found == max(fitting, default=None)


def test_after_an_out_of_memory_error_the_micro_batch_is_smaller_even_if_this_one_should_have_fitted():
    config, spec = config_of("MBS=4", gpus=8), models.get("llama")
    assert largest_micro_batch(config, "mega", spec, 1000.0) == 4
    assert largest_micro_batch(config, "mega", spec, 1000.0, below=4) == 2
    assert largest_micro_batch(config_of(gpus=8), "mega", spec, 1000.0, below=1) is None


def test_no_micro_batch_is_none_and_not_one():
    assert largest_micro_batch(config_of("MBS=8"), "mega", models.get("llama"), 80.0) is None


# The memory of a CPU


def machine(tmp_path, monkeypatch, groups, *, physical=16 * 2**30, address_space=memory.resource.RLIM_INFINITY):
    """A machine of 16 GiB whose control groups are `groups`: limit by file."""
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": physical // 4096}
    monkeypatch.setattr(memory.os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: (address_space, address_space))
    (tmp_path / "proc/self").mkdir(parents=True)
    for name, text in groups.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


V1 = "sys/fs/cgroup/memory"
V2 = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "wanted_gib", "source"),
    [
        ({}, 16, "physical memory"),
        ({"proc/self/cgroup": "0::/job", f"{V2}/job/memory.max": str(4 * 2**30)}, 4, "job/memory.max"),
        ({"proc/self/cgroup": "0::/job", f"{V2}/job/memory.max": "max"}, 16, "physical memory"),
        (
            {
                "proc/self/cgroup": "0::/slurm/job",
                f"{V2}/slurm/memory.max": str(3 * 2**30),
                f"{V2}/slurm/job/memory.max": "max",
            },
            3,
            "slurm/memory.max",
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/docker/1f\n0::/",
                f"{V1}/memory.limit_in_bytes": str(2 * 2**30),  # inside a container: its own group is the mount
            },
            2,
            "memory/memory.limit_in_bytes",
        ),
        (
            {"proc/self/cgroup": "4:memory:/", f"{V1}/memory.limit_in_bytes": "9223372036854771712"},
            16,
            "physical memory",
        ),
        ({"proc/self/cgroup": "0::/../../job", f"{V2}/memory.max": str(5 * 2**30)}, 5, "cgroup/memory.max"),
    ],
    ids=["none", "v2", "v2-max", "v2-parent", "v1-container", "v1-unlimited", "v2-outside"],
)
def test_capacity_is_the_smallest_limit_and_names_it(tmp_path, monkeypatch, groups, wanted_gib, source):
    found, said = cpu_capacity_gb(1, machine(tmp_path, monkeypatch, groups))
    assert found == pytest.approx(wanted_gib * 2**30 / 1e9)
    assert said.endswith(source)


def test_ranks_share_memory_but_not_the_limit_of_address_space(tmp_path, monkeypatch):
    root = machine(tmp_path, monkeypatch, {}, address_space=6 * 2**30)
    assert cpu_capacity_gb(1, root) == (6 * 2**30 / 1e9, "RLIMIT_AS of each process")
    assert cpu_capacity_gb(2, root) == (6 * 2**30 / 1e9, "RLIMIT_AS of each process")
    assert cpu_capacity_gb(4, root) == (4 * 2**30 / 1e9, "physical memory / 4 ranks")


# What the real models keep

KEPT = [
    f"kept {model} PRECISION={precision}"
    for model in (*models.NAMES, tied_model.NAME)
    for precision in ("fp32", "bf16")
]
AS_ON_GPU = [
    f"kept_as_on_gpu {model} PRECISION={precision}" for model in models.NAMES for precision in ("fp32", "bf16")
]
RECIPES = ["kept_as_on_gpu llama PRECISION=bf16 RECOMPUTE=selective"]  # hf's checkpoints keep where no hook sees it
OTHER_SHAPE = ["kept mistral MBS=1 SL=256 PRECISION=bf16", "kept llama MBS=4 SL=64 PRECISION=fp32"]
PEAKS = [
    "peak llama PRECISION=fp32",
    "peak mistral PRECISION=bf16 MBS=4 SL=256",
    "peak qwen MBS=8 SL=512",
    "peak qwen3 MBS=8 SL=256 PRECISION=bf16",
    "peak llama MBS=8 SL=256 PRECISION=bf16 RECOMPUTE=full OPTIMIZER_STATE=bf16",
    "peak llama MBS=8 SL=256 PRECISION=bf16 RECOMPUTE=selective GRADIENT_DTYPE=bf16",
    f"peak {tied_model.NAME} PRECISION=fp32 MBS=1 SL=16",  # few tokens: the embedding's gradients are the most
]
ONE_RANK = {
    "mega": [*KEPT, *OTHER_SHAPE, *PEAKS, *AS_ON_GPU, *RECIPES],
    "hf": [*KEPT, *OTHER_SHAPE, *PEAKS, *AS_ON_GPU],
}
TWO_RANKS = [
    *("kept qwen TP=2 PRECISION=fp32", "kept qwen3 TP=2 PRECISION=bf16"),
    *("peak llama PP=2 PRECISION=fp32", "peak llama PP=2 MBS=8 SL=256"),
]


@pytest.fixture(autouse=True)
def tied(monkeypatch):
    """The tied model is known to these tests."""
    monkeypatch.setitem(models.MODELS, tied_model.NAME, tied_model.LLAMA_1B)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Bytes by framework, number of ranks and case, counted in processes of their own."""
    scratch = tmp_path_factory.mktemp("memory")
    prefix = write_toy_data(scratch / "toy" / "text")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    def count(framework, ranks, cases):
        start = torchrun if ranks == 2 else []
        command = [sys.executable, *start, "-m", "tests.workers.memory_worker", framework, str(prefix), str(scratch)]
        # torch.compile would need a C++ compiler; what is kept does not depend on it
        settings = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "MASTER_PORT": str(free_port())}
        settings["TMPDIR"] = str(scratch)  # where torchrun leaves a folder
        ran = subprocess.run(
            [*command, *cases], cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        return json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))

    return {
        ("mega", 1): count("mega", 1, ONE_RANK["mega"]),
        ("hf", 1): count("hf", 1, ONE_RANK["hf"]),
        ("mega", 2): count("mega", 2, TWO_RANKS),
    }


def stage_of(framework, ranks, case, stage=0):
    kind, model, *settings = case.split()
    arguments = [*SETTINGS, f"CPU_RANKS={ranks}", f"FRAMEWORK={framework}", "MODEL=llama", *settings]
    config = load("cpu", arguments=arguments, environ={})
    if kind == "kept_as_on_gpu":
        config = replace(config, platform="nvd")
    return memory.Stage(config, framework, config.spec(model), stage)


@pytest.mark.parametrize(
    ("framework", "ranks", "case"),
    [(framework, 1, case) for framework in ONE_RANK for case in ONE_RANK[framework] if case.startswith("kept")]
    + [("mega", 2, case) for case in TWO_RANKS if case.startswith("kept")],
)
def test_activations_are_what_the_real_model_keeps(counted, framework, ranks, case):
    stage = stage_of(framework, ranks, case)
    each = 2 if case.startswith("kept_as_on_gpu") and stage.config.precision == "bf16" else 4  # logits, or softmax
    logits = each * stage.tokens * stage.spec.vocab_size / stage.config.tensor_parallel_size
    real = counted[framework, ranks][case]
    assert stage.activations + stage.weight_copies + logits == pytest.approx(real, rel=2e-3)


@pytest.mark.parametrize(
    ("framework", "ranks", "case"),
    [(framework, 1, case) for framework in memory.FRAMEWORKS for case in PEAKS]
    + [("mega", 2, case) for case in TWO_RANKS if case.startswith("peak")],
)
def test_total_is_the_largest_amount_of_live_tensors_of_a_training(counted, framework, ranks, case):
    stage = stage_of(framework, ranks, case)
    found = estimate(stage.config, framework, stage.spec)
    tensors_gb, real_gb = found.total_gb - found.process_gb, max(counted[framework, ranks][case]) / 1e9
    # a thread of gloo may still hold a copy of the weights that it has gathered, or of the gradients it has reduced
    held_by_gloo_gb = 4 * stage.spec.parameter_count / 1e9
    assert 0.97 * real_gb - held_by_gloo_gb <= tensors_gb <= 1.03 * real_gb
