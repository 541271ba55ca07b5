"""Bridge, NeMo and torchtitan do mega's work: same samples, learning rates and curves; a job that would not, stops.

Real trainings on the CPU, each framework in an environment of its own, which is made here where it is missing.
"""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from checkout import ROOT

from tests.support.launching import (
    BF16,
    BF16_GRAD_NORM_BAND,
    BF16_LOSS_BAND,
    GRAD_NORM_BOUND,
    LOSS_BOUND,
    STEPS,
    assert_same_work,
    case,
    differences,
    launch,
    python_of,
    rule,
    run,
    train,
)
from train.convert import ConversionError, check_source, convert
from utils import models
from utils.errors import ConfigError, ForeignFileError

FULL = pytest.mark.full("real Bridge, NeMo and torchtitan, about 500 s with their environments")
NOTED = (("note_samples", 16),)


CURVES = {model: case(model, plants=NOTED) for model in models.NAMES}
CURVES["llama bf16"] = case("llama", *BF16, plants=NOTED)
TORCH_ADAMW = "torch.optim.adamw.AdamW"
SHORT = ("TRAIN_ITERS=2", "WARMUP_ITERS=1")
NATIVE = {
    f"native {seed}": case("qwen", "INIT=native", f"SEED={int(seed)}", *SHORT, plants=NOTED)
    for seed in ("42", "042", "43")
}


@dataclass(frozen=True)
class Framework:
    """What a framework is tested with."""

    version: tuple[str, str]
    curves: tuple[str, ...]
    defaults: dict[tuple[str, ...], str]
    """What the framework has where it is told nothing, by model and keys that are left out."""
    nonsense: tuple[str, ...]
    """Keys that it does not have."""
    differs: set[str]
    """Keys of `resolved_config` in which it differs from mega."""
    layout: tuple[str, ...]
    """Settings of two ranks."""
    bf16_band: float = BF16_LOSS_BAND
    more: dict[str, tuple[str, object]] = field(default_factory=dict)
    """Further cases by name, each with the name of mega's that has its curve."""


