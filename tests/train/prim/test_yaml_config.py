"""What Primus is told: one YAML of keys that the installed version has, made from AMD's, and the check of the two."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.support.tied_model import LLAMA_1B
from train.common.trainer import model_differences
from train.common.weights import shapes
from train.job.job import Job, log_path
from train.prim import install as prim_install
from train.prim import yaml_config as prim_config
from train.prim.arguments import Arguments, first_learning_rate
from train.prim.environment import environment
from train.train_hf import WarmupCosine
from utils.errors import ConfigError
from utils.models import NAMES
from utils.settings.config import ROOT, load

STANDIN = Path(__file__).parent / "primus_standin" / "root"
REAL = "TPRIMAT_REAL_PRIMUS"


def config_of(*settings, **changes):
    config = load("amd", 8, arguments=["FRAMEWORK=prim", "MODEL=all", *settings], environ={})
    return replace(config, **changes)


def rendered(model="llama", *settings, root=STANDIN):
    primus = prim_install.at(root)
    config = config_of(*settings)
    shipped = primus.shipped_path(model, config.precision, "MI300X")
    return prim_config.render(primus, config, model, shipped, Path("/where/it/works"), "name")


def changed_root(tmp_path, edit, path):
    """A stand-in in which one file has been edited."""
    root = tmp_path / "Primus"
    shutil.copytree(STANDIN, root)
    (root / path).write_text(edit((root / path).read_text()))
    return root


MODULE = "primus/configs/modules/megatron/trainer_base.yaml"


def test_yaml_read_back_is_what_was_rendered(tmp_path):
    made = rendered("qwen", "ADAM_EPS=1e-8", "LR=3e-5")
    made.write(tmp_path / "experiment.yaml")
    assert yaml.safe_load((tmp_path / "experiment.yaml").read_text()) == made.document
    said = made.overrides
    assert (said["adam_eps"], said["lr"]) == (1e-8, 3e-5) and isinstance(said["adam_eps"], float)


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        ("qwen", "add_qkv_bias", True),
        ("llama", "add_qkv_bias", False),
        ("llama", "norm_epsilon", 1e-5),
        ("qwen", "norm_epsilon", 1e-6),
        ("llama", "use_rope_scaling", True),
        ("qwen3", "qk_layernorm", True),
        ("qwen3", "add_qkv_bias", False),
        ("mistral", "use_rope_scaling", False),
        ("mistral", "rotary_base", 10000),
        ("mistral", "vocab_size", 31999),  # the null tokenizer adds one
        ("mistral", "num_query_groups", 8),
        ("mistral", "ffn_hidden_size", 14336),
        ("llama", "init_method_std", 0.02),
        ("llama", "mock_data", False),
        ("llama", "eod_mask_loss", False),
        ("llama", "dataloader_type", "single"),
        ("llama", "stderr_sink_level", "DEBUG"),
        ("llama", "disable_last_saving", True),
        ("llama", "log_interval", 1),
        ("llama", "ckpt_format", "torch"),  # of AMD's file, about which we say nothing
    ],
)
def test_traps_of_the_shipped_files_are_overridden(model, key, value):
    assert rendered(model).overrides[key] == value


def test_nothing_is_saved_and_no_step_is_warmed_up_otherwise():
    made = rendered("llama", "LR=1e-3", "WARMUP_ITERS=9", "TRAIN_ITERS=30")
    assert made.overrides["save_interval"] > 30
    assert made.overrides["lr_warmup_init"] == pytest.approx(1e-3 / 10)
    assert made.document["modules"]["pre_trainer"]["model"] == "llama3.1_8B.yaml"


def test_renamed_key_is_said_by_the_name_that_the_version_has(tmp_path):
    root = changed_root(tmp_path, lambda text: text.replace("use_turbo_grouped_mlp", "use_turbo_grouped_gemm"), MODULE)
    said = rendered(root=root).overrides
    assert said["use_turbo_grouped_gemm"] is False and "use_turbo_grouped_mlp" not in said


def test_key_that_changes_nothing_is_left_out_and_said(tmp_path):
    root = changed_root(tmp_path, lambda text: text.replace("disable_mlflow: true\n", ""), MODULE)
    made = rendered(root=root)
    assert "disable_mlflow" not in made.overrides
    (line,) = made.dropped
    assert line.startswith("disable_mlflow=True") and "no such logger" in line


def test_key_that_changes_the_work_is_an_error(tmp_path):
    root = changed_root(tmp_path, lambda text: text.replace("eod_mask_loss: false\n", ""), MODULE)
    with pytest.raises(ConfigError, match="has no key eod_mask_loss, wanted False"):
        rendered(root=root)


def test_window_that_primus_has_not_is_an_error_where_it_would_count():
    assert rendered("mistral", "SL=4096").overrides["seq_length"] == 4096
    with pytest.raises(ConfigError, match="MODEL=mistral SL=8192: Primus has no key for the window of 4096"):
        rendered("mistral", "SL=8192")


def test_value_of_a_variable_is_the_default_that_primus_would_take():
    primus = prim_install.at(STANDIN)
    shipped = primus.shipped(primus.shipped_path("llama", "bf16", "MI300X"))
    assert shipped["seq_length"] == 8192 and shipped["auto_continue_train"] == 0
    assert primus.shipped_path("llama", "bf16", "MI999X") == primus.shipped_path("llama", "fp8", "MI300X")


@pytest.mark.parametrize(
    ("text", "said"), [("[]", "got list"), ("a: [", "cannot be read"), ("bases: [x.yaml]", "before v25.10")]
)
def test_damaged_or_old_presets_are_one_clear_error(text, said, tmp_path):
    root = changed_root(tmp_path, lambda _: text, MODULE)
    with pytest.raises(ConfigError, match=said) as raised:
        rendered(root=root)
    assert "\n" not in str(raised.value)


def test_a_space_in_a_path_that_the_older_launcher_divides_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIMUS_PATH", str(STANDIN))
    for name, is_refused in (("a folder", True), ("folder", False)):
        job = Job(config_of(output_dir=tmp_path / name), "prim", "llama", 1)
        with pytest.raises(ConfigError, match="OUTPUT_DIR: .*has a space") if is_refused else nullcontext():
            prim_config.plan_of(job, "MI300X", log_path(job))


def check(*arguments, primus=STANDIN):
    environ = {**os.environ, "PRIMUS_PATH": str(primus)}
    command = [sys.executable, "-m", "train.train_prim", "--check", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)


def test_check_prints_every_difference_and_why():
    ran = check("MODEL=qwen", "SL=2048", "GPUS_PER_NODE=8")
    assert ran.returncode == 0, ran.stderr
    rows = [line.split(maxsplit=3) for line in ran.stdout.splitlines()[2:] if line.strip()]
    found = {key: (theirs, ours, why) for key, theirs, ours, why in rows}
    assert found["add_qkv_bias"] == ("false", "true", "QKV bias")
    assert found["seq_length"][:2] == ("8192", "2048") and found["mock_data"][:2] == ("true", "false")
    assert "ckpt_format" not in found and "swiglu" not in found
    # by another way: what either file comes to, from its text
    presets = prim_install.at(STANDIN).defaults("qwen")
    theirs = presets | prim_install.at(STANDIN).shipped(
        STANDIN / "examples/megatron/configs/MI300X/qwen2.5_7B-pretrain.yaml"
    )
    ours = presets | rendered("qwen", "SL=2048").overrides
    assert set(found) == {key for key in ours if theirs[key] != ours[key]}


def test_check_of_a_model_that_primus_has_not_says_what_it_is_compared_with():
    ran = check("MODEL=mistral", "GPUS_PER_NODE=8")
    assert ran.returncode == 0 and "ships nothing for this model" in ran.stdout


@pytest.mark.parametrize("settings", [["MODEL=llama"], ["MODEL=gpt"]])
def test_check_without_primus_or_with_a_bad_setting_says_what_to_do(settings, tmp_path):
    ran = check(*settings, primus=tmp_path / "missing" if settings == ["MODEL=llama"] else STANDIN)
    assert (ran.returncode, ran.stdout) == (2, "")
    line = ran.stderr.splitlines()[-1]
    assert line.startswith("error: ") and ("set PRIMUS_PATH" in line or "MODEL=gpt" in line)


def table(**values):
    """The lines of Megatron's `_print_args` behind the prefix of a console of Primus."""
    prefix = "[\x1b[32m20251110 10:00:00\x1b[0m][\x1b[36mrank-0/8\x1b[0m][DEBUG] [---arguments.py:1198] : "
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    lines += ["-------------------- end of arguments ---------------------"]
    return [f"{prefix}{line}\x1b[0m\n" for line in lines]


