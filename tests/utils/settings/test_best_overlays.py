"""METHOD=best: each vendor's published recipe, a source beside every line, and the same work on both sides."""

import re
from dataclasses import replace

import pytest
from checkout import ROOT

from utils.errors import ConfigError
from utils.settings import config, layers

load = config.load


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
        assert layers.unfitting(platform, device, ROOT) is None
    assert (found.best_device, found.frameworks) == (device, {"amd": ("prim",), "nvd": ("nemo",)}[platform])
    assert (found.micro_batch_size, found.context_parallel_size) == (micro_batch, context_parallel)
    assert (found.tensor_parallel_size, found.pipeline_parallel_size, found.global_batch_size) == (1, 1, 128)
    assert found.data_parallel_size == 8 / context_parallel
    assert found.gradient_accumulation == 128 / found.data_parallel_size / micro_batch


def test_the_table_has_every_device_with_a_recipe():
    for platform in ("amd", "nvd"):
        named = {device for one, device, *_ in DEVICES if one == platform}
        assert named - {None} == set(layers.devices(platform, ROOT))


def test_a_gpu_that_is_unknown_or_without_a_recipe_gets_the_platforms_and_is_told_so(vendors_image):
    recipe = recipe_of("nvd")
    for device in (None, "A100"):
        found = load("nvd", 8, arguments=["METHOD=best"], environ={}, device=device)
        assert (found.micro_batch_size, found.context_parallel_size) == (1, 2)
        assert found.best_device == device and replace(found, best_device=None) == recipe
    said = "no recipe for A100 is known to be published, so that of H100 and H200"
    assert said in layers.unfitting("nvd", "A100", ROOT)
    assert "name yours with BEST_DEVICE" in layers.unfitting("nvd", "auto", ROOT)
    assert layers.unfitting("cpu", None, ROOT) is None


@pytest.mark.parametrize(("platform", "device"), [("nvd", "MI355X"), ("nvd", "A100"), ("amd", "B200"), ("nvd", "b200")])
def test_a_named_gpu_without_a_recipe_is_an_error_that_names_those_with_one(platform, device):
    with pytest.raises(ConfigError, match=f"BEST_DEVICE={device}: no recipe for it on {platform}; there are "):
        recipe_of(platform, f"BEST_DEVICE={device}")


@pytest.mark.parametrize(
    ("platform", "settings", "fields"),
    [
        (
            *("amd", "MODEL=qwen SL=2048 MBS=10 GBS=640"),
            {"models": ("qwen",), "sequence_length": 2048, "gradient_accumulation": 8},
        ),
        ("nvd", "BEST_DEVICE=B200 MBS=8", {"micro_batch_size": 8}),
        ("nvd", "METHOD=equal", {"micro_batch_size": 1, "best_device": None}),
    ],
)
def test_what_a_person_names_comes_before_the_recipe(vendors_image, platform, settings, fields):
    found = recipe_of(platform, *settings.split())
    assert {field: getattr(found, field) for field in fields} == fields
    assert found.method == "equal" or str(found.results_dir).endswith("output/best")
    equal = [load("nvd", 8, arguments=["METHOD=equal"], environ={}, device=device) for device in (None, "B200")]
    assert equal[0] == equal[1], "equal settings know no device"


def test_the_origin_of_a_value_names_the_devices_overlay():
    values = config.values_of("nvd", ["METHOD=best"], {}, device="GB300")
    assert values["MBS"].origin.startswith("config.nvd-best-gb300.env:")
    assert values["SL"].origin.startswith("config.nvd-best.env:")
    assert (values["BEST_DEVICE"].text, values["BEST_DEVICE"].origin) == ("GB300", "GPU of this machine")
