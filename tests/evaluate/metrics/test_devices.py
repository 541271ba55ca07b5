"""What a device can do: its peak in the format that ran, the parts of a board, and the micro batch that would fit."""

from __future__ import annotations

from typing import Any

import pytest
from sides import both, put, run

from evaluate.metrics import capacity, metrics, partition, prices, published
from example import example_result
from utils.hardware import devices

SETTINGS = {
    "sequence_length": 2048,
    "global_batch_size": 128,
    "micro_batch_size": 1,
    "gradient_accumulation": 16,
    "num_gpus": 8,
    "dp": 8,
    "precision": "bf16",
}
PARAMETERS = 8_030_261_248
"""Llama 3.1 8B, by its model card's configuration."""
STATES_GB = PARAMETERS * (2 + 4 + 10 / 8) / 1e9
"""Bytes a parameter of megatron-core with the distributed optimizer over eight ranks: bf16 weight, fp32 gradient, and
an eighth of 16 bits that complete the fp32 weight and of two fp32 moments. 58.2 GB."""


def llama(peak_gb: float | None, **changes: Any) -> dict[str, Any]:
    result = run("nvd", 1, 1.0, model_size="full", framework="mega")
    return put(result, both(**SETTINGS) | {"memory_metrics__peak_memory_allocated_gb": peak_gb} | changes)


def test_what_the_peak_has_beyond_the_states_grows_with_the_micro_batch() -> None:
    # 4 GB a sequence; 0.95 x 85 GB - 58.2 GB = 22.5 GB hold 5 of them; of 16 a rank, 4 divides
    found = capacity.micro_batch_that_would_fit(llama(STATES_GB + 4.0))
    assert found.value == 4.0 and found.unit == "sequences"
    assert found.how.startswith("estimate from one run: (80.75 of 85 GB - 58.2 GB of weights, gradients and bf16")
    assert "/ 4 GB a sequence, a divisor of the 16 sequences of a rank" in found.how


@pytest.mark.parametrize(
    ("a_sequence_gb", "size", "expected"),
    [(0.5, 1, 16.0), (9.0, 1, 2.0), (15.0, 1, 1.0), (24.0, 1, 1.0), (4.0, 2, 4.0)],
)
def test_it_is_at_most_all_sequences_of_a_rank_and_never_below_what_ran(
    a_sequence_gb: float, size: int, expected: float
) -> None:
    """A run at a larger micro batch says the same."""
    result = llama(STATES_GB + size * a_sequence_gb, **both(micro_batch_size=size, gradient_accumulation=16 // size))
    assert capacity.micro_batch_that_would_fit(result).value == expected


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (llama(None), "not in the result: peak memory"),
        (llama(70.0, gpu_info__total_memory_gb=None), "not in the result: memory of the device"),
        (llama(70.0, training_config__tp=None), "not in the result: tp"),
        (llama(57.0), "the peak of 57 GB is not above the 58.2 GB that weights and states should take"),
        (llama(70.0) | {"framework": "nemo"}, "the memory of nemo's states has no formula yet"),
        (llama(70.0) | {"model": "gpt"}, "gpt"),
    ],
)
def test_what_one_run_does_not_tell_is_unknown_for_its_reason(result: dict[str, Any], said: str) -> None:
    found = capacity.micro_batch_that_would_fit(result)
    assert found.value is None and said in found.how


def test_capacity_of_a_device_or_of_one_that_is_not_known() -> None:
    found = capacity.capacity(devices.named("H200"))
    assert [found[name].value for name in ("bf16 training", "fp8 weights")] == pytest.approx(
        [150.754820 / 18, 150.754820]
    )  # 143,771 MiB
    without = capacity.capacity(devices.named("A100"))["fp8 weights"]
    assert (without.value, without.how) == (None, "NVIDIA A100 SXM 80GB has no fp8")
    unknown = capacity.capacity(None, "NVIDIA H900")
    assert set(unknown) == set(found) and all(one.value is None for one in unknown.values())
    assert all(one.how.startswith("NVIDIA H900 is not known") for one in unknown.values())


def test_every_device_with_a_price_or_a_published_figure_is_one_that_is_known() -> None:
    assert {*prices.load(), *(one.device for one in published.table())} <= {one.name for one in devices.DEVICES}


H100, MI300X = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"


def kind(name: str | None, memory: float | None = None, cores: int | None = None, mode: str | None = None) -> Any:
    info = {"device_name": name, "total_memory_gb": memory, "gpu_cores": cores}
    return partition.kind_of({"gpu_info": info, "conditions": {"partition": mode}})


