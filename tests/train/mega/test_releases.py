"""The releases of megatron-core differ in names and forms only: mega trains the same numbers with each.

The forms of both releases are written down here, so that either is tested with the one that is installed. The last test
trains with both: Megatron-Bridge's environment has another release.
"""

import functools
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
from toydata import write_toy_data

from tests.support.frameworks import assert_same_work, case, python_of, train
from train.mega import releases
from train.nemo.optimizer import accept_conditions
from utils.errors import ConfigError

BOUND = 1e-6
"""Largest relative difference of a loss or gradient norm. Measured: none at all, 22 November 2026, on x86-64."""
VERSION = "import importlib.metadata as m; print(m.version('megatron-core'))"


@pytest.mark.parametrize("name", ["get_main_grads_for_grad_norm", "get_grads_for_grad_norm"])
def test_the_gradients_of_the_norm_are_found_by_either_name(name):
    assert releases.gradients_of_norm(SimpleNamespace(**{name: lambda: ["a gradient"]})) == ["a gradient"]
    with pytest.raises(AttributeError, match="get_main_grads_for_grad_norm"):
        releases.gradients_of_norm(SimpleNamespace())


@pytest.mark.parametrize("is_partial", [False, True], ids=["0.16", "0.19"])
def test_the_parts_of_the_mlp_are_those_that_the_layer_is_built_from(is_partial):
    parts = SimpleNamespace(linear_fc1="first", linear_fc2="second")
    mlp = functools.partial(dict, submodules=parts) if is_partial else SimpleNamespace(submodules=parts)
    releases.mlp_parts(SimpleNamespace(submodules=SimpleNamespace(mlp=mlp))).linear_fc1 = "ours"
    assert (mlp()["submodules"] if is_partial else mlp.submodules).linear_fc1 == "ours"


@pytest.mark.parametrize("appended", [(), ("gtp_remat_size",)], ids=["0.16", "0.19"])
def test_a_linear_layer_gets_its_values_in_the_order_of_the_installed_release(monkeypatch, appended):
    order = (*releases.linear_settings()[:7], *appended)
    assert order[:7] == (
        *("bias", "gradient_accumulation_fusion", "allreduce_dgrad", "sequence_parallel"),
        *("grad_output_buffer", "wgrad_deferral_limit", "tp_group"),
    )
    monkeypatch.setattr(releases, "linear_settings", lambda: order)
    settings = {name: name.upper() for name in reversed(order) if name != "wgrad_deferral_limit"}
    wanted = tuple(None if name == "wgrad_deferral_limit" else name.upper() for name in order)
    assert releases.linear_values(settings) == wanted


def test_only_the_known_messages_are_silenced(caplog):
    releases.silence_known_messages()
    for name, beginning in releases.KNOWN_MESSAGES.items():
        logging.getLogger(name).warning("%s. Please read on", beginning)
        logging.getLogger(name).warning("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"] * len(releases.KNOWN_MESSAGES)


CALL = {"no_weight_decay_cond": None, "scale_lr_cond": None, "lr_mult": 1.0, "use_gloo_process_groups": True}
"""What nemo_toolkit 2.3.3 and 2.7.0 pass to megatron-core's function that builds the optimizer, by name."""


def of_0_12(config, chunks, no_weight_decay_cond=None, scale_lr_cond=None, lr_mult=1.0, use_gloo_process_groups=True):
    return config, chunks, use_gloo_process_groups


def of_0_16(config, chunks, config_overrides=None, use_gloo_process_groups=True):
    return config, chunks, use_gloo_process_groups


@pytest.mark.parametrize("release", [of_0_12, of_0_16])
def test_nemos_call_of_the_optimizer_is_taken_by_releases_with_and_without_its_conditions(release):
    core = SimpleNamespace(get_megatron_optimizer=release)
    for _ in range(2):
        accept_conditions(core)
        assert core.get_megatron_optimizer("c", "m", **CALL) == ("c", "m", True)
    assert (core.get_megatron_optimizer is release) == (release is of_0_12)


@pytest.mark.parametrize("condition", [{"no_weight_decay_cond": str}, {"scale_lr_cond": str}, {"lr_mult": 2.0}])
def test_a_condition_that_would_be_lost_is_an_error(condition):
    core = SimpleNamespace(get_megatron_optimizer=of_0_16)
    accept_conditions(core)
    with pytest.raises(ConfigError, match="has a condition set"):
        core.get_megatron_optimizer("c", "m", **CALL | condition)


@pytest.mark.full("mega with another release of megatron-core, about 20 s and the environment of Megatron-Bridge")
def test_mega_trains_the_same_numbers_with_both_releases(tmp_path):
    other = python_of("bridge")
    versions = [subprocess.check_output([python, "-c", VERSION]) for python in (sys.executable, other)]
    if versions[0] == versions[1]:
        pytest.skip(f"{other} has the same megatron-core as this Python")
    prefix = write_toy_data(tmp_path / "toy" / "text")
    here, there = (
        train("mega", {"qwen": case("qwen")}, tmp_path / name, prefix, python=python)["qwen"]
        for name, python in (("here", sys.executable), ("there", other))
    )
    assert_same_work(there, here, (BOUND, BOUND))
    assert there.ok["learning_rates"] == here.ok["learning_rates"]
