"""Grammar, precedence and contracts of the settings; every error names where, key, value and what is allowed."""

import dataclasses
import importlib.machinery
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from utils import configure as command
from utils.errors import ConfigError
from utils.settings import combinations, layers
from utils.settings import config as configure
from utils.settings.config import ROOT, load
from utils.settings.keys import KEYS


@pytest.fixture
def root(tmp_path):
    for name in ("config.env", "config.cpu.env"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def cpu(root: Path = ROOT, *arguments: str, **environ: str):
    return load("cpu", arguments=arguments, environ=environ, root=root)


def gpu(*arguments: str, gpus: int = 8, platform: str = "nvd", **environ: str):
    return load(platform, gpus, arguments=arguments, environ=environ)


def test_argument_wins_over_environment_over_overlay_over_config_env(root):
    (root / "config.cpu.env").write_text("MBS=2\nSEED=7\nSL=128\n")
    text = (root / "config.env").read_text()
    (root / "config.env").write_text(text.replace("SEED=42", "SEED=5").replace("LR=3.0e-4\n", "LR=1e-5\n"))
    config = cpu(root, "MBS=8", MBS="4", SL="256")
    assert (config.micro_batch_size, config.sequence_length, config.seed) == (8, 256, 7)
    assert config.learning_rate == 1e-5


@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_default_batch_on_eight_gpus_is_dp_8_ga_8(platform):
    config = gpu(platform=platform)
    assert (config.data_parallel_size, config.gradient_accumulation) == (8, 8)
    assert (config.micro_batch_size, config.sequence_length, config.global_batch_size) == (1, 2048, 64)
    assert config.tokens_per_step == 131072


@pytest.fixture
def four_frameworks(monkeypatch):
    """Rules of a version that can start all four."""
    monkeypatch.setattr(combinations, "AVAILABLE_FRAMEWORKS", ("mega", "hf", "nemo", "bridge", "prim"))


@pytest.mark.parametrize(
    ("platform", "asked", "runs"),
    [
        ("nvd", "all", ("mega", "hf", "bridge")),
        ("amd", "all", ("mega", "prim", "hf")),
        ("cpu", "all", ("mega", "hf", "nemo")),
        ("nvd", "prim", ("bridge",)),
        ("amd", "nemo", ("prim",)),
        ("amd", "bridge,nemo", ("prim",)),
        ("cpu", "bridge", ("bridge",)),
        ("nvd", "hf,prim,nemo", ("hf", "bridge", "nemo")),
        ("nvd", "nemo", ("nemo",)),
        ("cpu", "nemo", ("nemo",)),
    ],
)
def test_each_vendor_runs_its_own_framework_in_the_place_of_the_others(four_frameworks, platform, asked, runs):
    assert load(platform, 1, arguments=[f"FRAMEWORK={asked}"], environ={}).frameworks == runs


def test_primus_on_a_cpu_runs_where_it_is_named_and_is_not_part_of_all(four_frameworks):
    assert cpu(ROOT, "FRAMEWORK=hf,prim").frameworks == ("hf", "prim")
    assert "prim" not in cpu(ROOT, "FRAMEWORK=all").frameworks


def test_the_framework_that_runs_in_anothers_place_is_named_once():
    (line,) = combinations.counterparts(("mega", "prim"), "nvd")
    assert "FRAMEWORK=prim" in line and "bridge" in line
    assert combinations.counterparts(("mega", "prim"), "amd") == combinations.counterparts(("all",), "nvd") == []


@pytest.mark.parametrize(("gpus", "dp", "ga"), [(1, 1, 64), (2, 2, 32), (4, 4, 16), (64, 64, 1)])
def test_global_batch_is_the_same_on_any_number_of_gpus(gpus, dp, ga):
    config = gpu(gpus=gpus)
    assert (config.data_parallel_size, config.gradient_accumulation, config.global_batch_size) == (dp, ga, 64)


def test_model_parallel_ranks_are_taken_from_the_data_parallel_ones():
    config = gpu("TP=2", "PP=2", "FRAMEWORK=mega")
    assert (config.data_parallel_size, config.gradient_accumulation) == (2, 32)


def test_gpus_per_node_takes_a_part_of_the_machine():
    assert gpu("GPUS_PER_NODE=4").num_gpus == 4


@pytest.mark.parametrize("more", [("MASTER_ADDR=n1", "NODE_RANK=1"), ("LAUNCHER=slurm",)])
def test_gpus_of_all_nodes_share_the_global_batch_and_the_label_says_so(more):
    config = gpu("NNODES=2", "GPUS_PER_NODE=8", *more)
    assert (config.num_gpus, config.ranks_per_node, config.data_parallel_size) == (16, 8, 16)
    assert (config.gradient_accumulation, config.label) == (4, "nodes2")


def test_the_machine_that_submits_to_slurm_may_have_no_gpu_but_must_say_how_many_a_node_has():
    assert gpu("LAUNCHER=slurm", "GPUS_PER_NODE=8", gpus=0).num_gpus == 8
    with pytest.raises(ConfigError, match="GPUS_PER_NODE=8"):
        gpu("LAUNCHER=slurm", gpus=4)


def test_flags_of_sbatch_are_parted_where_a_flag_begins():
    config = cpu(ROOT, "LAUNCHER=slurm", "SLURM_EXTRA=--mail-type=END,FAIL,--exclusive,--qos=high")
    assert config.slurm_extra == ("--mail-type=END,FAIL", "--exclusive", "--qos=high")


def test_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        cpu().seed = 1  # type: ignore[misc]


BAD_ARGUMENTS = [
    ("FOO=1", ["argument", "FOO=1", "allowed", "MBS"]),
    ("MBS=0", ["argument", "MBS=0", "whole number from 1"]),
    ("MBS=1.5", ["MBS=1.5", "whole number"]),
    ("MBS=", ["MBS=", "whole number"]),
    ("RUNS=0", ["argument", "RUNS=0", "auto, or a whole number from 1 to 1000"]),
    ("RUNS=1001", ["RUNS=1001", "auto, or a whole number from 1 to 1000"]),
    ("RUNS=Auto", ["RUNS=Auto", "auto, or a whole number from 1 to 1000"]),
    ("GBS=60", ["GBS=60", "MBS=8", "8*2 = 16"]),
    ("GA=3", ["GA=3", "GA=4"]),
    ("DP=3", ["DP=3", "DP=2"]),
    ("TP=2", ["TP=2", "hf"]),
    ("LR=nan", ["LR=nan", "above 0"]),
    ("LR=-1", ["LR=-1", "above 0"]),
    ("LR=inf", ["LR=inf"]),
    ("BETA1=1", ["BETA1=1", "below 1"]),
    ("MIN_LR=1", ["MIN_LR=1", "above the peak"]),
    ("WARMUP_ITERS=30", ["WARMUP_ITERS=30", "TRAIN_ITERS=30", "shorter"]),
    ("MODEL=gpt", ["MODEL=gpt", "llama, qwen, mistral"]),
    ("MODEL=llama,llama", ["MODEL=llama,llama"]),
    ("MODEL_SIZE=huge", ["MODEL_SIZE=huge", "full, proxy, tiny"]),
    ("PRECISION=fp16", ["PRECISION=fp16", "bf16, fp8, fp32"]),
    ("PRECISION=fp8", ["PRECISION=fp8"]),
    ("RUNTIME=docker", ["RUNTIME=docker", "native"]),
    ("NNODES=2", ["NNODES=2", "MASTER_ADDR=<host>", "LAUNCHER=slurm"]),
    ("NODE_RANK=1", ["NODE_RANK=1", "below NNODES"]),
    ("SLURM_EXTRA=qos", ["SLURM_EXTRA=qos", "--flag=value"]),
    ("SLURM_ACCOUNT=a;b", ["SLURM_ACCOUNT=a;b", "a name of Slurm"]),
    ("METHOD=best", ["METHOD=best", "config.cpu-best.env"]),
    ("LABEL=../x", ["LABEL=../x"]),
    ("LABEL=..", ["LABEL=.."]),
    ("LABEL=logs", ["LABEL=logs", "no other folder of OUTPUT_DIR"]),
    ("SL=200000", ["SL=200000", "131072 positions"]),
    ("SEED=0x10", ["SEED=0x10"]),
    ('LABEL="x"', ["KEY=VALUE without quotes"]),
    ("nonsense", ["nonsense", "KEY=VALUE"]),
]


@pytest.mark.parametrize(("argument", "wanted"), BAD_ARGUMENTS, ids=[text for text, _ in BAD_ARGUMENTS])
def test_bad_setting_names_origin_key_value_and_what_is_allowed(argument, wanted):
    with pytest.raises(ConfigError) as error:
        cpu(ROOT, argument)
    assert "\n" not in str(error.value)
    for part in wanted:
        assert part in str(error.value)


def test_context_parallel_without_transformer_engine_is_refused():
    with pytest.raises(ConfigError, match="CP=2: context parallelism without TransformerEngine"):
        cpu(ROOT, "CP=2", "CPU_RANKS=2", "FRAMEWORK=mega")


@pytest.fixture
def engine(monkeypatch):
    """A machine with TransformerEngine, as the check of the settings sees it."""
    monkeypatch.setattr(combinations.importlib.util, "find_spec", lambda name: object())


@pytest.mark.parametrize(
    ("platform", "settings", "said"),
    [
        ("nvd", "FP8_RECIPE=mxfp8", "FP8_RECIPE=mxfp8 PRECISION=bf16: a recipe scales fp8; set PRECISION=fp8"),
        ("amd", "FP8_RECIPE=nvfp4 PRECISION=fp8 FRAMEWORK=mega", "nvfp4 is a format of platform nvd"),
        ("nvd", "FP8_RECIPE=mxfp4 PRECISION=fp8 FRAMEWORK=mega", "mxfp4 is a format of platform amd"),
        ("nvd", "FP8_RECIPE=nvfp4 PRECISION=fp8 FRAMEWORK=nemo", "nemo has delayed, current, mxfp8 and no nvfp4"),
        ("amd", "FP8_RECIPE=mxfp4 PRECISION=fp8 FRAMEWORK=mega", "mega has delayed, current, mxfp8 and no mxfp4"),
        ("nvd", "FP8_RECIPE=fp7 PRECISION=fp8", "delayed, current, mxfp8, nvfp4, mxfp4"),
    ],
)
def test_a_recipe_that_something_lacks_is_refused_in_one_line_that_names_it(engine, platform, settings, said):
    with pytest.raises(ConfigError) as error:
        load(platform, 8, arguments=settings.split(), environ={})
    assert said in str(error.value)


def test_the_recipe_is_part_of_the_settings_of_an_fp8_training_only(engine):
    asked = load("nvd", 8, arguments=["PRECISION=fp8", "FP8_RECIPE=current", "FRAMEWORK=mega"], environ={}).asked()
    assert asked["fp8_recipe"] == "current"
    assert load("nvd", 8, arguments=["FRAMEWORK=mega"], environ={}).asked()["fp8_recipe"] == "none"


def test_fp8_without_the_layers_of_transformer_engine_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    with pytest.raises(ConfigError, match="LAYERS=local PRECISION=fp8: fp8 needs the layers of TransformerEngine"):
        gpu("PRECISION=fp8", "FRAMEWORK=mega", "LAYERS=local")
    assert gpu("PRECISION=fp8", "FRAMEWORK=mega").layers == "auto"


def test_a_loop_that_does_not_divide_a_sequence_is_refused_context_parallelism(monkeypatch, four_frameworks):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    with pytest.raises(ConfigError, match="CP=2 FRAMEWORK=mega: mega cannot divide a sequence"):
        gpu("CP=2", "FRAMEWORK=mega")
    assert gpu("CP=2", "FRAMEWORK=nemo").data_parallel_size == 4


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("export MBS=1", "config.cpu.env:2"),
        ("MBS='1'", "config.cpu.env:2"),
        ("MBS = 1", "config.cpu.env:2"),
        ("MBS=$X", "config.cpu.env:2"),
        ("MBS=1 # comment", "config.cpu.env:2"),
        (" MBS=1", "config.cpu.env:2"),
        ("mbs=1", "config.cpu.env:2"),
        ("MBSS=1", "config.cpu.env:2: unknown key MBSS=1"),
        ("SL=128\nSL=256", "config.cpu.env:3: SL is already set in config.cpu.env:2"),
        ("MBS=-1", "config.cpu.env:2: MBS=-1"),
    ],
)
def test_line_outside_the_grammar_is_an_error_with_file_and_line(root, line, wanted):
    (root / "config.cpu.env").write_text(f"# first line\n{line}\n")
    with pytest.raises(ConfigError) as error:
        cpu(root)
    assert str(error.value).startswith(wanted)