FRAMEWORKS = {
    # megatron-bridge 0.6.2, recipes/common.py and recipes/{llama,qwen}/h100
    "bridge": Framework(
        ("megatron-bridge", "0.6.2"),
        (*models.NAMES, "llama bf16"),
        {
            ("llama", "optimizer.min_lr"): "min_lr: asked 0.0, built 3e-05",
            ("llama", "ddp.check_for_nan_in_grad"): "search for NaN in gradients: asked False, built True",
            (
                *("qwen3moe", "model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"),
            ): "router_auxiliary_loss: asked 0.0, built 0.001",
            (
                "qwen",
                "scheduler.start_weight_decay",
                "scheduler.end_weight_decay",
            ): "weight_decay: asked 0.1, built 0.033",
            ("llama", "model.bias_activation_fusion"): "bias activation fusion: asked False, built True",
        },
        ("ddp.nonsense", "model.nonsense"),
        {"optimizer"},
        ("TP=2",),
        more={
            "four ranks": ("qwen", case("qwen", "PP=2", ranks=4)),  # rank 2 alone reports
            "EP=2": ("qwen3moe", case("qwen3moe", "EP=2", ranks=2)),
        },
    ),
    # nemo/collections/llm/recipes of nemo_toolkit 2.3.3, which has none of Qwen3: that of Qwen 2.5 7B has other traits
    "nemo": Framework(
        ("nemo-toolkit", "2.3.3"),
        ("llama", "qwen", "mistral", "qwen3", "llama bf16"),
        {
            ("llama", "optim.config.adam_eps"): "adam_eps: asked 1e-08, built 1e-05",
            ("llama", "model.config.bias_dropout_fusion"): "bias dropout fusion: asked False, built True",
            ("llama", "optim.lr_scheduler.warmup_steps"): "warmup_iters: asked 2, built 2000",
            ("mistral", "model.config.window_size"): "sliding window: asked 64, built 4097",
            ("qwen", "model.config.num_layers"): "layers: asked 4, built 28 (model.config.num_layers)",
            ("qwen3", "model.config.add_qkv_bias"): "QKV bias: asked False, built True",
            ("qwen3", "model.config.qk_layernorm"): "norm of queries and keys: asked True, built False",
        },
        ("trainer.strategy.nonsense", "model.config.nonsense"),
        {"optimizer"},
        ("PP=2",),
        more={"four ranks": ("qwen", case("qwen", "PP=2", ranks=4))},  # rank 2 alone reports
    ),
    # trainer.py, config/configs.py and components/optimizer/optimizer.py of torchtitan 0.3.0, models/common/rope.py
    "titan": Framework(
        ("torchtitan", "0.3.0"),
        ("llama", "qwen", "qwen3", "qwen3moe", "llama bf16"),
        {
            ("llama", "adamw.lr"): "lr: asked 0.001, built 0.0008",
            ("llama", "lr_scheduler.warmup_steps"): "warmup_iters: asked 2, built 200",
            ("llama", "activation_checkpoint"): "recompute: asked 'none', built 'selective'",
            ("llama", "training.mixed_precision_param"): "precision: asked 'fp32', built 'bf16'",
            ("llama", "RoPE.theta"): "rope_base: asked 500000.0, built 10000.0",
            ("qwen", "QKVLinear.wq.bias", "QKVLinear.wkv.bias"): "qkv_bias: asked True, built False",
            ("qwen", "GQAttention.qk_norm"): "query_key_norm: asked False, built True",
            ("llama", "layers.n_kv_heads"): "num_query_groups: asked 2, built 8",
        },
        ("training.nonsense",),
        {"optimizer", "layer_implementation", "fused_ops"},
        (),
        bf16_band=1.5e-4,  # tighter than weights without a float32 master, 1.8e-4
        more={
            "full": ("qwen short", case("qwen", *SHORT, "RECOMPUTE=full")),
            "selective": ("qwen short", case("qwen", *SHORT, "RECOMPUTE=selective")),
            "two ranks": ("llama", case("llama", ranks=2)),
            "EP=2": ("qwen3moe", case("qwen3moe", "EP=2", ranks=2)),
            "two ranks in bf16": ("llama bf16", case("llama", *BF16, ranks=2)),
        },
    ),
}
OF_TITAN = {
    "decay of norms": case("llama", plants=(("decay_on_norms",),)),
    "order of channels": case("llama", plants=(("order_of_channels",),)),
    "window": case("mistral", "SL=64"),
}


def cases_of(name):
    framework = FRAMEWORKS[name]
    cases = {key: CURVES[key] for key in framework.curves} | NATIVE
    cases |= {key: one for key, (_, one) in framework.more.items()}
    for model, *keys in framework.defaults:
        cases[f"{model} without {keys[0]}"] = case(model, plants=(("without", *keys),))
    for key in framework.nonsense:
        cases[key] = case("llama", plants=(("also", key, 1),))
    return cases | (OF_TITAN if name == "titan" else {})


@pytest.fixture(scope="module")
def mega(prefix, tmp_path_factory):
    cases = CURVES | {"qwen short": case("qwen", *SHORT), "window": OF_TITAN["window"]}
    return train("mega", cases, tmp_path_factory.mktemp("mega"), prefix)


@pytest.fixture(scope="module", params=FRAMEWORKS)
def name(request):
    """Name of the framework that can be run here."""
    python_of(request.param)
    return request.param


@pytest.fixture(scope="module")
def trained(name, prefix, tmp_path_factory):
    """Trainings by case; each framework has a data cache of its own."""
    return train(name, cases_of(name), tmp_path_factory.mktemp(name), prefix)


