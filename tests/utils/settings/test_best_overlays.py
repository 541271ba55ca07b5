"""METHOD=best: each vendor's published recipe, a source beside every line, and the same work on both sides."""

import importlib.machinery
import importlib.util
import re
from dataclasses import replace

import pytest

from utils.errors import ConfigError
from utils.hardware.devices import SHORT_NAMES
from utils.settings import best as recipes
from utils.settings import combinations
from utils.settings.config import ROOT, load, values_of
from utils.settings.layers import read_file

OVERLAYS = {platform: f"config.{platform}-best.env" for platform in ("amd", "nvd")}


@pytest.fixture
def on_a_vendors_image(monkeypatch):
    """All frameworks can be started, and TransformerEngine is there."""
    monkeypatch.setattr(combinations, "AVAILABLE_FRAMEWORKS", ("mega", "hf", "nemo", "prim"))
    engine = importlib.machinery.ModuleSpec("transformer_engine", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: engine)


def best(platform, *arguments):
    return load(platform, 8, arguments=["METHOD=best", *arguments], environ={})


@pytest.mark.parametrize("platform", OVERLAYS)
def test_every_setting_has_a_line_of_its_source_above_it(platform):
    lines = (ROOT / OVERLAYS[platform]).read_text().splitlines()
    said = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    blocks = {}
    for number in said:
        above = next(place for place in range(number, -1, -1) if lines[place].startswith("#"))
        assert all(lines[place] for place in range(above, number)), f"line {number + 1} stands away from its source"
        blocks[number] = lines[above]
    assert len(blocks) == len(read_file(ROOT / OVERLAYS[platform], OVERLAYS[platform]))
    assert "Source" in "\n".join(lines[:3])


def test_the_recipes_are_the_published_ones(on_a_vendors_image):
    amd, nvd = best("amd"), best("nvd")
    # Primus v26.5.1, MI300X/llama3.1_8B-BF16-pretrain.yaml on 8 GPUs: 128 / (2 x 8) = 8 micro batches
    assert (amd.frameworks, amd.micro_batch_size, amd.context_parallel_size) == (("prim",), 2, 1)
    assert (amd.data_parallel_size, amd.gradient_accumulation) == (8, 8)
    # dgxc-benchmarking v26.06.01, 8b on 8 GPUs: CP 2, DP 4, GBS 128, 32 micro batches
    assert (nvd.frameworks, nvd.micro_batch_size, nvd.context_parallel_size) == (("nemo",), 1, 2)
    assert (nvd.data_parallel_size, nvd.gradient_accumulation) == (4, 32)


def test_both_best_tracks_train_the_same_model_on_the_same_work(on_a_vendors_image):
    amd, nvd = best("amd"), best("nvd")
    assert (amd.sequence_length, amd.global_batch_size, amd.models) == (8192, 128, ("llama",))
    free = {"platform", "frameworks", "micro_batch_size", "gradient_accumulation", "data_parallel_size"}
    free |= {"context_parallel_size"}
    for field in set(amd.__dataclass_fields__) - free:
        assert getattr(amd, field) == getattr(nvd, field), field


def test_what_a_person_names_comes_before_the_recipe(on_a_vendors_image):
    config = best("amd", "MODEL=qwen", "SL=2048", "MBS=10", "GBS=640")
    assert (config.models, config.sequence_length, config.gradient_accumulation) == (("qwen",), 2048, 8)
    assert str(config.results_dir).endswith("output/best")


# micro batch and context parallelism in BF16 on eight GPUs. NVIDIA: Megatron-Bridge v0.6.0,
# llama3_8b_pretrain_8gpu_<device>_bf16_config; AMD: Primus v26.5.1, MI3..X/llama3.1_8B-BF16-pretrain.yaml.
DEVICES = [
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
    on_a_vendors_image, platform, device, micro_batch, context_parallel
):
    found = load(platform, 8, arguments=["METHOD=best"], environ={}, device=device)
    asked = load(platform, 8, arguments=["METHOD=best", f"BEST_DEVICE={device}"], environ={}, device="X1")
    assert found == asked and found.best_device == device
    assert (found.micro_batch_size, found.context_parallel_size) == (micro_batch, context_parallel)
    assert (found.tensor_parallel_size, found.pipeline_parallel_size, found.global_batch_size) == (1, 1, 128)
    assert recipes.unfitting(platform, device, ROOT) is None


def test_the_table_has_every_device_with_a_recipe():
    for platform in ("amd", "nvd"):
        assert {device for one, device, *_ in DEVICES if one == platform} == set(recipes.devices(platform, ROOT))


@pytest.mark.parametrize("path", sorted(ROOT.glob("config.*-best-*.env")), ids=lambda path: path.name)
def test_a_devices_overlay_changes_the_layout_only_and_names_source_and_date(path):
    values, lines = read_file(path, path.name), path.read_text().splitlines()
    assert set(values) and set(values) <= set(recipes.LAYOUT), "scripts read all other keys without knowing the GPU"
    assert re.search(r"Source: .* v\d\S* \(20\d\d-\d\d-\d\d\)", "\n".join(lines[:3]))
    for number, line in enumerate(lines):
        assert not line or line.startswith("#") or lines[number - 1].startswith("# "), (
            f"line {number + 1} has no source"
        )
    device = path.stem.rpartition("-")[2].upper()
    assert device in SHORT_NAMES and device not in recipes.RECIPE_OF["amd"] + recipes.RECIPE_OF["nvd"]


def test_a_gpu_that_is_unknown_or_without_a_recipe_gets_the_platforms_and_is_told_so(on_a_vendors_image):
    recipe = best("nvd")
    for device in (None, "A100"):
        found = load("nvd", 8, arguments=["METHOD=best"], environ={}, device=device)
        assert (found.micro_batch_size, found.context_parallel_size) == (1, 2)
        assert found.best_device == device and replace(found, best_device=None) == recipe
    assert "no recipe for A100 is known to be published, so that of H100 and H200" in recipes.unfitting(
        "nvd", "A100", ROOT
    )
    assert "name yours with BEST_DEVICE" in recipes.unfitting("nvd", "auto", ROOT)
    assert recipes.unfitting("cpu", None, ROOT) is None


@pytest.mark.parametrize(("platform", "device"), [("nvd", "MI355X"), ("nvd", "A100"), ("amd", "B200"), ("nvd", "b200")])
def test_a_named_gpu_without_a_recipe_is_an_error_that_names_those_with_one(platform, device):
    with pytest.raises(ConfigError, match=f"BEST_DEVICE={device}: no recipe for it on {platform}; there are "):
        best(platform, f"BEST_DEVICE={device}")


def test_what_a_person_names_comes_before_the_devices_recipe_and_equal_settings_know_no_device(on_a_vendors_image):
    assert best("nvd", "BEST_DEVICE=B200", "MBS=8").micro_batch_size == 8
    equal = [load("nvd", 8, arguments=["METHOD=equal"], environ={}, device=device) for device in (None, "B200")]
    assert equal[0] == equal[1] and equal[0].micro_batch_size == 1


def test_the_origin_of_a_value_names_the_devices_overlay():
    values = values_of("nvd", ["METHOD=best"], {}, device="GB300")
    assert values["MBS"].origin.startswith("config.nvd-best-gb300.env:")
    assert values["SL"].origin.startswith("config.nvd-best.env:")
    assert (values["BEST_DEVICE"].text, values["BEST_DEVICE"].origin) == ("GB300", "GPU of this machine")
