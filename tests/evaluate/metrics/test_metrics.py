"""Metrics reproduce published figures, name their formulas and sources, and are None with a reason if unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sides import both

from evaluate.metrics import figures, metrics, prices
from example import example_result

EIGHT_H100 = {"device_name": "NVIDIA H100 80GB HBM3", "total_memory_gb": 85.0, "gpu_cores": 16896, "device_count": 8}


def measured(step_seconds: float, steps: int = 50, **changes: Any) -> dict[str, Any]:
    """Return a run of Llama 3.1 8B with steps of equal length, on eight H100 by default."""
    config = {"max_steps": steps, "global_batch_size": 128, "sequence_length": 8192, "num_gpus": 8, "precision": "bf16"}
    known = {f"gpu_info__{key}": value for key, value in EIGHT_H100.items()} | both(**config)
    known |= {"resolved_config__num_layers": 32, "resolved_config__vocab_size": 128256, "model_size": "full"}
    known |= dict.fromkeys(("data_wait_seconds", "grad_norms", "learning_rates"), [0.0] * steps)
    known |= {"steps": list(range(1, steps + 1)), "step_times": [step_seconds] * steps}
    known["loss_values"] = [8.0 - 0.1 * step for step in range(steps)]
    return example_result(platform="nvd", **known | changes)


@pytest.mark.parametrize(
    ("seconds", "precision", "wanted"),
    [
        # DGX Cloud benchmarking, Llama 3.1 8B, GBS 128, SL 8192, 8 H100: 12.27 s a step
        (
            12.27,
            "bf16",
            {
                "tokens_per_second_per_gpu": pytest.approx(10_682, abs=1),
                "mfu_causal": pytest.approx(55.6, abs=0.05),
                "mfu_full": pytest.approx(62.5, abs=0.05),
                "model_tflops_causal": pytest.approx(550, abs=0.5),
            },
        ),
        # Megatron Bridge 25.11: 14,451 tokens/s/GPU are 744 TFLOP/s; their share is of the FP8 peak
        (
            128 * 8192 / 8 / 14_451,
            "fp8",
            {"model_tflops_causal": pytest.approx(744, abs=0.5), "mfu_causal": pytest.approx(37.6, abs=0.05)},
        ),
    ],
)
def test_published_figures_come_out(seconds: float, precision: str, wanted: dict[str, Any]) -> None:
    found = metrics.metrics(measured(seconds, training_config__precision=precision))
    assert {key: found[key].value for key in wanted} == wanted


@pytest.mark.parametrize(
    ("sequence_length", "causal", "full"), [(2048, 46.639, 48.249), (4096, 48.249, 51.470), (8192, 51.470, 57.913)]
)
def test_flops_a_token_of_llama(sequence_length: int, causal: float, full: float) -> None:
    result = measured(1.0, training_config__sequence_length=sequence_length)
    found = [metrics.flops_per_token(result, causal=is_causal) for is_causal in (True, False)]
    assert [figure.value for figure in found] == pytest.approx([causal * 1e9, full * 1e9], rel=2e-5)
    assert [figure.how for figure in found] == ["6N+causal_attention/v1", "6N+full_attention/v1"]


def test_a_device_that_is_not_known_has_no_peak_and_no_price() -> None:
    found = metrics.metrics(measured(12.27, gpu_info__device_name="NVIDIA H900"), prices=prices.load())
    assert found["mfu_causal"].value is None
    assert found["mfu_causal"].how == "NVIDIA H900 is not known here, so it has no peak; no other chip's is taken"
    assert found["tokens_per_dollar"].value is None and "pass one with --prices" in found["tokens_per_dollar"].how


@pytest.mark.parametrize("result", [measured(12.27), example_result()])
def test_every_named_metric_has_a_unit_and_a_formula_or_a_reason(result: dict[str, Any]) -> None:
    found = metrics.metrics(result)
    named = {key for keys in figures.NAMES.values() for key in keys}
    assert found.keys() == named - {"fullest_expert"}, "the routers of a dense model have no experts"
    assert all(figure.how and figure.unit for figure in found.values()), found
    assert not [name for name in found if "core" in name], "cores of different vendors are different things"


def test_a_run_without_a_steady_step_has_one_figure_with_its_reason() -> None:
    found = metrics.metrics(example_result(status="failed", reason="it broke", step_times=[]))
    assert found == {"step_time": figures.unknown("s", "the run is failed: it broke")}


def test_energy_is_measured_or_a_bound_that_says_so() -> None:
    found = metrics.metrics(measured(12.27))
    assert found["tokens_per_joule"] == figures.Figure(None, "tokens/J", "not measured: not measured")
    # 10,682 tokens/s/GPU at no more than 700 W
    bound = found["tokens_per_joule_at_board_power"]
    assert bound.value == pytest.approx(10_682 / 700, rel=1e-4) and bound.how.startswith("at least")
    known = {"joules": 1e6, "avg_watts": 650.0, "joules_per_token": 0.05, "source": "NVML counter"}
    found = metrics.metrics(measured(12.27, energy_metrics=known | {"interval": "steady steps", "reasons": {}}))
    # 0.05 J x 1e12 tokens = 5e10 J; 1 MWh = 1e6 W x 3,600 s = 3.6e9 J
    whole = found["energy_of_1T_tokens"]
    values = [found[name].value for name in ("tokens_per_joule", "tokens_per_watt_hour", "energy_of_1T_tokens")]
    assert (values, whole.unit) == (pytest.approx([20.0, 72_000.0, 13.8889], rel=1e-5), "MWh")
    assert all("not the wall" in one.how for one in (found["tokens_per_joule"], whole))


def test_cost_by_hand() -> None:
    table = prices.load()
    price, rate = table["NVIDIA H100 SXM 80GB"], 128 * 8192 / 12.27
    found = metrics.metrics(measured(12.27), prices=table)
    cost = 1e12 / rate / 3600 * 8 * price.amount
    wanted = {
        "tokens_per_dollar": rate * 3600 / (8 * price.amount),
        **{"cost_of_1T_tokens": cost, "cost_of_15T_tokens": 15 * cost, "time_to_1T_tokens": 1e12 / rate / 86_400},
    }
    assert {name: found[name].value for name in wanted} == pytest.approx(wanted)
    assert price.source in found["cost_of_1T_tokens"].how and price.date in found["cost_of_1T_tokens"].how


NO_PRICE = "price of AMD Instinct MI300X: got .*, wanted a number from 0.0001"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *(
            (
                json.dumps(
                    {
                        "currency": "USD",
                        "prices": {"AMD Instinct MI300X": {"price": price, "date": "2026-05-18", "source": "somebody"}},
                    }
                ),
                NO_PRICE,
            )
            for price in (1e-310, 1e-5, 1e10, 1e300, -1.0, True, "1", None, [1])
        ),
        ("{", "wanted"),
        ('{"prices": {}}', "currency"),
        ('{"currency": "USD", "prices": {"X": {"price": "3", "date": "", "source": ""}}}', "price of X: got '3'"),
        ('{"currency": "USD", "prices": {"X": {"price": 1, "date": ""}}}', "source"),
    ],
)
def test_a_price_table_that_cannot_be_used_is_named(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "prices.json").write_text(content)
    with pytest.raises(prices.PriceError, match=said) as raised:
        prices.load(tmp_path / "prices.json")
    assert str(tmp_path) in str(raised.value)


def test_time_to_mlperfs_target_only_where_its_points_apply() -> None:
    # 344,747 samples at GBS 128, 8 GPUs at 10,682 tokens/s: 344747 x 8192 / 85457 s
    found = metrics.metrics(measured(12.27))["time_to_mlperf_target"]
    assert found.value == pytest.approx(344_747 * 8192 / (128 * 8192 / 12.27) / 60)
    for changes in (
        {"training_config__sequence_length": 2048},
        {"training_config__global_batch_size": 256},
        {"training_config__precision": "fp8"},
    ):
        assert metrics.metrics(measured(12.27, **changes))["time_to_mlperf_target"].value is None


def test_spread_between_steps() -> None:
    found = metrics.metrics(measured(1.0, steps=40, step_times=[5.0, 2.0, 1.0, 1.0] + [1.0, 1.2] * 18))
    values = [found[f"step_time_{name}"].value for name in ("median", "min", "max")]
    assert values == pytest.approx([1.1, 1.0, 1.2])
    assert found["step_time_cv"].value == pytest.approx(100 * 0.1014 / 1.1, rel=0.01)
    assert "36 steady steps" in found["step_time_mean"].how


def figure(value: float, how: str = "how") -> figures.Figure:
    return figures.Figure(value, "s", how)


NO_SENSOR = figures.unknown("s", "no sensor")
WAYS = [f"mean of {count} steady steps (6N/v1, 0.5 W, 2026-01-0{count % 3})" for count in (36, 12, 24)]


@pytest.mark.parametrize(
    ("of_runs", "combined"),
    [
        ([figure(1.0), figure(9.0), figure(2.0)], figure(2.0)),
        (
            [figure(1.0), NO_SENSOR, None],
            figure(1.0, f"how; unknown in 2 of 3 runs: no sensor; {figures.NOT_WORKED_OUT}"),
        ),
        ([NO_SENSOR, NO_SENSOR], NO_SENSOR),
        # formulas that differ in whole numbers only are one
        ([figure(1.0, how) for how in WAYS], figure(1.0, "mean of 12 to 36 steady steps (6N/v1, 0.5 W, 2026-01-00)")),
        (
            [figure(1.0, "mean of 3 {} steps"), figure(1.0, "median of 3 {} steps")],
            figure(1.0, "mean of 3 {} steps; or median of 3 {} steps"),
        ),
    ],
)
def test_a_figure_is_the_median_over_runs_and_keeps_the_reason_of_an_unknown(
    of_runs: list[figures.Figure | None], combined: figures.Figure
) -> None:
    assert figures.combined(of_runs) == combined