def arguments_of(*lines):
    arguments = Arguments()
    for line in lines:
        arguments.take(line)
    return arguments


def test_arguments_keep_the_kind_of_their_values():
    found = arguments_of(*table(lr="0.0003", seed=42, bf16=True, load=None, train_data_path=["/a b/c"], fp8="hybrid"))
    wanted = {"lr": 0.0003, "seed": 42, "bf16": True, "load": None, "train_data_path": ["/a b/c"], "fp8": "hybrid"}
    assert found.is_complete and found.values == wanted


def test_line_that_only_looks_like_an_argument_is_none():
    lines = table(seed=42)
    lines.insert(1, "loading weights ..... 5\n")
    assert arguments_of(*lines).values == {"seed": 42}
    assert not arguments_of(*lines[:-1]).is_complete


def test_parameters_are_counted_once_over_tensor_and_pipeline_ranks():
    # two layers of width 4: norms are (2 * 2 + 1) * 4 = 20 elements, which each of two tensor ranks holds
    spec = replace(config_of().spec("llama"), num_layers=2, hidden_size=4)
    said = " > number of parameters on (tensor, pipeline) model parallel rank ({}, 0): {}\n"
    lines = table(tensor_model_parallel_size=2, pipeline_model_parallel_size=1)
    arguments = arguments_of(*lines, said.format(0, 120))
    assert arguments.resolved(spec)["parameter_count"] is None
    arguments.take(said.format(1, 120))
    assert arguments.resolved(spec)["parameter_count"] == 100 + 100 + 20


