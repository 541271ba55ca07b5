"""Grammar, precedence and contracts of the settings; every error names where, key, value and what is allowed."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ROOT, settings_of

from train.runner import plan
from utils import configure as command
from utils.errors import ConfigError
from utils.settings import config, keys, layers, profiling

load = config.load


def cpu(root: Path = ROOT, *arguments: str, **environ: str):
    return load("cpu", arguments=arguments, environ=environ, root=root)


def test_argument_wins_over_environment_over_overlay_over_config_env(tmp_path):
    (tmp_path / "config.cpu.env").write_text("MBS=2\nSEED=7\nSL=128\n")
    text = (ROOT / "config.env").read_text()
    (tmp_path / "config.env").write_text(text.replace("SEED=42", "SEED=5").replace("LR=3.0e-4\n", "LR=1e-5\n"))
    found = cpu(tmp_path, "MBS=8", MBS="4", SL="256")
    given = (found.micro_batch_size, found.sequence_length, found.seed, found.learning_rate)
    assert given == (8, 256, 7, 1e-5)


@pytest.mark.parametrize(
    ("platform", "asked", "runs"),
    [
        ("nvd", "all", ("mega", "hf", "bridge")),
        ("amd", "all", ("mega", "prim", "hf")),
        ("cpu", "all", ("mega", "hf", "nemo")),
        ("nvd", "prim", ("bridge",)),
        ("amd", "nemo", ("prim",)),
        ("amd", "bridge,nemo", ("prim",)),
        ("nvd", "hf,prim,nemo", ("hf", "bridge", "nemo")),
        ("cpu", "nemo", ("nemo",)),
    ],
)
def test_each_vendor_runs_its_own_framework_in_the_place_of_the_others(vendors_image, platform, asked, runs):
    assert load(platform, 1, arguments=[f"FRAMEWORK={asked}"], environ={}).frameworks == runs


def test_the_framework_that_runs_in_anothers_place_is_named_once():
    (line,) = plan._counterparts(("mega", "prim"), "nvd")
    assert "FRAMEWORK=prim" in line and "bridge" in line
    assert plan._counterparts(("mega", "prim"), "amd") == []


SLURM = "LAUNCHER=slurm"
SIZES = [  # platform, GPUs, settings, fields worked by hand
    ("nvd", 1, "", {"data_parallel_size": 1, "gradient_accumulation": 64, "global_batch_size": 64}),
    ("amd", 8, "", {"data_parallel_size": 8, "gradient_accumulation": 8, "global_batch_size": 64}),
    ("amd", 64, "", {"data_parallel_size": 64, "gradient_accumulation": 1, "global_batch_size": 64}),
    ("nvd", 8, "", {"micro_batch_size": 1, "sequence_length": 2048, "tokens_per_step": 131072, "runs": None}),
    ("nvd", 8, "TP=2 PP=2 FRAMEWORK=mega", {"data_parallel_size": 2, "gradient_accumulation": 32}),
    ("nvd", 8, "GPUS_PER_NODE=4", {"num_gpus": 4}),
    *(
        (
            "nvd",
            8,
            f"NNODES=2 GPUS_PER_NODE=8 {more}",
            {"num_gpus": 16, "ranks_per_node": 8, "gradient_accumulation": 4, "label": "nodes2"},
        )
        for more in ("MASTER_ADDR=n1 NODE_RANK=1", SLURM)
    ),
    ("nvd", 0, f"{SLURM} GPUS_PER_NODE=8", {"num_gpus": 8}),
    ("nvd", 8, "RUNS=7", {"runs": 7}),
    ("cpu", None, "", {"runs": 3, "label": ""}),
    ("cpu", None, "RUNS=auto", {"runs": None}),
    ("cpu", None, "MODEL=all", {"models": ("llama", "qwen", "mistral", "qwen3", "qwen3moe")}),
    ("cpu", None, "OUTPUT_DIR=/tmp/x", {"results_dir": Path("/tmp/x")}),
    # results of another size go to a folder of their own
    *(
        ("cpu", None, f"OUTPUT_DIR=/tmp/x {name}", {"results_dir": Path("/tmp/x") / label})
        for name, label in (("MODEL_SIZE=proxy", "proxy"), ("MODEL_SIZE=full", "full"), ("LABEL=mine", "mine"))
    ),
    # a vendor's tool of profiles runs on its platform
    *(
        (platform, 8, f"FRAMEWORK=mega PROFILING={tool}", {"profile": f"steps 1-5 of rank 0 by {tool}"})
        for tool, platform in profiling.TOOLS.items()
    ),
    # flags of sbatch are parted where a flag begins
    (
        "cpu",
        None,
        f"{SLURM} SLURM_EXTRA=--mail-type=END,FAIL,--exclusive,--qos=high",
        {"slurm_extra": ("--mail-type=END,FAIL", "--exclusive", "--qos=high")},
    ),
]


@pytest.mark.parametrize(("platform", "gpus", "settings", "fields"), SIZES)
def test_fields_follow_from_the_settings_and_the_gpus(platform, gpus, settings, fields):
    found = load(platform, gpus, arguments=settings.split(), environ={})
    assert {field: getattr(found, field) for field in fields} == fields


BAD_ARGUMENTS = [
    ("FOO=1", ["argument", "FOO=1", "allowed", "MBS"]),
    ("MBS=0", ["argument", "MBS=0", "whole number from 1"]),
    ("RUNS=0", ["argument", "RUNS=0", "auto, or a whole number from 1 to 1000"]),
    ("GBS=60", ["GBS=60", "MBS=8", "8*2 = 16"]),
    ("GA=3", ["GA=3", "GA=4"]),
    ("TP=2", ["TP=2", "hf"]),
    ("LR=nan", ["LR=nan", "above 0"]),
    ("BETA1=1", ["BETA1=1", "below 1"]),
    ("MIN_LR=1", ["MIN_LR=1", "above the peak"]),
    ("WARMUP_ITERS=30", ["WARMUP_ITERS=30", "TRAIN_ITERS=30", "shorter"]),
    ("MODEL=gpt", ["MODEL=gpt", "llama, qwen, mistral"]),
    ("MODEL=llama,llama", ["MODEL=llama,llama"]),
    ("PRECISION=fp8", ["PRECISION=fp8"]),
    ("NNODES=2", ["NNODES=2", "MASTER_ADDR=<host>", "LAUNCHER=slurm"]),
    ("NODE_RANK=1", ["NODE_RANK=1", "below NNODES"]),
    ("SLURM_EXTRA=qos", ["SLURM_EXTRA=qos", "--flag=value"]),
    ("SLURM_ACCOUNT=a;b", ["SLURM_ACCOUNT=a;b", "a name of Slurm"]),
    ("METHOD=best", ["METHOD=best", "config.cpu-best.env"]),
    ("LABEL=logs", ["LABEL=logs", "no other folder of OUTPUT_DIR"]),
    ("SL=200000", ["SL=200000", "131072 positions"]),
    ('LABEL="x"', ["KEY=VALUE without quotes"]),
    ("nonsense", ["nonsense", "KEY=VALUE"]),
]


@pytest.mark.parametrize(("argument", "wanted"), BAD_ARGUMENTS, ids=[text for text, _ in BAD_ARGUMENTS])
def test_bad_setting_names_origin_key_value_and_what_is_allowed(argument, wanted):
    with pytest.raises(ConfigError) as error:
        cpu(ROOT, argument)
    assert "\n" not in str(error.value) and [part for part in wanted if part not in str(error.value)] == []


BAD_PROFILES = [
    ("PROFILE_STEP_START=6 PROFILE_STEP_END=5", "the first profiled step is after the last one"),
    ("PROFILE_STEP_END=31", "the training has 30 steps"),
    ("PROFILE_STEP_START=1 PROFILE_STEP_END=25", "5 steps are left to measure, wanted 6"),
    ("PROFILE_RANKS=2", "the training has ranks 0 to 1"),
    *((f"PROFILE_RANKS={ranks}", f"PROFILE_RANKS={ranks}: wanted all, or a comma list") for ranks in ("0,0", "-1", "")),
    ("PROFILING=maybe", "PROFILING=maybe: wanted true, false, nsys, rocprofv3"),
    ("PROFILING=nsys", "nsys is a tool of platform nvd"),
    ("PROFILING=rocprofv3", "rocprofv3 is a tool of platform amd"),
]
EXPERTS = "FRAMEWORK=mega MODEL=qwen3moe"
PRIMUS = "FRAMEWORK=prim PROFILING=true WARMUP_ITERS=2 PROFILE_STEP_START=4 PROFILE_STEP_END=5"
"""Primus starts and writes inside of steps, so that it needs more of them."""


@pytest.mark.parametrize(
    ("platform", "settings", "said"),
    [
        ("nvd", "FP8_RECIPE=mxfp8", "FP8_RECIPE=mxfp8 PRECISION=bf16: a recipe scales fp8; set PRECISION=fp8"),
        ("amd", "FP8_RECIPE=nvfp4 PRECISION=fp8 FRAMEWORK=mega", "nvfp4 is a format of platform nvd"),
        ("nvd", "FP8_RECIPE=mxfp4 PRECISION=fp8 FRAMEWORK=mega", "mxfp4 is a format of platform amd"),
        ("nvd", "FP8_RECIPE=nvfp4 PRECISION=fp8 FRAMEWORK=nemo", "nemo has delayed, current, mxfp8 and no nvfp4"),
        ("nvd", "PRECISION=fp8 FRAMEWORK=mega LAYERS=local", "LAYERS=local PRECISION=fp8: fp8 needs the layers of Tr"),
        ("nvd", "TP=8 MODEL=qwen FRAMEWORK=mega", "TP=8 MODEL=qwen: qwen has 28 heads in 4 groups"),
        ("nvd", f"{EXPERTS} EP=3", "EP=3: the experts are divided between the DP*CP = 8 GPUs, which do not divide by"),
        ("nvd", f"{EXPERTS} PP=2 EP=8", "EP=8: the experts are divided between the DP*CP = 4 GPUs"),
        ("cpu", f"{EXPERTS} CPU_RANKS=16 MODEL_SIZE=tiny GBS=16 MBS=1 EP=16", "EP=16 MODEL=qwen3moe: qwen3moe has 8"),
        ("nvd", f"{EXPERTS} TP=2", "TP=2 MODEL=qwen3moe: megatron-core trains experts with TP only if it splits seq"),
        ("nvd", "FRAMEWORK=nemo MODEL=qwen3moe", "FRAMEWORK=nemo MODEL=qwen3moe: nemo has no recipe of qwen3moe; use"),
        *(
            ("nvd", f"FRAMEWORK=mega MODEL=llama {one}", "llama has one MLP a layer and no experts; use EP=1 ROUTING=l")
            for one in ("EP=2", "ROUTING=balanced")
        ),
        # the machine that submits need not have the GPUs of a node
        ("nvd", SLURM, "GPUS_PER_NODE=8"),
        *(("cpu", f"FRAMEWORK=mega PROFILING=true {settings}", said) for settings, said in BAD_PROFILES),
        *(
            (platform, f"FRAMEWORK=mega PROFILING={tool} PROFILE_MEMORY=true", "writes no snapshot of the memory")
            for platform, tool in (("nvd", "nsys"), ("amd", "rocprofv3"))
        ),
        ("amd", f"{PRIMUS} TRAIN_ITERS=10", "8 steps are left to measure, wanted 9"),
        ("amd", f"{PRIMUS} TRAIN_ITERS=11 PROFILE_STEP_START=10 PROFILE_STEP_END=11", "the trace in the step after"),
    ],
)
def test_what_a_framework_model_or_platform_lacks_is_refused_in_one_line_that_names_it(
    vendors_image, platform, settings, said
):
    with pytest.raises(ConfigError) as error:
        settings_of(settings, platform=platform, gpus=None if platform == "cpu" else 8)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ("PRECISION=fp8 FP8_RECIPE=current FRAMEWORK=mega", {"fp8_recipe": "current", "layers": "auto"}),
        ("FRAMEWORK=mega", {"fp8_recipe": "none"}),
        ("HF_KERNELS=liger FRAMEWORK=hf", {"hf_kernels": "liger"}),
        ("CP=2 FRAMEWORK=nemo", {"data_parallel_size": 4}),
        ("CP=2 FRAMEWORK=bridge MODEL=qwen3moe EP=8", {"data_parallel_size": 4, "expert_parallel_size": 8}),
        ("PP=2 FRAMEWORK=mega MODEL=qwen3moe EP=4", {"data_parallel_size": 4, "expert_parallel_size": 4}),
        ("FRAMEWORK=all MODEL=all", {"frameworks": ("mega", "hf", "bridge")}),
    ],
)
def test_their_twins_are_allowed_and_the_recipe_is_that_of_an_fp8_training_only(vendors_image, settings, fields):
    found = load("nvd", 8, arguments=settings.split(), environ={})
    assert {field: getattr(found, field) for field in fields} == fields
    assert found.asked()["fp8_recipe"] == found.fp8_recipe


@pytest.mark.parametrize("platform", ["cpu", "amd", "nvd"])
def test_bash_reads_the_same_values_as_python_and_config_env_has_every_key(platform):
    overlay = f"config.{platform}.env"
    script = f"set -a; source ./config.env; test ! -e ./{overlay} || source ./{overlay}; env"
    ran = subprocess.run(["env", "-i", "bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    by_python = {key: value.text for key, value in config.values_of(platform, environ={}).items()}
    by_bash = dict(line.split("=", 1) for line in ran.stdout.splitlines())
    assert {key: by_bash.get(key) for key in keys.KEYS} == by_python


def test_jobs_run_in_rounds(capsys):
    assert command.main(["--platform", "cpu", "--jobs", "RUNS=2", "MODEL=llama"]) == 0
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert lines == [["mega", "llama", "1"], ["hf", "llama", "1"], ["mega", "llama", "2"], ["hf", "llama", "2"]]


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


def test_a_settings_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config.env: cannot be read .No such file or directory"):
        load("cpu", environ={}, root=tmp_path)


def test_a_setting_of_an_earlier_version_is_refused_and_in_the_environment_only_warned_of(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    for key, why in layers.GONE.items():
        (tmp_path / "config.env").write_text((ROOT / "config.env").read_text() + f"{key}=auto\n")
        line = len((ROOT / "config.env").read_text().splitlines()) + 1
        with pytest.raises(ConfigError) as caught:
            load("cpu", environ={}, root=tmp_path)
        assert str(caught.value) == f"config.env:{line}: {key}=auto: {why}"
        with pytest.raises(ConfigError) as caught:
            cpu(ROOT, f"{key}=hf")
        assert str(caught.value) == f"argument: {key}=hf: {why}"

        # another program may use the name, and no id depends on it
        monkeypatch.setenv(key, "hf")
        assert cpu(ROOT, **{key: "hf"}) == cpu(ROOT)
        assert command.main(["--platform", "cpu", "--check", str(ROOT / "shell" / "run_data.sh")]) == 0
        assert capsys.readouterr().err == f"warning: environment: {key} is ignored: {why}\n"


# A profile is of steps and ranks that a training has, and leaves enough steps to measure.

Profile = profiling.Profile

ON = ("PROFILING=true", "PROFILE_STEP_START=11", "PROFILE_STEP_END=13")


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        (Profile(11, 13, (0,)), "steps 11-13 of rank 0"),
        (Profile(1, 1, (0, 3)), "steps 1-1 of ranks 0,3"),
        (Profile(2, 5, None, with_memory=True), "steps 2-5 of all ranks, with memory"),
        (Profile(2, 5, None, tool="rocprofv3"), "steps 2-5 of all ranks by rocprofv3"),
    ],
)
def test_a_profile_is_read_back_from_its_text(profile, text):
    assert profile.text == text and profiling.parse(text) == profile


@pytest.mark.parametrize(
    "text", ["", "steps 3-2 of rank 0", "steps 0-2 of rank 0", "steps 1-2", "steps 1-2 of rank x", "all", None, 5, True]
)
def test_other_texts_are_no_profile(text):
    with pytest.raises(ValueError, match="wanted none, or such as steps"):
        profiling.parse(text)


@pytest.mark.parametrize(
    ("settings", "text", "label"),
    [
        (ON, "steps 11-13 of rank 0", "profiled"),
        ((*ON, "PROFILE_RANKS=all", "PROFILE_MEMORY=true"), "steps 11-13 of all ranks, with memory", "profiled"),
        (("PROFILING=1",), "steps 1-5 of rank 0", "profiled"),
        (ON[1:], "none", ""),
        (("PROFILING=true", "PROFILE_STEP_END=24"), "steps 1-24 of rank 0", "profiled"),  # enough are left to measure
        ((*ON, "MODEL_SIZE=proxy", "CPU_RANKS=1"), "steps 11-13 of rank 0", "proxy_profiled"),
    ],
)
def test_a_profiled_job_is_another_job_with_a_label_of_its_own(settings, text, label):
    profiled = settings_of("FRAMEWORK=mega", *settings)
    assert profiled.profile == profiled.asked()["profile"] == text
    assert (profiled.label, profiled.results_dir) == (label, profiled.output_dir / label)


def test_primus_leaves_out_the_steps_in_which_it_starts_and_writes():
    profile = settings_of(PRIMUS, "TRAIN_ITERS=11", platform="amd", gpus=8).profiled
    assert list(profile.excluded_by_primus) == [3, 6, 4, 5]


# METHOD=best: each vendor's published recipe, a source beside every line, and the same work on both sides.


def recipe_of(platform, *arguments):
    return load(platform, 8, arguments=["METHOD=best", *arguments], environ={})


@pytest.mark.parametrize("path", sorted(ROOT.glob("config.*-best*.env")), ids=lambda path: path.name)
def test_every_setting_has_its_source_above_it_and_that_of_a_device_changes_the_layout_only(path):
    head, *blocks = path.read_text().split("\n\n")
    keys = re.findall(r"^(\w+)=", path.read_text(), re.MULTILINE)
    assert re.search(r"Source\b.* v\d\S* \(20\d\d-\d\d-\d\d\)", "\n".join(head.splitlines()[:3]))
    assert keys and all(block.startswith("# ") for block in blocks) and not re.search(r"^\w+=", head, re.MULTILINE)
    device = path.stem.partition("-best-")[2]
    if device:  # scripts read all other keys without knowing the GPU
        assert set(keys) <= {"MBS", "TP", "PP", "CP"}
        assert len(re.findall(r"^#.*\n\w+=", "\n\n".join(blocks), re.MULTILINE)) == len(keys), "a source for each"


def test_both_best_tracks_train_the_same_model_on_the_same_work(vendors_image):
    amd, nvd = recipe_of("amd"), recipe_of("nvd")
    assert (amd.sequence_length, amd.global_batch_size, amd.models) == (8192, 128, ("llama",))
    free = {"platform", "frameworks", "micro_batch_size", "gradient_accumulation", "data_parallel_size"}
    free |= {"context_parallel_size"}
    for field in set(amd.__dataclass_fields__) - free:
        assert getattr(amd, field) == getattr(nvd, field), field
    for platform in ("amd", "nvd"):
        of_platform = {device for one, device, *_ in DEVICES if one == platform and device}
        assert set(layers.devices(platform, ROOT)) == of_platform


# micro batch and context parallelism in BF16 on eight GPUs. NVIDIA: Megatron-Bridge v0.6.0,
# llama3_8b_pretrain_8gpu_<device>_bf16_config; AMD: Primus v26.5.1, MI3..X/llama3.1_8B-BF16-pretrain.yaml.
# Without a device, on 8 GPUs: Primus v26.5.1, MI300X/llama3.1_8B-BF16-pretrain.yaml, 128 / (2 x 8) = 8 micro batches;
# dgxc-benchmarking v26.06.01, 8b: CP 2, DP 4, GBS 128, 32 micro batches.
DEVICES = [
    ("nvd", None, 1, 2),
    ("amd", None, 2, 1),
    ("nvd", "H100", 1, 2),
    ("nvd", "H200", 1, 2),
    ("nvd", "B200", 2, 1),
    ("nvd", "GB200", 2, 1),
    ("nvd", "B300", 4, 1),
    ("nvd", "GB300", 4, 1),
    ("amd", "MI300X", 2, 1),
    ("amd", "MI325X", 4, 1),
    ("amd", "MI350X", 4, 1),
    ("amd", "MI355X", 4, 1),
]


@pytest.mark.parametrize(("platform", "device", "micro_batch", "context_parallel"), DEVICES)
def test_each_device_has_the_layout_that_its_vendor_publishes(
    vendors_image, platform, device, micro_batch, context_parallel
):
    found = load(platform, 8, arguments=["METHOD=best"], environ={}, device=device)
    if device is not None:
        assert found == load(platform, 8, arguments=["METHOD=best", f"BEST_DEVICE={device}"], environ={}, device="X1")
        assert plan.unfitting(platform, device, ROOT) is None
    assert (found.best_device, found.frameworks) == (device, {"amd": ("prim",), "nvd": ("nemo",)}[platform])
    assert (found.micro_batch_size, found.context_parallel_size) == (micro_batch, context_parallel)
    assert (found.tensor_parallel_size, found.pipeline_parallel_size, found.global_batch_size) == (1, 1, 128)
    assert found.data_parallel_size == 8 / context_parallel
    assert found.gradient_accumulation == 128 / found.data_parallel_size / micro_batch


def test_a_gpu_that_is_unknown_or_without_a_recipe_gets_the_platforms_and_is_told_so(vendors_image):
    recipe = recipe_of("nvd")
    for device in (None, "A100"):
        found = load("nvd", 8, arguments=["METHOD=best"], environ={}, device=device)
        assert (found.micro_batch_size, found.context_parallel_size) == (1, 2)
        assert found.best_device == device and replace(found, best_device=None) == recipe
    said = "no recipe for A100 is known to be published, so that of H100 and H200"
    assert said in plan.unfitting("nvd", "A100", ROOT) and plan.unfitting("cpu", None, ROOT) is None
    assert "name yours with BEST_DEVICE" in plan.unfitting("nvd", "auto", ROOT)


@pytest.mark.parametrize(("platform", "device"), [("nvd", "MI355X"), ("nvd", "b200")])
def test_a_named_gpu_without_a_recipe_is_an_error_that_names_those_with_one(platform, device):
    with pytest.raises(ConfigError, match=f"BEST_DEVICE={device}: no recipe for it on {platform}; there are "):
        recipe_of(platform, f"BEST_DEVICE={device}")


@pytest.mark.parametrize(
    ("platform", "settings", "fields"),
    [
        ("amd", "MODEL=qwen SL=2048 MBS=10 GBS=640", {"models": ("qwen",), "gradient_accumulation": 8}),
        ("nvd", "BEST_DEVICE=B200 MBS=8", {"micro_batch_size": 8}),
    ],
)
def test_what_a_person_names_comes_before_the_recipe(vendors_image, platform, settings, fields):
    found = recipe_of(platform, *settings.split())
    assert {field: getattr(found, field) for field in fields} == fields
    assert str(found.results_dir).endswith("output/best")
    equal = [load("nvd", 8, arguments=["METHOD=equal"], environ={}, device=device) for device in (None, "B200")]
    assert equal[0] == equal[1], "equal settings know no device"


def test_the_origin_of_a_value_names_the_devices_overlay():
    values = config.values_of("nvd", ["METHOD=best"], {}, device="GB300")
    assert values["MBS"].origin.startswith("config.nvd-best-gb300.env:")
    assert values["SL"].origin.startswith("config.nvd-best.env:")
    assert (values["BEST_DEVICE"].text, values["BEST_DEVICE"].origin) == ("GB300", "GPU of this machine")