def test_key_that_no_file_sets_is_an_error(root):
    text = (root / "config.env").read_text()
    (root / "config.env").write_text(text.replace("CLIP_GRAD=1.0\n", ""))
    with pytest.raises(ConfigError, match="CLIP_GRAD is missing"):
        cpu(root)


@pytest.mark.parametrize("name", ["config.env", "config.cpu.env"])
def test_bash_reads_the_same_values_as_python(name):
    script = f'set -a; source "{ROOT / name}"; env'
    output = subprocess.run(["env", "-i", "bash", "-c", script], capture_output=True, text=True, check=True).stdout
    read_by_bash = dict(line.split("=", 1) for line in output.splitlines())
    for key, value in layers.read_file(ROOT / name, name).items():
        assert read_by_bash[key] == value.text


def test_every_known_key_has_its_default_in_config_env():
    assert list(layers.read_file(ROOT / "config.env", "config.env")) and set(
        layers.read_file(ROOT / "config.env", "config.env")
    ) == set(KEYS)


@pytest.mark.parametrize(
    ("arguments", "label"),
    [([], ""), (["MODEL_SIZE=proxy"], "proxy"), (["MODEL_SIZE=full"], "full"), (["LABEL=mine"], "mine")],
)
def test_results_of_another_size_go_to_a_folder_of_their_own(arguments, label):
    config = cpu(ROOT, *arguments, "OUTPUT_DIR=/tmp/x")
    assert config.results_dir == Path("/tmp/x") / label