def test_a_tied_embedding_that_two_pipeline_stages_hold_is_counted_once():
    # two stages of half the layers each, 1,000 parameters, and one embedding of 4 x 10 that each stage has
    spec = replace(LLAMA_1B.spec, num_layers=2, hidden_size=4, vocab_size=10)
    printed = " > number of parameters on (tensor, pipeline) model parallel rank (0, {}): {}\n"
    untied = {"untie_embeddings_and_output_weights": False}
    lines = table(tensor_model_parallel_size=1, pipeline_model_parallel_size=2, **untied)
    resolved = arguments_of(*lines, printed.format(0, 540), printed.format(1, 540)).resolved(spec)
    assert resolved["parameter_count"] == 1040 and resolved["tie_word_embeddings"] is True


@pytest.mark.parametrize("model", NAMES)
def test_what_was_rendered_and_printed_again_is_the_model(model):
    """Every key of the model that the YAML says comes back as the value that the spec has."""
    spec = config_of().spec(model)
    said = rendered(model).overrides
    lines = table(**said)
    lines.append(f" > padded vocab (size: {spec.vocab_size}) with 0 dummy tokens (new size: {spec.vocab_size})\n")
    resolved = arguments_of(*lines).resolved(spec)
    assert model_differences(spec, resolved) == []
    wrong = arguments_of(*lines[:-1], lines[-1].replace(f"new size: {spec.vocab_size}", "new size: 131072"))
    assert "vocab_size: asked" in model_differences(spec, wrong.resolved(spec))[0]


@pytest.mark.parametrize("model", NAMES)
def test_norms_and_biases_are_not_decayed_unless_megatron_was_asked_to(model):
    spec = config_of().spec(model)
    vectors = sum(math.prod(shape) for shape in shapes(spec).values() if len(shape) == 1)
    key = "parameters_without_weight_decay"
    assert arguments_of(*table(**rendered(model).overrides)).resolved(spec)[key] == vectors
    assert arguments_of(*table(apply_wd_to_qk_layernorm=True)).resolved(spec)[key] is None


@pytest.mark.parametrize("built", [True, False])
def test_a_qwen3_without_norms_of_queries_and_keys_is_another_model(built):
    """As AMD's own preset of Qwen3 8B builds it (Primus fd1eeab): `qk_layernorm` stays false."""
    spec = config_of().spec("qwen3")
    lines = table(**rendered("qwen3").overrides | {"qk_layernorm": built})
    found = model_differences(spec, arguments_of(*lines).resolved(spec))
    assert ("query_key_norm: asked True, built False" in found) is not built