@FULL
def test_curves_samples_and_learning_rates_are_those_of_mega(name, trained, mega):
    """In bf16 inside the band of mega and hf: their AdamW is torch's, which rounds other last bits of the masters."""
    framework = FRAMEWORKS[name]
    of_mega = dict(zip(framework.curves, framework.curves, strict=True))
    of_mega |= {key: model for key, (model, _) in framework.more.items()}
    for key, model in of_mega.items():
        is_bf16 = "bf16" in key
        bounds = (framework.bf16_band, BF16_GRAD_NORM_BAND) if is_bf16 else (LOSS_BOUND, GRAD_NORM_BOUND)
        assert_same_work(trained[key], mega[model], bounds)
        ours, theirs = trained[key].ok, mega[model].ok
        assert ours["learning_rates"] == pytest.approx(theirs["learning_rates"], abs=1e-9)
        assert ours["fingerprint"] == theirs["fingerprint"]
        assert all(wait > 0 for wait in ours["data_wait_seconds"])
    assert trained["llama"].ok["learning_rates"] == pytest.approx(
        [rule(step) for step in range(1, STEPS + 1)], abs=1e-9
    )
    for key in framework.curves:
        assert trained[key].notes[0]["tokens"] == mega[key].ok["fingerprint"]["token_stream_sha256"]
        assert trained[key].ok["loss_values"][-1] < trained[key].ok["loss_values"][0] - 0.4


@FULL
def test_what_it_reads_back_is_what_mega_reads_back(name, trained, mega):
    framework = FRAMEWORKS[name]
    package, version = framework.version
    for key in framework.curves:
        ours, theirs = trained[key].ok["resolved_config"], mega[key].ok["resolved_config"]
        assert {one for one in ours | theirs if ours.get(one) != theirs.get(one)} == framework.differs
        assert ours["optimizer"] == (theirs["optimizer"] if "optimizer" not in framework.differs else TORCH_ADAMW)
        assert trained[key].ok["provenance"]["framework_versions"][package] == version


@FULL
def test_default_that_shines_through_stops_the_job_before_its_first_step(name, trained):
    for (model, *keys), reason in FRAMEWORKS[name].defaults.items():
        assert reason in trained[f"{model} without {keys[0]}"].refused


@FULL
def test_key_that_it_does_not_have_is_an_error(name, trained):
    for key in FRAMEWORKS[name].nonsense:
        assert f"settings map, {name}: {key}" in trained[key].refused


@FULL
def test_native_weights_follow_the_seed_and_are_its_own(name, trained, mega):
    first, again, other = (trained[key].notes[0]["embedding"] for key in NATIVE)
    assert first == again != other
    assert first != mega["qwen"].notes[0]["embedding"]
    assert 8 < trained["native 42"].ok["loss_values"][0] < 10, "ln 4096 is 8.3"


@FULL
def test_two_ranks_that_a_user_starts_have_the_losses_of_one(name, mega, prefix, tmp_path):
    layout = FRAMEWORKS[name].layout
    two = run(name, "llama", tmp_path / "results", prefix, f"DATA_DIR={tmp_path / 'data'}", "CPU_RANKS=2", *layout)
    one = run("mega", "llama", tmp_path / "one", prefix, f"DATA_DIR={tmp_path / 'cache'}")
    assert two["resolved_config"]["num_gpus"] == 2 and two["steps"] == [1, 2, 3, 4, 5, 6]
    assert two["loss_values"] == pytest.approx(one["loss_values"], rel=LOSS_BOUND)
    assert two["fingerprint"] == one["fingerprint"]


@FULL
@pytest.mark.parametrize("name", ["titan"], indirect=True)
def test_what_only_torchtitan_has_is_right_and_its_faults_are_seen(name, trained, mega):
    # (2 x 4 layers + 1) norms of 128 channels
    assert "without weight decay: asked 1,152 (norms, biases), built 0" in trained["decay of norms"].refused
    assert differences(trained["order of channels"], mega["llama"])[0] > 2 * LOSS_BOUND
    assert [trained[kind].ok["resolved_config"]["recompute"] for kind in ("full", "selective")] == ["full", "selective"]
    assert trained["two ranks"].ok["resolved_config"]["distributed_optimizer"] is True
    native = trained["native 42"].ok["resolved_config"]
    assert native["init_std"] is None and "std of its own" in native["reasons"]["init_std"]


