"""The settings map has a column for Megatron-Bridge with an entry for each row, and no value that differs unnamed."""

import pytest

from tests.train.settings_map.test_rows import made
from train.settings_map.bridge_column import COLUMN
from train.settings_map.environment_rows import ENVIRONMENT
from train.settings_map.map import ROWS, differences, environment, overrides
from train.settings_map.row import Override


def test_each_row_has_an_entry():
    assert {row.name for row in (*ROWS, *ENVIRONMENT)} <= set(COLUMN)


def test_each_value_that_is_read_back_is_set_or_fixed_at_what_is_asked():
    assert differences("bridge", *made()) == {}


@pytest.mark.parametrize("model", ["llama", "qwen", "mistral"])
def test_the_learning_rate_of_step_1_is_set_and_no_default_of_the_recipe_is_left(model):
    said = overrides("bridge", *made("nvd", "LR=3e-4", "WARMUP_ITERS=2", model=model))
    assert said["scheduler.lr_warmup_init"] == pytest.approx(1e-4)
    # megatron-bridge 0.6.2: _pretrain_common and llama31_8b_pretrain_2gpu_h100_bf16_config have other values of these
    assert (said["rng.seed"], said["optimizer.min_lr"], said["scheduler.start_weight_decay"]) == (42, 0.0, 0.1)
    assert said["model.cross_entropy_fusion_impl"] == "native" and said["model.context_parallel_size"] == 1


def test_window_is_w_minus_one_to_the_left_and_nvidias_variables_are_those_of_nemo():
    assert overrides("bridge", *made(model="mistral"))["model.window_size"] == [4095, 0]
    assert overrides("bridge", *made())["model.window_size"] is None
    assert environment("bridge", *made("nvd", "TP=2")) == environment("nemo", *made("nvd", "TP=2"))


def test_a_key_is_set_before_the_keys_below_it():
    said = list(overrides("bridge", *made()))
    assert said.index("mixed_precision") < said.index("mixed_precision.grad_reduce_in_fp32")


def test_fp8_goes_into_the_precision_that_bridge_copies_over_the_model():
    assert isinstance(COLUMN["fp8 recipe"], Override)
    assert COLUMN["fp8 recipe"].keys == ("mixed_precision.fp8_recipe",)
