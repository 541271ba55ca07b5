"""The saving of one side over the other agrees with rates and prices computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from sides import entry, run

from evaluate import compare as compare_command
from evaluate.checks.entries import Loaded
from evaluate.metrics.prices import Price
from evaluate.report import text as report
from evaluate.report.comparison import as_json, compare
from evaluate.verdict import verdicts

TABLE = {
    "NVIDIA H100 SXM 80GB": Price(3.0, "USD", "2026-01-01", "a"),
    "AMD Instinct MI300X": Price(1.8, "USD", "2026-01-01", "b"),
}
TOKENS_A_STEP = 64 * 128
"""GBS x SL of tests/support/sides.py, on 8 GPUs; a step takes 1 s on nvd and 1.2 s on amd, give or take 0.2 %."""


def compared(prices=TABLE, amd_seconds=1.2, **options):
    results = [run("nvd", n) for n in (1, 2)] + [run("amd", n, amd_seconds) for n in (1, 2)]
    loaded = Loaded(tuple(map(entry, results)), ())
    return compare(loaded, [Path("output")], "platform", "nvd", price_table=prices, **options)


def test_costs_and_saving_follow_from_rates_and_prices():
    assert run()["training_config"]["sequence_length"] == 128
    comparison = compared()
    (judged,) = comparison.judged
    found = judged.saving
    # 1e12 tokens / 8,192 a step x seconds a step x 8 GPUs x dollars an hour / 3600
    nvd, amd = (1e12 / TOKENS_A_STEP * seconds * 8 * price / 3600 for seconds, price in ((1.0, 3.0), (1.2, 1.8)))
    assert found.cost_a.value == pytest.approx(nvd, rel=0.005)
    assert found.cost_b.value == pytest.approx(amd, rel=0.005)
    assert found.saved.value == pytest.approx(found.cost_a.value - found.cost_b.value, rel=1e-12)
    assert found.percent.value == pytest.approx(28, abs=0.6)  # 1 - 1.2 x 1.8 / 3
    # one price 25 % up, the other 25 % down: 1 - 0.72 x 1.25 / 0.75 and 1 - 0.72 x 0.75 / 1.25
    assert found.percent_range == pytest.approx((-20, 56.8), abs=1)
    assert "AMD Instinct MI300X saves" in report.markdown(comparison)
    assert judged.money_lines[0].startswith("1 trillion tokens cost ")
    (said,) = as_json(comparison)["verdicts"]
    assert said["saving"]["tokens"] == 1e12 and said["saving"]["saved"]["unit"] == "USD"


def test_the_budget_scales_costs_and_not_the_share():
    one, many = (compared(token_budget=tokens).judged[0].saving for tokens in (1e12, 15e12))
    assert many.cost_b.value == pytest.approx(15 * one.cost_b.value, rel=1e-12)
    assert "15 trillion tokens" in many.sentence("a", "b")
    assert many.percent.value == pytest.approx(one.percent.value, rel=1e-12)


def test_the_dearer_side_is_said_to_cost_more():
    (judged,) = compared(amd_seconds=2.0).judged  # 2.0 x 1.8 against 3.0: a fifth more
    assert judged.saving.percent.value == pytest.approx(-20, abs=1)
    assert "AMD Instinct MI300X costs more:" in judged.money_lines[0] and ", 20 %; -" in judged.money_lines[0]


def test_without_a_price_nothing_is_said_and_the_reason_stands_in_the_json():
    (judged,) = compared({"NVIDIA H100 SXM 80GB": TABLE["NVIDIA H100 SXM 80GB"]}).judged
    assert judged.money_lines == []
    assert judged.saving.saved.value is None and "no price of AMD Instinct MI300X" in judged.saving.saved.how
    assert verdicts.as_json(judged)["saving"]["percent_range"] is None


def test_what_cannot_be_compared_saves_nothing():
    results = [run("nvd"), run("amd", resolved_config__qkv_bias=True)]
    loaded = Loaded(tuple(map(entry, results)), ())
    (judged,) = compare(loaded, [Path("output")], "platform", "nvd", price_table=TABLE).judged
    assert judged.word == "not_comparable" and judged.saving is None


@pytest.mark.parametrize("text", ["0", "-1e12", "nan", "inf", "many"])
def test_a_budget_that_is_none_is_one_line(text, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        compare_command.main([str(tmp_path), f"--token-budget={text}"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1