def test_heads_must_divide_by_tensor_parallel_size():
    with pytest.raises(ConfigError, match=r"TP=8 MODEL=qwen: qwen has 28 heads in 4 groups"):
        gpu("TP=8", "MODEL=qwen", "FRAMEWORK=mega")


def test_folder_that_cannot_be_written_is_named_with_its_setting():
    with pytest.raises(ConfigError, match="OUTPUT_DIR=/proc/nowhere: cannot be written"):
        configure.require_writable(Path("/proc/nowhere"), "OUTPUT_DIR")


def test_number_of_runs_is_open_on_a_gpu_and_three_on_a_cpu():
    assert gpu().runs is None and cpu().runs == 3
    assert gpu("RUNS=7").runs == 7 and cpu(ROOT, "RUNS=auto").runs is None


def test_jobs_run_in_rounds(capsys):
    assert command.main(["--platform", "cpu", "--jobs", "RUNS=2", "MODEL=llama"]) == 0
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert lines == [["mega", "llama", "1"], ["hf", "llama", "1"], ["mega", "llama", "2"], ["hf", "llama", "2"]]


def test_command_line_ends_with_2_and_one_line_for_bad_input(capsys):
    assert command.main(["--platform", "cpu", "MBS=0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and captured.err.startswith("error: ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("DATASET_REPO", "ann/hf_" + "aB1" * 12),
        ("LABEL", "hf_" + "aB1" * 12),
        ("DATASET", "https://ann:open-sesame@host.example/text.jsonl"),
    ],
)
def test_a_setting_that_holds_a_secret_is_refused_without_being_repeated(key, value):
    for given in ({"arguments": [f"{key}={value}"], "environ": {}}, {"environ": {key: value}}):
        with pytest.raises(ConfigError, match=f"{key}: looks like a secret") as caught:
            load("cpu", **given)
        assert value not in str(caught.value)
