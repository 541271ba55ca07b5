"""The saving of one side over the other agrees with rates and prices computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sides import one_verdict, runs

PRICES = {"NVIDIA H100 SXM 80GB": 3.0, "AMD Instinct MI300X": 1.8}
TOKENS_A_STEP = 64 * 128
"""GBS x SL of tests/support/sides.py, on 8 GPUs; a step takes 1 s on nvd and 1.2 s on amd, give or take 0.2 %."""


def verdict(folder: Path, *options: str, prices: dict[str, float] = PRICES, seconds: float = 1.2, **amd: Any) -> Any:
    rows = {name: {"price": price, "date": "2026-01-01", "source": "our contract"} for name, price in prices.items()}
    folder.mkdir(exist_ok=True)
    (folder / "prices").write_text(json.dumps({"currency": "EUR", "prices": rows}))
    results = runs("nvd", 1.0, model_size="full") + runs("amd", seconds, model_size="full", **amd)
    return one_verdict(folder, results, "--prices", str(folder / "prices"), "--format", "json,md", *options)


def test_costs_and_saving_follow_from_rates_and_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict(tmp_path)["saving"]
    # 1e12 tokens / 8,192 a step x seconds a step x 8 GPUs x dollars an hour / 3600
    nvd, amd = (1e12 / TOKENS_A_STEP * seconds * 8 * price / 3600 for seconds, price in ((1.0, 3.0), (1.2, 1.8)))
    costs = [found[key]["value"] for key in ("cost_a", "cost_b")]
    assert costs == pytest.approx([nvd, amd], rel=0.005)
    assert (found["saved"]["value"], found["saved"]["unit"]) == (pytest.approx(costs[0] - costs[1]), "EUR")
    assert found["percent"]["value"] == pytest.approx(28, abs=0.6)  # 1 - 1.2 x 1.8 / 3
    # one price 25 % up, the other 25 % down: 1 - 0.72 x 1.25 / 0.75 and 1 - 0.72 x 0.75 / 1.25
    assert found["percent_range"] == pytest.approx((-20, 56.8), abs=1)
    text = " ".join(capsys.readouterr().out.split())
    assert "1 trillion tokens cost 58" in text and ",000 EUR on AMD Instinct MI300X" in text
    assert "AMD Instinct MI300X costs 28 % less; -20 to 57 % less if the prices are 25% off" in text
    assert "our contract, 2026-01-01" in (tmp_path / "compare.md").read_text()


def test_the_budget_scales_costs_and_not_the_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, many = (verdict(tmp_path, "--token-budget", text)["saving"] for text in ("1e12", "15e12"))
    assert many["cost_b"]["value"] == pytest.approx(15 * one["cost_b"]["value"], rel=1e-12)
    assert many["percent"]["value"] == pytest.approx(one["percent"]["value"], rel=1e-12)
    assert "15 trillion tokens" in " ".join(capsys.readouterr().out.split())


def test_the_dearer_side_is_said_to_cost_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict(tmp_path, seconds=2.0)  # 2.0 x 1.8 against 3.0: a fifth more
    assert found["saving"]["percent"]["value"] == pytest.approx(-20, abs=1)
    assert "AMD Instinct MI300X costs 20 % more; -28 to 100 % more" in " ".join(capsys.readouterr().out.split())


def test_without_a_price_nothing_is_said_and_the_reason_stands_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = verdict(tmp_path, prices={"NVIDIA H100 SXM 80GB": 3.0})["saving"]
    assert (found["saved"]["value"], found["percent_range"]) == (None, None)
    assert "no price of AMD Instinct MI300X" in found["saved"]["how"] and "tokens cost" not in capsys.readouterr().out


def test_what_cannot_be_compared_saves_nothing(tmp_path: Path) -> None:
    found = verdict(tmp_path, resolved_config__qkv_bias=True)
    assert (found["verdict"], found["saving"]) == ("not_comparable", None)
