"""METHOD=best: each vendor's published recipe, a source beside every line, and the same work on both sides."""

import importlib.machinery
import importlib.util

import pytest

from utils.settings import combinations
from utils.settings.config import ROOT, load
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
    # Primus release/v25.10, MI300X/llama3.1_8B-pretrain.yaml on 8 GPUs: 128 / (2 x 8) = 8 micro batches
    assert (amd.frameworks, amd.micro_batch_size, amd.context_parallel_size) == (("prim",), 2, 1)
    assert (amd.data_parallel_size, amd.gradient_accumulation) == (8, 8)
    # dgxc-benchmarking at 85380ff, 8b on 8 GPUs: CP 2, DP 4, GBS 128, 32 micro batches
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
