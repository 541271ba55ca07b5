"""Utilisation is over the dense peak of the precision that ran; a format that a device lacks has no peak."""

from __future__ import annotations

import pytest

from evaluate.metrics.metrics import metrics
from evaluate.metrics.peak import dense_peak, format_of
from tests.support.example import example_result
from utils.hardware.devices import Device, named


def run(precision: str, recipe: str | None = None, read_back: str | None = None) -> dict:
    result = example_result(training_config__precision=precision)
    result["training_config"]["fp8_recipe"], result["resolved_config"]["fp8_recipe"] = recipe, read_back
    return result


def device(name: str) -> Device:
    found = named(name)
    assert found is not None
    return found


# HGX B200: 36, 72 and 144 PFLOPS with sparsity for eight; MI355X: 256 units x 4096, 8192 and 16384 FLOP x 2.4 GHz
@pytest.mark.parametrize(
    ("name", "precision", "recipe", "tflops"),
    [
        ("B200", "bf16", None, 36e3 / 16),
        ("B200", "fp8", None, 72e3 / 16),
        ("B200", "fp8", "delayed", 72e3 / 16),
        ("B200", "fp8", "mxfp8", 72e3 / 16),
        ("B200", "fp8", "nvfp4", 144e3 / 16),
        ("B200", "nvfp4", None, 144e3 / 16),
        ("B200", "bf16", "nvfp4", 36e3 / 16),
        ("MI355X", "bf16", None, 256 * 4096 * 2.4e-3),
        ("MI355X", "fp8", "mxfp4", 256 * 16384 * 2.4e-3),
    ],
)
def test_the_peak_is_that_of_the_format_of_the_products(name, precision, recipe, tflops):
    assert dense_peak(run(precision, recipe), device(name)).value == pytest.approx(tflops, rel=1e-4)


def test_the_recipe_that_ran_counts_and_not_the_one_that_was_asked_for():
    assert format_of(run("fp8", "nvfp4", "delayed")) == "fp8"
    assert dense_peak(run("fp8", "nvfp4", "delayed"), device("B200")).value == 4500
    assert dense_peak(run("fp8", "delayed", "nvfp4"), device("B200")).value == 9000


@pytest.mark.parametrize(
    ("name", "precision", "recipe", "why"),
    [
        ("H100", "fp8", "nvfp4", "NVIDIA H100 SXM 80GB has no fp4"),
        ("MI300X", "mxfp4", None, "AMD Instinct MI300X has no fp4"),
        ("A100", "fp8", None, "NVIDIA A100 SXM 80GB has no fp8"),
        ("B200", "fp32", None, "no dense peak of fp32 is kept"),
    ],
)
def test_a_format_that_a_device_lacks_has_no_peak_and_says_so(name, precision, recipe, why):
    figure = dense_peak(run(precision, recipe), device(name))
    assert figure.value is None and figure.how == why


def test_utilisation_in_four_bits_is_half_of_what_the_fp8_peak_would_make_of_it():
    result = run("fp8", "nvfp4")
    result["gpu_info"] |= {"device_name": "NVIDIA B200", "total_memory_gb": 192.3, "gpu_cores": 18944}
    four, eight = (
        metrics(result),
        metrics(result | {"training_config": {**result["training_config"], "fp8_recipe": None}}),
    )
    assert four["mfu_causal"].value == pytest.approx((eight["mfu_causal"].value or 0) / 2)
    assert "dense fp4 peak of NVIDIA B200 180GB" in four["mfu_causal"].how and "https://" in four["mfu_causal"].how