@FULL
@pytest.mark.parametrize("name", ["titan"], indirect=True)
def test_a_window_that_no_sequence_exceeds_is_trained_and_said_to_be_missing(name, trained, mega):
    assert_same_work(trained["window"], mega["window"])
    resolved = trained["window"].ok["resolved_config"]
    assert resolved["sliding_window"] is None and "no window" in resolved["reasons"]["sliding_window"]


@FULL
@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        ("mistral", (), "titan has models without an attention window, and mistral has one of 64 tokens"),
        ("llama", ("TP=2", "CPU_RANKS=2"), "TP=2 FRAMEWORK=titan: titan cannot divide a training"),
    ],
)
def test_setting_that_torchtitan_does_not_have_is_one_line_and_no_result(tmp_path, prefix, model, settings, said):
    ran = launch("titan", model, tmp_path / "results", prefix, *settings)
    (line,) = ran.stderr.strip().splitlines()
    assert (ran.returncode, said in line, list(tmp_path.rglob("train_*.json"))) == (2, True, [])


# A converted checkpoint of NeMo has its name only when it is whole. The import itself needs TransformerEngine, so a
# stand-in writes what NeMo writes: `context/` and `weights/`.


def write_whole(folder):
    for part, name in (("context", "io.json"), ("weights", "__0_0.distcp")):
        (folder / part).mkdir(parents=True)
        (folder / part / name).write_text("x")


def test_whole_checkpoint_gets_its_name_and_is_kept(tmp_path):
    output = tmp_path / "deep" / "nemo_llama"
    assert convert(output, write_whole)
    assert (output / "weights" / "__0_0.distcp").exists()
    assert not convert(output, lambda folder: pytest.fail("it was converted again"))
    assert {path.name for path in output.parent.iterdir()} == {"nemo_llama", ".nemo_llama.lock"}


def test_killed_import_leaves_nothing_under_the_name_that_is_reused(tmp_path):
    output = tmp_path / "nemo_llama"
    program = (
        "import sys, time; from pathlib import Path; from train.convert import convert\n"
        "def write(folder):\n"
        "    (folder / 'weights').mkdir(parents=True); (folder / 'weights' / 'half').touch()\n"
        "    print('half', flush=True); time.sleep(600)\n"
        "convert(Path(sys.argv[1]), write)"
    )
    command = [sys.executable, "-c", program, str(output)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "half\n"
        process.kill()
    assert not output.exists()
    assert convert(output, write_whole) and not (output / "weights" / "half").exists()


def test_import_that_returns_without_a_whole_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ConversionError, match="no weights"):
        convert(tmp_path / "nemo_llama", lambda folder: (folder / "context").mkdir(parents=True))
    assert not (tmp_path / "nemo_llama").exists()


def test_half_that_somebody_else_left_under_the_name_is_refused(tmp_path):
    output = tmp_path / "nemo_llama"
    (output / "context").mkdir(parents=True)
    with pytest.raises(ForeignFileError, match="nemo_llama: exists, and this suite has not written it"):
        convert(output, write_whole)


def test_second_of_two_at_once_waits_and_finds_the_first_ones(tmp_path):
    output, inside, go_on = tmp_path / "nemo_llama", threading.Event(), threading.Event()

    def slowly(folder):
        inside.set()
        go_on.wait()
        write_whole(folder)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(convert, output, slowly)
        inside.wait()
        second = pool.submit(convert, output, write_whole)
        assert not second.done()
        go_on.set()
        assert (first.result(), second.result()) == (True, False)


def test_source_is_written_as_nemo_wants_it(tmp_path):
    assert check_source("llama", "meta-llama/Llama-3.1-8B") == "hf://meta-llama/Llama-3.1-8B"
    (tmp_path / "config.json").touch()
    assert check_source("llama", str(tmp_path)) == f"hf://{tmp_path}"
    with pytest.raises(ConfigError, match=r"no generation_config\.json"):
        check_source("qwen", str(tmp_path))


def test_without_transformer_engine_it_is_one_line_and_2():
    environment = {**os.environ, "PLATFORM": "cpu"}
    command = [sys.executable, "-m", "train.convert", "mistral"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("error: convert: got platform cpu, wanted nvd") and "nvcr.io/nvidia/nemo:26.02" in line