def test_each_tensor_rank_counts_the_norms_of_queries_and_keys():
    # two layers of width 4 with two heads: (2 * 2 + 1) * 4 elements of norms and 2 * 2 * 2 of queries and keys
    spec = replace(config_of().spec("qwen3"), num_layers=2, hidden_size=4, num_attention_heads=2)
    said = " > number of parameters on (tensor, pipeline) model parallel rank ({}, 0): 128\n"
    lines = table(tensor_model_parallel_size=2, pipeline_model_parallel_size=1)
    resolved = arguments_of(*lines, said.format(0), said.format(1)).resolved(spec)
    assert resolved["parameter_count"] == 100 + 100 + 28


@pytest.mark.parametrize(("warmup", "wanted"), [(9, 1e-4), (0, 1e-3)])
def test_first_learning_rate_is_the_rule_of_every_framework(warmup, wanted):
    said = rendered("llama", "LR=1e-3", f"WARMUP_ITERS={warmup}", "TRAIN_ITERS=30").overrides
    assert first_learning_rate(said) == pytest.approx(wanted)
    assert first_learning_rate(said) == pytest.approx(1e-3 * WarmupCosine(warmup, 30, 0.0)(0))


def test_environment_has_amds_settings_the_users_first_and_nothing_of_ours(tmp_path):
    given = {
        "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}/usr/bin",
        "PYTHONPATH": f"{ROOT}{os.pathsep}/opt/theirs",
        "VIRTUAL_ENV": str(ROOT / ".venv"),
        "NVTE_CK_USES_BWD_V3": "0",
    }
    of_launcher = prim_install.at(STANDIN).launcher.variables(tmp_path / "x.yaml", tmp_path / "x.log", "MI300X")
    made = environment(config_of(), "MI300X", of_launcher, given)
    assert made["PATH"] == "/usr/bin" and made["PYTHONPATH"] == "/opt/theirs" and "VIRTUAL_ENV" not in made
    assert made["NVTE_CK_USES_BWD_V3"] == "0" and made["HSA_NO_SCRATCH_RECLAIM"] == "1"
    assert made["EXP"] == str(tmp_path / "x.yaml") and made["GPUS_PER_NODE"] == "8" and int(made["MASTER_PORT"]) > 1023
    of_another = environment(config_of(), "MI355X", of_launcher, given)
    assert "NVTE_CK_IS_V3_ATOMIC_FP32" in made and "NVTE_CK_IS_V3_ATOMIC_FP32" not in of_another


@pytest.mark.parametrize(
    ("given", "cache", "skips_pip"),
    [
        ({"HOME": "/workspace/home", "TPRIMAT_IN_CONTAINER": "1"}, "/workspace/home/.cache", "1"),
        ({"HOME": "/home/ann", "XDG_CACHE_HOME": "/fast", "HF_HOME": "/mine"}, "/fast", None),
    ],
)
def test_primus_writes_below_home_and_installs_nothing_into_an_image(given, cache, skips_pip, monkeypatch):
    monkeypatch.setenv("HOME", given["HOME"])
    made = environment(config_of(), "MI300X", {}, given)
    assert made["PRIMUS_CACHE_ROOT"] == f"{cache}/primus" and made["DATA_PATH"] == f"{cache}/primus/data"
    assert made["HF_HOME"] == given.get("HF_HOME", f"{cache}/huggingface")
    assert made.get("PRIMUS_SKIP_PIP") == skips_pip


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.skipif(REAL not in os.environ, reason=f"{REAL} names no checkout of Primus: its own parser was not asked")
def test_real_parser_of_primus_takes_what_was_rendered(model, tmp_path, monkeypatch):
    root = Path(os.environ[REAL])
    made = rendered(model, root=root)
    made.document["workspace"] = str(tmp_path)
    made.write(tmp_path / "experiment.yaml")
    monkeypatch.syspath_prepend(str(root))
    from primus.core.launcher.parser import PrimusParser

    parsed = PrimusParser().parse(argparse.Namespace(config=str(tmp_path / "experiment.yaml")))
    trainer = vars(parsed.get_module_config("pre_trainer"))
    assert {key: trainer[key] for key in made.overrides} == made.overrides
