"""NeMo's call of megatron-core's optimizer is taken by releases with and without its three conditions."""

from types import SimpleNamespace

import pytest

from train.nemo.optimizer import accept_conditions
from utils.errors import ConfigError

CALL = {"no_weight_decay_cond": None, "scale_lr_cond": None, "lr_mult": 1.0, "use_gloo_process_groups": True}
"""What nemo_toolkit 2.3.3 and 2.7.0 pass by name."""


def before(config, chunks, no_weight_decay_cond=None, scale_lr_cond=None, lr_mult=1.0, use_gloo_process_groups=True):
    return "0.12", config, chunks, use_gloo_process_groups


def after(config, chunks, config_overrides=None, use_gloo_process_groups=True):
    return "0.16", config, chunks, use_gloo_process_groups


@pytest.mark.parametrize("release", [before, after], ids=["0.12", "0.16"])
def test_nemos_call_is_taken_also_after_a_second_time(release):
    core = SimpleNamespace(get_megatron_optimizer=release)
    accept_conditions(core)
    accept_conditions(core)
    assert core.get_megatron_optimizer("c", "m", **CALL)[1:] == ("c", "m", True)


def test_a_release_that_takes_the_conditions_is_left_as_it_is():
    core = SimpleNamespace(get_megatron_optimizer=before)
    accept_conditions(core)
    assert core.get_megatron_optimizer is before


@pytest.mark.parametrize("condition", [{"no_weight_decay_cond": str}, {"scale_lr_cond": str}, {"lr_mult": 2.0}])
def test_a_condition_that_would_be_lost_is_an_error(condition):
    core = SimpleNamespace(get_megatron_optimizer=after)
    accept_conditions(core)
    with pytest.raises(ConfigError, match="has a condition set"):
        core.get_megatron_optimizer("c", "m", **{**CALL, **condition})