@pytest.mark.parametrize(
    ("found", "parts", "text"),
    [
        # 192 GiB in eight parts are 24 GiB, 25.77e9 bytes, and 304 compute units of 64 are 38 in each
        (kind(MI300X, 25.77, 2432), 8, "1/8 of a device"),
        (kind(MI300X, 206.0, None, "CPX/NPS1"), 8, "CPX/NPS1, 1/8 of a device"),
        (kind(MI300X, 103.1, 9728, "DPX/NPS2"), 2, "DPX/NPS2, 1/2 of a device"),
        (kind(MI300X, 51.5), 4, "1/4 of a device"),
        (kind(MI300X, 12.0), None, "part of a device"),
        (kind(f"{H100} MIG 1g.10gb", 10.2, 2048), 8, "MIG 1g.10gb, 1/8 of a device"),
        (kind(f"{H100} MIG 3g.40gb", 42.4), 2, "MIG 3g.40gb, 1/2 of a device"),
        (kind(H100, 85.0, 16896, "Enabled"), None, "MIG, part of a device"),
        (kind(f"{MI300X} VF", 25.77), 8, "1/8 of a device"),
    ],
)
def test_a_partition_is_found(found: Any, parts: int | None, text: str) -> None:
    assert (found.parts, found.text, found.is_whole) == (parts, text, False)


@pytest.mark.parametrize(
    "found",
    [
        kind(MI300X, 206.0, 19456, "SPX/NPS1"),
        kind(MI300X, 191.98),  # GiB that a log calls GB
        kind(f"{MI300X} VF", 206.0),
        kind(H100, 85.0, 16896, "Disabled"),
        kind(H100, 79.1, 132),  # multiprocessors in place of cores
        kind(H100),
        kind("NVIDIA H200", 150.1),
        kind("Example CPU", 24.0),
        kind(None),
    ],
)
def test_a_whole_device_is_whole(found: Any) -> None:
    assert (found.parts, found.text) == (1, "")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (kind(MI300X, 206.1), kind(f"{MI300X} OAM", 205.9), True),
        (kind(MI300X, 25.77), kind(MI300X, 25.6), True),
        (kind(H100, 85.0), kind("NVIDIA H100 PCIe", 85.0), False),
        (kind(MI300X, 206.0, None, "SPX/NPS4"), kind(MI300X, 206.0, None, "SPX/NPS1"), False),
    ],
)
def test_another_product_or_memory_mode_is_another_kind_and_another_name_is_not(
    one: Any, other: Any, is_same: bool
) -> None:
    assert (one == other, one.is_whole) == (is_same, other.is_whole)


def test_one_die_of_a_board_is_named_as_such() -> None:
    assert kind("AMD Instinct MI250X", 68.7).text == "one of 2 dies"


# HGX B200: 36, 72 and 144 PFLOPS with sparsity for eight; MI355X: 256 units x 4096, 8192 and 16384 FLOP x 2.4 GHz
@pytest.mark.parametrize(
    ("name", "precision", "recipes", "tflops"),
    [
        ("B200", "bf16", (), 36e3 / 16),
        ("B200", "fp8", (), 72e3 / 16),
        ("B200", "fp8", ("delayed",), 72e3 / 16),
        ("B200", "fp8", ("mxfp8",), 72e3 / 16),
        ("B200", "fp8", ("nvfp4",), 144e3 / 16),
        ("B200", "fp8", ("nvfp4", "delayed"), 72e3 / 16),  # the second ran, whatever was asked for
        ("B200", "fp8", ("delayed", "nvfp4"), 144e3 / 16),
        ("B200", "nvfp4", (), 144e3 / 16),
        ("B200", "bf16", ("nvfp4",), 36e3 / 16),
        ("MI355X", "bf16", (), 256 * 4096 * 2.4e-3),
        ("MI355X", "fp8", ("mxfp4",), 256 * 16384 * 2.4e-3),
        ("H100", "fp8", ("nvfp4",), "NVIDIA H100 SXM 80GB has no fp4"),
        ("MI300X", "mxfp4", (), "AMD Instinct MI300X has no fp4"),
        ("A100", "fp8", (), "NVIDIA A100 SXM 80GB has no fp8"),
        ("B200", "fp32", (), "no dense peak of fp32 is kept"),
    ],
)
def test_the_peak_is_that_of_the_format_of_the_products_or_says_that_there_is_none(name, precision, recipes, tflops):
    asked, ran = (*recipes, None, None)[:2]
    formats = {"training_config__precision": precision, "training_config__fp8_recipe": asked}
    result = example_result(**formats, resolved_config__fp8_recipe=ran)
    found = partition.dense_peak(result, devices.named(name))
    assert (found.value or found.how) == (tflops if isinstance(tflops, str) else pytest.approx(tflops, rel=1e-4))


def test_utilisation_in_four_bits_is_half_of_what_the_fp8_peak_would_make_of_it():
    b200 = {"gpu_info__device_name": "NVIDIA B200", "gpu_info__total_memory_gb": 192.3, "gpu_info__gpu_cores": 18944}
    b200["resolved_config__fp8_recipe"] = None
    recipes = ({"training_config__precision": "fp8", "training_config__fp8_recipe": one} for one in ("nvfp4", None))
    four, eight = (metrics.metrics(example_result(**recipe, **b200))["mfu_causal"] for recipe in recipes)
    assert four.value == pytest.approx((eight.value or 0) / 2)
    assert "dense fp4 peak of NVIDIA B200 180GB" in four.how and "https://" in four.how
