"""The record of each framework: what it cannot do is refused, and what it does otherwise is known everywhere."""

import pytest

from utils import frameworks
from utils.errors import ConfigError
from utils.settings import combinations
from utils.settings.config import load

DIVIDED = {  # from the documentation of each framework and the suite's own loops
    "mega": {"TP", "PP", "EP"},
    "prim": {"TP", "PP", "CP", "EP"},
    "hf": set(),
    "nemo": {"TP", "PP", "CP"},  # EP needs a recipe of a mixture of experts, which it has not
    "bridge": {"TP", "PP", "CP", "EP"},
    "titan": {"EP"},
}
OTHERS = {
    "ROUTING=balanced": {"mega", "prim", "bridge", "titan"},
    "PRECISION=fp8": {"mega", "prim", "nemo", "bridge"},
    "OPTIMIZER_STATE=bf16": {"mega", "hf"},
    "GRADIENT_DTYPE=bf16": {"mega", "prim", "hf", "nemo", "bridge"},
    "LAYERS=local": {"mega", "prim", "hf", "nemo", "titan"},
}
"""Settings, and the frameworks that can take them on a GPU."""
OF_EXPERTS = ("EP", "ROUTING")


def takes(name, setting, monkeypatch):
    monkeypatch.setattr(combinations, "_is_installed", lambda package: True)
    platform = frameworks.FRAMEWORKS[name].vendor or "nvd"
    model = "qwen3moe" if setting.startswith(OF_EXPERTS) else "llama"
    try:
        load(platform, 8, arguments=[f"FRAMEWORK={name}", f"MODEL={model}", setting], environ={})
    except ConfigError as error:
        assert name in str(error)
        return False
    return True


@pytest.mark.parametrize("size", ["TP", "PP", "CP", "EP"])
@pytest.mark.parametrize("name", frameworks.FRAMEWORKS)
def test_a_parallel_size_is_refused_where_the_framework_has_no_such_parallelism(name, size, monkeypatch):
    assert takes(name, f"{size}=2", monkeypatch) is (size in DIVIDED[name])


@pytest.mark.parametrize("setting", OTHERS)
@pytest.mark.parametrize("name", frameworks.FRAMEWORKS)
def test_a_value_is_refused_where_the_framework_does_not_have_it(name, setting, monkeypatch):
    assert takes(name, setting, monkeypatch) is (name in OTHERS[setting])


def test_the_refusal_names_the_settings_and_who_can_take_them(monkeypatch):
    monkeypatch.setattr(combinations, "_is_installed", lambda package: True)
    with pytest.raises(ConfigError, match="CP=2 FRAMEWORK=mega: mega cannot divide .* one of prim, nemo, bridge"):
        load("nvd", 8, arguments=["FRAMEWORK=mega", "CP=2"], environ={})


def test_a_setting_of_one_framework_is_read_by_that_one_and_any_other_setting_by_all():
    assert [name for name in frameworks.FRAMEWORKS if frameworks.reads(name, "layers")] == ["mega"]
    assert [name for name in frameworks.FRAMEWORKS if frameworks.reads(name, "hf_kernels")] == ["hf"]
    assert all(frameworks.reads(name, "recompute") for name in (*frameworks.FRAMEWORKS, "another"))


def test_a_framework_that_the_suite_does_not_know_has_no_special_fact():
    record = frameworks.of("another")
    assert not record.starts_its_ranks and not record.ignores_init and record.log_lacks == record.built_from == ()
